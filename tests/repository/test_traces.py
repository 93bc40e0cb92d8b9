"""Training on the variables of programs (benchmarks/traces.py): the targets are the programs', and the losses read them."""

import math
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import posattn
from posattn.compiler import interpreter

TRACES = runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "traces.py"))
SETTINGS, Plan, Readouts, Target = (TRACES[name] for name in ("SETTINGS", "Plan", "Readouts", "Target"))
SMALL = {"sort": 4, "maxsub": 4, "khop": 5}


def small(name):
    return replace(SETTINGS[name], n=SMALL[name])


@pytest.mark.parametrize("name", SETTINGS)
def test_programs_answer_their_tasks(name):
    for setting in (small(name), SETTINGS[name]):
        x, y = posattn.task(name).sample(100, n=setting.n, seed=3)
        found = interpreter.run(setting.built().tracing, setting.given(x))[..., 0]
        if name == "khop":  # letters count from 1, and 6 is ~
            y = y - posattn.task("khop").encode("0a")[1] + 1
            found, y = found[:, 1:], np.where((y >= 1) & (y <= 5), y, 6)[:, 1:]
            assert len(np.unique(y)) == 6
        np.testing.assert_allclose(found, y, atol=1e-5)


def test_targets_are_the_variables_of_every_round_but_the_last():
    setting = small("sort")
    x, _ = posattn.task("sort").sample(200, n=4)
    found = {(each.name, each.round): each for each in TRACES["targets"](setting, x)}
    assert {key[1] for key in found} == {1, 2} and setting.config().layers == 3
    partner = found["other", 1].values  # in the first round of a bitonic sort of four, neighbours exchange
    wanted = x[:, [1, 0, 3, 2]]
    torch.testing.assert_close(partner, (wanted - wanted.mean()) / wanted.std(), rtol=0, atol=1e-5)
    setting = small("khop")
    x, _ = posattn.task("khop").sample(200, n=5)
    found = {(each.name, each.round): each for each in TRACES["targets"](setting, x)}
    before = found["key", 1]
    assert before.classes == 6 and torch.equal(before.values[:, 2:], x[:, 1:-1] - posattn.task("khop").encode("0a")[1] + 1)


def test_the_loss_is_zero_where_states_hold_the_variables_and_a_guess_elsewhere():
    real, whole = torch.randn(7, 3), torch.randint(4, (7, 3))
    heads = Readouts(5, [Target("x", 1, 0, real), Target("k", 2, 4, whole)])
    states = [torch.zeros(7, 4, 5) for _ in range(3)]
    states[1][:, :3, 2] = real
    states[2][:, :3, :4] = 50 * torch.nn.functional.one_hot(whole, 4).float()
    rows = torch.arange(7)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.zero_()
        guess = heads.loss(states, rows).item()
        assert guess == pytest.approx((real.square().mean().item() + math.log(4)) / 2, rel=1e-5)
        heads.maps[0].weight[0, 2] = 1
        heads.maps[1].weight[:, :4] = torch.eye(4)
        assert heads.loss(states, rows).item() < 1e-6
        assert heads.loss(states, rows.flip(0)).item() > 1e-2  # rows say whose states they are


def test_ways_begin_alike_and_traces_are_learned():
    setting, plan = small("maxsub"), Plan(steps=0, samples=100, batch=50)
    fresh = [TRACES["train"](setting, 1, replace(plan, weight=weight))[0].state_dict() for weight in (0.0, 1.0)]
    assert all(torch.equal(a, b) for a, b in zip(*(each.values() for each in fresh), strict=True))
    _, first = TRACES["train"](setting, 1, replace(plan, steps=1))
    network, last = TRACES["train"](setting, 1, replace(plan, steps=60))
    assert last["variables"] < 0.5 * first["variables"] and last["answers"] < first["answers"]
    _, alone = TRACES["train"](setting, 1, replace(plan, steps=1, weight=0.0))
    assert alone["answers"] == first["answers"] and math.isnan(alone["variables"])
    scores = TRACES["tested"](setting, network, 1, 50)
    assert 0 < scores["mse, scale 1"] < scores["mse, scale 10"]


def test_the_share_of_letters_right_is_of_letters_alone():
    setting, task = SETTINGS["khop"], posattn.task("khop")
    answers_as = lambda answers: lambda x: 30.0 * torch.nn.functional.one_hot(answers(x), 40)  # noqa: E731
    scores = TRACES["tested"](setting, answers_as(task.target), 2, 400)
    assert scores["right"] == 1 and all(scores[f"right, k = {k}"] == 1 for k in range(4)) and scores["cross-entropy"] < 1e-6
    own = TRACES["tested"](setting, answers_as(lambda x: x), 2, 400)  # right where no hop is asked for
    assert own["right, k = 0"] == 1 and own["right, k = 1"] == 0 and 0.2 < own["right"] < 1
