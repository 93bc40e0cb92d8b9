"""The measure of other distributions: its rows, its numbers by hand, its figure and its tables."""

import pandas as pd
import pytest
import torch

from posattn.errors import UsageError
from posattn.experiments import EXPERIMENTS, Bars, Engine, Experiment, Grid, Shifts, View, reproduce, series
from posattn.experiments.figures import draw
from posattn.experiments.report import pivots
from posattn.metrics import Evaluation
from posattn.runs import ROW_COLUMNS, load
from posattn.tasks import SHIFTS, sample_shift, task
from posattn.training import Recipe

NAMES = ("training", "near-ties", "heavy-tailed")
GRID = Grid(
    ("sum", "min"),
    series("positional", "standard", embed=8, width=8),
    n=(3,),
    samples=(40,),
    seeds=2,
    recipe=Recipe(samples=40, epochs=2, batch=20),
)
TRIAL = Experiment(
    "trial",
    "beyond the paper",
    "a trial",
    GRID,
    Shifts(NAMES, samples=20),
    Bars(views=(View("relative error", metric="relative"), View("closeness", metric="closeness"))),
)


@pytest.fixture(scope="module")
def outcome(store, tmp_path_factory):
    return reproduce(TRIAL, "paper", tmp_path_factory.mktemp("trial"), store, Engine(torch.device("cpu")))


def test_there_is_a_row_for_every_run_distribution_and_metric(outcome):
    rows = outcome.rows
    assert [*ROW_COLUMNS, "distribution", "series"] == list(rows)
    assert len(rows) == len(TRIAL.cells("paper")) * 3 * 3 and rows["value"].notna().all()
    assert not rows.duplicated(["run", "distribution", "metric"]).any()
    assert set(rows["metric"]) == {"mse", "relative", "closeness"}
    assert set(rows["scale"]) == {1} and set(rows["split"]) == {"test"}
    domains = rows.groupby("distribution")["domain"].unique().str.join("")
    assert domains.to_dict() == {"training": "id", "near-ties": "ood", "heavy-tailed": "ood"}


def test_training_rows_are_those_of_scale_one(outcome, store):
    folders = list((store.root / "runs").iterdir())
    assert len(folders) == 2
    for folder in folders:
        run = load(folder)
        shifted, scaled = run.evaluate_shifts(["training"], 20), run.evaluate([1], 20)
        assert shifted["mse"].tolist() == scaled["mse"].tolist()
        assert shifted["closeness"].tolist() == scaled["closeness"].tolist()


def test_numbers_by_hand_for_known_predictors():
    """Two members: one is wrong by 1/2 everywhere, the other answers with the mean of its answers."""
    members, names = [("sum", 3), ("sort", 4)], ("sparse", "gaussian")
    answers = {
        name: [task(own).target(sample_shift(name, 100, 4, seed)).double() for own, seed in members] for name in names
    }
    given = iter(names)

    def predict(x):
        first, second = answers[next(given)]
        return torch.stack([first + 0.5, second.mean().expand_as(second)]).float()

    table = Evaluation(predict, members, 100).by_shift([4], names).set_index(["member", "distribution"])
    for name in names:
        first, second = answers[name]
        variance = (first.square().mean() - first.mean().square()).item()
        assert table.loc[(0, name), "mse"] == pytest.approx(0.25, rel=1e-5)
        assert table.loc[(0, name), "relative"] == pytest.approx(0.25 / variance, rel=1e-5)
        near = ((second.mean() - second).abs() <= 0.05 + 0.05 * second.abs()).all(dim=-1)
        assert table.loc[(1, name), "relative"] == pytest.approx(1.0, rel=1e-5)
        assert table.loc[(1, name), "closeness"] == pytest.approx(near.double().mean().item())
    assert table["seed"].tolist() == [3, 3, 4, 4] and table["task"].tolist() == ["sum", "sum", "sort", "sort"]


def test_figure_tables_and_page_are_written_in_the_order_of_the_names(outcome):
    out = outcome.page.parent
    assert outcome.figure.read_bytes().startswith(b"\x89PNG") and (out / "trial.pdf").stat().st_size > 1000
    text = (out / "trial.md").read_text()
    assert "### sum, relative error, relative" in text and "| distribution | positional | standard |" in text
    assert [line.split(" | ")[0][2:] for line in text.splitlines()[4:7]] == list(NAMES)
    assert r"distribution & positional & standard \\" in (out / "trial.tex").read_text()
    page = outcome.page.read_text(encoding="utf-8")
    assert "<p>Beyond the paper, at paper scale." in page and "heavy-tailed" in page and "dotted" not in page
    tables = dict(pivots(outcome.table, TRIAL.shown))
    own = outcome.rows.query(
        "metric == 'relative' and task == 'min' and distribution == 'near-ties' and arch == 'standard'"
    )
    assert tables["min, relative error, relative"].loc["near-ties", "standard"] == pytest.approx(own["value"].median())


def test_runs_without_a_number_do_not_stop_the_figure(outcome, tmp_path):
    rows = outcome.rows.copy()
    rows.loc[rows["series"] == "standard", "value"] = float("nan")
    assert draw(rows, TRIAL, tmp_path).stat().st_size > 10_000
    draw(pd.concat([rows[rows["task"] == "sum"], rows[rows["series"] == "positional"]]), TRIAL, tmp_path)


def test_the_experiment_shares_its_runs_with_fix_scale_and_ablation():
    shift = EXPERIMENTS["distribution-shift"]
    keys = {cell.key for cell in shift.cells("paper")}
    assert len(keys) == 5 * 8 * 10
    for other in ("fix-scale", "ablation"):
        assert {cell.key for cell in EXPERIMENTS[other].cells("paper")} <= keys
    assert shift.measure == Shifts(tuple(SHIFTS), 1000) and shift.measure.at("smoke").samples == 50


def test_an_unknown_distribution_is_refused_when_declared():
    with pytest.raises(
        UsageError, match=r"^distribution is 'cauchy'; it must be one of training, uniform, .*sparse\.$"
    ):
        Shifts(("training", "cauchy"))
