"""Killed at any moment and started again by the same command, a run ends with the same bits."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import safetensors.torch
import torch

import posattn
from posattn import cli

OPTIONS = "--n 3 --embed 8 --width 8 --samples 60 --batch 20 --epochs 60 --members 2 --device cpu"
COMMAND = ["train", "sum", *OPTIONS.split()]

# The command leaves fields of ModelConfig at None, which their types do not say.


def start(folder, save_every):
    command = [sys.executable, "-m", "posattn", *COMMAND, "--out", str(folder), "--save-every", str(save_every)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def here(monkeypatch, folder, save_every=60):
    """The same command in this process, which spares the start of another."""
    options = ["--out", str(folder), "--save-every", str(save_every)]
    monkeypatch.setattr(sys, "argv", ["posattn", *COMMAND, *options])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 0


class Child:
    """A process of its own that begins as a copy of this one, which spares its imports."""

    def __init__(self, work):
        self.ended, self.number = None, os.fork()
        if self.number == 0:
            with open(os.devnull, "w") as nowhere:
                sys.stdout = sys.stderr = nowhere
                try:
                    work()
                except BaseException:
                    os._exit(3)
                os._exit(0)

    def poll(self, options=os.WNOHANG):
        """The exit code, negative where a signal ended it, or None while it runs."""
        if self.ended is None:
            number, status = os.waitpid(self.number, options)
            self.ended = os.waitstatus_to_exitcode(status) if number else None
        return self.ended

    def wait(self):
        return self.poll(0)


def newest(folder):
    """Steps of the newest checkpoint that has both its files, or -1."""
    steps = [int(path.stem.split("-")[1]) for path in folder.glob("checkpoint-*.json")]
    return max(steps, default=-1)


def wait(process, reached, limit=60.0):
    """Until ``reached()``; says whether the process is still there to be stopped."""
    end = time.monotonic() + limit
    while not reached():
        assert time.monotonic() < end, "nothing happened"
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    return True


def weights(folder):
    return safetensors.torch.load_file(folder / "weights.safetensors")


def assert_same_end(folder, reference):
    ours, theirs = weights(folder), weights(reference)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert (folder / "history.csv").read_bytes() == (reference / "history.csv").read_bytes()
    assert sorted(os.listdir(folder)) == ["history.csv", "run.json", "weights.json", "weights.safetensors"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        here(monkeypatch, folder)
    return folder


def test_killed_at_several_moments_it_ends_with_the_same_bits(reference, tmp_path, monkeypatch, capfd):
    folder, moments = tmp_path / "run", random.Random(4)
    for goal in (0, 20, 60):
        child = Child(partial(here, monkeypatch, folder, 0))
        assert wait(child, lambda goal=goal: (folder / "run.json").exists() and newest(folder) >= goal - 1)
        time.sleep(moments.uniform(0, 0.05))
        os.kill(child.number, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    capfd.readouterr()
    here(monkeypatch, folder)
    said = capfd.readouterr().err
    assert said.count("\n") <= 1  # of a checkpoint that was being written when it was killed, a sentence
    assert_same_end(folder, reference)


def at_file_operation(number, work):
    """Runs ``work`` in a child that is killed before its ``number``-th file operation; True if it was."""

    def until_then():
        remaining = number

        def deadly(operation):
            def perform(*args, **kwargs):
                nonlocal remaining
                remaining -= 1
                if remaining == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return operation(*args, **kwargs)

            return perform

        for name in ("mkdir", "fsync", "replace", "unlink"):
            setattr(os, name, deadly(getattr(os, name)))
        work()

    ended = Child(until_then).wait()
    assert ended in (0, -signal.SIGKILL)
    return ended != 0


@pytest.mark.filterwarnings("ignore")  # checkpoints that were being written
def test_killed_at_every_file_operation_it_ends_with_the_same_bits(tmp_path):
    def run(folder, save_every=60.0):
        config = posattn.ModelConfig(2, embed=4, width=4)
        return posattn.train(
            "sum", config, samples=6, batch=4, epochs=2, device="cpu", out=folder, save_every=save_every
        )

    whole = run(tmp_path / "whole")
    left, number = {}, 1
    while at_file_operation(number, partial(run, tmp_path / str(number), 0)):
        try:
            resumed = run(tmp_path / str(number))
            same = torch.equal(resumed.parameters.flat, whole.parameters.flat)
            other = {"history.csv", "run.json", "weights.json", "weights.safetensors"} ^ set(os.listdir(tmp_path / str(number)))
            if not same or other:
                left[number] = other or "other bits"
        except Exception as error:
            left[number] = repr(error)
        number += 1
    assert number > 40  # four checkpoints of two files in four operations each, and more
    assert left == {}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run stopped by SIGTERM midway, with two checkpoints. On a busy machine it may end before: then the next is stopped."""
    for _ in range(5):
        folder = tmp_path_factory.mktemp("stopped") / "run"
        process = start(folder, 0.05)
        wait(process, lambda folder=folder: newest(folder) >= 40)
        before = newest(folder)
        process.terminate()
        _, said = process.communicate(timeout=60)
        if process.returncode != 0:
            break
    return folder, process.returncode, said, before


