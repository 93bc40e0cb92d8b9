"""The Ray engine on a real cluster of two nodes: the local engine's rows, also where a node is lost half-way."""

import os
import re
import sys

import pytest
import torch

from posattn import cli
from posattn.errors import UsageError
from posattn.experiments import Engine, RayEngine, Scales, Store
from posattn.model import ModelConfig
from posattn.training import Member, Recipe, RunSpec, checkpoints, files, load, train_spec

ray = pytest.importorskip("ray")

CPU = torch.device("cpu")
MEASURE = Scales((1, 2), samples=20, train=True)


def ensemble(arch="positional", epochs=3, task="sum", **changes):
    config = ModelConfig(2, arch, embed=8, width=8)
    members = tuple(Member(task, seed, 1e-3) for seed in range(2))
    return RunSpec(config, Recipe(samples=20, epochs=epochs, batch=20), members, **changes)


def contents(store, *patterns):
    return {
        path.relative_to(store.root): path.read_bytes() for pattern in patterns for path in store.root.glob(pattern)
    }


def numbers(store):
    """All that two engines must agree on, bit for bit."""
    return contents(store, "rows/*.csv.gz", "runs/*/weights.safetensors", "runs/*/history.csv")


@pytest.fixture
def local(tmp_path):
    """A function that gives the local engine's numbers."""

    def run(specs, measure=MEASURE):
        store = Store(tmp_path / "local")
        Engine(CPU, progress=False).run(specs, measure, store)
        return numbers(store)

    return run


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture(scope="module")
def cluster():
    """Two nodes that say they have two cores each, and the second a GPU."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # A dead node refuses connections at once; a busy one has twenty seconds.
        health = {"health_check_period_ms": 500, "health_check_timeout_ms": 5000, "health_check_failure_threshold": 4}
        own = {"num_cpus": 2, "object_store_memory": 80 * 1024**2}
        cluster = Cluster(initialize_head=True, head_node_args=own | {"_system_config": health})
        cluster.second = cluster.add_node(num_gpus=1, **own)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def joined(cluster):
    """The same for a program that is part of the cluster already, which keeps its workers from call to call."""
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "address is '127.0.0.1:1', where no Ray cluster answers; start one with ray start."),
        ("nowhere", "address is 'nowhere'; it must be auto, or host:port of a Ray cluster."),
        ("ray://head:10001", "address is 'ray://head:10001'; it must be auto, or host:port of a Ray cluster."),
    ],
)
def test_a_bad_address_is_one_sentence(store, address, message):
    with pytest.raises(UsageError) as error:
        RayEngine(address).run([ensemble()], MEASURE, store)
    assert str(error.value) == message and not store.root.exists()


def test_bad_settings_are_refused():
    with pytest.raises(UsageError, match=r"^gpus is 1\.5; it must be from 0 to 1, or a whole number\.$"):
        RayEngine(gpus=1.5)
    with pytest.raises(UsageError, match=r"^cpus is 0; "):
        RayEngine(cpus=0)
    with pytest.raises(UsageError, match=r"^retries is -1; "):
        RayEngine(retries=-1)


def test_without_ray_the_extra_is_named(monkeypatch, store):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"install it with pip install 'posattn\[ray\]'\.$"):
        RayEngine().run([ensemble()], MEASURE, store)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "slurm"], "engine is 'slurm'; it must be one of local, ray."),
        (["--engine", "ray", "--device", "cpu"], "device is 'cpu'; with engine ray it follows from gpus-per-task."),
        (["--address", "auto"], "address is 'auto'; only engine ray takes one."),
    ],
)
def test_the_command_refuses_what_does_not_go_together(options, message):
    with pytest.raises(UsageError) as error:
        cli.app(["reproduce", "fix-scale", *options], standalone_mode=False)
    assert str(error.value) == message


def leave_a_checkpoint(spec, folder):
    """As a run that was stopped in its second epoch leaves it, after what it says were a thousand seconds."""

    def stop(epoch):
        if epoch == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train_spec(spec, CPU, folder, save_every=0, report=stop)
    state = checkpoints.load(folder, spec.digest)
    checkpoints.clear(folder)
    checkpoints.save(folder, spec.digest, 1, state | {"seconds": torch.tensor(1000.0)})


def test_runs_and_rows_are_the_local_engines(cluster, store, local):
    """With two threads against one, from a checkpoint of the local engine, and beside another process."""
    said, specs = [], [ensemble(), ensemble("standard", task="min"), ensemble("scale-exact")]
    leave_a_checkpoint(specs[1], store.folder(specs[1]))
    files.write_json(store.folder(specs[2]) / "run.json", specs[2].to_dict())
    with files.sole_user(store.folder(specs[2]) / "run.json"):
        elsewhere = RayEngine(cluster.address, cpus=2, announce=said.append).run(specs, MEASURE, store)
    assert elsewhere == specs[2:] and not list(store.folder(specs[2]).glob("weights*"))
    assert numbers(store) == local(specs[:2])
    assert load(store.folder(specs[1])).result["seconds"] >= 1000 > load(store.folder(specs[0])).result["seconds"]
    assert said[0] == "positional, n = 2: 2 models: 3 epochs of 20 lists"
    assert not [path for path in store.root.rglob("*") if path.name.startswith((".", "checkpoint"))]


def test_the_second_time_it_only_measures(joined, store, local):
    specs = [ensemble()]
    RayEngine(joined.address).run(specs, MEASURE, store)
    before = {path: path.stat().st_mtime_ns for path in store.root.glob("runs/*/*")}
    wider = Scales((1, 5), samples=30)
    RayEngine(joined.address).run(specs, wider, store)
    assert {path: path.stat().st_mtime_ns for path in store.root.glob("runs/*/*")} == before
    local(specs)
    assert numbers(store) == local(specs, wider)


def test_an_error_in_a_task_comes_back_after_the_others_are_done(joined, store):
    """On a share of a GPU, which here is only said to be there."""
    good, bad = ensemble(), ensemble("standard", precision="tf32")
    with pytest.raises(UsageError, match=r"^precision is 'tf32', which only a GPU has; on the CPU it must be fp32\.$"):
        RayEngine(joined.address, gpus=0.25, cpus=0.5).run([bad, good], MEASURE, store)
    assert [path.name.split("-")[0] for path in store.root.glob("rows/*.csv.gz")] == ["positional"]
    with files.sole_user(store.folder(bad) / "run.json"):
        pass  # nothing is held any longer


def test_a_worker_lost_too_often_is_one_sentence(joined, store):
    class Deadly(Scales):
        def rows(self, run):
            os._exit(1)

    with pytest.raises(UsageError, match=r"^positional, n = 2: 2 models: its worker was lost more often than retries "):
        RayEngine(joined.address, retries=0).run([ensemble()], Deadly(), store)


def test_stopped_half_way_it_goes_on_with_either_engine(joined, store, local, capsys):
    spec = ensemble(epochs=300)

    def stop(line):
        if "epoch " in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RayEngine(joined.address, announce=stop, every=0.1, save_every=0).run([spec], MEASURE, store)
    assert "the same command goes on from the last checkpoints" in capsys.readouterr().err
    assert checkpoints.load(store.folder(spec), spec.digest) is not None
    Engine(CPU, progress=False).run([spec], MEASURE, store)
    assert numbers(store) == local([spec])


def test_the_command_runs_an_experiment_on_the_cluster(joined, tmp_path, capsys):
    options = ["--engine", "ray", "--address", joined.address, "--cpus-per-task", "0.5"]
    folders = ["--out", str(tmp_path / "out"), "--store", str(tmp_path / "store")]
    command = ["reproduce", "fix-scale", "--scale", "smoke", "--only", "positional", *folders]
    cli.app([*command, *options], standalone_mode=False)
    assert "positional, n = 8: 2 models: done" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    cli.app([*command, *options], standalone_mode=False)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")} == before
    assert "models" not in capsys.readouterr().out


def test_a_lost_nodes_ensembles_go_on_elsewhere(joined, store, local):
    """The second node is killed when one ensemble is done and another is half-way there. It must be the last test here."""
    specs = [ensemble(), ensemble("standard", epochs=300), ensemble("scale-exact", epochs=300)]
    second, said, finished = joined.second.node_id[:6], [], {}

    def times():
        """When every file of what is finished was written."""
        done = [path.parent.glob("*") for path in store.root.glob("runs/*/weights.json")] + [store.root.glob("rows/*")]
        return {path: path.stat().st_mtime_ns for paths in done for path in paths}

    def announce(line):
        said.append(line)
        there = re.match(rf"([\w-]+), .*: epoch \d+ of 300 on .*\({second}", line)
        half_way = there and any(store.root.glob(f"runs/{there[1]}-*/checkpoint-*.json"))
        if not finished and half_way and any(store.root.glob("rows/*.json")):
            finished.update(times())
            joined.remove_node(joined.second, allow_graceful=False)

    engine = RayEngine(joined.address, cpus=2, announce=announce, every=0.1, save_every=0)
    assert engine.run(specs, MEASURE, store) == []
    assert finished and numbers(store) == local(specs)
    assert finished.items() <= times().items()  # nothing finished was done again
    assert sum(line.endswith(": done") for line in said) == 3
    (lost,) = [place for place, line in enumerate(said) if "its worker was lost" in line]
    assert said[lost].endswith("it goes on from its last checkpoint on another")
    name = said[lost].split(",")[0]
    epochs = [int(found[1]) for line in said[lost:] if (found := re.match(rf"{name}, .*: epoch (\d+) of", line))]
    assert epochs[0] > 2 and second not in "".join(said[lost:])
