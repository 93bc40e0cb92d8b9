"""Reproductions: rows, figure, tables and page, that nothing is trained twice, and what a report shows of a store."""

import base64
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pandas as pd
import pytest
import torch
from trials import files_of, grid_changed, small

from posattn.errors import UsageError
from posattn.experiments import (
    EXPERIMENTS,
    Engine,
    Experiment,
    Grid,
    Lines,
    Scales,
    Series,
    Store,
    View,
    having,
    report_on,
    reproduce,
    series,
)
from posattn.explorer.results import figures_of
from posattn.pretrained import COMPARED
from posattn.runs import load
from posattn.training import Recipe

CPU = torch.device("cpu")
FIX_SCALE = EXPERIMENTS["fix-scale"]
SHORT = Recipe(samples=20, epochs=1, batch=20)
GRID = Grid(("sum",), series(*COMPARED), (2,), (20,), seeds=5, recipe=SHORT, measure=Scales((1, 2), samples=20))
TRIAL = Experiment("trial", "nowhere", "a trial", GRID)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory, store):
    out, said = tmp_path_factory.mktemp("out") / "fix-scale", []
    return out, reproduce(FIX_SCALE, "smoke", out, store, Engine(CPU, said.append)), said


def test_it_leaves_rows_figures_tables_and_a_page(smoke, store):
    out, outcome, said = smoke
    assert (out / "rows.csv").stat().st_size > 1000
    assert outcome.figure.read_bytes().startswith(b"\x89PNG") and outcome.figure == out / "fix-scale.png"
    assert (out / "fix-scale.pdf").read_bytes().startswith(b"%PDF")
    assert outcome.page == out / "fix-scale.html" and outcome.page.exists()
    assert "| scale | positional | scale-exact | standard |" in (out / "fix-scale.md").read_text()
    assert r"scale & positional & scale-exact & standard \\" in (out / "fix-scale.tex").read_text()
    assert [line.split()[0] for line in said] == ["1/3", "2/3", "3/3"]
    assert not [path for folder in (out, store.root) for path in folder.rglob(".*")]


def test_there_is_a_row_for_every_run_scale_and_metric(smoke):
    out, outcome, _ = smoke
    cells, rows = FIX_SCALE.cells("smoke"), outcome.rows
    assert len(rows) == len(cells) * 2 * 5
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
    other = small("other", measure=replace(first.source.measure, samples=30))
    reproduce(other, "paper", tmp_path / "other", store, Engine(CPU, said.append))
    assert said.pop() == "positional, n = 2: 2 models: trained before, measured now"
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
    other = small("other", archs=("scale-exact",))
    assert having([trial, other], ["standard"], "paper") == [(trial, {"standard"})]
    assert [each for each, _ in having([trial, other], (), "paper")] == [trial, other]
    with pytest.raises(
        UsageError, match=r"^only is 'gpt'; the experiments have 'positional', 'standard', 'scale-exact'\.$"
    ):
        having([trial, other], ["standard", "gpt"], "paper")
    with pytest.raises(UsageError, match=r"^only is 'gpt'; trial has 'positional', 'standard'\.$"):
        reproduce(trial, "paper", tmp_path / "out", store, engine, only=["gpt"])
    with pytest.raises(UsageError, match=r"^precision is 'fp8'; it must be one of fp32, tf32, fp16\.$"):
        reproduce(trial, "paper", tmp_path / "out", store, engine, precision="fp8")


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
            recipe=Recipe(samples=400, epochs=8, batch=50), measure=Scales((1, 2), samples=20))
trial = Experiment("trial", "nowhere", "a trial", grid)
"""


_PROCESS = f"""
import sys
from pathlib import Path
import torch
from posattn.experiments import Engine, Store, reproduce, store
from posattn.training import fit
{_TRIAL}
make = fit.trainer_for
def counted(*given, **named):
    print("a trainer is made", flush=True)
    return make(*given, **named)
fit.trainer_for, store._WAIT = counted, 0.1
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
    ((title, wide),) = outcome.tables
    assert title == "sum, mse" and wide.index.tolist() == [1, 3]
    assert wide.columns.tolist() == ["positional", "scale-exact", "standard"]
    own = outcome.rows.query("metric == 'mse' and arch == 'standard' and scale == 3")["value"]
    assert wide.loc[3, "standard"] == pytest.approx(own.median())


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


def test_a_claim_that_was_interrupted_is_no_obstacle(tmp_path, engine):
    out, trial = tmp_path / "out", small(seeds=1)
    out.mkdir()
    left = out / ".experiment.json.1f.partial"
    left.write_bytes(b"{")
    os.utime(left, (0, 0))
    outcome = reproduce(trial, "paper", out, Store(tmp_path / "store"), engine)
    assert outcome.page.exists() and not left.exists()


