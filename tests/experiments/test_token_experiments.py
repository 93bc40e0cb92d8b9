"""The experiments on tokens: what they declare at paper scale, their rows, and runs that are trained a few at a time."""

import pandas as pd
import pytest
import torch

from posattn.errors import UsageError
from posattn.experiments import EXPERIMENTS, Engine, Experiment, Grid, Lines, Scales, Store, View, reproduce, series
from posattn.experiments.estimate import operations
from posattn.experiments.userfile import load_experiment
from posattn.model import Transformer
from posattn.tokens import TokenConfig
from posattn.training import Recipe

SERIES = {"khop": ["positional", "standard", "positional, tied", "standard, tied"]}
SERIES["mixed"] = ["positional", "standard", "positional, relative", "standard, relative"]


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


def test_mixed_at_paper_scale_is_the_papers():
    scale, samples = cells("mixed-scale"), cells("mixed-samples")
    for cell in scale + samples:
        model = cell.model
        assert (model.n, model.layers, model.heads, model.embed, model.width) == (23, 3, 2, 32, 32)
        assert (cell.recipe.epochs, cell.recipe.batch, cell.recipe.lr) == (2001, 1024, 5e-4)
    assert {cell.member.task for cell in scale} == {f"mixed-{name}" for name in ("min", "max", "sum", "multitask")}
    assert list(dict.fromkeys(cell.label for cell in samples)) == SERIES["mixed"]
    assert {cell.key for cell in scale} <= {cell.key for cell in samples}
    assert EXPERIMENTS["mixed-scale"].measure == Scales(tuple(range(1, 11)), 1000)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """One layer and two, two seeds each, of which one is trained first."""
    grid = Grid(
        ("khop",), series("standard", embed=8, width=8), n=(6,), samples=(40,), seeds=2, layers=(1, 2),
        recipe=Recipe(samples=40, epochs=2, batch=20),
    )  # fmt: skip
    lines = Lines("layers", (View("test", {"split": "test", "hops": "all"}, "accuracy"),), ("domain",))
    trial = Experiment("trial", "nowhere", "a trial", grid, Scales((1, 2), samples=30, train=True), lines)
    out, said = tmp_path_factory.mktemp("tokens"), []
    store, engine = Store(out / "store"), Engine(torch.device("cpu"), said.append)
    first = reproduce(trial, "paper", out / "out", store, engine, runs=1)
    before = len(said)
    return first, reproduce(trial, "paper", out / "out", store, engine), said[before:], (trial, out, store, engine)


def test_runs_can_be_trained_a_few_at_a_time(small):
    first, second, said, (trial, out, store, engine) = small
    assert first.rows["run"].nunique() == 2 and set(first.rows["seed"]) == {0}
    assert second.rows["run"].nunique() == 4 and [line.split(":")[1] for line in said] == [" 1 model", " 1 model"]
    kept = second.rows[second.rows["seed"] == 0].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, first.rows)
    with pytest.raises(UsageError, match=r"^runs is -1; it must be a whole number of at least 0\.$"):
        reproduce(trial, "paper", out / "out", store, engine, runs=-1)


def test_rows_say_the_hops_the_domain_and_the_layers(small):
    rows = small[1].rows
    assert set(rows["hops"]) == {"all", "0", "1", "2", "3"} and set(rows["layers"]) == {1, 2}
    assert {*zip(rows["split"], rows["domain"], strict=True)} == {("train", "id"), ("test", "id"), ("test", "ood")}
    assert set(rows["metric"]) == {"accuracy", "accuracy_found", "cross_entropy", "cross_entropy_found"}
    table = small[1].table
    assert table["layers"].tolist() == [1, 2, 1, 2] and table["runs"].tolist() == [2] * 4


def test_a_page_speaks_of_sequences(small):
    page = small[1].page.read_text(encoding="utf-8")
    assert "<td>sequence length n</td>" in page and "<td>40 sequences, 2 epochs" in page
    assert "width 8, 40 sequences</td>" in page and " lists" not in page
    assert all(line.endswith(": 2 epochs of 40 sequences") for line in small[2])


def test_operations_are_those_that_pytorch_counts():
    """Two for a multiplication, and backwards twice what forwards takes, less what the first layer's input does not need."""
    from torch.utils.flop_counter import FlopCounterMode

    for arch in ("positional", "standard"):
        config = TokenConfig(30, arch, tokens="letters", causal=True, embed=60, layers=6)
        model = Transformer(config)
        x = torch.randint(16, (64, 30))
        with FlopCounterMode(display=False) as counted:
            model(x).sum().backward()
        assert operations(config) == pytest.approx(counted.get_total_flops() / 64, rel=0.05)


def test_a_file_may_declare_an_experiment_on_tokens(tmp_path):
    path = tmp_path / "hops.toml"
    path.write_text(
        """name = "hops"
        [grid]
        tasks = ["khop"]
        archs = ["standard"]
        n = [12]
        layers = [1, 2]
        [figure]
        x = "layers"
        columns = ["hops"]
        views = [{metric = "accuracy"}]
        """
    )
    experiment = load_experiment(path)
    assert {(cell.model.tokens, cell.model.causal, cell.model.layers) for cell in experiment.cells("paper")} == {
        ("letters", True, 1),
        ("letters", True, 2),
    }
    path.write_text(path.read_text().replace('"accuracy"', '"mse"'))
    with pytest.raises(
        UsageError, match=r"^figure\.views\.metric is 'mse'; it must be one of cross_entropy, accuracy, "
    ):
        load_experiment(path)
