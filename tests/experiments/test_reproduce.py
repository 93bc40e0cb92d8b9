"""Experiments at smoke scale: rows, figure, tables and page, and that nothing is trained twice."""

import re
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pandas as pd
import pytest
import torch
from trials import files_of, small

from posattn.errors import UsageError
from posattn.experiments import (
    EXPERIMENTS,
    SCALES,
    Engine,
    Scales,
    Series,
    Store,
    report_on,
    reproduce,
)
from posattn.experiments.report import pivots
from posattn.runs import load
from posattn.tasks import TASKS
from posattn.training import Recipe

CPU = torch.device("cpu")
FIX_SCALE = EXPERIMENTS["fix-scale"]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory, store):
    out, said = tmp_path_factory.mktemp("out") / "fix-scale", []
    return out, reproduce(FIX_SCALE, "smoke", out, store, Engine(CPU, said.append)), said


@pytest.fixture(scope="module")
def at_smoke_scale(tmp_path_factory, store):
    """A function that reproduces an experiment by name, once for all tests."""
    out = tmp_path_factory.mktemp("smoke")

    def made(name):
        return EXPERIMENTS[name], reproduce(EXPERIMENTS[name], "smoke", out / name, store, Engine(CPU))

    return cache(made)


def test_it_leaves_rows_figures_tables_and_a_page(smoke, store):
    out, outcome, said = smoke
    assert (out / "rows.csv").stat().st_size > 1000
    assert outcome.figure.read_bytes().startswith(b"\x89PNG") and outcome.figure == out / "fix-scale.png"
    assert (out / "fix-scale.pdf").read_bytes().startswith(b"%PDF")
    assert outcome.page == out / "fix-scale.html" and outcome.page.exists()
    assert "| scale | positional | scale-exact | standard |" in (out / "fix-scale.md").read_text()
    assert r"scale & positional & scale-exact & standard \\" in (out / "fix-scale.tex").read_text()
    assert len(said) == 3 and not [path for folder in (out, store.root) for path in folder.rglob(".*")]


def test_there_is_a_row_for_every_run_scale_and_metric(smoke):
    out, outcome, _ = smoke
    cells, rows = FIX_SCALE.cells("smoke"), outcome.rows
    assert len(rows) == len(cells) * 2 * 4
    assert not rows.duplicated(["task", "arch", "seed", "scale", "metric"]).any() and rows["value"].notna().all()
    assert set(rows["series"]) == {"positional", "scale-exact", "standard"} and set(rows["experiment"]) == {"fix-scale"}
    assert rows["run"].nunique() == len(cells)
    pd.testing.assert_frame_equal(pd.read_csv(out / "rows.csv"), rows, check_dtype=False)


def test_rows_are_what_the_stored_runs_give(smoke, store):
    _, outcome, _ = smoke
    for folder in (store.root / "runs").iterdir():
        run = load(folder)
        own = outcome.rows[(outcome.rows["arch"] == run.spec.model.arch) & (outcome.rows["metric"] == "mse")]
        table = run.evaluate([3], 50)
        assert own[own["scale"] == 3]["value"].tolist() == pytest.approx(table["mse"].tolist(), rel=1e-5)


class Assets(HTMLParser):
    """Whatever a browser would fetch for a page."""

    def __init__(self):
        super().__init__()
        self.fetched, self.tags = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        own = [value for name, value in attributes if name in ("src", "href", "srcset", "data", "poster")]
        self.fetched += [value for value in own if not value.startswith("#")]  # a place on the page itself


def test_the_page_is_self_contained(smoke):
    _, outcome, _ = smoke
    page = outcome.page.read_text(encoding="utf-8")
    assets = Assets()
    assets.feed(page)
    assert len(assets.fetched) == 1 and assets.fetched[0].startswith("data:image/png;base64,")
    assert not {"script", "link", "iframe"} & set(assets.tags) and not re.search(r"https?://|@import|url\(", page)
    for value in outcome.table["median"]:
        assert f"{value:.2e}" in page


