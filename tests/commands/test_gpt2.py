"""posattn gpt2: from checkpoint to figure with a small GPT-2, and what it refuses."""

from functools import partial

import pandas as pd
import pytest

import posattn
from posattn.baselines import gpt2

pytestmark = pytest.mark.usefixtures("unchecked")


def test_the_command_from_checkpoint_to_figure(posattn_command, tmp_path):
    folder, command = tmp_path / "small", partial(posattn_command, "gpt2")
    for part in gpt2.checkpoint(gpt2.FineTuning("mixed-min", gpt2.TINY)):  # network and tokenizer
        part.save_pretrained(folder)
    run = posattn.train("mixed-min", posattn.ModelConfig(23, layers=1, embed=8, width=8), samples=40, epochs=1, batch=20,
                        device="cpu", out=tmp_path / "run")  # fmt: skip
    options = ["mixed-min", "--checkpoint", folder, "--samples", 16, "--epochs", 1, "--batch", 8, "--scales", "1,10"]
    options += ["--test-samples", 6, "--device", "cpu", "--out", "out"]
    code, shown, said = command(*options, "--runs", 2, "--against", tmp_path / "run")
    assert code == 0, said
    rows = pd.read_csv(tmp_path / "out" / "rows.csv")
    own = rows[rows["series"] == f"GPT-2 ({folder.name})"]
    assert len(own) == 2 * 2 * 3 and set(own["metric"]) == {"mse", "mape", "unparsed"} and set(own["seed"]) == {0, 1}
    table = run.evaluate([1, 10], 6)
    beside = rows.query("series == 'positional' and metric == 'mse'")
    assert beside["value"].tolist() == pytest.approx(table["mse"].tolist(), rel=1e-5)
    assert (
        "trial 2 of 2" in shown
        and "mixed-min, mse" in shown
        and (tmp_path / "out" / "gpt2.png").stat().st_size > 10_000
    )
    assert "| scale |" in (tmp_path / "out" / "gpt2.md").read_text()
    kept = (tmp_path / "out" / "trial-1.csv").stat().st_mtime_ns
    code, shown, _ = command(*options, "--runs", 2)
    assert code == 0 and "fine-tuning" not in shown and (tmp_path / "out" / "trial-1.csv").stat().st_mtime_ns == kept
    code, _, said = command(*options, "--lr", 1)
    assert code == 2 and said.endswith("which holds a comparison with other settings; give another folder.\n")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["sum"], "task is 'sum'; it must be one of mixed-min, mixed-max, mixed-sum, mixed-multitask."),
        (["mixed-min", "--epochs", "0"], "epochs is 0; it must be a whole number of at least 1."),
        (["mixed-min", "--lr", "-1"], "lr is -1.0; it must be a finite number above 0."),
        (
            ["mixed-min", "--checkpoint", "."],
            "checkpoint is '.'; the folder must hold a GPT-2 as save_pretrained leaves it",
        ),
        (["mixed-min", "--runs", 10**12], "runs is 1000000000000; it must be at most 1000."),
        (["mixed-min", "--against", "nothing"], "there is no folder nothing; give that of a run."),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(posattn_command, tmp_path, options, sentence):
    code, _, said = posattn_command("gpt2", *options, "--device", "cpu")
    assert code == 2 and said.startswith(f"posattn: {sentence}") and said.count("\n") == 1
    assert not list(tmp_path.iterdir())