def test_sigterm_leaves_a_checkpoint_and_the_run_goes_on_to_the_same_bits(
    stopped, reference, tmp_path, monkeypatch, capfd
):
    folder, code, said, before = stopped
    assert code == 128 + signal.SIGTERM == 143
    assert said.startswith("Stopped at epoch ") and said.count("\n") == 1
    assert newest(folder) >= before and len(list(folder.glob("checkpoint-*.json"))) == 2
    assert not (folder / "weights.json").exists()
    again = shutil.copytree(folder, tmp_path / "run")
    here(monkeypatch, again)
    assert capfd.readouterr().err == ""
    assert_same_end(again, reference)


# Ctrl-C comes while the 100th step is computed, however busy the machine is.
INTERRUPTED = """
import os, signal
from posattn import cli
from posattn.training.trainer import Trainer

step = Trainer._step

def interrupted(self, x, y):
    step(self, x, y)
    if self.steps_done == 99:
        os.kill(os.getpid(), signal.SIGINT)

Trainer._step = interrupted
cli.main()
"""


def test_ctrl_c_leaves_a_checkpoint_and_the_run_goes_on_to_the_same_bits(reference, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", INTERRUPTED, *COMMAND, "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 128 + signal.SIGINT == 130
    assert done.stderr == "Stopped at epoch 33 of 60; the same command goes on from there.\n"
    assert newest(folder) == 100  # written because of the signal: the interval of a minute was not over
    here(monkeypatch, folder)
    assert_same_end(folder, reference)


@pytest.mark.parametrize(
    "options",
    [
        ("evaluate", "RUN", "--scales=1", "--samples=20"),
        ("predict", "RUN", "1,2,3"),
        ("export", "RUN", "--torch=sum.pt2"),
        ("explore", "RUN", "--out=page.html"),
    ],
)
def test_an_unfinished_run_answers_from_its_last_checkpoint_and_says_so(stopped, posattn_command, options):
    before = sorted(os.listdir(stopped[0]))
    code, shown, said = posattn_command(*(stopped[0] if option == "RUN" else option for option in options))
    assert code == 0 and said.count("\n") == 1
    assert said.startswith(f"posattn: the run in {stopped[0]} is unfinished: its last checkpoint, at epoch ")
    assert "member 0 unfinished" in shown or options[0] != "evaluate"
    assert sorted(os.listdir(stopped[0])) == before


def damage(path, how):
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "altered":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :])
    else:
        path.unlink()


@pytest.mark.parametrize(
    ("suffix", "how"),
    [
        (".safetensors", "truncated"),
        (".safetensors", "altered"),
        (".json", "altered"),
        (".json", "empty"),
        (".json", "missing"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    stopped, reference, tmp_path, monkeypatch, capfd, suffix, how
):
    folder = shutil.copytree(stopped[0], tmp_path / "run")
    previous, last = sorted(folder.glob("checkpoint-*.safetensors"))
    damage(last.with_suffix(suffix), how)
    used = []
    load = posattn.training.Trainer.load_state_dict
    monkeypatch.setattr(
        posattn.training.Trainer,
        "load_state_dict",
        lambda self, state: (load(self, state), used.append(self.steps_done)),
    )
    here(monkeypatch, folder)
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and str(last.with_suffix(suffix)) in said and "Traceback" not in said
    assert used == [int(previous.stem.split("-")[1])]
    assert_same_end(folder, reference)


def test_with_every_checkpoint_damaged_it_starts_over_and_says_so(stopped, reference, tmp_path, monkeypatch, capfd):
    folder = shutil.copytree(stopped[0], tmp_path / "run")
    for path in folder.glob("checkpoint-*.safetensors"):
        damage(path, "truncated")
    here(monkeypatch, folder)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2 and all("is damaged" in line for line in said)
    assert "before it is used" not in said[-1]  # there is none
    assert_same_end(folder, reference)


def test_when_done_the_same_command_changes_nothing_and_is_quick(reference, monkeypatch, capfd):
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in reference.iterdir()}
    started = time.monotonic()
    here(monkeypatch, reference)
    assert time.monotonic() - started < 2
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in reference.iterdir()} == before
    assert "2 already trained in" in capfd.readouterr().out
