"""What a store must hold for an experiment to be on the report."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from posattn.errors import UsageError
from posattn.experiments import (
    EXPERIMENTS,
    Experiment,
    Grid,
    Lines,
    Scales,
    Store,
    View,
    report,
    report_on,
    reproduce,
    series,
)
from posattn.training import Recipe

SMALL = Recipe(samples=20, epochs=1, batch=20)
GRID = Grid(("sum",), series("positional", "scale-exact", "standard"), (2,), (20,), seeds=5, recipe=SMALL)
TRIAL = Experiment("trial", "nowhere", "a trial", GRID, Scales((1, 2), samples=20))


def test_one_run_of_every_line_is_a_figure_and_all_runs_of_one_line_are_none(tmp_path, engine, monkeypatch):
    other = replace(TRIAL, name="other", grid=replace(GRID, tasks=("min",)))
    monkeypatch.setattr("posattn.experiments.engine.EXPERIMENTS", {"trial": TRIAL, "other": other})
    store, page = Store(tmp_path / "store"), tmp_path / "report.html"
    reproduce(TRIAL, "paper", tmp_path / "trial", store, engine, only=["standard"])
    with pytest.raises(UsageError, match=r"too few for a figure \(trial, paper scale, 5 of 15 runs\)"):
        report_on(store, page)
    assert not page.exists()
    reproduce(other, "paper", tmp_path / "other", store, engine, runs=1)
    shown = "a trial (nowhere), paper scale, 3 of 15 runs"
    assert report_on(store, page) == ([f"other: {shown}"], ["trial, paper scale, 5 of 15 runs"])
    text = page.read_text(encoding="utf-8")
    assert f'<a href="#other-paper">other</a>: {shown}</li>' in text and text.count('id="other-paper"') == 1


def test_a_page_counts_the_runs_that_are_there_and_names_its_ensembles(tmp_path, engine):
    two = replace(
        TRIAL, reference="Figure 4", grid=replace(GRID, series=series("positional", "standard"), samples=(20, 40))
    )
    store = Store(tmp_path / "store")
    reproduce(two, "paper", tmp_path / "out", store, engine, only=["standard"])
    page = reproduce(two, "paper", tmp_path / "out", store, engine, runs=2).page.read_text(encoding="utf-8")
    assert "<p>Figure 4 of the paper, at paper scale. " in page
    assert "<td>14 of 20: 2, 5 a point</td>" in page  # positional, standard; two numbers of lists each
    assert all(f"{arch}, n = 2, 2 layers, one-hot encodings, width 64, {lists} lists</td>" in page
               for arch in ("positional", "standard") for lists in (20, 40))  # fmt: skip


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ({"split": "test", "scale": 4}, "trial has a panel of scale 4; it measures 1, 2."),
        ({"split": "train"}, "trial has a panel of training lists; it must measure them, with train = true."),
    ],
)
def test_panels_of_what_is_not_measured_are_refused(where, sentence):
    with pytest.raises(UsageError, match=f"^{sentence}$"):
        replace(TRIAL, shown=Lines("samples", (View("a panel", where),)))


def test_half_of_what_a_figure_draws_is_enough(tmp_path, engine, monkeypatch):
    half = replace(TRIAL, grid=replace(GRID, series=series("positional", "standard"), seeds=3))
    monkeypatch.setattr("posattn.experiments.engine.EXPERIMENTS", {"trial": half})
    store = Store(tmp_path / "store")
    reproduce(half, "paper", tmp_path / "trial", store, engine, only=["standard"], runs=1)
    (shown,), _ = report_on(store, tmp_path / "report.html")
    assert shown.endswith("1 of 6 runs")


def test_what_was_computed_is_on_the_report_and_what_was_not_is_not_computed_for_it(tmp_path, engine, monkeypatch):
    chosen = {name: EXPERIMENTS[name] for name in ("ood-probability", "discrepancy")}
    monkeypatch.setattr("posattn.experiments.engine.EXPERIMENTS", chosen)
    store = Store(tmp_path / "store")
    reproduce(chosen["ood-probability"], "smoke", tmp_path / "out", store, engine)
    (shown,), others = report_on(store, tmp_path / "report.html")
    assert shown.startswith("ood-probability") and shown.endswith("smoke scale, computed") and not others


def test_a_dash_stands_where_nothing_was_trained_and_nan_where_runs_failed():
    rows = [(1, "a", 0.5), (2, "a", float("nan")), (1, "b", 0.25)]
    summary = pd.DataFrame(rows, columns=["scale", "series", "median"]).assign(metric="mse", view="", task="sum")
    ((_, table),) = report.pivots(summary, Lines())
    assert table.loc[1].tolist() == [0.5, 0.25]
    assert math.isnan(table.loc[2, "a"]) and table.loc[2, "b"] == "-"
    assert report._cells(table)[1:] == [["1", "5.00e-01", "2.50e-01"], ["2", "nan", "-"]]
