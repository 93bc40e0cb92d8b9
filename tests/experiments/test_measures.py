"""Measures: their rows and numbers by hand, and what they refuse."""

import pandas as pd
import pytest
import torch
from trials import grid_changed, rows_of

import posattn
from posattn.compiled_run import CompiledRun
from posattn.errors import UsageError
from posattn.experiments import (
    EXPERIMENTS,
    Bars,
    EachShift,
    Engine,
    Experiment,
    FineTuned,
    Grid,
    Lengths,
    Measure,
    Scales,
    Shifts,
    Store,
    View,
    reproduce,
    series,
)
from posattn.metrics import Evaluation
from posattn.runs import ROW_COLUMNS, load
from posattn.tasks import sample_shift, task
from posattn.training import Recipe

NAMES = ("training", "near-ties", "heavy-tailed")
GRID = Grid(
    ("sum", "min"),
    series("positional", "standard", embed=8, width=8),
    n=(3,),
    samples=(40,),
    seeds=2,
    recipe=Recipe(samples=40, epochs=2, batch=20),
    measure=Shifts(NAMES, samples=20),
)
TRIAL = Experiment(
    "trial",
    "beyond the paper",
    "a trial",
    GRID,
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
    tables = dict(outcome.tables)
    own = outcome.rows.query(
        "metric == 'relative' and task == 'min' and distribution == 'near-ties' and arch == 'standard'"
    )
    assert tables["min, relative error, relative"].loc["near-ties", "standard"] == pytest.approx(own["value"].median())


@pytest.fixture(scope="module")
def prompts():
    """A network whose answers scale with the numbers, whatever its weights are."""
    config = posattn.TokenConfig(23, tokens="prompts", relative=True, layers=1, embed=8, width=8)
    return posattn.train("mixed-sum", config, samples=20, epochs=1, batch=10, device="cpu")


def test_each_shift_has_every_scale_with_both_kinds_of_words(prompts):
    rows = EachShift((1, 3), samples=20).rows(prompts)
    assert [*ROW_COLUMNS, "tied", "relative", "words"] == list(rows) and len(rows) == 2 * 2 * 4
    domains = rows.groupby(["words", "scale"])["domain"].unique().str.join("").to_dict()
    assert domains == {("training", 1): "id", ("training", 3): "ood", ("unseen", 1): "ood", ("unseen", 3): "ood"}


def test_no_shift_and_both_at_once_are_the_rows_of_scales(prompts):
    rows, scales = EachShift((1, 3), samples=20).rows(prompts), Scales((1, 3), samples=20).rows(prompts)
    either = rows[(rows["words"] == "training") == (rows["scale"] == 1)].drop(columns="words")
    by = ["scale", "metric"]
    pd.testing.assert_frame_equal(
        either.sort_values(by, ignore_index=True), scales.sort_values(by, ignore_index=True), check_exact=True
    )


def test_errors_of_a_scale_free_network_grow_by_the_scale_alone(prompts):
    """By c² + 1, as the values at scale c are c times those at scale 1 where the rejection step accepts them."""
    rows = EachShift((1, 4), samples=3000).rows(prompts)
    errors = rows[rows["metric"] == "mse"].pivot(index="words", columns="scale", values="value")
    assert (errors[4] / errors[1]).tolist() == pytest.approx([17, 17], rel=0.15)


def test_the_compiled_program_answers_prompts_of_every_shift():
    rows = EachShift((1, 7), samples=20).rows(CompiledRun("mixed", posattn.compile("mixed", machines=23)))
    errors = rows[rows["metric"] == "mse"]
    assert len(errors) == 4 * 2 * 2 and errors["value"].max() < 1e-24


@pytest.mark.parametrize("name", ["sum", "khop"])
def test_each_shift_is_for_prompts_alone(name):
    grid = Grid((name,), series("positional"), measure=EachShift())
    with pytest.raises(UsageError, match=rf"^measure is EachShift; it is for mixed-type prompts, and {name} has none\.$"):
        Experiment("trial", "nowhere", "a trial", grid)


def test_an_unknown_distribution_is_refused_when_declared():
    with pytest.raises(
        UsageError, match=r"^distribution is 'cauchy'; it must be one of training, uniform, .*sparse\.$"
    ):
        Shifts(("training", "cauchy"))


def test_rows_of_every_length_and_scale(tmp_path, engine):
    experiment = EXPERIMENTS["length-generalization"]
    few = grid_changed(experiment, series=experiment.source.series[:4])
    rows = rows_of(few, Store(tmp_path / "store"), engine, size="smoke")
    assert set(rows["metric"]) == {"mse", "relative_square"} and set(rows["n"]) == {2, 4, 8}
    assert (rows["trained_n"] == 16).all() and rows["value"].notna().all()
    assert len(rows) == 4 * 3 * 2 * 2  # series, lengths, scales, metrics; one task and one run
    assert set(rows.loc[rows["scale"] == 1, "domain"]) == {"id"}


def test_longer_lists_are_fewer_but_never_too_few():
    assert [Lengths().count(n) for n in (2, 64, 128, 1024)] == [1000, 1000, 500, 100]
    assert [Lengths(samples=20).count(n) for n in (2, 1024)] == [20, 20]


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: Scales(()), r"^measure\.factors is empty; it must have at least one value\.$"),
        (lambda: Scales((0,)), r"^measure\.factors is 0; it must be a finite number above 0\.$"),
        (lambda: Scales(("a",)), r"^measure\.factors is 'a'"),
        (lambda: Scales(3), r"^measure\.factors is 3; it must be a list"),
        (lambda: Scales(samples=0), r"^measure\.samples is 0"),
        (lambda: Shifts(()), r"^measure\.names is empty; it must have at least one value\.$"),
        (lambda: Shifts(samples=0), r"^measure\.samples is 0"),
        (lambda: FineTuned(scale="big"), r"^measure\.scale is 'big'; it must be a finite number above 0\.$"),
        (lambda: FineTuned(scale=True), r"^measure\.scale is True"),
        (lambda: FineTuned(epochs=0), r"^measure\.epochs is 0"),
        (lambda: FineTuned(samples=0), r"^measure\.samples is 0"),
    ],
)
def test_bad_measures_get_one_sentence(made, sentence):
    with pytest.raises(UsageError, match=sentence):
        made()


def test_stores_know_a_measure_by_its_settings():
    """Digests of stored rows come from these keys, so they may not change."""
    assert Scales((1, 3), train=True).key() == {"kind": "scales", "factors": [1.0, 3.0], "samples": 1000, "train": True}
    assert str(Scales((1,)).key()["factors"]) == "[1.0]"
    assert Shifts(("sparse",)).key() == {"kind": "shifts", "names": ["sparse"], "samples": 1000}
    assert EachShift((1, 3)).key() == {"kind": "each-shift", "factors": [1.0, 3.0], "samples": 1000, "train": False}
    assert FineTuned().key() == {"kind": "fine-tuned", "scale": 10.0, "epochs": 20, "samples": 1000}
    assert Lengths((2,)).key() == {"kind": "lengths", "lengths": [2], "scales": [1.0, 10.0], "samples": 1000, "least": 100}


def test_a_measure_without_rows_is_refused_before_anything_is_trained():
    class Own(Measure):
        KIND = "own"

    with pytest.raises(TypeError, match="rows"):
        Own()
