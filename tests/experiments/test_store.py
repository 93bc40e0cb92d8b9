"""What a store serves: rows of runs that are there, in any precision, for every measure that they hold."""

import gzip
import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from trials import MEASURE, files_of, grid_changed, rows_of, small

from posattn import files
from posattn.encodings import ENCODINGS, Encoding
from posattn.errors import UsageError
from posattn.experiments import EXPERIMENTS, Engine, Scales, Store, reproduce, series
from posattn.run_folder import RunFolder
from posattn.tasks import TASKS, Task
from posattn.training import RunSpec, fit, train_spec
from posattn.training.run import save

CPU = torch.device("cpu")
RESULTS = Store(Path(__file__).parents[2] / "results" / "store")
# Runs of every experiment whose rows are there, at paper scale unless it says another.
STORED = {
    "fix-scale": 150, "fix-scale-tuned": 150, "compiled-scale": 150, "fix-sample": 1115, "length": 280,
    "variable-length-in-turn": 45, "compact": 220, "encodings": 550, "ablation": 160, "fine-tune": 90, "gnn": 160,
    "attention-maps": 20, "accuracy": 150, "generalization-gap": 480, "generalization-gap, quick": 54,
    "distribution-shift": 225, "length-generalization": 165, "khop-samples": 24, "khop-steps": 6, "khop-layers": 42,
    "compiled-khop": 6, "khop-scan": 11, "khop-scan, quick": 2, "mixed-scale": 92, "mixed-scale, quick": 12,
    "mixed-shift": 92, "mixed-shift, quick": 12, "mixed-elements": 48, "mixed-scan": 64, "mixed-scan, quick": 6,
    "compiled-mixed": 48, "mixed-samples": 252, "mixed-elements-samples": 96, "gpt2": 9, "gpt2, quick": 9,
    "mixed-elements, quick": 3, "compiled-mixed, quick": 3,
}  # fmt: skip


def test_every_stored_run_is_found_by_todays_catalogue():
    held = [json.loads(path.read_text())["runs"] for path in (RESULTS.root / "rows").glob("*.json")]
    counts, found = {}, set()
    for name, experiment in EXPERIMENTS.items():
        for scale in ("paper", "quick"):
            cells = experiment.cells(scale)
            runs = RESULTS.find(cells, cells[0].measure, None) if cells else {}
            found |= RESULTS.find(cells, cells[0].measure.needed(), None).keys() if cells else set()
            counts |= {name + (", quick" if scale == "quick" else ""): len(runs)} if runs else {}
    assert counts == STORED and found == set().union(*held)


def test_every_stored_description_is_read_and_known_by_the_name_it_has():
    for path in (RESULTS.root / "rows").glob("*.json"):
        described = json.loads(path.read_text())
        spec = RunSpec.from_dict(described["spec"])
        assert path.name.startswith(f"{spec.model.arch}-{spec.digest}-")
        assert json.loads(json.dumps(spec.to_dict())) == described["spec"]
        members = range(len(spec.members))
        assert described["runs"] == {spec.identity(k, precision=False): spec.identity(k) for k in members}


def test_computed_rows_that_are_stored_are_not_computed_again(tmp_path):
    shutil.copytree(RESULTS.root, tmp_path / "store")
    stored = Store(tmp_path / "store")
    before = files_of(stored.root / "computed")
    at_paper_scale = ("compiled-khop", "compiled-scale", "compiled-mixed", "discrepancy", "ood-probability")
    scales = [(name, "paper") for name in at_paper_scale] + [("discrepancy", "quick"), ("gpt2", "quick")]
    for name, scale in scales:
        EXPERIMENTS[name].held(scale, stored).read(keep=True)
    assert len(before) == 2 * (len(scales) + 8) and files_of(stored.root / "computed") == before


