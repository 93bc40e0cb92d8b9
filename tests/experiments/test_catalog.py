"""The experiments of the catalogue: what they declare at paper size, which runs they share, and that all come out."""

from functools import cache

import pytest
import torch

from posattn.experiments import EXPERIMENTS, SIZES, EachShift, Engine, Scales, Shifts, reproduce
from posattn.looped import AnyLengthConfig
from posattn.tasks import SHIFTS, TASKS
from posattn.training import Recipe
from posattn.training.recipe import recipe

FIX_SCALE = EXPERIMENTS["fix-scale"]
SERIES = {"khop": ["positional", "standard", "positional, tied", "standard, tied"]}
SERIES["mixed"] = ["positional", "standard", "positional, relative", "standard, relative"]


@pytest.fixture(scope="module")
def at_smoke_scale(tmp_path_factory, store):
    """A function that reproduces an experiment by name, once for all tests."""
    out = tmp_path_factory.mktemp("smoke")

    def made(name):
        return EXPERIMENTS[name], reproduce(EXPERIMENTS[name], "smoke", out / name, store, Engine(torch.device("cpu")))

    return cache(made)


def test_the_paper_scale_is_the_papers():
    grid = FIX_SCALE.source.at("paper")
    assert grid.tasks == ("sum", "min", "median", "sort", "maxsub") and grid.seeds == 10 and grid.n == (8,)
    assert grid.recipe == Recipe() and grid.measure == Scales(tuple(range(1, 11)), 1000)
    assert len(EXPERIMENTS["fix-sample"].cells("paper")) == 5 * 10 * 10 * 3
    assert {cell.recipe.samples for cell in EXPERIMENTS["fix-sample"].cells("paper")} == set(range(5000, 50_001, 5000))
    assert {cell.model.n for cell in EXPERIMENTS["length"].cells("paper")} == {2, 4, 8, 16, 32}
    variable = EXPERIMENTS["variable-length"].cells("paper")[0]
    assert variable.variable_length and variable.member.lr == 1e-4
    assert (variable.recipe.samples, variable.recipe.batch) == (500_000, 2048)
    assert {cell.recipe.shuffle_lengths for cell in EXPERIMENTS["variable-length"].cells("paper")} == {True}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda experiment: experiment.name)
def test_every_run_of_an_experiment_is_its_own(experiment, size):
    cells = experiment.cells(size)
    assert {cell.member.task for cell in cells} <= set(TASKS)
    assert len({cell.key for cell in cells}) == len(cells)


def test_eight_experiments_share_the_positional_runs():
    """Those of 30,000 lists of 8 numbers."""
    sum_run = next(cell.key for cell in FIX_SCALE.cells("paper") if cell.label == "positional")
    for name in ("fix-sample", "length", "compact", "encodings", "ablation", "accuracy", "distribution-shift"):
        assert any(cell.key == sum_run for cell in EXPERIMENTS[name].cells("paper")), name


def test_the_experiment_shares_its_runs_with_fix_scale_and_ablation():
    shift = EXPERIMENTS["distribution-shift"]
    keys = {cell.key for cell in shift.cells("paper")}
    assert len(keys) == 5 * 8 * 10
    for other in ("fix-scale", "ablation"):
        assert {cell.key for cell in EXPERIMENTS[other].cells("paper")} <= keys
    assert shift.source.measure == Shifts(tuple(SHIFTS), 1000) and shift.source.at("smoke").measure.samples == 50


def cells(name):
    return EXPERIMENTS[name].cells("paper")


def test_khop_at_paper_scale_is_the_papers():
    layers, samples = cells("khop-layers"), cells("khop-samples")
    for cell in layers + samples:
        model = cell.model
        assert (cell.member.task, model.n, model.tokens, model.causal, model.embed) == ("khop", 30, "letters", True, 60)
        assert (cell.recipe.epochs, cell.recipe.batch, cell.recipe.name) == (2001, 1000, "paper")
    assert {cell.recipe.samples for cell in layers} == {50_000} and {cell.model.layers for cell in samples} == {8}
    assert {cell.model.layers for cell in layers} == {1, 2, 3, 4, 6, 8, 12}
    assert {cell.recipe.samples for cell in samples} == {5_000, 10_000, 20_000, 50_000}
    assert list(dict.fromkeys(cell.label for cell in layers)) == SERIES["khop"]
    assert {cell.label for cell in layers if cell.model.tied} == set(SERIES["khop"][2:])
    shared = {cell.key for cell in layers} & {cell.key for cell in samples}
    assert len(shared) == 4 * 10  # eight layers and 50,000 sequences are trained once


def test_fewer_sequences_take_as_many_steps_in_the_control():
    control, samples = cells("khop-steps"), cells("khop-samples")
    for cell in control:
        plan, times = cell.recipe, 50_000 / cell.recipe.samples
        assert abs(plan.epochs - 2001 * times) < 1 and plan.patience == 50 * times
    assert {cell.recipe.samples for cell in control} == {5_000, 10_000, 20_000, 50_000}
    assert len({cell.key for cell in control} & {cell.key for cell in samples}) == 2 * 10  # those of 50,000


def test_mixed_at_paper_scale_is_the_papers():
    scale, samples = cells("mixed-scale"), cells("mixed-samples")
    for cell in scale + samples:
        model = cell.model
        assert (model.tokens, model.n, model.layers, model.heads) == ("characters", 101, 3, 2)
        assert (model.embed, model.width) == (32, 32)
        assert (cell.recipe.epochs, cell.recipe.batch, cell.recipe.lr) == (2001, 1024, 5e-4)
    assert {cell.member.task for cell in scale} == {f"mixed-{name}" for name in ("min", "max", "sum", "multitask")}
    runs = [(cell.label, cell.member.seed) for cell in scale if cell.member.task == "mixed-sum"]
    assert runs == [(label, seed) for label in SERIES["mixed"] for seed in range(3 if "relative" in label else 10)]
    assert {cell.key for cell in scale} <= {cell.key for cell in samples}
    assert EXPERIMENTS["mixed-scale"].source.measure == Scales(tuple(range(1, 11)), 1000)