def test_the_second_call_trains_nothing_and_gives_the_same_rows(smoke, store, engine):
    out, outcome, _ = smoke
    before = files_of(store.root)
    again = reproduce(FIX_SCALE, "smoke", out, store, engine)
    assert files_of(store.root) == before
    pd.testing.assert_frame_equal(again.rows, outcome.rows)


def test_an_experiment_that_shares_runs_trains_only_the_others(tmp_path, store, smoke):
    """Accuracy shows the runs of fix-scale; with a task more, only that task's runs are new."""
    said = []
    reproduce(EXPERIMENTS["accuracy"], "smoke", tmp_path / "accuracy", store, Engine(CPU, said.append))
    assert said == []
    first, second = small("first"), small("second", tasks=("sum", "min"), seeds=3)
    reproduce(first, "paper", tmp_path / "first", store, Engine(CPU))
    outcome = reproduce(second, "paper", tmp_path / "second", store, Engine(CPU, said.append))
    assert said == ["positional, n = 2: 4 models: 2 epochs of 40 lists"]  # sum's third seed, and min's three
    assert outcome.rows["run"].nunique() == 6
    alone = reproduce(second, "paper", tmp_path / "alone", Store(tmp_path / "fresh"), Engine(CPU))
    pd.testing.assert_frame_equal(alone.rows, outcome.rows)  # whatever a run was trained beside


def test_only_some_series_are_trained_now_and_all_that_is_there_is_drawn(tmp_path, engine):
    store, trial = Store(tmp_path / "store"), small(archs=("positional", "standard"))
    one = reproduce(trial, "paper", tmp_path / "out", store, engine, only=["standard"])
    assert set(one.rows["series"]) == {"standard"}
    both = reproduce(trial, "paper", tmp_path / "out", store, engine, only=["positional"])
    assert list(dict.fromkeys(both.rows["series"])) == ["positional", "standard"]
    with pytest.raises(UsageError, match=r"^only is 'gpt'; trial has 'positional', 'standard'\.$"):
        reproduce(trial, "paper", tmp_path / "out", store, engine, only=["gpt"])


def test_networks_that_diverge_are_counted_and_stop_nothing(tmp_path, engine):
    trial = small(recipe=Recipe(samples=20, epochs=2, batch=10, lr=1e18))
    for _ in range(2):
        outcome = reproduce(trial, "paper", tmp_path / "out", Store(tmp_path / "store"), engine)
        assert set(outcome.rows["status"]) == {"diverged"} and outcome.table["ok"].tolist() == [0, 0]
        assert outcome.rows["value"].dtype == float and "diverged" in (tmp_path / "out" / "rows.csv").read_text()


_TRIAL = """
from posattn.experiments import Experiment, Grid, Scales, series
from posattn.training import Recipe
grid = Grid(("sum", "min"), series("positional", "standard", embed=8, width=8), n=(2,), samples=(400,), seeds=2,
            recipe=Recipe(samples=400, epochs=8, batch=50))
trial = Experiment("trial", "nowhere", "a trial", grid, Scales((1, 2), samples=20))
"""
_PROCESS = f"""
import sys
from pathlib import Path
import torch
from posattn.experiments import Engine, Store, engine, reproduce
from posattn.training import fit
{_TRIAL}
make = fit.trainer_for
def counted(*given, **named):
    print("a trainer is made", flush=True)
    return make(*given, **named)
fit.trainer_for, engine._WAIT = counted, 0.1
root = Path(sys.argv[1])
outcome = reproduce(trial, "paper", root / sys.argv[2], Store(root / "store"), Engine(torch.device("cpu")))
print(outcome.rows.to_csv(index=False))
"""


