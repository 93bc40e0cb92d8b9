"""The folder of a run: who may use it, when it is finished, and its checkpoints."""

import os
import subprocess
import sys

import pytest
import torch

import posattn
from posattn.errors import UsageError
from posattn.files import InUse
from posattn.run_folder import RunFolder
from posattn.training import Member, Recipe, RunSpec

TINY = posattn.ModelConfig(3, embed=8, width=8)
SHORT = {"samples": 20, "epochs": 2, "batch": 10, "device": "cpu"}
SPEC = RunSpec(TINY, Recipe(samples=20, epochs=2, batch=10), (Member("sum", 0, 5e-4),))
DONE = ["history.csv", "run.json", "weights.json", "weights.safetensors"]


def names(folder):
    return sorted(os.listdir(folder))


# Who may use it.

HOLD = "import sys; from posattn.files import lock; from pathlib import Path\n"
HOLD += "with lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


def test_a_second_process_in_the_same_folder_is_told_so_and_a_killed_one_holds_nothing(tmp_path):
    busy = RunFolder(tmp_path / "busy")
    busy.describe(SPEC)
    command = [sys.executable, "-c", HOLD, str(tmp_path / "busy" / "lock")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InUse, match=r"^another process is using .*busy; wait for it or give another folder\.$"):
            posattn.train("sum", TINY, out=busy.path, **SHORT)
        assert names(busy.path) == ["lock", "run.json"]
    finally:
        holder.kill()
        holder.communicate()
    assert posattn.train("sum", TINY, out=busy.path, **SHORT).status == ["ok"]
    assert names(busy.path) == DONE


TRAIN = """if True:
    import sys, torch, posattn
    torch.set_num_threads(1)
    config = posattn.ModelConfig(3, embed=8, width=8)
    settings = {"samples": 20, "epochs": 150, "batch": 10, "device": "cpu", "save_every": 0.2}
    print("ready", flush=True)
    for line in sys.stdin:
        seed, out = line.rstrip().split(" ", 1)
        try:
            posattn.train("sum", config, seed=int(seed), out=out, **settings)
            print("trained", flush=True)
        except posattn.UsageError as error:
            print(error, flush=True)
"""


@pytest.fixture(scope="module")
def two_processes():
    command = [sys.executable, "-c", TRAIN]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
    yield both
    for process in both:
        process.communicate(timeout=60)


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)], ids=["the same run", "two runs"])
def test_of_two_processes_that_begin_in_a_new_folder_at_once_one_trains(two_processes, tmp_path, seeds):
    out = tmp_path / "new" / "run"
    for process, seed in zip(two_processes, seeds, strict=True):
        process.stdin.write(f"{seed} {out}\n")
        process.stdin.flush()
    said = [process.stdout.readline() for process in two_processes]
    first = said.index("trained\n")
    refused = [f"another process is using {out}; wait for it or give another folder.\n"]
    if seeds[0] != seeds[1]:  # or the description was there already
        refused.append(f"out is '{out}', which holds another run (its members[0].seed is ")
    assert said[1 - first].startswith(tuple(refused))
    assert names(out) == DONE
    run = posattn.load(out)
    assert run.spec.members[0].seed == seeds[first] and len(run.history) == 150
    alone = posattn.train("sum", TINY, seed=seeds[first], **SHORT | {"epochs": 150})
    assert torch.equal(run.parameters.flat, alone.parameters.flat)


def test_a_claimed_folder_is_the_runs_and_the_lock_goes_when_it_is_finished(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert folder.kind is None
    with folder.claim(SPEC) as finished:
        assert not finished and folder.kind == "trained" and names(folder.path) == ["lock", "run.json"]
        with pytest.raises(InUse), RunFolder(folder.path).claim(SPEC):
            pass
    assert names(folder.path) == ["lock", "run.json"]  # harmless: whoever comes next holds it
    with folder.claim(SPEC):
        folder.save(SPEC, {"w": torch.zeros(1)}, {"status": ["ok"]}, b"epoch\n")
    assert folder.finished and names(folder.path) == DONE
    with folder.claim(SPEC) as finished:  # to measure it
        assert finished
    assert names(folder.path) == DONE


def test_a_folder_with_nothing_but_a_lock_and_half_written_files_is_new(tmp_path):
    (tmp_path / "lock").touch()
    (tmp_path / ".run.json.1a.partial").write_text("{")
    posattn.train("sum", TINY, out=tmp_path, **SHORT)
    assert names(tmp_path) == DONE


def test_an_older_folder_that_was_never_locked_goes_on_and_loads(tmp_path):
    RunFolder(tmp_path).describe(SPEC)
    assert names(tmp_path) == ["run.json"]
    run = posattn.train("sum", TINY, out=tmp_path, **SHORT)
    assert names(tmp_path) == DONE and torch.equal(posattn.load(tmp_path).parameters.flat, run.parameters.flat)


@pytest.mark.parametrize("name", ["thesis.tex", ".movie.mkv.partial", "program.json"])
def test_a_folder_of_somebody_elses_files_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text("years of work")
    with pytest.raises(UsageError, match=r"^out is .*, which holds other files; give an empty or a new folder\.$"):
        posattn.train("sum", TINY, out=tmp_path, **SHORT)
    assert names(tmp_path) == [name]


# Checkpoints.


def steps(folder, spec=SPEC):
    state = folder.load_checkpoint(spec)
    return None if state is None else int(state["steps"])


def save(folder, count):
    folder.save_checkpoint(SPEC, count, {"steps": torch.tensor(count)})


def test_the_newest_whole_checkpoint_is_loaded_and_two_are_kept(tmp_path):
    folder = RunFolder(tmp_path)
    for count in (1, 20, 300):
        save(folder, count)
    assert sorted(path.stem for path in tmp_path.iterdir()) == [f"checkpoint-{k:010d}" for k in (20, 20, 300, 300)]
    assert steps(folder) == 300
    newest = tmp_path / "checkpoint-0000000300.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=rf"^{newest} is damaged: .+ used\.$"):
        assert steps(folder) == 20
    folder.clear_checkpoints()
    assert not names(tmp_path) and steps(folder) is None


def test_a_damaged_checkpoint_does_not_push_out_what_training_saves_afterwards(tmp_path):
    folder = RunFolder(tmp_path)
    for count in (90, 100):
        save(folder, count)
        path = folder.checkpoints()[0]
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.warns(UserWarning):
        assert steps(folder) is None
    save(folder, 10)  # started over
    assert steps(folder) == 10


def test_a_checkpoint_of_another_run_is_named_and_removed(tmp_path):
    folder, other = RunFolder(tmp_path), RunSpec(TINY, SPEC.recipe, (Member("sum", 1, 5e-4),))
    save(folder, 7)
    with pytest.warns(UserWarning, match=r"belongs to another run\. Training starts over\.$"):
        assert steps(folder, other) is None
    assert not names(tmp_path)


def test_the_newest_checkpoint_travels_once(tmp_path):
    here, there = RunFolder(tmp_path / "here"), RunFolder(tmp_path / "there")
    assert here.pack_checkpoint() == {}
    for count in (3, 4):
        save(here, count)
    packed = here.pack_checkpoint()
    assert next(iter(packed)) == "checkpoint-0000000004.safetensors" and len(packed) == 2
    assert here.pack_checkpoint(after=next(iter(packed))) == {}
    there.unpack(packed)
    assert steps(there) == 4
