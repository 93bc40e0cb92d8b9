"""The last steps of looped networks: near an exact network they find one, and a network that they would spoil is left alone."""

import math
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

import posattn
from posattn import ModelConfig, UsageError
from posattn.compiler.looped_programs import looped_program
from posattn.looped.looped_model import LoopedConfig
from posattn.metrics import relative_square
from posattn.training import Recipe
from posattn.training.parameters import Parameters
from posattn.training.polish import _Fit, _ways, polish
from posattn.training.workers import Workers


def _polish(parameters: Parameters, task: str, steps: int, n: int = 8) -> tuple[Parameters, list[bool]]:
    """After ``steps`` steps on a hundred lists of n, the same for all members."""
    members = len(parameters.flat)
    x, _ = posattn.task(task).sample(100, n=n)
    with Workers() as workers:
        return polish(parameters, x.expand(members, -1, -1), [posattn.task(task)] * members, steps, workers)


def _near(task: str, noise: float, **settings: object) -> Parameters:
    """The exact network for a task, all of whose weights but the logits are off by ``noise`` or so."""
    model = looped_program(task).float()
    config = replace(model.config, **settings)
    parameters = Parameters.of(config, {name: value[None] for name, value in model.named_parameters()})
    kept = parameters.mask("logits")
    drawn = torch.randn(kept.shape, generator=torch.Generator().manual_seed(0))
    parameters.flat[:, ~kept] += noise * drawn[~kept]
    return parameters


def _error(parameters: Parameters, task: str, n: int) -> float:
    x, y = posattn.task(task).sample(20, n=n, scale=10.0, split="test")
    with torch.no_grad():
        return relative_square(parameters.model(0)(x), y).item()


@pytest.mark.parametrize("task", ["sum", "min"])
def test_a_network_near_an_exact_one_becomes_exact_at_every_length(task):
    before = _near(task, 0.02)
    after, better = _polish(before, task, steps=14)
    assert better == [True]
    assert _error(before, task, 256) > 1e-3 and _error(after, task, 256) < 1e-9
    tables = [each.model(0).layers[0].attention.table() for each in (before, after)]
    assert torch.equal(*tables)  # no step moves the logits of a hardmax


@pytest.mark.parametrize("lengths", [(), (2, 4)])
def test_without_stay_shorter_lists_must_be_asked_for(lengths):
    """Every loop then changes every position: three of them can be right where one or two are not."""
    before = _near("sum", 0.02, stay=False)
    x, _ = posattn.task("sum").sample(100, n=8)
    with Workers() as workers:
        after, _ = polish(before, x[None], [posattn.task("sum")], 14, workers, lengths=lengths)
    assert _error(after, "sum", 8) < 1e-9
    assert all((_error(after, "sum", n) < 1e-9) == bool(lengths) for n in (2, 4, 256))


def test_with_stay_answers_to_a_shorter_list_are_the_first_of_a_longer_one():
    """So that lists of one length say all, and shorter ones would only be counted twice."""
    before = _near("maxsub", 0.02)
    x, _ = posattn.task("maxsub").sample(3, n=8)
    with torch.no_grad():
        long, short = before.model(0)(x), before.model(0)(x[:, :3])
    torch.testing.assert_close(long[:, :3], short)
    fit = _Fit(before, posattn.task("maxsub"), (2, 4))
    assert fit.answers(before.flat[0].double(), x.double(), None).shape == (3, 8)
    butterfly = Parameters.initial(ModelConfig(n=8, arch="looped", family="butterfly"), [0], torch.device("cpu"))
    fit = _Fit(butterfly, posattn.task("sort"), (2, 4))
    assert fit.answers(butterfly.flat[0].double(), x.double(), None).shape == (3, 8 + 2 + 4)


def test_maxsub_becomes_better_also_where_answers_are_small_beside_sums():
    """Numbers with mean -1: an error of a thousandth of the sum of 256 would be a third of the answer."""
    before = _near("maxsub", 0.01)
    after, _ = _polish(before, "maxsub", steps=7)
    assert _error(after, "maxsub", 256) < _error(before, "maxsub", 256) / 10
    x = torch.randn(10, 256, generator=torch.Generator().manual_seed(0)) - 1
    with torch.no_grad():
        errors = [
            relative_square(each.model(0)(x), posattn.task("maxsub").target(x)).item() for each in (before, after)
        ]
    assert errors[0] > 1 and errors[1] < 0.01


