"""GPT-2 beside a trained network: rows with the columns of every result, trials that are not repeated, what is refused."""

import shutil

import pandas as pd
import pytest
import torch

import posattn
from posattn.baselines.gpt2 import TINY, FineTuning
from posattn.errors import UsageError
from posattn.experiments.gpt2_comparison import Comparison, compare
from posattn.runs import ROW_COLUMNS

CPU = torch.device("cpu")
WHAT = Comparison(FineTuning("mixed-min", TINY, samples=8, epochs=1, batch=8), trials=1, scales=(1, 10), samples=4)


def test_trials_are_kept_and_shown_beside_runs(tmp_path):
    config = posattn.ModelConfig(23, layers=1, embed=8, width=8)
    short = {"samples": 20, "epochs": 1, "batch": 20, "device": "cpu"}
    posattn.train("mixed-min", config, **short, out=tmp_path / "run")
    said = []
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".gpt2.json.1f.partial").touch()  # an earlier call was killed
    shown = compare(WHAT, tmp_path / "out", CPU, [tmp_path / "run"], said.append)
    rows = pd.read_csv(tmp_path / "out" / "rows.csv")
    assert tuple(pd.read_csv(tmp_path / "out" / "trial-0.csv")) == (*ROW_COLUMNS, "series")
    assert set(rows["series"]) == {"GPT-2 (tiny, from scratch)", "positional"}
    own = rows[rows["arch"] != "positional"]
    assert dict(zip(own["scale"], own["domain"], strict=True)) == {1: "id", 10: "ood"} and own["samples"].eq(8).all()
    assert [title for title, _ in shown.tables] == [f"mixed-min, {name}" for name in ("mse", "mape", "unparsed")]
    assert (tmp_path / "out" / "gpt2.png").stat().st_size > 10_000 and "loading" in said[0]
    said.clear()
    compare(WHAT, tmp_path / "out", CPU, announce=said.append)
    assert said == []
    shutil.copytree(tmp_path / "out", tmp_path / "damaged")
    (tmp_path / "damaged" / "trial-0.csv").write_bytes(b"")
    with pytest.raises(UsageError, match=r"trial-0\.csv is damaged: it is not a table\.$"):
        compare(WHAT, tmp_path / "damaged", CPU)
    posattn.train("mixed-max", config, **short, out=tmp_path / "other")
    with pytest.raises(UsageError, match=r"^against is '.*other', a run of mixed-max; it must be one of mixed-min\.$"):
        compare(WHAT, tmp_path / "out", CPU, [tmp_path / "other"])


def test_a_folder_of_other_files_is_refused(tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UsageError, match="which holds other files; give an empty or a new folder"):
        compare(WHAT, tmp_path, CPU)
