"""benchmarks/khop_scan.py: each network lacks what its name says, and both tables are written."""

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

import posattn
from posattn.experiments.hop_study import Sequences

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "khop_scan.py"
KHOP = runpy.run_path(str(SCRIPT))
VARIANTS, Without = KHOP["VARIANTS"], KHOP["Without"]


def exact(name):
    """A variant with the weights of a stored run, as far as it has them."""
    network = VARIANTS[name](Without(30, without=name))
    stored = posattn.load(ROOT / "results" / "khop-scan" / "seed-0").model().state_dict()
    shapes = {key: weight.shape for key, weight in network.state_dict().items()}
    network.load_state_dict({key: weight for key, weight in stored.items() if shapes.get(key) == weight.shape}, strict=False)
    return network


def test_a_position_that_reads_its_own_table_finds_itself_where_neighbours_are_alike():
    task, networks = posattn.task("khop"), [exact(name) for name in ("nothing", "reading before oneself")]
    x, y = task.sample(100, n=30, seed=5)  # no neighbours are alike: both ways give the same
    assert all(torch.equal(network(x).argmax(dim=-1), y) for network in networks)
    caab = task.encode("1cab")[[0, 1, 2, 2, 3]]
    said = [task.decode(network(caab[None]).argmax(dim=-1)[0]) for network in networks]
    assert said == [" ~~~~", " ~~a~"]


def test_letters_have_weights_of_their_own_without_tying():
    for name, alike in (("nothing", True), ("tying over entries", False)):
        network = exact(name)
        said = [network(posattn.task("khop").encode(text)[None])[0] for text in ("1abcab", "1fghfg")]
        first = posattn.task("khop").encode("0af")[1:].tolist()
        answers = [each[4, letter + 1] for each, letter in zip(said, first, strict=True)]  # b, and g
        assert torch.isclose(*answers).item() == alike


def test_attention_reads_letters_without_positions():
    for name, fixed in (("nothing", True), ("positional attention", False)):
        network, weights = exact(name), []
        for text in ("abcab", "bacba"):
            letters = torch.nn.functional.one_hot(torch.tensor([ord(c) - ord("a") for c in text]), 10).float()[:, None]
            list(network.hops(letters, 0))  # self-attention computes its weights here
            before, _ = network._attention(5)
            weights.append(before(torch.eye(5)[:, None]))
        assert torch.equal(*weights) == fixed


def test_every_network_trains_and_its_rows_are_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(KHOP["without"].__globals__, "PLAN", replace(KHOP["PLAN"], samples=32))
    evaluate = posattn.Run.evaluate
    monkeypatch.setattr(posattn.Run, "evaluate", lambda run, scales, samples: evaluate(run, scales, samples // 10))
    names = [*VARIANTS, *KHOP["PAPERS"]]
    KHOP["without"](tmp_path / "rows.csv", 1, 1, names)
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert rows["without"].unique().tolist() == names and rows["accuracy"].between(0, 1).all() and len(rows) == 70
    assert list(rows) == list(pd.read_csv(ROOT / "results" / "khop-scan" / "without.csv"))


def test_the_command_tests_the_runs_given(tmp_path, monkeypatch):
    monkeypatch.setattr("posattn.experiments.hop_study.TESTS", {"a-e": Sequences(sequences=20)})
    monkeypatch.setattr("posattn.experiments.hop_study.reach.__defaults__", (("a-e",),))
    out, runs = tmp_path / "reach.csv", [str(ROOT / "results" / "khop-scan" / f"seed-{seed}") for seed in (1, 3)]
    monkeypatch.setattr(sys, "argv", ["khop_scan.py", "--reach", str(out), "--runs", *runs])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = pd.read_csv(out)
    assert rows["seed"].unique().tolist() == [1, 3] and (rows["accuracy_found"] == 1).all() and len(rows) == 14
    assert list(rows) == list(pd.read_csv(ROOT / "results" / "khop-scan" / "reach.csv"))