def test_another_measure_of_the_same_runs_trains_nothing(tmp_path, engine):
    store, first = Store(tmp_path / "store"), small()
    rows_of(first, store, engine)
    weights = files_of(store.root / "runs")
    rows = rows_of(grid_changed(first, measure=Scales((1, 5), samples=30, train=True)), store, engine)
    assert files_of(store.root / "runs") == weights
    assert set(rows["split"]) == {"train", "test"} and set(rows["scale"]) == {1, 5}


def test_rows_of_more_scales_serve_for_fewer(tmp_path):
    asked = {train: Scales((1, 3), 20, train) for train in (False, True)}
    for train in asked:
        here, there = Store(tmp_path / f"here-{train}"), Store(tmp_path / f"there-{train}")
        rows_of(small(measure=Scales((1, 2, 3), 20, train)), here, Engine(CPU))
        shutil.rmtree(here.root / "runs")  # only rows are left
        fewer = small(measure=asked[train])
        pd.testing.assert_frame_equal(rows_of(fewer, here, Nowhere()), rows_of(fewer, there, Engine(CPU)))
    for other in (Scales((1, 4), 20), Scales((1, 3), 21), asked[True]):
        with pytest.raises(RuntimeError, match="nothing trains here"):
            rows_of(small(measure=other), Store(tmp_path / "here-False"), Nowhere())


def test_a_run_that_was_trained_twice_is_shown_as_it_stands_beside_most_others(tmp_path):
    """Rows of (1, 2, 3) hold both runs; rows of (1, 2) and the training lists hold one of them again, other ones."""
    store, asked = Store(tmp_path / "store"), small()
    for seeds, measure in ((2, Scales((1, 2, 3), 20)), (1, Scales((1, 2), 20, train=True))):
        elsewhere = Store(tmp_path / f"elsewhere-{seeds}")
        rows_of(small(seeds=seeds, measure=measure), elsewhere, Engine(CPU))
        for path in (elsewhere.root / "rows").iterdir():
            (store.root / "rows").mkdir(parents=True, exist_ok=True)
            path.rename(store.root / "rows" / path.name)
    cells = asked.cells("paper")
    for measure, seeds in ((asked.source.measure, [2]), (Scales((1, 2), 20, train=True), [1])):
        found = store.find(cells, measure, None)
        _, described = store.rows(found, measure)
        assert [len(about["runs"]) for about in described] == seeds
        assert list(found) == [cell.key for cell in cells if cell.key in found]  # whatever Python's hashes are


def test_no_runs_draws_what_is_there(tmp_path):
    store, trial = Store(tmp_path / "store"), small(archs=("positional", "standard"))
    with pytest.raises(
        UsageError, match=r"^runs is 0, and the store at '.*' has no rows of trial at scale paper to draw\.$"
    ):
        reproduce(trial, "paper", tmp_path / "out", store, Nowhere(), runs=0)
    assert not (tmp_path / "out").exists()
    reproduce(trial, "paper", tmp_path / "out", store, Engine(CPU), only=["standard"], runs=1)
    drawn = reproduce(trial, "paper", tmp_path / "out", store, Nowhere(), runs=0)
    assert drawn.rows["run"].nunique() == 1 and drawn.figure.exists()


def test_no_runs_computes_nothing(tmp_path):
    store, computed = Store(tmp_path / "store"), EXPERIMENTS["ood-probability"]
    with pytest.raises(UsageError, match="has no rows of ood-probability at scale smoke to draw"):
        reproduce(computed, "smoke", tmp_path / "out", store, Nowhere(), runs=0)
    reproduce(computed, "smoke", tmp_path / "out", store, Nowhere())
    assert reproduce(computed, "smoke", tmp_path / "out", store, Nowhere(), runs=0).figure.exists()


class Nowhere(Engine):
    """Trains nothing."""

    def __init__(self):
        super().__init__(CPU)

    def run(self, specs, measure, store):
        raise RuntimeError("nothing trains here")