def test_a_report_and_an_explorer_leave_the_store_as_it_is(tmp_path, engine, monkeypatch):
    """They compute what needs no runs and is not there, and do not keep it."""
    trial = grid_changed(small(), programs=True)
    for module in ("experiments.engine", "explorer.results"):
        monkeypatch.setattr(f"posattn.{module}.EXPERIMENTS", {"trial": trial})
    store = Store(tmp_path / "store")
    reproduce(trial, "paper", tmp_path / "out", store, engine)
    shutil.rmtree(store.root / "computed")
    (store.root / "lock").unlink()
    before = snapshot(store.root)
    (shown,), _ = report_on(Store(store.root), tmp_path / "report.html")
    (figure,) = figures_of(Store(store.root))
    assert shown.startswith("trial") and "compiled" in (tmp_path / "report.html").read_text()
    assert "compiled" in [line["label"] for line in figure["panels"][0]["series"]]
    assert snapshot(store.root) == before


def test_a_report_draws_again_only_what_has_changed(tmp_path, engine, monkeypatch):
    trial = small()
    monkeypatch.setattr("posattn.experiments.engine.EXPERIMENTS", {"trial": trial})
    store, picture = Store(tmp_path / "store"), tmp_path / "out" / f"{trial.name}.png"
    reproduce(trial, "paper", tmp_path / "out", store, engine)
    picture.write_bytes(b"as it was drawn")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "experiment.json").write_text("no JSON")  # someone else's
    page, known = tmp_path / "report.html", base64.b64encode(b"as it was drawn").decode()
    report_on(store, page)
    assert f'src="data:image/png;base64,{known}"' in page.read_text()
    table = picture.with_suffix(".md")
    table.write_text(table.read_text().replace("1", "2", 1))  # other medians
    report_on(store, page)
    assert known not in page.read_text() and 'src="data:image/png;base64,' in page.read_text()


def snapshot(folder):
    """Every file and folder with its times."""
    return {path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in [folder, *folder.rglob("*")]}


def test_the_report_has_all_that_the_store_holds(tmp_path, smoke, store):
    names, _ = report_on(store, tmp_path / "report.html")
    assert {"fix-scale", "accuracy"} <= {line.split(":")[0] for line in names if line.endswith("6 of 6 runs")}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count('src="data:image/png;base64,') >= len(names)
    with pytest.raises(UsageError, match=r"empty'; there is no such folder\.$"):
        report_on(Store(tmp_path / "empty"), tmp_path / "empty.html")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="which holds no rows of the package's experiments"):
        report_on(Store(tmp_path / "empty"), tmp_path / "empty.html")


def test_two_series_of_the_same_networks_are_refused(tmp_path, engine):
    twice = grid_changed(small(), series=(*series("positional"), Series("again", {"arch": "positional"})))
    with pytest.raises(UsageError, match="two series of the same networks"):
        reproduce(twice, "paper", tmp_path / "out", Store(tmp_path / "store"), engine)


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """One layer and two, two seeds each, of which one is trained first."""
    grid = Grid(
        ("khop",), series("standard", embed=8, width=8), n=(6,), samples=(40,), seeds=2, layers=(1, 2),
        recipe=Recipe(samples=40, epochs=2, batch=20), measure=Scales((1, 2), samples=30, train=True),
    )  # fmt: skip
    lines = Lines("layers", (View("test", {"split": "test", "hops": "all"}, "accuracy"),), ("domain",))
    trial = Experiment("trial", "nowhere", "a trial", grid, lines)
    out, said = tmp_path_factory.mktemp("tokens"), []
    store, engine = Store(out / "store"), Engine(torch.device("cpu"), said.append)
    first = reproduce(trial, "paper", out / "out", store, engine, runs=1)
    before = len(said)
    return first, reproduce(trial, "paper", out / "out", store, engine), said[before:], (trial, out, store, engine)


def test_runs_can_be_trained_a_few_at_a_time(letters):
    first, second, said, (trial, out, store, engine) = letters
    assert first.rows["run"].nunique() == 2 and set(first.rows["seed"]) == {0}
    assert second.rows["run"].nunique() == 4 and [line.split(":")[1] for line in said] == [" 1 model", " 1 model"]
    kept = second.rows[second.rows["seed"] == 0].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, first.rows)
    with pytest.raises(UsageError, match=r"^runs is -1; it must be a whole number of at least 0\.$"):
        reproduce(trial, "paper", out / "out", store, engine, runs=-1)


def test_rows_say_the_hops_the_domain_and_the_layers(letters):
    rows = letters[1].rows
    assert set(rows["hops"]) == {"all", "0", "1", "2", "3"} and set(rows["layers"]) == {1, 2}
    assert {*zip(rows["split"], rows["domain"], strict=True)} == {("train", "id"), ("test", "id"), ("test", "ood")}
    assert set(rows["metric"]) == {"accuracy", "accuracy_found", "cross_entropy", "cross_entropy_found"}
    table = letters[1].table
    assert table["layers"].tolist() == [1, 2, 1, 2] and table["runs"].tolist() == [2] * 4


def test_one_run_of_every_line_is_a_figure_and_all_runs_of_one_line_are_none(tmp_path, engine, monkeypatch):
    other = grid_changed(replace(TRIAL, name="other"), tasks=("min",))
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


def test_half_of_what_a_figure_draws_is_enough(tmp_path, engine, monkeypatch):
    half = grid_changed(TRIAL, series=series("positional", "standard"), seeds=3)
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
