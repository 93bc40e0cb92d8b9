"""The store's figures on the page."""

import numpy as np
import pandas as pd
import pytest

from posattn.experiments import EXPERIMENTS, Store, engine
from posattn.experiments.figures import Lines, View, published
from posattn.experiments.styles import STYLES
from posattn.explorer import results

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def one_experiment(monkeypatch):
    """Only fix-scale, with two tasks at smoke scale, in a store of made-up rows, and one that is computed."""
    chosen = {name: EXPERIMENTS[name] for name in ("fix-scale", "ood-probability")}
    monkeypatch.setattr(engine, "EXPERIMENTS", chosen)
    monkeypatch.setattr(results, "EXPERIMENTS", chosen)
    return chosen["fix-scale"]


def test_figures_hold_medians_bands_and_published_lines(one_experiment, tmp_path):
    """Rows of known values through the store: their median and percentiles come out, beside the published ones."""
    store, measure = Store(tmp_path), one_experiment.source.measure.at("smoke")
    for spec in Store(tmp_path / "plan").lay_out(one_experiment.cells("smoke")):
        made = [
            {"run": spec.identity(k), "task": member.task, "arch": spec.model.arch, "split": "test", "scale": scale}
            | {"metric": "mse", "value": scale * (1 + member.seed), "status": "ok"}
            for k, member in enumerate(spec.members)
            for scale in measure.factors
        ]
        store.write(spec, measure, pd.DataFrame(made), {"status": ["ok"] * len(spec.members), "hardware": "", "seconds": 1.0})
    store.computed("ood-probability-smoke", lambda: pd.DataFrame({"value": [1.0]}))  # level lines, which are not drawn
    drawn = results.figures_of(store)
    assert [(figure["name"], figure["scale"]) for figure in drawn] == [("fix-scale", "smoke")]
    panels = drawn[0]["panels"]
    own = next(line for line in panels[0]["series"] if line["label"] == "standard")
    seeds = 1 + np.arange(len({cell.member.seed for cell in one_experiment.cells("smoke")}))
    low, middle, high = np.quantile(seeds, [0.1, 0.5, 0.9])
    ours = np.array([[1.0, middle, low, high], [3.0, 3 * middle, 3 * low, 3 * high]])
    assert np.array(own["points"]) == pytest.approx(ours)
    known = published("fix-scale").query("split == 'test' and task == 'sum' and arch == 'standard'").sort_values("scale")
    assert [point[:2] for point in own["published"]] == known[["scale", "median"]].to_numpy().tolist()
    assert panels[0]["ylog"] and own["colour"] == STYLES["standard"][0]


def test_figures_of_several_views_name_them_and_the_one_they_open_with():
    """An opening view that is not there gives way to the first."""
    assert all(sum(view.opens for view in each.figure.views) <= 1 for each in EXPERIMENTS.values())
    drawn = {figure["name"]: figure for figure in results.figures_of(None)}
    sample = drawn["fix-sample"]
    assert sample["opens"] == "scale 3"
    views = [panel["view"] for panel in sample["panels"]]
    assert views == [view for view in ("training lists", "in distribution", "scale 3") for _ in range(5)]
    assert drawn["fix-scale"]["opens"] == ""  # its only view has no name


def test_shares_are_drawn_from_0_to_1_and_views_of_one_title_by_their_metric():
    rows = pd.DataFrame(
        [
            {"task": "sum", "series": "positional", "scale": 1, "split": "test", "metric": metric, "value": 0.5}
            | {"status": "ok", "arch": "positional"}
            for metric in ("mse", "closeness")
        ]
    )
    figure = Lines(views=(View(""), View("", metric="closeness")))
    first, second = figure.page(rows, figure.medians(rows))["panels"]
    assert (first["view"], first["ylog"], first["yends"]) == ("mean squared error", True, None)
    assert (second["view"], second["ylog"], second["yends"]) == ("share within 5%", False, [0, 1])
