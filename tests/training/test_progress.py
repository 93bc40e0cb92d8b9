"""What a run in training says: a line before the first step, and with no terminal a plain line now and then."""

import re

import pytest
import torch

import posattn
from posattn.model import ModelConfig
from posattn.training import Member, RunSpec, progress
from posattn.training.estimate import opening
from posattn.training.recipe import recipe

TINY = ModelConfig(3, embed=8, width=8)
SHORT = {"samples": 40, "epochs": 3, "batch": 15, "device": "cpu"}


def test_plain_lines_where_there_is_no_terminal(monkeypatch, capfd):
    monkeypatch.setattr(progress, "_EVERY", 0.0)  # after each step
    posattn.train("sum", TINY, **SHORT)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) >= 9
    assert re.fullmatch(r"epoch 0/3, time left: \d+ seconds?", lines[0])
    assert re.fullmatch(r"epoch 2/3, loss \d\.\d\de[-+]\d\d, time left: \d+ seconds?", lines[7])
    posattn.train("sum", TINY, progress=False, **SHORT)
    assert capfd.readouterr().err == ""


def test_a_short_run_is_quiet_unless_a_bar_is_asked_for(capfd):
    posattn.train("sum", TINY, **SHORT)
    assert capfd.readouterr() == ("", "")
    posattn.train("sum", TINY, progress=True, **SHORT)
    said = capfd.readouterr().err
    assert "3/3" in said and "time left" in said


def test_train_opens_with_networks_steps_and_time(posattn_command):
    options = ("--n=3", "--embed=8", "--width=8", "--samples=40", "--epochs=3", "--batch=15", "--device=cpu")
    code, shown, _ = posattn_command("train", "sum", "--members=2", *options, "--out=run")
    first = shown.splitlines()[0]
    assert code == 0
    assert first == "2 positional networks for sum, 9 steps: about 1 second on one CPU core as fast as those of an AMD EPYC."
    assert "steps" not in posattn_command("train", "sum", "--members=2", *options, "--out=run")[1]  # it is done


@pytest.mark.parametrize(("epochs", "epoch", "quicker"), [(2001, 0, True), (20, 0, False), (2001, 1000, False)])
def test_only_what_takes_long_names_a_quicker_way(epochs, epoch, quicker):
    spec = RunSpec(ModelConfig(8), recipe("paper", epochs=epochs), (Member("sort", 0, 1e-3),))
    line = opening(spec, torch.device("cpu"), epoch, 100, torch.get_num_threads())
    assert ("For a first look take --samples 2000 --epochs 20 (about " in line) == quicker
    assert (f" from epoch {epoch} of 2001:" in line) == bool(epoch)


def test_the_opening_counts_all_cores():
    said, before = [], torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        posattn.train("sum", TINY, members=2, announce=said.append, **SHORT)
    finally:
        torch.set_num_threads(before)
    assert " on 3 CPU cores as fast as " in said[0]