def test_rows_are_found_in_any_precision_or_in_the_one_asked_for(tmp_path, engine):
    """A store from a GPU serves a machine without one."""
    store, trial = Store(tmp_path / "store"), small(seeds=1)
    (cell,) = trial.cells("paper")
    run = train_spec(cell.spec(), CPU)
    run.spec = cell.spec("fp16")
    store.write(run.spec, MEASURE, MEASURE.rows(run), run.result)
    assert set(rows_of(trial, store, engine)["precision"]) == {"fp16"} and not (store.root / "runs").exists()
    assert set(rows_of(trial, store, engine, "fp32")["precision"]) == {"fp32"}
    assert set(rows_of(trial, store, engine)["precision"]) == {"fp32"}  # the more exact of the two


def test_a_precision_that_cannot_run_here_leaves_the_store_usable(tmp_path, engine):
    store, trial = Store(tmp_path / "store"), small()
    with pytest.raises(UsageError, match="precision is 'fp16', which only a GPU has"):
        reproduce(trial, "paper", tmp_path / "out", store, engine, precision="fp16")
    assert not store.root.exists()
    (cell, *_) = trial.cells("paper")
    begun = RunFolder(store.folder(cell.spec("fp16")))  # what a GPU began and did not finish
    begun.describe(cell.spec("fp16"))
    assert set(rows_of(trial, store, engine)["precision"]) == {"fp32"}


def test_a_finished_run_of_a_gpu_is_measured_here(tmp_path, engine):
    store, trial = Store(tmp_path / "store"), small(seeds=1)
    (cell,) = trial.cells("paper")
    run = train_spec(cell.spec(), CPU)
    run.spec = cell.spec("fp16")
    folder = RunFolder(store.folder(run.spec))
    folder.describe(run.spec)
    save(folder, run)
    assert set(rows_of(trial, store, engine)["precision"]) == {"fp16"}


def test_a_run_of_someone_elses_network_is_no_obstacle(tmp_path, engine):
    store, trial = Store(tmp_path / "store"), small()
    foreign = trial.cells("paper")[0].spec().to_dict() | {"model": {"kind": "own", "n": 2, "arch": "x", "settings": {}}}
    files.write_json(store.root / "runs" / "x-1" / "run.json", foreign)
    assert len(rows_of(trial, store, engine)) == 2 * 2 * 5
    files.write_json(store.root / "runs" / "y-1" / "run.json", {"format": 1})
    with pytest.raises(files.Damaged, match=r"run\.json does not describe a run"):
        rows_of(small(seeds=3), store, engine)


def test_a_run_that_another_process_finishes_meanwhile_is_not_trained_again(tmp_path, monkeypatch):
    (cell,) = small(seeds=1).cells("paper")
    spec, folder = cell.spec(), tmp_path / "run"
    train_spec(spec, CPU, folder)
    before, looks = files_of(folder), []

    def holds(*given, really=RunFolder.holds):
        looks.append(None)
        return really(*given) if len(looks) > 1 else False  # the first look came too early

    monkeypatch.setattr(RunFolder, "holds", holds)
    monkeypatch.setattr(fit, "trainer_for", None)  # would fail if it were called
    train_spec(spec, CPU, folder)
    assert files_of(folder) == before


def test_runs_whose_names_look_like_numbers_keep_their_rows(tmp_path):
    store, trial = Store(tmp_path / "store"), small(seeds=1)
    (cell,) = trial.cells("paper")
    run = train_spec(cell.spec(), CPU)
    rows = MEASURE.rows(run).assign(run="0265015269064711")
    store.write(run.spec, MEASURE, rows, run.result)
    (stored,) = store.find([cell], MEASURE, None).values()
    found, _ = store.rows({"any": replace(stored, run="0265015269064711")}, MEASURE)
    assert len(found) == len(rows)