def test_a_move_does_not_undo_what_earlier_lists_taught(monkeypatch):
    """A network of one word, too small for maxsub, fits four lists at the cost of all others unless those are remembered."""
    before, x = _near("sum", 0.02), posattn.task("maxsub").sample(154, n=8)[0].double()
    many, few = x[:150], x[150:]
    rises = []
    for memory in (None, 0.0):
        if memory is not None:
            monkeypatch.setattr("posattn.training.polish._MEMORY", memory)
        fit = _Fit(before, posattn.task("maxsub"))
        monkeypatch.setattr(fit, "_lists_of", lambda number, *_: many if number < 9 else few)
        errors = [fit.error(fit.run(before.flat[0].double(), x, steps), many) for steps in (3, 4)]
        rises.append(errors[1] - errors[0])
    assert rises[0] < 0.01 < rises[1]


def test_attention_becomes_the_hardmax_of_what_it_was():
    parameters = _near("sum", 0.0)
    logits = parameters.named()[LoopedConfig.sharpened]
    logits.copy_(torch.tensor([0.1, 3.0, 0.2, -1.0, 2.9]))  # half of the weight is on r = -1
    after, better = _polish(parameters, "sum", steps=0)
    assert better == [True]
    assert after.model(0).layers[0].attention.table().detach().flatten().tolist() == [0, 1, 0, 0, 0]


def test_a_head_with_most_of_its_weight_on_the_sink_is_not_lost():
    """A third of its weight on r = -1 and values three times as large bring what the exact head does; only m is wrong."""
    parameters = _near("min", 0.0)
    named = parameters.named()
    named[LoopedConfig.sharpened].copy_(torch.tensor([-50.0, 0.0, -50.0, -50.0, math.log(2)]))
    named["layers.0.attention.W_V.weight"].mul_(3)
    after, better = _polish(parameters, "min", steps=0)
    assert better == [True]
    assert after.model(0).layers[0].attention.table().detach().flatten().tolist() == [0, 1, 0, 0, 0]
    assert _error(parameters, "min", 256) > 1e-2 and _error(after, "min", 256) < 1e-12


@pytest.mark.parametrize(("share", "looks", "values"), [(0.995, [0, 0, 0, 0, 1], 0.995), (0.98, [0, 1, 0, 0, 0], 0.02)])
def test_only_a_head_that_brings_nothing_stays_at_the_sink(share, looks, values):
    """Two hundredths of its weight on r = -1 are something; five thousandths are what softmax leaves of nothing."""
    parameters = _near("min", 0.0)
    logits = torch.tensor([-50.0, math.log(1 - share), -50.0, -50.0, math.log(share)])
    parameters.named()[LoopedConfig.sharpened].copy_(logits / parameters.config.sharpness)
    row = _Fit(parameters, posattn.task("min")).hardened(parameters.flat[0].double(), faithful=[True])
    after = Parameters(parameters.config, row[None].float())
    assert after.model(0).layers[0].attention.table().detach().flatten().tolist() == looks
    name = "layers.0.attention.W_V.weight"
    torch.testing.assert_close(after.named()[name], values * parameters.named()[name])


def test_every_head_is_fixed_in_the_way_that_is_best_for_it(monkeypatch):
    """One shares with the sink what it should not bring, the other what it should: neither way is right for both."""
    parameters = Parameters.initial(ModelConfig(n=8, arch="looped"), [0], torch.device("cpu"))
    shares = torch.tensor([[[1e-9, 1e-9, 1e-9, 0.05, 0.95]], [[1e-9, 0.3, 1e-9, 1e-9, 0.7]]])
    parameters.named()[LoopedConfig.sharpened].copy_(shares.log() / parameters.config.sharpness)
    fit, row = _Fit(parameters, posattn.task("sum")), parameters.flat[0].double()
    fixed = Parameters(parameters.config, fit.hardened(row, faithful=[False, True])[None].float())
    assert fixed.model(0).layer.attention.table().argmax(dim=-1).flatten().tolist() == [4, 1]
    name = "layers.0.attention.W_V.weight"
    first, second = (fixed.named()[name] / parameters.named()[name]).unflatten(1, (2, -1)).unbind(1)
    torch.testing.assert_close([first.mean(), second.mean()], [torch.tensor(1.0), torch.tensor(0.3)])
    ways, begun = iter([3.0, 2.0, 1.0, 4.0, 0.0, 9.0]), []  # the errors of the four ways, then after and before
    monkeypatch.setattr(_Fit, "error", lambda *_: next(ways))
    monkeypatch.setattr(_Fit, "run", lambda self, row, *_: begun.append(row) or row)
    _polish(parameters, "sum", steps=1)
    torch.testing.assert_close(begun[0], fit.hardened(row, faithful=[True, False]))


