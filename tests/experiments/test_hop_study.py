"""k-hop by scans: the tests of its reach are right, its grid has both kinds of networks, and the stored runs are exact."""

import math
from pathlib import Path

import pytest
import torch

import posattn
from posattn.experiments import EXPERIMENTS
from posattn.experiments.declaration import SIZES
from posattn.experiments.hop_study import TESTS, Sequences, draw, reach, truth
from posattn.training.recipe import recipe

STORED = sorted(Path(posattn.__file__).parents[1].glob("results/khop-scan/seed-*"))


def test_the_truth_is_that_of_the_task():
    task = posattn.task("khop")
    x, y = task.sample(200, n=20)
    wanted = torch.stack(list(truth(x[:, 1:], 3, task.encode("0a")[1].item() + 10)))  # '~' follows the ten letters
    assert torch.equal(wanted[x[:, 0], torch.arange(200)], y[:, 1:])


def test_sequences_are_drawn_from_their_letters():
    s = draw(Sequences(letters=5, first=5, length=40, sequences=50), seed=3)
    assert s.shape == (50, 40) and set(s.unique().tolist()) == {5, 6, 7, 8, 9} and (s[:, 1:] != s[:, :-1]).all()
    assert not torch.equal(s, draw(Sequences(letters=5, first=5, length=40, sequences=50), seed=4))


def test_the_grid_has_the_papers_networks_and_tables():
    cells = EXPERIMENTS["khop-scan"].cells("paper")
    assert {cell.label for cell in cells} == {"positional", "standard", "table"}
    recipes = {cell.label: cell.recipe.name for cell in cells}
    assert recipes == {"positional": "paper", "standard": "paper", "table": "table"}
    layers = {cell.key for cell in EXPERIMENTS["khop-layers"].cells("paper")}
    assert {cell.key for cell in cells if cell.label != "table"} <= layers
    assert [cell.member.seed for cell in cells if cell.label == "table"] == list(range(len(STORED)))


def test_tables_keep_their_recipe_at_quick_scale():
    at = {size: [cell for cell in EXPERIMENTS["khop-scan"].cells(size) if cell.label == "table"] for size in SIZES}
    assert {cell.recipe for cell in at["quick"]} == {recipe("table")} and len(at["quick"]) > 1
    assert {cell.key for cell in at["quick"]} < {cell.key for cell in at["paper"]}
    assert all(cell.recipe.samples < 100 for cell in at["smoke"])


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_stored_networks_have_every_letter_right(folder, monkeypatch):
    lengths = {name: min(test.length, 200) for name, test in TESTS.items()}
    small = {name: test._replace(sequences=1200 // lengths[name], length=lengths[name]) for name, test in TESTS.items()}
    monkeypatch.setattr("posattn.experiments.hop_study.TESTS", small)
    rows = reach(posattn.load(folder).model(), seed=50, tests=small)
    assert (rows["found"] > 0).all() and (rows[["accuracy", "accuracy_found"]] == 1).all(axis=None)
    assert (rows.query("test in ['a-e', 'f-j']")["cross_entropy"] < 1e-2).all()


def test_targets_that_are_letters_are_counted_by_themselves(monkeypatch):
    few = Sequences(letters=10, length=12, sequences=20)
    monkeypatch.setattr("posattn.experiments.hop_study.TESTS", {"few": few})
    rows = reach(posattn.looped.TableConfig(30, fixed=True).build(), 7, ["few"])
    assert rows["found"].tolist() == [int((wanted != 10).sum()) for wanted in truth(draw(few, 7), 6, 10)]
    (last,) = rows[rows["found"] == 0]["accuracy_found"].unique()  # six hops back do not fit into twelve letters
    assert math.isnan(last)


def test_a_wrong_network_is_not_right():
    network = posattn.looped.TableConfig(30, fixed=True).build()
    assert reach(network, 0, ["a-e"]).query("hops == 1")["accuracy"].item() < 0.6


def test_there_are_five_stored_networks():
    assert len(STORED) == 5
