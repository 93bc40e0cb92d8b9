"""Compiled programs are measured and drawn beside trained networks, and have no error."""

from dataclasses import replace

import pandas as pd
import torch

from posattn.experiments import EXPERIMENTS, Engine, Scales, Store, engine, report_on, reproduce
from posattn.experiments.compiled import compiled_name, compiled_rows


def test_programs_stand_beside_trained_networks_and_are_no_runs(tmp_path, monkeypatch):
    experiment = EXPERIMENTS["compiled-scale"]
    small = replace(experiment, grid=replace(experiment.grid, tasks=("sort",), n=(3,), seeds=1))
    store = Store(tmp_path / "store")
    outcome = reproduce(small, "smoke", tmp_path / "out", store, Engine(torch.device("cpu")))
    rows = outcome.rows[outcome.rows["metric"] == "mse"]
    assert set(rows["series"]) == {"positional", "scale-exact", "standard", "compiled"}
    assert (rows[rows["series"] == "compiled"]["value"] == 0).all()
    assert (rows[rows["series"] != "compiled"]["value"] > 0).all()
    assert outcome.figure.stat().st_size > 10_000
    monkeypatch.setattr(engine, "EXPERIMENTS", {small.name: small})
    monkeypatch.delattr(engine, "compiled_rows")  # what a store holds is not computed again
    (shown,), others = report_on(store, tmp_path / "report.html")
    assert shown.endswith("smoke scale, 3 of 3 runs") and not others
    again, _ = engine.held(small, "smoke", store)
    pd.testing.assert_frame_equal(again, outcome.rows, check_dtype=False)
    others = [small, replace(small, measure=Scales((1, 2))), replace(small, grid=replace(small.grid, n=(5,)))]
    assert len({compiled_name(each, "smoke") for each in others}) == 3


def test_every_task_has_a_program():
    rows = compiled_rows(replace(EXPERIMENTS["compiled-scale"], measure=Scales((1, 10), samples=50)), "paper")
    assert set(rows["task"]) == set(EXPERIMENTS["compiled-scale"].grid.tasks)
    errors = rows[rows["metric"] == "mse_over_c2"]
    assert errors["value"].max() < 1e-12 and len(errors) == 5 * 2
    assert (rows[rows["metric"] == "rounding"]["value"] == 1).all()


def test_a_compiled_khop_stands_beside_trained_ones_and_names_letters_that_they_cannot(tmp_path):
    experiment = EXPERIMENTS["compiled-khop"]
    assert (experiment.grid.n, experiment.grid.layers, experiment.compiled) == ((30,), (8,), True)
    small = replace(experiment, grid=replace(experiment.grid, n=(5,), seeds=1))
    outcome = reproduce(small, "smoke", tmp_path / "out", Store(tmp_path / "store"), Engine(torch.device("cpu")))
    rows = outcome.rows[(outcome.rows["metric"] == "accuracy_found") & (outcome.rows["hops"] == "all")]
    shares = rows.groupby(["series", "domain"])["value"].median().unstack()
    assert shares.loc["compiled"].tolist() == [1, 1] and len(shares) == 5
    assert (shares.drop("compiled")["ood"] < 1).all()