def test_damping_falls_to_its_least_value_and_no_further(monkeypatch):
    """What is solved has no smaller eigenvalue, though H has: values twice as large and outputs half as large are the same."""
    solved, cholesky = [], torch.linalg.cholesky_ex
    monkeypatch.setattr("torch.linalg.cholesky_ex", lambda matrix: solved.append(matrix) or cholesky(matrix))
    before = _near("sum", 0.02)
    _Fit(before, posattn.task("sum")).run(
        before.flat[0].double(), posattn.task("sum").sample(40, n=8)[0].double(), steps=8
    )
    least = [torch.linalg.eigvalsh(matrix)[0] / matrix.diagonal().mean() for matrix in solved]
    assert least[0] == pytest.approx(1e-3, rel=0.01) and min(least) == pytest.approx(1e-8, rel=0.01)


def test_what_it_would_spoil_stays_as_it_is():
    """A head with half of its weight on r = -1 and the larger half on r = -2 would forget every other number."""
    parameters = _near("sum", 0.0)
    logits = parameters.named()[LoopedConfig.sharpened]
    logits.copy_(torch.tensor([-50.0, 1.0, 1.1, -50.0, -50.0]))
    after, better = _polish(parameters, "sum", steps=0)
    assert better == [False] and torch.equal(after.flat, parameters.flat)


def test_members_are_polished_alone():
    one = _near("sum", 0.02)
    two = Parameters(one.config, torch.cat([one.flat, one.flat * 1.01]))
    together, _ = _polish(two, "sum", steps=2)
    alone, _ = _polish(one, "sum", steps=2)
    torch.testing.assert_close(together.flat[:1], alone.flat)


def test_large_networks_are_left_alone():
    config = ModelConfig(n=4, arch="looped", embed=32, width=64)
    parameters = Parameters.initial(config, [0], torch.device("cpu"))
    after, better = _polish(parameters, "sum", steps=1, n=4)
    assert better == [False] and after is parameters


def test_a_recipe_says_how_many_steps():
    run = posattn.train(
        "sum", ModelConfig(n=4, arch="looped", width=4), recipe=Recipe(samples=40, epochs=1, batch=20, polish=2)
    )
    assert isinstance(run.result["polished"][0], bool)
    plain = posattn.train("sum", ModelConfig(n=4), recipe=Recipe(samples=40, epochs=1, batch=20, polish=2))
    assert "polished" not in plain.result
    assert "polish" not in Recipe().to_dict() and Recipe(polish=2).to_dict()["polish"] == 2
    with pytest.raises(
        UsageError, match=r"^the positional network has no loops; only looped networks have last steps \(polish\)\.$"
    ):
        posattn.train("sum", ModelConfig(n=4), polish=3)
    with pytest.raises(UsageError, match="polish is -1; it must be a whole number of at least 0"):
        Recipe(polish=-1)


