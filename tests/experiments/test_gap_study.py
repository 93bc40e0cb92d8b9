"""Gaps and bounds of real runs, and the figure of them."""

import itertools

import pandas as pd
import pytest

import posattn
from posattn.experiments import EXPERIMENTS
from posattn.experiments.gap_study import Gaps


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


def _made(networks):
    """Rows of made-up numbers, each of its own: of (series, layers, lists) per network."""
    metrics = ("gap", "positional bound", "self-attention bound", "positional power", "self-attention power")
    made = []
    for (arch, layers, m), (k, metric) in itertools.product(networks, enumerate(metrics)):
        value = 1000.0 * (1 + (arch == "standard")) + 100 * k + 10 * layers + m / 100
        own = {"task": "sum", "series": arch, "arch": arch, "status": "ok", "metric": metric, "value": value}
        made.append(own | {"layers": layers, "samples": m})
    return pd.DataFrame(made).assign(split="test")


def _drawn(rows):
    shown = EXPERIMENTS["generalization-gap"].figure
    figure = shown.draw(rows, shown.medians(rows))[""]
    return figure, [{line.get_label(): line for line in axes.get_lines()} for axes in figure.axes]


def test_the_figure_shows_gap_and_bounds_against_lists_and_layers_and_the_powers():
    """Each line must be the one of its series, metric and axis."""
    figure, (by_lists, by_layers, powers) = _drawn(
        _made(itertools.product(("positional", "standard"), (1, 2, 4), (100, 300)))
    )
    own, other = "standard: self-attention bound, its own", "standard: positional bound for the same norms"
    assert list(by_lists["positional: measured"].get_xydata().flat) == [100, 1041, 300, 1043]  # of the deepest
    assert list(by_lists[own].get_ydata()) == [2241, 2243] and list(by_lists[other].get_ydata()) == [2141, 2143]
    assert list(by_layers["standard: measured"].get_xydata().flat) == [1, 2013, 2, 2023, 4, 2043]  # of the most lists
    assert list(by_layers["positional: positional bound, its own"].get_ydata()) == [1113, 1123, 1143]
    assert list(powers[own].get_ydata()) == [2413, 2423, 2443] and list(powers[other].get_ydata()) == [2313, 2323, 2343]
    assert not any("measured" in name for name in powers)
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "log", "linear"]


def test_the_figure_says_which_powers_theory_allows_and_all_its_words_lie_within_it():
    figure, (_, _, powers) = _drawn(_made(itertools.product(("positional", "standard"), (1, 2, 4), (100, 300))))
    axes, (legend,) = figure.axes[2], figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert len(named) == len(set(named)) == 8
    for name, drawn in (
        ("p = 2L: the most for the self-attention bound of L layers", [1, 2, 2, 4, 4, 8]),
        ("p = 2: the most for the positional bound of any depth", [1, 2, 2, 2, 4, 2]),
    ):
        assert name in named and list(powers[name].get_xydata().flat) == drawn
    figure.draw_without_rendering()
    assert [text.get_text() for text in axes.texts] == ["p = 2L", "p = 2"]
    assert all(axes.bbox.contains(*corner) for text in axes.texts for corner in text.get_window_extent().get_points())


def test_the_panels_over_layers_are_of_the_most_lists_that_every_series_has_at_every_depth():
    every = list(itertools.product(("positional", "standard"), (1, 2, 4), (100, 300)))
    missing = [network for network in every if network != ("standard", 4, 300)]
    figure, (_, by_layers, powers) = _drawn(_made(missing))
    assert figure.axes[1].get_title() == "cumulative sum: 100 lists"
    assert list(by_layers["standard: measured"].get_xydata().flat) == [1, 2011, 2, 2021, 4, 2041]
    assert list(powers["standard: self-attention bound, its own"].get_ydata()) == [2411, 2421, 2441]
    apart = [network for network in missing if network != ("positional", 4, 100)]  # no number of lists has all
    figure, (_, by_layers, _) = _drawn(_made(apart))
    assert figure.axes[1].get_title() == "cumulative sum: 300 lists"
    assert list(by_layers["standard: measured"].get_xdata()) == [1, 2]
