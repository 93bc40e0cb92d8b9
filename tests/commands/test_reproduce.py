"""posattn reproduce: the list, all experiments at once, and medians for other programs."""

import json
from pathlib import Path

from posattn.experiments import EXPERIMENTS
from posattn.training import Trainer

ROOT = Path(__file__).resolve().parents[2]


def test_the_list_of_experiments(posattn_command):
    code, shown, _ = posattn_command("reproduce", "--list")
    assert code == 0 and "fix-scale" in shown and "Figure 4" in shown
    assert posattn_command("reproduce")[1] == shown


def test_the_list_says_what_its_times_rest_on_and_times_nothing(posattn_command, monkeypatch):
    monkeypatch.setattr(Trainer, "steps", None)  # no step may be taken
    code, shown, _ = posattn_command("reproduce", "--list", "--scale", "paper", "--device", "cpu")
    assert code == 0 and "on one CPU core as fast as those of an AMD EPYC; nothing is timed here." in shown
    assert "Not in these numbers: gpt2 also takes 30 fine-tunings of GPT-2." in shown
    assert "discrepancy also takes 2,240 trainings of Appendix G's class of networks." in " ".join(shown.split())
    assert posattn_command("reproduce", "--list", "--scale", "paper", "--device", "cpu")[1] == shown


def test_the_list_gives_the_times_of_a_gpu_where_there_is_none_and_whole_names(posattn_command):
    code, shown, _ = posattn_command("reproduce", "--list", "--scale", "paper", "--device", "cuda")
    assert code == 0 and "training on a GPU" in " ".join(shown.split()) and "as fast as an H200 in fp16" in shown
    assert all(f"│ {name} " in shown for name in EXPERIMENTS)


def test_the_list_is_json_where_it_is_asked_for(posattn_command):
    code, shown, _ = posattn_command("reproduce", "--list", "--scale", "paper", "--device", "cuda", "--json")
    rows = [json.loads(line) for line in shown.splitlines()]
    assert code == 0 and [row["name"] for row in rows] == list(EXPERIMENTS)
    for row, each in zip(rows, EXPERIMENTS.values(), strict=True):
        own = {"name": each.name, "reference": each.reference, "what": each.title, "runs": len(each.cells("paper"))}
        assert row == own | {"scale": "paper", "seconds": row["seconds"], "more": each.source.more("paper")}
        assert (row["seconds"] > 0) == (row["runs"] > 0)


def test_drawing_all_of_a_store_passes_over_what_it_has_no_rows_of(posattn_command):
    code, shown, _ = posattn_command("reproduce", "all", "--scale", "smoke", "--runs", "0")
    assert code == 0 and "fix-scale: runs is 0, and the store at 'out/store' has no rows of fix-scale at scale" in shown
    assert "discrepancy: runs is 0" in shown and "gnn: runs is 0" in shown


def test_where_another_store_has_the_rows_it_is_named(posattn_command, monkeypatch, tmp_path):
    monkeypatch.setattr("posattn.experiments.engine.STORES", (tmp_path / "none", ROOT / "results/store"))
    code, _, error = posattn_command("reproduce", "gnn", "--scale", "paper", "--runs", "0")
    assert code == 2 and f"Those in {str(ROOT / 'results/store')!r} can be: give it as --store." in error


def test_all_experiments_that_have_a_series(posattn_command, tmp_path):
    code, shown, told = posattn_command(
        *("reproduce", "all", "--scale", "smoke", "--only", "standard-rope", "--device", "cpu", "--out", "out")
    )
    assert code == 0, told
    assert "2 of 22 runs are there; " in shown
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name != "store"] == ["encodings"]


def test_medians_of_an_experiment_as_json(posattn_command, tmp_path):
    places = ("--store", tmp_path / "store", "--out", tmp_path / "out")
    code, output, _ = posattn_command("reproduce", "ood-probability", "--scale", "smoke", "--json", *places)
    found = json.loads(output)
    assert code == 0 and found["experiment"] == "ood-probability" and found["figure"].endswith(".png")
    assert all(0 <= row["median"] <= 4 for row in found["medians"]) and len(found["medians"]) > 4