def test_a_signal_ends_the_last_steps_at_once(tmp_path):
    """A real process in the middle of polishing, which writes nothing until it is done."""
    out = tmp_path / "run"
    program = (
        "import posattn; from posattn.training.recipe import recipe; "
        f"posattn.train('sum', posattn.ModelConfig(n=8, arch='looped'), samples=40, epochs=1, batch=20, device='cpu', "
        f"recipe=recipe('looped', polish=100_000), out={str(out)!r}, progress=False)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        wait_for = time.monotonic() + 60
        while not list(out.glob("checkpoint*")) and time.monotonic() < wait_for:
            time.sleep(0.1)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == -signal.SIGTERM
        assert list(out.glob("checkpoint*")) and not (out / "weights.json").exists()
    finally:
        process.kill()


def test_the_last_steps_are_counted_for_all_members(capsys):
    small = {"samples": 40, "epochs": 1, "batch": 20, "device": "cpu"}
    posattn.train("sum", ModelConfig(n=4, arch="looped", width=4), members=2, **small, polish=3, progress=True)
    shown = capsys.readouterr().err
    assert re.search(r"epoch 1/1 .*\n *last step 6/6 .* loss \d\.\d\de[-+]\d\d .* steps/s", shown)
    posattn.train("sum", ModelConfig(n=4, arch="looped", width=4), **small, recipe="paper", progress=True)
    assert "last step" not in capsys.readouterr().err


def test_steps_that_are_not_taken_count_as_done():
    """An exact network can become no better, whatever the damping."""
    exact, told = looped_program("sum"), []
    parameters = Parameters.of(exact.config, {name: value[None] for name, value in exact.named_parameters()})
    x = torch.ones(4, 8, dtype=torch.float64)
    fit = _Fit(parameters, posattn.task("sum"))
    after = fit.run(parameters.flat[0], x, 5, lambda steps, error: told.append((steps, error)))
    assert told == [(5, pytest.approx(0, abs=1e-30))] and torch.equal(after, parameters.flat[0])


def _fit_of(looks=None, **settings):
    parameters = Parameters.initial(ModelConfig(n=8, arch="looped", width=8, **settings), [0], torch.device("cpu"))
    if looks is not None:
        parameters.named()[LoopedConfig.sharpened].copy_(torch.nn.functional.one_hot(torch.tensor(looks), 5)[:, None])
    fit = _Fit(parameters, posattn.task("sum"))
    return fit, fit.hardened(parameters.flat[0].double(), faithful=[False, False])


@pytest.mark.parametrize(
    ("settings", "orders"),
    [
        ({"looks": [1, 0]}, 4),
        ({"looks": [4, 1]}, 4),
        ({"looks": [1, 2]}, 0),  # r = -2: a loop does not join neighbours
        ({"looks": [3, 1]}, 0),
        ({"looks": [1, 1], "stay": False}, 0),
        ({"family": "butterfly"}, 0),
    ],
)
def test_a_step_of_a_scan_that_stays_joins_in_two_other_orders_too(settings, orders, monkeypatch):
    fit, row = _fit_of(**settings)
    seen, equations = [], fit._normal_equations
    monkeypatch.setattr(fit, "_normal_equations", lambda *given: seen.append(given[-1]) or equations(*given))
    fit.run(row, posattn.task("sum").sample(40, n=8, seed=0)[0].double(), 2)
    assert len(seen) == 2 + orders and seen[0] is seen[1 + orders // 2] is None
    assert sum(order is not None for order in seen) == orders == len(set(seen) - {None})


def test_half_of_the_lists_of_a_move_are_the_worst_of_many_varied_ones(monkeypatch):
    fit, row = _fit_of()
    asked = []
    monkeypatch.setattr("posattn.training.polish.vary_lists", lambda lists, key: asked.append(2 * lists) or asked[-1])
    lists = posattn.task("sum").sample(440, n=8, seed=0)[0].double()
    taken = fit._lists_of(0, row, lists[:40], None)
    assert len(taken) == 40 and torch.equal(taken[:20], asked[0][:20])  # varied, not as they were
    many = asked[0][20:]
    assert len(many) == 200
    errors = [(fit.answers(row, some, None) - some.cumsum(dim=1)).square().sum(dim=1) for some in (many, taken[20:])]
    assert sorted(errors[1].tolist()) == pytest.approx(sorted(errors[0].tolist())[-20:])


def test_the_same_lists_are_varied_in_other_ways_by_another_move():
    fit, row = _fit_of()
    lists = posattn.task("sum").sample(40, n=8, seed=0)[0].double()
    first, later = (fit._lists_of(number, row, lists, None) for number in (0, 2))  # two moves on, all have been used
    assert not torch.equal(first, later) and torch.equal(first, fit._lists_of(0, row, lists, None))


@pytest.mark.parametrize(("heads", "count"), [(1, 2), (2, 4), (4, 16), (12, 2)])
def test_ways_of_hardening_are_few(heads, count):
    ways = {tuple(way) for way in _ways(heads)}
    assert len(ways) == count and {len(way) for way in ways} == {heads}
    assert {(False,) * heads, (True,) * heads} <= ways
