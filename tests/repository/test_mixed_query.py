"""benchmarks/mixed_query.py: fewer identifiers ask for the same, every way trains, and its rows are written once."""

import runpy
import sys
from pathlib import Path

import pandas as pd
import torch

import posattn
from posattn.tokens.vocabulary import word_index

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "mixed_query.py"
QUERY = runpy.run_path(str(SCRIPT))


def test_renamed_prompts_have_the_same_answers_and_few_identifiers():
    task = posattn.task("mixed-sum")
    x, y = task.sample(200)
    few = QUERY["renamed"](x, 9, seed=1)
    assert torch.equal(task.target(few), y) and all(task.encode(task.decode(row)).equal(row) for row in few[:20])
    category = (few < 0) & (word_index(few) < 200)
    assert set((word_index(few)[category] % 40).tolist()) == set(range(9))


def test_a_curriculum_ends_with_all_identifiers():
    batches = list(QUERY["prompts"]("mixed-min", 0, 400, curriculum=True))
    largest = [int((word_index(x)[:, 19:]).max()) + 1 for x, _ in batches]
    assert len(batches) == 400 and [largest[step] for step in (0, 99, 100, 200, 399)] == [8, 8, 13, 18, 20]


def test_every_way_trains_and_is_not_repeated(tmp_path, monkeypatch, capsys):
    out = tmp_path / "ways.csv"
    command = ["mixed_query.py", "--out", str(out), "--tasks", "mixed-sum", "--steps", "2", "--archs", "positional"]
    monkeypatch.setattr(sys, "argv", command)
    for name in ("_BATCH", "_TESTED"):
        monkeypatch.setitem(QUERY["main"].__globals__, name, 10)
    for _ in range(2):
        QUERY["main"]()
    rows = pd.read_csv(out)
    assert rows["way"].tolist() == list(QUERY["WAYS"]) and rows["weights"].nunique() > 2
    assert list(rows) == list(pd.read_csv(ROOT / "results" / "mixed-scan" / "ways.csv"))
