"""Compiled programs are measured and drawn beside trained networks, and have no error."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from trials import grid_changed

from posattn.experiments import EXPERIMENTS, Engine, Scales, Store, declaration, engine, report_on, reproduce
from posattn.experiments.declaration import compiled_rows
from posattn.tasks import FIVE_TASKS

RESULTS = Path(__file__).parents[2] / "results" / "store"


def test_programs_stand_beside_trained_networks_and_are_no_runs(tmp_path, monkeypatch):
    experiment = EXPERIMENTS["compiled-scale"]
    small = grid_changed(experiment, tasks=("sort",), n=(3,), seeds=1)
    store = Store(tmp_path / "store")
    outcome = reproduce(small, "smoke", tmp_path / "out", store, Engine(torch.device("cpu")))
    rows = outcome.rows[outcome.rows["metric"] == "mse"]
    assert set(rows["series"]) == {"positional", "scale-exact", "standard", "compiled"}
    assert (rows[rows["series"] == "compiled"]["value"] == 0).all()
    assert (rows[rows["series"] != "compiled"]["value"] > 0).all()
    assert outcome.figure.stat().st_size > 10_000
    shutil.copytree(tmp_path / "store" / "rows", tmp_path / "bare" / "rows")
    drawn = reproduce(small, "smoke", tmp_path / "drawn", Store(tmp_path / "bare"), Engine(torch.device("cpu")), runs=0)
    pd.testing.assert_frame_equal(drawn.rows, outcome.rows, check_dtype=False)
    assert [path.name for path in (tmp_path / "bare").iterdir()] == ["rows"]  # who draws writes nothing into a store
    monkeypatch.setattr(engine, "EXPERIMENTS", {small.name: small})
    monkeypatch.delattr(declaration, "compiled_rows")  # what a store holds is not computed again
    (shown,), others = report_on(store, tmp_path / "report.html")
    assert shown.endswith("smoke scale, 3 of 3 runs") and not others
    again, _ = small.held("smoke", store).read()
    pd.testing.assert_frame_equal(again, outcome.rows, check_dtype=False)


@pytest.mark.parametrize("name", ["compiled-scale", "compiled-khop", "compiled-mixed"])
def test_stored_rows_of_programs_are_found_by_the_catalogue(name, monkeypatch):
    monkeypatch.delattr(declaration, "compiled_rows")
    rows, _ = EXPERIMENTS[name].held("paper", Store(RESULTS)).read()
    assert set(rows[rows["series"] == "compiled"]["task"]) == set(EXPERIMENTS[name].source.tasks)


def test_every_task_has_a_program():
    rows = compiled_rows(FIVE_TASKS, (8,), Scales((1, 10), samples=50))
    assert set(rows["task"]) == set(FIVE_TASKS)
    errors = rows[rows["metric"] == "mse_over_c2"]
    assert errors["value"].max() < 1e-12 and len(errors) == 5 * 2
    assert (rows[rows["metric"] == "rounding"]["value"] == 1).all()


def test_a_compiled_khop_stands_beside_trained_ones_and_names_letters_that_they_cannot(tmp_path):
    experiment = EXPERIMENTS["compiled-khop"]
    assert (experiment.source.n, experiment.source.layers, experiment.source.programs) == ((30,), (8,), True)
    small = grid_changed(experiment, n=(5,), seeds=1)
    outcome = reproduce(small, "smoke", tmp_path / "out", Store(tmp_path / "store"), Engine(torch.device("cpu")))
    rows = outcome.rows[(outcome.rows["metric"] == "accuracy_found") & (outcome.rows["hops"] == "all")]
    shares = rows.groupby(["series", "domain"])["value"].median().unstack()
    assert shares.loc["compiled"].tolist() == [1, 1] and len(shares) == 5
    assert (shares.drop("compiled")["ood"] < 1).all()


def test_a_compiled_program_answers_all_mixed_tasks_beside_trained_networks():
    experiment = EXPERIMENTS["compiled-mixed"]
    assert experiment.source.programs and experiment.source.n == (23,)
    rows = compiled_rows(experiment.source.tasks, (23,), Scales((1, 10), samples=30))
    errors = rows[rows["metric"] == "mse"]
    assert len(errors) == 4 * 2 and set(errors["task"]) == set(experiment.source.tasks) and errors["value"].max() < 1e-24
    assert set(compiled_rows(("mixed-sum",), (23,), Scales((1,), samples=5))["task"]) == {"mixed-sum"}
