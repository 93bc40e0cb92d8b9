"""The Ray engine on a real cluster of two nodes: the local engine's rows, also where a node is lost half-way."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from posattn import cli
from posattn.errors import UsageError
from posattn.experiments import Engine, RayEngine, Scales, Store, engine_named, ray_engine
from posattn.model import ModelConfig
from posattn.network import own_network
from posattn.run_folder import RunFolder
from posattn.runs import load
from posattn.training import Member, Recipe, RunSpec, train_spec

pytestmark = pytest.mark.xdist_group("ray")  # one cluster on this machine: a second would be found by address auto


needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
CPU = torch.device("cpu")
MEASURE = Scales((1, 2), samples=20, train=True)
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "range_experiment.py"


def ensemble(arch="positional", task="sum"):
    members = tuple(Member(task, seed, 1e-3) for seed in range(2))
    return RunSpec(ModelConfig(2, arch, embed=8, width=8), Recipe(samples=20, epochs=3, batch=20), members)


def contents(store, *patterns):
    return {
        path.relative_to(store.root): path.read_bytes() for pattern in patterns for path in store.root.glob(pattern)
    }


def numbers(store):
    """All that two engines must agree on, bit for bit."""
    return contents(store, "rows/*.csv.gz", "runs/*/weights.safetensors", "runs/*/history.csv")


def times(paths):
    return {path: path.stat().st_mtime_ns for path in paths}


@pytest.fixture
def local(tmp_path):
    """A function that gives the local engine's numbers, computed by two threads."""

    def run(specs, measure=MEASURE):
        store = Store(tmp_path / "local")
        Engine(CPU).run(specs, measure, store)
        return numbers(store)

    torch.set_num_threads(2)
    yield run
    torch.set_num_threads(1)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@dataclass(frozen=True)