def process(root, name):
    command = [sys.executable, "-c", _PROCESS, str(root), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def rows_of(text):
    return text[text.index("experiment,") :].rstrip()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The rows of the processes' trial, run here, by one process and without a break."""
    names, root = {}, tmp_path_factory.mktemp("undisturbed")
    exec(_TRIAL, names)
    rows = reproduce(names["trial"], "paper", root / "out", Store(root / "store"), Engine(CPU)).rows
    return rows.to_csv(index=False).rstrip()


def test_two_processes_share_a_store_and_train_every_run_once(tmp_path, undisturbed):
    both = [process(tmp_path, name) for name in ("one", "other")]
    said = [running.communicate(timeout=120)[0] for running in both]
    assert [running.returncode for running in both] == [0, 0]
    assert len(list((tmp_path / "store" / "runs").iterdir())) == 2  # one ensemble an architecture
    assert sum(text.count("a trainer is made") for text in said) == 2
    assert rows_of(said[0]) == rows_of(said[1]) == undisturbed


def test_a_killed_experiment_goes_on_and_loses_nothing(tmp_path, undisturbed):
    running = process(tmp_path, "killed")
    while not list(tmp_path.glob("store/rows/*.json")):  # the first ensemble is done, the second in training
        assert running.poll() is None
        time.sleep(0.02)
    running.kill()
    running.wait()
    first = files_of(tmp_path / "store" / "rows")
    again = process(tmp_path, "killed")
    said = again.communicate(timeout=240)[0]
    assert again.returncode == 0
    assert first.items() <= files_of(tmp_path / "store" / "rows").items()
    assert rows_of(said) == undisturbed


def test_the_table_has_scales_down_and_series_across(smoke):
    _, outcome, _ = smoke
    ((title, wide),) = pivots(outcome.table, FIX_SCALE.shown)
    assert title == "sum, mse" and wide.index.tolist() == [1, 3]
    assert wide.columns.tolist() == ["positional", "scale-exact", "standard"]
    own = outcome.rows.query("metric == 'mse' and arch == 'standard' and scale == 3")["value"]
    assert wide.loc[3, "standard"] == pytest.approx(own.median())


def test_the_paper_scale_is_the_papers():
    grid = FIX_SCALE.grid.at("paper")
    assert grid.tasks == ("sum", "min", "median", "sort", "maxsub") and grid.seeds == 10 and grid.n == (8,)
    assert grid.recipe == Recipe() and FIX_SCALE.measure == Scales(tuple(range(1, 11)), 1000)
    assert len(EXPERIMENTS["fix-sample"].cells("paper")) == 5 * 10 * 10 * 3
    assert {cell.recipe.samples for cell in EXPERIMENTS["fix-sample"].cells("paper")} == set(range(5000, 50_001, 5000))
    assert {cell.model.n for cell in EXPERIMENTS["length"].cells("paper")} == {2, 4, 8, 16, 32}
    variable = EXPERIMENTS["variable-length"].cells("paper")[0]
    assert variable.variable_length and variable.member.lr == 1e-4
    assert (variable.recipe.samples, variable.recipe.batch) == (500_000, 2048)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda experiment: experiment.name)
def test_every_run_of_an_experiment_is_its_own(experiment, scale):
    cells = experiment.cells(scale)
    assert {cell.member.task for cell in cells} <= set(TASKS)
    assert len({cell.key for cell in cells}) == len(cells)


def test_eight_experiments_share_the_positional_runs():
    """Those of 30,000 lists of 8 numbers."""
    sum_run = next(cell.key for cell in FIX_SCALE.cells("paper") if cell.label == "positional")
    for name in ("fix-sample", "length", "compact", "encodings", "ablation", "accuracy", "distribution-shift"):
        assert any(cell.key == sum_run for cell in EXPERIMENTS[name].cells("paper")), name


