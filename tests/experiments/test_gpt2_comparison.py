"""GPT-2 beside trained networks: what the paper says, trials that are kept and not repeated, and what is refused."""

import sys
from pathlib import Path

import pytest
import torch

from posattn.baselines import gpt2
from posattn.errors import UsageError
from posattn.experiments import EXPERIMENTS, Engine, Store, catalog, gpt2_comparison, reproduce
from posattn.experiments.gpt2_comparison import label, with_checkpoint
from posattn.runs import ROW_COLUMNS

GPT2 = EXPERIMENTS["gpt2"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setitem(gpt2_comparison._AT, "smoke", gpt2_comparison._Trials(2, 8, 1, 3))


def trials(source, size="paper"):
    return source._trials(size)


def test_at_paper_scale_it_is_the_papers():
    made = list(trials(GPT2.source).values())
    assert {(settings.task, seed) for settings, seed in made} == {
        (f"mixed-{name}", seed) for name in ("min", "sum", "multitask") for seed in range(10)
    }
    ((checkpoint, samples, epochs),) = {(each.checkpoint, each.samples, each.epochs) for each, _ in made}
    assert (checkpoint, samples, epochs) == ("gpt2-large", 50_000, 3)
    beside = GPT2.cells("paper")
    assert len(beside) == 30 and {cell.key for cell in beside} <= {
        cell.key for cell in EXPERIMENTS["mixed-scan"].cells("paper")
    }
    assert {settings.checkpoint for settings, _ in trials(GPT2.source, "quick").values()} == {gpt2.TINY}


def test_a_checkpoint_is_known_by_its_name():
    (folder,) = with_checkpoint([GPT2], "/somewhere/gpt2-large")
    (medium,) = with_checkpoint([GPT2], "gpt2-medium")
    assert trials(folder.source).keys() == trials(GPT2.source).keys()
    assert not trials(medium.source).keys() & trials(GPT2.source).keys()
    settings, _ = next(iter(trials(folder.source).values()))
    assert (settings.checkpoint, label(settings)) == ("/somewhere/gpt2-large", "GPT-2 (gpt2-large)")


def test_folders_have_their_own_name_and_checkpoints_of_the_hub_the_full_one(tmp_path, monkeypatch):
    folder = tmp_path / "own-gpt2"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for given, known in ((".", "own-gpt2"), ("../own-gpt2/", "own-gpt2"), ("someone/gpt2-large", "someone/gpt2-large")):
        (named,) = with_checkpoint([GPT2], given)
        settings, _ = next(iter(trials(named.source).values()))
        assert label(settings) == f"GPT-2 ({known})"
    assert not trials(named.source).keys() & trials(GPT2.source).keys()


def test_stored_trials_are_those_of_quick_scale():
    stored = Path(__file__).parents[2] / "results" / "store" / "computed"
    assert trials(GPT2.source, "quick").keys() == {path.stem for path in stored.glob("gpt2-quick-*.csv")}


def test_trials_are_kept_and_shown_beside_networks(tmp_path):
    said, store = [], Store(tmp_path / "store")
    engine = Engine(CPU, said.append)
    assert not GPT2.held("smoke", store).some
    reproduce(GPT2, "smoke", tmp_path / "out", store, engine, runs=1)
    assert GPT2.held("smoke", store).said == "1 of 2 trials, 1 of 2 runs" and GPT2.held("smoke", store).enough
    outcome = reproduce(GPT2, "smoke", tmp_path / "out", store, engine)
    fine_tuned = [line for line in said if "GPT-2" in line]
    assert ["trial 1 of 1" in fine_tuned[0], "trial 2 of 2" in fine_tuned[1], len(fine_tuned)] == [True, True, 2]
    rows = outcome.rows
    assert set(rows["series"]) == {"GPT-2 (tiny, from scratch)", "positional"} and set(ROW_COLUMNS) <= set(rows)
    own = rows[rows["recipe"] == "fine-tuning"]
    assert len(own) == 2 * 2 * 3 and set(own["metric"]) == {"mse", "mape", "unparsed"} and set(own["seed"]) == {0, 1}
    assert dict(zip(own["scale"], own["domain"], strict=True)) == {1: "id", 3: "ood"} and own["samples"].eq(8).all()
    assert [title for title, _ in outcome.tables] == [f"mixed-min, {name}" for name in ("mse", "mape", "unparsed")]
    said.clear()
    again = reproduce(GPT2, "smoke", tmp_path / "out", store, engine)
    assert not said and again.rows["value"].equals(rows["value"])


def test_a_damaged_trial_is_named_where_it_is_read_and_repeated_where_it_is_run(tmp_path):
    store, engine = Store(tmp_path / "store"), Engine(CPU)
    before = reproduce(GPT2, "smoke", tmp_path / "out", store, engine, runs=1).rows
    (path,) = (tmp_path / "store" / "computed").glob("gpt2-*.csv")
    path.write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="computed again"),
        pytest.raises(
            UsageError, match=r"^the rows of the trial gpt2-smoke-mixed-min-\w+-0 are damaged; posattn reproduce"
        ),
    ):
        GPT2.held("smoke", store).read()
    with pytest.warns(UserWarning, match="computed again"):
        after = reproduce(GPT2, "smoke", tmp_path / "out", store, engine, runs=1).rows
    assert after["value"].equals(before["value"])


def test_the_command_takes_a_folder_and_says_what_is_none(posattn_command, tmp_path):
    folder, command = tmp_path / "small", ("reproduce", "gpt2", "--scale", "smoke", "--runs", 1, "--device", "cpu")
    for part in gpt2.checkpoint(gpt2.FineTuning("mixed-min", gpt2.TINY)):  # network and tokenizer
        part.save_pretrained(folder)
    code, shown, said = posattn_command(*command, "--checkpoint", folder)
    assert code == 0, said
    assert "GPT-2 (small)" in shown and "mixed-min, mape" in shown and "1 of 2 runs are there" in shown
    assert Path(tmp_path, "out", "gpt2-smoke", "gpt2.png").stat().st_size > 10_000
    for arguments, sentence in (
        ((*command, "--checkpoint", tmp_path), "the folder must hold a GPT-2 as save_pretrained leaves it"),
        ((*command, "--checkpoint", ""), "checkpoint is ''; it must be a folder or a name on the Hugging Face hub."),
        (("reproduce", "fix-scale", "--checkpoint", folder), "it is for the experiment gpt2 alone, not for fix-scale."),
    ):
        code, _, said = posattn_command(*arguments)
        assert code == 2 and sentence in said and said.count("\n") == 1


def test_all_experiments_go_on_without_a_gpt2(posattn_command, monkeypatch, tmp_path):
    monkeypatch.setattr(catalog, "EXPERIMENTS", {name: EXPERIMENTS[name] for name in ("gpt2", "ood-probability")})
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, shown, said = posattn_command("reproduce", "all", "--scale", "smoke", "--device", "cpu")
    assert code == 0, said
    assert "gpt2: transformers is not installed; install it with pip" in shown and "ood-probability:" in shown