class Gate:
    """Ensembles that cannot end before it is open: until then each of their 200 steps takes 0.3 seconds."""

    folder: Path

    def ensemble(self, name):
        folder = self.folder

        class Gated(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.linear = nn.Linear(n, n)

            def forward(self, x):
                if x.device.type != "meta":
                    with open(folder / f"{name}-{os.getpid()}", "a") as calls:
                        calls.write(".")
                    if not (folder / "open").exists():
                        time.sleep(0.3)
                return self.linear(x)

        return RunSpec(own_network(name, Gated)(2), Recipe(samples=20, epochs=200, batch=20), (Member("sum", 0, 1e-3),))

    def open(self):
        (self.folder / "open").touch()

    def calls(self, name):
        """How often each process that trained the ensemble called its networks."""
        return [path.stat().st_size for path in self.folder.glob(f"{name}-*")]


@pytest.fixture
def gate(tmp_path):
    (tmp_path / "gate").mkdir()
    return Gate(tmp_path / "gate")


@pytest.fixture(scope="module")
def cluster():
    """Two nodes that say they have a core each, and the second a GPU."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # A dead node refuses connections at once; a busy one has twenty seconds. Workers wait for no other program's leave.
        settings = {
            "health_check_period_ms": 500,
            "health_check_timeout_ms": 5000,
            "health_check_failure_threshold": 4,
            "worker_niceness": 0,
        }
        own = {"num_cpus": 1, "object_store_memory": 80 * 1024**2, "include_log_monitor": False}
        cluster = Cluster(
            initialize_head=True, head_node_args=own | {"_system_config": settings, "include_dashboard": False}
        )
        cluster.second = cluster.add_node(num_gpus=1, **own)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def joined(cluster):
    """The same for a program that is part of the cluster already, which keeps its workers from call to call."""
    import ray

    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    return cluster


@needs_ray
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "address is '127.0.0.1:1', where no Ray cluster answers; start one with ray start."),
        ("nowhere", "address is 'nowhere'; it must be auto, or host:port of a Ray cluster."),
        ("ray://head:10001", "address is 'ray://head:10001'; it must be auto, or host:port of a Ray cluster."),
    ],
)
def test_a_bad_address_is_one_sentence(address, message):
    with pytest.raises(UsageError) as error:
        RayEngine(address).check([], "fp32")
    assert str(error.value) == message


def test_bad_settings_are_refused():
    with pytest.raises(UsageError, match=r"^gpus is 1\.5; it must be from 0 to 1, or a whole number\.$"):
        RayEngine(gpus=1.5)
    with pytest.raises(UsageError, match=r"^cpus is 0; "):
        RayEngine(cpus=0)
    with pytest.raises(UsageError, match=r"^retries is -1; "):
        RayEngine(retries=-1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "slurm"}, "engine is 'slurm'; it must be one of local, ray."),
        ({"name": "ray", "device": "cpu"}, "device is 'cpu'; with engine ray it follows from gpus-per-task."),
        ({"name": "local", "address": "auto"}, "address is 'auto'; only engine ray takes one."),
        ({"name": "local", "gpus_per_task": 0.5}, "gpus-per-task is 0.5; only engine ray takes one."),
        ({"name": "local", "cpus_per_task": 2.0}, "cpus-per-task is 2.0; only engine ray takes one."),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(UsageError) as error:
        engine_named(**settings)
    assert str(error.value) == message


def test_engines_by_name():
    ray = engine_named("ray", address="auto", gpus_per_task=0.5)
    assert (ray.address, ray.gpus, ray.cpus) == ("auto", 0.5, 1) and engine_named("local", device="cpu").device == CPU


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path):
    """In one sentence, before anything is laid out."""
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ["reproduce", "fix-scale", "--scale", "smoke", "--engine", "ray", "--out", str(tmp_path / "out")]
    with pytest.raises(UsageError) as error:
        cli.app([*command, "--store", str(tmp_path / "store")], standalone_mode=False)
    assert str(error.value) == "ray is not installed; install it with pip install 'posattn[ray]'."
    assert not (tmp_path / "store").exists()


def test_what_others_train_is_waited_for_in_one_line_and_without_a_cluster(store):
    said, spec = [], ensemble()
    engine = RayEngine(announce=said.append)
    with RunFolder(store.folder(spec)).claim(spec):
        for _ in range(2):
            assert engine.run([spec], MEASURE, store) == [spec]
    assert said == [
        "positional, n = 2: 2 models: 3 epochs of 20 lists: another process is training these; waiting for it."
    ]


def test_the_command_runs_a_file_of_ones_own_on_the_cluster(cluster, tmp_path, capsys, tables):
    """Its task and its encoding are rows that only the command's own process has."""
    options = ["--engine", "ray", "--address", cluster.address, "--cpus-per-task", "0.5"]
    folders = ["--out", str(tmp_path / "out"), "--store", str(tmp_path / "store")]
    command = ["reproduce", str(EXAMPLE), "--scale", "smoke", *folders, *options]
    command += ["--only", "scale-exact, polynomial"]
    cli.app(command, standalone_mode=False)
    assert "1/1 scale-exact, n = 8: 2 models: done" in capsys.readouterr().out
    assert list((tmp_path / "store").glob("runs/*/answers.json"))  # by which its function is known again
    before = times((tmp_path / "store").rglob("*"))
    tables()
    cli.app(command, standalone_mode=False)
    assert times((tmp_path / "store").rglob("*")) == before
    assert "models" not in capsys.readouterr().out


def leave_a_checkpoint(spec, folder):
    """As a run that was stopped in its second epoch leaves it, after what it says were a thousand seconds."""

    def stop(epoch):
        if epoch == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train_spec(spec, CPU, folder, save_every=0, report=stop)
    own = RunFolder(folder)
    state = own.load_checkpoint(spec)
    own.clear_checkpoints()
    own.save_checkpoint(spec, 1, state | {"seconds": torch.tensor(1000.0)})


def test_runs_and_rows_are_the_local_engines(joined, store, local):
    """With one thread against two, from a checkpoint of the local engine, and beside another process."""
    said, specs = [], [ensemble(), ensemble("standard", task="min"), ensemble("scale-exact")]
    leave_a_checkpoint(specs[1], store.folder(specs[1]))
    with RunFolder(store.folder(specs[2])).claim(specs[2]):
        elsewhere = RayEngine(joined.address, announce=said.append).run(specs, MEASURE, store)
    assert elsewhere == specs[2:] and not list(store.folder(specs[2]).glob("weights*"))
    assert numbers(store) == local(specs[:2])
    assert load(store.folder(specs[1])).result["seconds"] >= 1000 > load(store.folder(specs[0])).result["seconds"]
    assert said[1] == "1/2 positional, n = 2: 2 models: 3 epochs of 20 lists"
    assert not [path for path in store.root.rglob("*") if path.name.startswith((".", "checkpoint"))]
    # The second time it only measures.
    before, wider = times(store.root.glob("runs/*/*")), Scales((1, 5), samples=30)
    RayEngine(joined.address).run(specs[:1], wider, store)
    assert times(store.root.glob("runs/*/*")) == before
    local(specs[:2])
    assert numbers(store) == local(specs[:1], wider)


def test_an_error_in_a_task_comes_back_after_the_others_are_done(joined, store):
    class Choosy(Scales):
        def rows(self, run):
            if run.spec.model.arch == "standard":
                raise UsageError("arch is 'standard'; it must be another.")
            return super().rows(run)

    said, good, bad = [], ensemble(), ensemble("standard")
    with pytest.raises(UsageError, match=r"^arch is 'standard'; it must be another\.$"):
        RayEngine(joined.address, announce=said.append).run([bad, good], Choosy(), store)
    assert "1/2 standard, n = 2: 2 models: failed: arch is 'standard'; it must be another." in said
    assert [path.name.split("-")[0] for path in store.root.glob("rows/*.csv.gz")] == ["positional"]
    with RunFolder(store.folder(bad)).claim(bad):
        pass  # nothing is held any longer


def test_a_node_of_another_version_is_one_sentence(joined, store, monkeypatch):
    monkeypatch.setattr(ray_engine, "code", lambda: "9.9 (of the driver)")
    with pytest.raises(
        UsageError, match=r" has posattn \d.*; every node needs the driver's posattn, which is 9\.9 \(of "
    ):
        RayEngine(joined.address).run([ensemble()], MEASURE, store)


def test_a_node_without_the_package_says_so(monkeypatch):
    work = ray_engine.task_function()
    monkeypatch.setitem(sys.modules, "posattn.experiments.ray_engine", None)
    monkeypatch.delattr("posattn.experiments.ray_engine")
    with pytest.raises(ImportError, match=r" cannot import .*; every node needs the driver's posattn, which is \d"):
        work(b"", None)


def test_a_module_that_the_nodes_lack_is_one_sentence(joined, store, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("from posattn.experiments import Scales\nclass Own(Scales): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    with pytest.raises(UsageError, match=r" cannot import what a task needs \(No module named 'only_here'\); "):
        RayEngine(joined.address).run([ensemble()], only_here.Own(), store)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU of the second node is only said to be there")
def test_a_share_of_a_gpu_that_pytorch_cannot_use_is_one_sentence(joined, store):
    with pytest.raises(UsageError, match=r"^the task has a GPU of .*, where PyTorch finds none; give it 0 GPUs\.$"):
        RayEngine(joined.address, gpus=0.25, cpus=0.5).run([ensemble()], MEASURE, store)


def test_stopped_half_way_it_goes_on_with_either_engine(joined, store, local, gate, capsys):
    """By Ctrl-C, then, gone on with, by SIGTERM, each time after a checkpoint newer than the last."""
    spec, kept = gate.ensemble("stopped"), set()
    for number, end in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):

        def stop(line, number=number):
            if ": epoch " in line:
                signal.raise_signal(number)

        with pytest.raises(end):
            RayEngine(joined.address, announce=stop, every=0.1).run([spec], MEASURE, store)
        assert "the same command goes on from the last checkpoints" in capsys.readouterr().err
        assert RunFolder(store.folder(spec)).load_checkpoint(spec) is not None
        newest = max(path.name for path in store.folder(spec).glob("checkpoint-*.json"))
        assert all(newest > name for name in kept)
        kept.add(newest)
    gate.open()
    Engine(CPU).run([spec], MEASURE, store)
    assert numbers(store) == local([spec])


def test_a_lost_nodes_ensembles_go_on_elsewhere(joined, store, local, gate):
    """The second node is killed when one ensemble is done and another is half-way there; no later test here may need it."""
    specs = [ensemble(), gate.ensemble("one"), gate.ensemble("other")]
    second, said, finished = joined.second.node_id[:6], [], {}

    def written():
        """When every file of what is finished was written."""
        done = [path.parent.glob("*") for path in store.root.glob("runs/*/weights.json")] + [store.root.glob("rows/*")]
        return times(path for paths in done for path in paths)

    def announce(line):
        said.append(line)
        there = re.match(rf"./3 (\w+), .*: epoch \d+ of 200 on .*\({second}", line)
        half_way = there and any(store.root.glob(f"runs/{there[1]}-*/checkpoint-*.json"))
        if not finished and half_way and any(store.root.glob("rows/*.json")):
            finished.update(written())
            joined.remove_node(joined.second, allow_graceful=False)
        elif "its worker was lost" in line:
            gate.open()  # not before: a worker outlives its node by a moment, in which it could still end

    engine = RayEngine(joined.address, announce=announce, every=0.1, save_every=0.2)
    assert engine.run(specs, MEASURE, store) == []
    (lost,) = [place for place, line in enumerate(said) if "its worker was lost" in line]
    name = re.match(r"./3 (\w+), n = 2: 1 model: its worker was lost; it goes on from its last checkpoint", said[lost])[
        1
    ]
    assert sum(line.endswith(": done") for line in said) == 3 and second not in "".join(said[lost:])
    assert finished.items() <= written().items()  # nothing finished was done again
    before, again = sorted(gate.calls(name))  # the worker that was lost, and the one that went on
    assert numbers(store) == local(specs)
    assert again < max(gate.calls(name)) <= before + again


def test_a_worker_lost_too_often_is_one_sentence(joined, store):
    class Deadly(Scales):
        def rows(self, run):
            os._exit(1)

    with pytest.raises(UsageError, match=r"^positional, n = 2: 2 models: its worker was lost more often than retries "):
        RayEngine(joined.address, retries=0).run([ensemble()], Deadly(), store)


LISTEN = """if True:
    import os, re, sys
    from pathlib import Path
    from posattn.experiments.ray_engine import _joined, load_ray

    def parent(pid):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def family():
        found, pids = {os.getpid()}, [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        for _ in range(4):
            found |= {pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and parent(pid) in found}
        return found

    def sockets(pid):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            if path.is_symlink() and (match := re.fullmatch(r"socket:\\[(\\d+)\\]", os.readlink(path))):
                yield match[1]

    def listening():
        rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
        return {row[9]: row[1].rpartition(":")[0] for row in rows if row[3] == "0A"}

    with _joined(None):
        ray = load_ray()
        assert ray.get(ray.remote(lambda: 1).remote()) == 1
        bound = listening()
        print(*sorted(bound[inode] for pid in family() for inode in sockets(pid) if inode in bound))
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ and ray._private.ray_constants.ENABLE_RAY_CLUSTER
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}  # as /proc writes it


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@needs_ray
def test_ray_on_this_machine_alone_listens_to_this_machine_alone():
    """In a process of its own, since this one is part of a cluster."""
    told = {"env": os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", LISTEN], **told, timeout=200)
    ports = done.stdout.split()
    assert done.returncode == 0 and len(ports) >= 5, done.stderr  # driver, GCS, raylet, object manager, agent, workers
    assert set(ports) <= LOOPBACK