def test_descriptions_are_read_once_and_again_when_another_process_writes(tmp_path, engine, monkeypatch):
    """Two stores in one folder stand for two processes."""
    here, there, trial = Store(tmp_path / "store"), Store(tmp_path / "store"), small(seeds=2)
    (first, second), read = trial.cells("paper"), []
    monkeypatch.setattr(files, "read_json", lambda path, really=files.read_json: read.append(path) or really(path))

    def found():
        return len(here.find(trial.cells("paper"), MEASURE, None)), len(read)

    there.complete([first], engine)
    read.clear()
    assert [found(), found()] == [(1, 1), (1, 1)]
    there.complete([second], engine)
    read.clear()
    assert [found(), found()] == [(2, 1), (2, 1)]  # the new one alone
    described = next(here.root.glob("rows/*.json"))
    files.write_sealed(described, files.read_sealed(described) | {"runs": {"another": "run"}})
    read.clear()
    assert [found(), found()] == [(1, 1), (1, 1)]
    for path in here.root.glob("rows/*.json"):
        path.unlink()
    assert found() == (0, 1)
    files.write_sealed(described, {"spec": 1})
    with pytest.raises(files.Damaged, match=r"\.json does not describe rows"):
        found()


# What is damaged is named, and computed again where that takes no training.


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store with two ensembles, and compiled programs beside them; and the rows that it gives."""
    folder = tmp_path_factory.mktemp("whole") / "store"
    return folder, rows_of(TWO, Store(folder), Engine(CPU))


TWO = grid_changed(small(archs=("positional", "standard")), programs=True)


def deep(described):
    return "[" * 100_000 + "]" * 100_000


# What may become of a description, without and with its seal forged.
ALTERED = {
    "no seal": lambda about: {name: value for name, value in about.items() if name != "seal"},
    "another number": lambda about: about | {"result": about["result"] | {"seconds": 1}},
    "no object": lambda about: [about],
    "cut": lambda about: json.dumps(about)[:-30],
    "empty": lambda about: "",
    "nested": deep,
}
FORGED = {
    "no spec": {"spec": {}},
    "a list of runs": {"runs": []},
    "no runs": {"runs": {}},
    "runs of numbers": {"runs": {"a": 1}},
    "a list as spec": {"spec": []},
    "no result": {"result": {}},
    "no measure": {"measure": None},
    "no status": {"result": {"hardware": "x", "seconds": 1, "status": None}},
    "no checksum": {"sha256": None},
}


def alter(path, how):
    described = json.loads(path.read_text())
    if how in ALTERED:
        altered = ALTERED[how](described)
        path.write_text(altered if isinstance(altered, str) else json.dumps(altered))
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        del described["seal"]
        unknown = described["spec"] | {"precision": "fp1"}
        files.write_sealed(path, described | FORGED.get(how, {"spec": unknown}))


@pytest.mark.parametrize("how", [*ALTERED, *FORGED, "an unknown precision", "pipe"])
def test_a_damaged_description_is_named_or_its_runs_are_measured_again(whole, tmp_path, how):
    shutil.copytree(whole[0], tmp_path / "store")
    store, victim = Store(tmp_path / "store"), next((tmp_path / "store" / "rows").glob("positional-*.json"))
    alter(victim, how)
    name = victim.with_suffix(".csv.gz") if how == "no checksum" else victim
    with pytest.warns(UserWarning, match=rf"{name.name} .*Its runs are measured again\.$|{name}: .* again\.$"):
        rows = rows_of(TWO, store, Engine(CPU))
    pd.testing.assert_frame_equal(rows, whole[1])
    assert [path.read_bytes() for path in sorted((whole[0] / "rows").iterdir())] == [
        path.read_bytes() for path in sorted((tmp_path / "store" / "rows").iterdir())
    ]
    alter(victim, how)
    shutil.rmtree(store.root / "runs")
    with pytest.raises(files.Damaged, match=rf"{name.name}.* Restore it, or remove it to train its runs again\.$"):
        rows_of(TWO, Store(store.root), Nowhere())
    victim.unlink()
    TWO.held("paper", Store(store.root)).read()  # the other rows are there to draw


def test_descriptions_that_were_exchanged_are_noticed(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "runs")
    one, other = sorted((tmp_path / "store" / "rows").glob("*.json"))
    contents = [json.loads(path.read_text()) for path in (one, other)]
    files.write_json(one, contents[0] | {"runs": contents[1]["runs"]})
    files.write_json(other, contents[1] | {"runs": contents[0]["runs"]})
    with pytest.raises(files.Damaged, match=r"\.json is damaged: its checksum does not match"):
        rows_of(TWO, Store(tmp_path / "store"), Nowhere())
    files.write_json(one, contents[1])
    files.write_json(other, contents[0])
    with pytest.raises(files.Damaged, match=r"\.csv\.gz is damaged: its checksum does not match"):
        rows_of(TWO, Store(tmp_path / "store"), Nowhere())


def test_damaged_rows_are_named_or_measured_again(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "store")
    store, victim = Store(tmp_path / "store"), next((tmp_path / "store" / "rows").glob("positional-*.csv.gz"))
    before = victim.read_bytes()
    victim.write_bytes(before[:-20])
    with pytest.warns(UserWarning, match=rf"{victim.name} is damaged: .* Its runs are measured again\.$"):
        rows_of(TWO, store, Engine(CPU))
    assert victim.read_bytes() == before
    victim.write_bytes(before[:-20])
    shutil.rmtree(store.root / "runs")
    with pytest.raises(files.Damaged, match=rf"{victim.name} is damaged: .* or remove it to train its runs again\.$"):
        rows_of(TWO, store, Engine(CPU))


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", gzip.compress(b"a,b\n1,2\n"), gzip.compress(b"\xff\xfe")[:-9]],
    ids=("nothing", "no gzip", "other columns", "cut"),
)
def test_rows_that_are_no_table_are_named_whatever_their_checksum(whole, tmp_path, content):
    shutil.copytree(whole[0], tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "runs")
    victim = next((tmp_path / "store" / "rows").glob("positional-*.json"))
    described = files.read_sealed(victim) | {"sha256": files.sha256(content)}
    files.write_sealed(victim, described)
    victim.with_suffix(".csv.gz").write_bytes(content)
    with pytest.raises(files.Damaged, match=r"\.csv\.gz is damaged: it is not a table"):
        rows_of(TWO, Store(tmp_path / "store"), Nowhere())


def change_a_number(csv):
    csv.write_text(csv.read_text().replace("mse,", "mse,1", 1))


@pytest.mark.parametrize(
    "damage",
    [
        change_a_number,
        lambda csv: csv.unlink(),
        lambda csv: csv.write_bytes(b"\x00\xff"),
        lambda csv: csv.with_suffix(".json").write_text("{}"),
        lambda csv: files.write_sealed(
            csv.with_suffix(".json"), {"name": "another", "sha256": files.sha256(csv.read_bytes())}
        ),
        lambda csv: (csv.with_suffix(".json").unlink(), os.mkfifo(csv.with_suffix(".json"))),
    ],
)
def test_damaged_computed_rows_are_computed_again(whole, tmp_path, damage):
    shutil.copytree(whole[0], tmp_path / "store")
    (csv,) = (tmp_path / "store" / "computed").glob("*.csv")
    before = csv.read_bytes()
    damage(csv)
    with pytest.warns(
        UserWarning, match=r"(damaged: .+|another experiment\.|cannot read .+) Its rows are computed again\.$"
    ):
        rows, _ = TWO.held("paper", Store(tmp_path / "store")).read()
    pd.testing.assert_frame_equal(rows, whole[1])
    with pytest.warns(UserWarning, match="computed again"):
        rows_of(TWO, Store(tmp_path / "store"), Nowhere())
    assert csv.read_bytes() == before and Store(tmp_path / "store").has_computed(csv.stem)


# Several processes.


@pytest.mark.parametrize("what", ["lay out", "write", "compute"])
def test_one_process_at_a_time_writes(tmp_path, what):
    store, done = Store(tmp_path / "store"), threading.Event()
    cells = small(seeds=1).cells("paper")
    run = train_spec(cells[0].spec(), CPU)

    def write():
        if what == "lay out":
            store.lay_out(cells)
        elif what == "write":
            store.write(run.spec, MEASURE, MEASURE.rows(run), run.result)
        else:
            store.computed("some", lambda: pd.DataFrame({"value": [1.0]}))
        done.set()

    with files.lock(store.root / "lock"):
        other = threading.Thread(target=write, daemon=True)
        other.start()
        assert not done.wait(timeout=0.3) and os.listdir(store.root) == ["lock"]
    assert done.wait(timeout=60) and len(os.listdir(store.root)) == 2


def test_what_a_killed_process_left_half_written_goes_with_the_next_write(tmp_path):
    store = Store(tmp_path / "store")
    store.computed("some", lambda: pd.DataFrame({"value": [1.0]}))
    left = [store.root / "computed" / f".{name}.1f.partial" for name in ("a.csv", "a.json")]
    (store.root / "rows").mkdir()
    left += [store.root / "rows" / f".{name}.1f.partial" for name in ("a.csv.gz", "a.json")]
    foreign = store.root / "rows" / ".movie.mkv.partial"
    for path in (*left, foreign):
        path.write_bytes(b"half")
    store.computed("other", lambda: pd.DataFrame({"value": [1.0]}))
    assert not any(path.exists() for path in left) and foreign.exists()


def test_a_run_is_known_by_what_determines_its_numbers_and_a_point_by_all_but_the_seed():
    first, second = small().cells("paper")
    assert first.key != second.key and first.point == second.point == first.key
    assert replace(first, label="other", measure=Scales((7,))).key == first.key
    assert replace(first, recipe=replace(first.recipe, samples=41)).point != first.point
    assert first.spec("tf32").identity(0, precision=False) == first.key


def test_rows_of_a_function_of_ones_own_that_changed_are_refused(tmp_path, engine, monkeypatch):
    store = Store(tmp_path / "store")

    def learn(target):
        monkeypatch.setitem(TASKS, "changed", Task("changed", "changed", target))
        return rows_of(small(tasks=("sum", "changed")), Store(store.root), engine)

    rows = learn(lambda x: 2 * x)
    assert learn(lambda x: x + x).equals(rows)  # other code, same answers
    told = r"^store is .*, whose networks learn another function of the name 'changed'; give another folder by --store\.$"
    with pytest.raises(UsageError, match=told):
        learn(lambda x: 3 * x)
    assert len(rows_of(small(), store, engine))  # the other task's rows serve
    shutil.rmtree(store.root / "rows")  # what was trained and not measured
    with pytest.raises(UsageError, match=told):
        learn(lambda x: 3 * x)
    assert learn(lambda x: 2 * x).equals(rows)


def test_rows_of_an_encoding_of_ones_own_that_changed_are_refused(tmp_path, engine, monkeypatch):
    def learn(times):
        row = Encoding(lambda n, positions: n, lambda positions, dim: times * torch.ones(positions, dim))
        monkeypatch.setitem(ENCODINGS, "flat", row)
        own = grid_changed(small(), series=series("positional", encoding="flat"))
        return rows_of(own, Store(tmp_path / "store"), engine)

    rows = learn(1)
    with pytest.raises(UsageError, match=r"^store is .*, whose networks read another encoding of the name 'flat'; give"):
        learn(2)
    assert learn(1).equals(rows)


def test_rows_of_the_packages_tasks_have_no_answers(tmp_path, engine):
    store = Store(tmp_path / "store")
    rows_of(small(), store, engine)
    assert all("answers" not in files.read_sealed(path) for path in (store.root / "rows").glob("*.json"))