def test_each_shift_is_measured_of_the_runs_of_mixed_scale():
    for size in SIZES:
        both = ({cell.key for cell in EXPERIMENTS[name].cells(size)} for name in ("mixed-shift", "mixed-scale"))
        assert next(both) == next(both)
    assert EXPERIMENTS["mixed-shift"].source.measure == EachShift(tuple(range(1, 11)), 1000)


def test_the_other_layouts_have_three_runs_of_each_network():
    scale, samples = cells("mixed-elements"), cells("mixed-elements-samples")
    for cell in scale + samples:
        shared = "shared" in cell.label
        assert (cell.model.tokens, cell.model.n) == ("elements-shared" if shared else "prompts", 23)
    own, shared = SERIES["mixed"], ["positional, shared digits", "standard, shared digits"]
    assert list(dict.fromkeys(cell.label for cell in scale)) == own + shared and len(scale) == 6 * 4 * 3
    assert list(dict.fromkeys(cell.label for cell in samples)) == own[:2] + shared and len(samples) == 4 * 4 * 4 * 3
    assert {cell.key for cell in cells("compiled-mixed")} <= {cell.key for cell in scale}


def test_every_network_has_the_same_budget_and_takes_every_length():
    experiment = EXPERIMENTS["length-generalization"]
    cells = experiment.cells("paper")
    assert len(cells) == 11 * 3 * 5
    assert {cell.variable_length for cell in cells} == {(2, 4, 8, 16)}
    assert {cell.recipe.epochs * cell.recipe.samples // cell.recipe.batch for cell in cells} == {10_000}
    assert all(cell.model.any_length and cell.model.heads == 2 for cell in cells)
    looped = [cell.label for cell in cells if isinstance(cell.model, AnyLengthConfig) and cell.model.looped]
    assert {label.removesuffix(", looped") for label in looped} >= {"RoPE", "ALiBi", "no encodings"}
    assert all(cell.recipe.sharpen_to == cells[0].recipe.sharpen_to for cell in experiment.cells("quick"))


def test_fine_tuning_changes_the_errors_it_should(at_smoke_scale):
    _, outcome = at_smoke_scale("fine-tune")
    assert list(dict.fromkeys(outcome.rows["stage"])) == ["in distribution", "out of it", "after fine-tuning"]
    by_stage = outcome.rows.pivot(index="run", columns="stage", values="value")
    assert (by_stage["after fine-tuning"] != by_stage["out of it"]).all()
    ((_, table),) = outcome.tables
    assert table.index.tolist() == ["in distribution", "out of it", "after fine-tuning"]


@pytest.mark.parametrize(("name", "ends"), [("attention-maps", ("", "-1", "-2")), ("diagrams", ("", "-7", "-8"))])
def test_several_pictures_are_beside_each_other_and_on_the_page(at_smoke_scale, name, ends):
    _, outcome = at_smoke_scale(name)
    for end in ends:
        assert (outcome.page.parent / f"{name}{end}.png").stat().st_size > 10_000
        assert (outcome.page.parent / f"{name}{end}.pdf").read_bytes().startswith(b"%PDF")
    assert outcome.page.read_text(encoding="utf-8").count('src="data:image/png;base64,') == 3


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_all_experiments_at_smoke_scale(at_smoke_scale, name):
    experiment, outcome = at_smoke_scale(name)
    trained = outcome.rows[(outcome.rows["arch"] != "compiled") & (outcome.rows["recipe"] != "fine-tuning")]
    assert trained["run"].nunique() == len(experiment.cells("smoke"))
    assert outcome.figure.stat().st_size > 10_000


def test_what_is_computed_needs_no_run_and_has_no_settings_of_training(at_smoke_scale):
    _, outcome = at_smoke_scale("ood-probability")
    page = outcome.page.read_text(encoding="utf-8")
    assert "Eq. 27" in page and "Hardware" not in page and "scale-exact" not in page
    at_eight = outcome.table[(outcome.table["series"] == "n = 8") & (outcome.table["scale"] == 10)]
    assert at_eight["median"].tolist() == pytest.approx([0.003366968878, 0.003366964264], rel=1e-9)


def test_khop_by_scans_has_the_papers_networks_and_tables():
    cells = EXPERIMENTS["khop-scan"].cells("paper")
    assert {cell.label for cell in cells} == {"positional", "standard", "table"}
    recipes = {cell.label: cell.recipe.name for cell in cells}
    assert recipes == {"positional": "paper", "standard": "paper", "table": "table"}
    layers = {cell.key for cell in EXPERIMENTS["khop-layers"].cells("paper")}
    assert {cell.key for cell in cells if cell.label != "table"} <= layers
    assert [cell.member.seed for cell in cells if cell.label == "table"] == list(range(5))


def test_tables_keep_their_recipe_at_quick_scale():
    at = {size: [cell for cell in EXPERIMENTS["khop-scan"].cells(size) if cell.label == "table"] for size in SIZES}
    assert {cell.recipe for cell in at["quick"]} == {recipe("table")} and len(at["quick"]) > 1
    assert {cell.key for cell in at["quick"]} < {cell.key for cell in at["paper"]}
    assert all(cell.recipe.samples < 100 for cell in at["smoke"])
