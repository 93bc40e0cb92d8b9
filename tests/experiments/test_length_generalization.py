"""The experiment length-generalization: what it declares, and that its rows and figure come out."""

from dataclasses import replace

import torch

from posattn.experiments import EXPERIMENTS, Engine, Lengths, Store, reproduce
from posattn.looped import AnyLengthConfig

EXPERIMENT = EXPERIMENTS["length-generalization"]


def test_every_network_has_the_same_budget_and_takes_every_length():
    cells = EXPERIMENT.cells("paper")
    assert len(cells) == 11 * 3 * 5
    assert {cell.variable_length for cell in cells} == {(2, 4, 8, 16)}
    assert {cell.recipe.epochs * cell.recipe.samples // cell.recipe.batch for cell in cells} == {10_000}
    assert all(cell.model.any_length and cell.model.heads == 2 for cell in cells)
    looped = [cell.label for cell in cells if isinstance(cell.model, AnyLengthConfig) and cell.model.looped]
    assert {label.removesuffix(", looped") for label in looped} >= {"RoPE", "ALiBi", "no encodings"}
    assert all(cell.recipe.sharpen_to == cells[0].recipe.sharpen_to for cell in EXPERIMENT.cells("quick"))


def test_rows_figure_and_page_come_out(tmp_path):
    few = replace(EXPERIMENT, grid=replace(EXPERIMENT.grid, series=EXPERIMENT.grid.series[:4]))
    outcome = reproduce(few, "smoke", tmp_path / "out", Store(tmp_path / "store"), Engine(torch.device("cpu")))
    assert outcome.figure.exists() and outcome.page.exists()
    rows = outcome.rows
    assert set(rows["metric"]) == {"mse", "relative_square"} and set(rows["n"]) == {2, 4, 8}
    assert (rows["trained_n"] == 16).all() and rows["value"].notna().all()
    assert len(rows) == 4 * 3 * 2 * 2  # series, lengths, scales, metrics; one task and one run
    assert set(rows.loc[rows["scale"] == 1, "domain"]) == {"id"}


def test_longer_lists_are_fewer_but_never_too_few():
    assert [Lengths().count(n) for n in (2, 64, 128, 1024)] == [1000, 1000, 500, 100]
    assert [Lengths(samples=20).count(n) for n in (2, 1024)] == [20, 20]
