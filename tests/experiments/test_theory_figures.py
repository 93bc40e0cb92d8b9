"""Rows of the theory's figures: gaps and bounds of real runs, and a network that learns the minimum of integers."""

import itertools
from dataclasses import replace

import pandas as pd
import pytest
import torch

import posattn
from posattn.experiments import EXPERIMENTS, Engine, Store, reproduce
from posattn.experiments.declaration import Computed
from posattn.experiments.discrepancy import discrepancy_rows, learn_minimum
from posattn.experiments.gap_figure import draw_gaps
from posattn.experiments.theory import Gaps, ood_probability_rows
from posattn.theory.discrepancy import sample_integers
from posattn.theory.ood import exact_probability


@pytest.fixture(scope="module", params=["positional", "standard"])
def rows(request):
    config = posattn.ModelConfig(4, request.param, embed=8, width=8, layers=3)
    run = posattn.train("sum", config, members=2, samples=30, epochs=3, batch=15, device="cpu")
    return run, Gaps(fresh=3000, cap=2.0).rows(run)


def test_the_gap_is_that_of_the_capped_error_on_training_and_fresh_lists(rows):
    run, table = rows
    for member in range(2):
        risks = []
        for count, split in ((30, "train"), (3000, "test")):
            x, y = posattn.task("sum").sample(count, n=4, seed=member, split=split)
            risks.append((run.predict(x)[member] - y).square().clamp(max=2.0).mean().item())
        own = table[(table["seed"] == member) & (table["metric"] == "gap")]
        assert own["value"].tolist() == pytest.approx([abs(risks[0] - risks[1])], abs=1e-5)


def test_bounds_are_the_models_and_their_powers_are_what_the_theory_says(rows):
    run, table = rows
    wide = table.pivot(index="seed", columns="metric", values="value")
    for kind in ("positional", "self-attention"):
        found = posattn.generalization_bound(run.model(1), samples=30, cap=2.0, attention=kind)
        assert wide[f"{kind} bound"][1] == pytest.approx(found.gap)
    assert (wide["gap"] < wide["positional bound"]).all() and (wide["gap"] > 0).all()
    x, y = posattn.task("sum").sample(3000, n=4, seed=1, split="test")
    assert wide["capped risk"][1] == pytest.approx(
        (run.predict(x)[1] - y).square().clamp(max=2.0).mean().item(), rel=1e-4
    )
    assert (wide["positional power"] <= 2).all()
    assert (wide["self-attention power"] > 4).all() and (wide["self-attention power"] <= 2 * 3 + 1e-9).all()


def test_the_figure_shows_gap_and_bounds_against_lists_and_layers_and_the_powers(monkeypatch, tmp_path):
    """Rows of made-up numbers: each line must be the one of its series, metric and axis."""
    made, metrics = [], ("gap", "positional bound", "self-attention bound", "positional power", "self-attention power")
    for a, arch in enumerate(("positional", "standard")):
        for layers, m, (k, metric) in itertools.product((1, 2, 4), (100, 300), enumerate(metrics)):
            value = 1000.0 * (a + 1) + 100 * k + 10 * layers + m / 100
            own = {"task": "sum", "series": arch, "arch": arch, "status": "ok", "metric": metric, "value": value}
            made.append(own | {"layers": layers, "samples": m})
    figures = []
    monkeypatch.setattr("posattn.experiments.gap_figure.save", lambda figure, path: figures.append(figure) or path)
    draw_gaps(pd.DataFrame(made), EXPERIMENTS["generalization-gap"], tmp_path)
    by_lists, by_layers, powers = ({line.get_label(): line for line in axes.get_lines()} for axes in figures[0].axes)
    own, other = "standard: self-attention bound, its own", "standard: positional bound for the same norms"
    assert list(by_lists["positional: measured"].get_xydata().flat) == [100, 1041, 300, 1043]  # of the deepest
    assert list(by_lists[own].get_ydata()) == [2241, 2243] and list(by_lists[other].get_ydata()) == [2141, 2143]
    assert list(by_layers["standard: measured"].get_xydata().flat) == [1, 2013, 2, 2023, 4, 2043]  # of the most lists
    assert list(by_layers["positional: positional bound, its own"].get_ydata()) == [1113, 1123, 1143]
    assert list(powers[own].get_ydata()) == [2413, 2423, 2443] and list(powers[other].get_ydata()) == [2313, 2323, 2343]
    assert not any("measured" in name for name in powers)
    assert [axes.get_yscale() for axes in figures[0].axes] == ["log", "log", "linear"]


def test_every_n_and_scale_of_figure_35_has_its_four_values():
    table = ood_probability_rows("smoke")
    assert len(table) == 5 * 9 * 4
    own = table[(table["n"] == 4) & (table["scale"] == 3)].set_index("metric")["value"]
    assert own["exact"] == exact_probability(4, 3) <= own["bound"] and own["simulated"] == pytest.approx(
        0.103, abs=0.03
    )


def test_a_network_of_the_class_learns_the_minimum_of_integers():
    """Four hidden units a layer, W_V = W_O = I: it gets below the discrepancy, and more training helps."""
    train, test = sample_integers(300, 4, 3), sample_integers(500, 4, 4, split="test")
    errors = []
    for steps in (1, 300):
        learned = learn_minimum(train, steps, restarts=8)
        assert learned.W_1.shape == (1, 2, 3, 4)
        errors.append(float((learned(test) - test.amin(dim=1)).abs().mean()))
    assert errors[1] < 0.3 * errors[0] and errors[1] < 0.2


def test_the_restart_that_is_kept_fits_best():
    train = sample_integers(100, 4, 3)
    alone = learn_minimum(train, 30, restarts=1)(train)
    best = learn_minimum(train, 30, restarts=12)(train)
    assert (best - train.amin(dim=1)).abs().mean() < (alone - train.amin(dim=1)).abs().mean()


def test_the_bound_of_appendix_g_is_above_its_discrepancy_whatever_m_is():
    wide = discrepancy_rows("smoke").pivot(index=["samples", "z"], columns="series", values="value")
    assert (wide["empirical discrepancy"] >= wide["the same of min and max alone"]).all()
    assert (wide["bound without its O(1/√m)"] > wide["empirical discrepancy"]).all()
    assert (wide["bound without its O(1/√m)"] > wide["test error of the trained network"]).all()


def test_rows_are_computed_once_and_damaged_ones_are_named(tmp_path):
    asked = []
    computed = Computed(lambda scale: asked.append(scale) or ood_probability_rows(scale), "a trial")
    trial = replace(EXPERIMENTS["ood-probability"], computed=computed)
    store = Store(tmp_path / "store")
    first, again = (reproduce(trial, "smoke", tmp_path / "out", store, Engine(torch.device("cpu"))) for _ in range(2))
    assert asked == ["smoke"]
    pd.testing.assert_frame_equal(first.rows, again.rows)
    (tmp_path / "store" / "computed" / "ood-probability-smoke.csv").write_text("")
    with pytest.raises(posattn.UsageError, match=r"ood-probability-smoke\.csv is damaged"):
        reproduce(trial, "smoke", tmp_path / "out", store, Engine(torch.device("cpu")))


@pytest.mark.parametrize("name", ["ood-probability", "discrepancy"])
def test_what_is_computed_trains_nothing_of_the_store(name):
    assert EXPERIMENTS[name].cells("paper") == [] and EXPERIMENTS[name].computed is not None