def test_an_unknown_scale_is_refused_before_anything_is_written(tmp_path, engine):
    with pytest.raises(UsageError, match=r"^scale is 'huge'; it must be one of smoke, quick, paper\.$"):
        reproduce(FIX_SCALE, "huge", tmp_path / "out", Store(tmp_path / "store"), engine)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_scale_or_of_other_files_is_refused_and_left_alone(tmp_path, store, engine):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    with pytest.raises(UsageError, match="holds other files"):
        reproduce(FIX_SCALE, "smoke", tmp_path / "mine", store, engine)
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "experiment.json").write_text('{"experiment": "fix-scale", "scale": "quick"}')
    with pytest.raises(
        UsageError, match="holds fix-scale at quick scale; give another folder for fix-scale at smoke scale"
    ):
        reproduce(FIX_SCALE, "smoke", tmp_path / "quick", store, engine)
    assert [path.name for path in sorted(tmp_path.rglob("*")) if path.is_file()] == ["notes.txt", "experiment.json"]
    for content in ("[]", "{}"):
        (tmp_path / "quick" / "experiment.json").write_text(content)
        with pytest.raises(UsageError, match="which holds something else; give another folder"):
            reproduce(FIX_SCALE, "smoke", tmp_path / "quick", store, engine)


def test_the_report_has_all_that_the_store_holds(tmp_path, smoke, store):
    names, _ = report_on(store, tmp_path / "report.html")
    assert {"fix-scale", "accuracy"} <= {line.split(":")[0] for line in names if line.endswith("6 of 6 runs")}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assets = Assets()
    assets.feed(page)
    assert len(assets.fetched) >= len(names) and all(asset.startswith("data:image/png") for asset in assets.fetched)
    with pytest.raises(UsageError, match=r"empty'; there is no such folder\.$"):
        report_on(Store(tmp_path / "empty"), tmp_path / "empty.html")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="which holds no rows of any experiment"):
        report_on(Store(tmp_path / "empty"), tmp_path / "empty.html")


def test_two_series_of_the_same_networks_are_refused(tmp_path, engine):
    trial = small()
    twice = replace(
        trial, grid=replace(trial.grid, series=(*trial.grid.series, Series("again", {"arch": "positional"})))
    )
    with pytest.raises(UsageError, match="two series of the same networks"):
        reproduce(twice, "paper", tmp_path / "out", Store(tmp_path / "store"), engine)


def test_smaller_scales_are_never_larger_than_what_was_declared():
    grid = small().grid.at("quick")
    assert grid.recipe.epochs == 2 and grid.samples == (40,) and grid.recipe.batch == 20 and grid.seeds == 2


def test_fine_tuning_changes_the_errors_it_should(at_smoke_scale):
    _, outcome = at_smoke_scale("fine-tune")
    assert list(dict.fromkeys(outcome.rows["stage"])) == ["in distribution", "out of it", "after fine-tuning"]
    by_stage = outcome.rows.pivot(index="run", columns="stage", values="value")
    assert (by_stage["after fine-tuning"] != by_stage["out of it"]).all()
    ((_, table),) = pivots(outcome.table, EXPERIMENTS["fine-tune"].shown)
    assert table.index.tolist() == ["in distribution", "out of it", "after fine-tuning"]


def test_attention_maps_are_drawn_beside_the_figure_and_on_the_page(at_smoke_scale):
    _, outcome = at_smoke_scale("attention-maps")
    for name in ("attention-maps", "attention-maps-1", "attention-maps-2"):
        assert (outcome.page.parent / f"{name}.png").stat().st_size > 10_000
    assets = Assets()
    assets.feed(outcome.page.read_text(encoding="utf-8"))
    assert len(assets.fetched) == 3


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_all_experiments_at_smoke_scale(at_smoke_scale, name):
    experiment, outcome = at_smoke_scale(name)
    trained = outcome.rows[outcome.rows["arch"] != "compiled"]
    assert trained["run"].nunique() == len(experiment.cells("smoke"))
    assert outcome.figure.stat().st_size > 10_000


def test_what_is_computed_needs_no_run_and_has_no_settings_of_training(at_smoke_scale):
    _, outcome = at_smoke_scale("ood-probability")
    page = outcome.page.read_text(encoding="utf-8")
    assert "Eq. 27" in page and "Hardware" not in page and "scale-exact" not in page
    at_eight = outcome.table[(outcome.table["series"] == "n = 8") & (outcome.table["scale"] == 10)]
    assert at_eight["median"].tolist() == pytest.approx([0.003366968878, 0.003366964264], rel=1e-9)
