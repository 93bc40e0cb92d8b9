"""Squared error and the paper's two accuracies against values computed by hand, and the table of an evaluation."""

import math

import pytest
import torch

import posattn
from posattn import metrics
from posattn.errors import UsageError
from posattn.metrics import Evaluation
from posattn.tasks import TASKS, Task, task
from posattn.training import Run

SMALL = posattn.ModelConfig(3, embed=8, width=8)


def lists(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def test_squared_error_is_the_mean_over_lists_and_entries_for_each_member():
    out = torch.stack([lists([1, 2], [3, 4]), lists([0, 0], [0, 0])])
    y = torch.stack([lists([1, 0], [0, 4]), lists([1, 1], [1, 3])])
    assert metrics.mean_squared_error(out, y).tolist() == [(4 + 9) / 4, (1 + 1 + 1 + 9) / 4]
    assert metrics.mean_squared_error(out, y).dtype == torch.float64


def test_rounding_counts_lists_whose_every_entry_rounds_to_the_truth():
    y = lists([1, -2, 3], [1, -2, 3], [1, -2, 3], [0, 0, 0])
    out = lists([1.4, -2.4, 2.6], [1.6, -2, 3], [1, -2, 3.49], [-0.4, 0.4, 0.51])
    assert metrics.rounding_accuracy(out, y) == 2 / 4


def test_the_median_rounds_to_halves():
    y = lists([0.5, 1.0], [0.5, 1.0], [2.0, -1.5])
    out = lists([0.7, 0.8], [0.76, 1.0], [1.8, -1.3])
    assert metrics.rounding_accuracy(out, y, step=0.5) == 2 / 3
    assert metrics.rounding_accuracy(out, y, step=1.0).isnan()  # halves have no nearest whole number
    several = metrics.rounding_accuracy(torch.stack([y, y]), torch.stack([y, 2 * y]), step=1.0)
    assert several.isnan().tolist() == [True, False]  # each member by its own task
    assert task("median").rounding_step == task("median-total").rounding_step == 0.5
    assert task("sum").rounding_step == 1


def test_closeness_needs_every_entry_within_both_tolerances_together():
    y = lists([10.0, 0.0], [10.0, 0.0], [10.0, 0.0], [-10.0, 0.0], [10.0, 0.0])
    # 0.05 + 5% of 10 is 0.55; of 0 it is 0.05
    out = lists([10.54, 0.049], [10.56, 0.0], [10.0, 0.051], [-10.54, -0.049], [math.nan, 0.0])
    assert metrics.closeness_accuracy(out, y) == 2 / 5


def test_strict_closeness_needs_every_entry_within_each_tolerance():
    y = lists([10.0, 0.5], [10.0, 0.5], [10.0, 0.5], [-10.0, 0.0], [-10.0, 0.0], [10.0, 0.5])
    # 0.05 binds at 10, where 5% is 0.5, and 5% at 0.5, where it is 0.025; only 0 is near 0
    out = lists([10.049, 0.524], [10.051, 0.5], [10.0, 0.526], [-9.951, 0.0], [-10.0, 1e-6], [math.nan, 0.5])
    assert metrics.strict_closeness_accuracy(out, y) == 2 / 6


def test_the_truth_is_in_float64_so_that_exact_answers_have_no_error():
    """Seven additions in float32 are off by some 1e-7 of a sum; evaluate has to find none of that, nor evaluate_lengths."""
    test = Evaluation(lambda x: x.double().cumsum(dim=-1), [("sum", 3)], 50)
    tables = [test.by_scale([8], [1, 10]), test.by_length([8], [1, 10]), test.by_shift([8], ["training"])]
    assert all((table["mse"] < 1e-25).all() for table in tables)
    run = Run.of(posattn.pretrained("sum", arch="looped"), "sum", seed=3)
    by_scale, by_length = run.evaluate([10], 50), run.evaluate_lengths([16], [10], 50)
    assert by_scale["mse"].item() == pytest.approx(by_length["mse"].item(), rel=1e-9)


def test_a_target_that_takes_float32_alone_is_asked_in_float32(monkeypatch):
    weights = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    monkeypatch.setitem(TASKS, "weighted", Task("weighted", "weighted", lambda x: x @ weights))
    table = Evaluation(lambda x: x @ weights, [("weighted", 0)], 20).by_scale([3], [1, 10])
    assert (table["mse"] == 0).all() and (table["closeness"] == 1).all()


def table_of(predict, members=(("sum", 0),), scales=(1,), samples=64, n=3):
    return Evaluation(predict, members, samples).by_scale([n], scales)


def test_the_table_has_a_row_for_each_member_and_scale_and_a_perfect_answer_scores_full_marks():
    members = (("sum", 4), ("sort", 5), ("median", 4))
    calls = []

    def perfect(x):
        calls.append(x)
        return torch.stack([task(name).target(own.double()) for (name, _), own in zip(members, x, strict=True)])

    table = table_of(perfect, members, scales=(1, 2.5))
    assert list(table) == ["member", "task", "seed", "scale", "mse", "mse/c²", "rounding", "closeness", "strict_closeness"]
    assert table[["member", "task", "seed", "scale"]].values.tolist() == [
        [k, name, seed, c] for k, (name, seed) in enumerate(members) for c in (1, 2.5)
    ]
    assert (table[["mse", "mse/c²"]] == 0).all(axis=None)
    assert (table[["rounding", "closeness", "strict_closeness"]] == 1).all(axis=None)
    assert len(calls) == 4 and all(x.shape == (3, 64, 3) for x in calls)
    assert all(torch.equal(x[0], x[2]) and not torch.equal(x[0], x[1]) for x in calls)  # lists are the seed's
    assert sum(bool((x == x.round()).all()) for x in calls) == 2  # integers for the rounding accuracy


def test_the_numbers_are_those_of_the_test_lists():
    table = table_of(lambda x: torch.zeros_like(x), (("min", 7),), scales=(3, 1), samples=100)
    assert table["scale"].tolist() == [1, 3]
    columns = ["scale", "mse", "mse/c²", "rounding", "closeness", "strict_closeness"]
    for c, mse, relative, rounding, close, strict in table[columns].values:
        y = task("min").sample(100, n=3, scale=c, seed=7, split="test")[1]
        whole = task("min").sample(100, n=3, scale=c, seed=7, split="test", integers=True)[1]
        assert mse == pytest.approx(y.double().square().mean().item(), rel=1e-6)
        assert relative == pytest.approx(mse / c**2)
        assert rounding == pytest.approx((whole == 0).all(dim=-1).double().mean().item())
        assert close == pytest.approx((y.abs() <= 0.05 * (1 + y.abs())).all(dim=-1).double().mean().item())
        assert strict == 0  # 0 is never within 5% of another number


@pytest.mark.parametrize("scales", [[0], [-1], [1, 0], [], [math.nan], [math.inf], ["1"]])
def test_bad_scales_are_refused(scales):
    with pytest.raises(UsageError, match=r"^scales? "):
        table_of(lambda x: x, scales=scales)


@pytest.mark.parametrize("samples", [0, -5, 1.5])
def test_bad_sample_counts_are_refused(samples):
    with pytest.raises(UsageError, match=f"^samples is {samples}"):
        table_of(lambda x: x, samples=samples)


@pytest.fixture(scope="module")
def run():
    return posattn.train(["sum", "min"], SMALL, members=2, samples=60, epochs=2, batch=25, seed=3, device="cpu")


def test_evaluation_repeated_gives_the_same_numbers_and_they_are_the_models(run):
    table = run.evaluate([1, 2], samples=200)
    assert table.equals(run.evaluate([1, 2], samples=200))
    assert not table["mse"].equals(run.evaluate([1, 2], samples=200, split="validation")["mse"])
    for k, (name, seed) in enumerate((("sum", 3), ("min", 4))):
        x, y = task(name).sample(200, n=3, scale=2, seed=seed, split="test")
        with torch.no_grad():
            mse = metrics.mean_squared_error(run.model(k)(x), y).item()
        own = table[(table["member"] == k) & (table["scale"] == 2)]
        assert own["mse"].item() == pytest.approx(mse, rel=1e-5)
    assert table["status"].tolist() == ["ok"] * 4


@pytest.mark.parametrize("arch", ["positional", "rope-only"])
def test_evaluation_gives_the_same_numbers_on_any_number_of_cores(arch):
    config = posattn.ModelConfig(3, arch, embed=8, width=8)
    run = posattn.train("sum", config, members=6, samples=60, epochs=1, batch=25, device="cpu")
    tables = []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            tables.append(run.evaluate([1, 2], samples=1000))
    finally:
        torch.set_num_threads(1)
    assert tables[0].equals(tables[1]) and tables[0].equals(tables[2])


def test_several_lengths_count_equally():
    """The mean over lengths of each length's error, not a sum and not weighted by how many numbers a list has."""

    def off_by_its_length(x):
        return task("min").target(x) + x.shape[-1]

    table = Evaluation(off_by_its_length, [("min", 0)], 30).by_scale([1, 2, 3], [1, 2])
    assert table["mse"].tolist() == pytest.approx([(1 + 4 + 9) / 3] * 2, rel=1e-5)
    run = posattn.train("sum", SMALL, samples=30, epochs=1, batch=10, variable_length=True, device="cpu")
    with pytest.raises(UsageError, match="samples is 2"):
        run.evaluate([1], samples=2)


@pytest.mark.parametrize(
    ("n", "short", "named"), [(100_000, "cpu", "CPU"), (100_000, "cuda", "GPU"), (8000, "cuda", "GPU")]
)
def test_long_lists_must_fit_where_their_truth_is_computed_and_where_the_network_is(monkeypatch, n, short, named):
    """The truth of long lists is the CPU's work on every device. Nothing is drawn here, so no GPU is needed."""
    monkeypatch.setattr("posattn.devices._SMALL", 0)
    monkeypatch.setattr("posattn.devices.free_bytes", lambda device: 1e6 if device.type == short else 1e12)
    with pytest.raises(UsageError, match=rf"^samples is 10; so many lists of {n} .* GB are free on the {named}\.$"):
        metrics.Evaluation(lambda x: x, [("sum", 0)], 10, device=torch.device("cuda")).by_length([n], [1.0])


def test_the_columns_of_the_truth_need_room_only_where_it_is_computed(monkeypatch):
    monkeypatch.setattr("posattn.devices._SMALL", 0)
    monkeypatch.setattr("posattn.devices.free_bytes", lambda device: 1e9 if device.type == "cpu" else 1e7)
    metrics.check_room(1, 1, 100_000, torch.device("cuda"))  # 5.6 MB of lists, and on the CPU 150 MB of columns


def test_the_relative_square_is_1_for_no_answer_and_does_not_see_the_scale():
    y, out = torch.randn(3, 4, 5) + 2, torch.randn(3, 4, 5)
    assert torch.equal(metrics.relative_square(torch.zeros_like(y), y), torch.ones(3).double())
    torch.testing.assert_close(metrics.relative_square(7 * out, 7 * y), metrics.relative_square(out, y))
    expected = sum((o - t) ** 2 for o, t in zip(out[0].flatten().tolist(), y[0].flatten().tolist(), strict=True))
    assert metrics.relative_square(out, y)[0].item() == pytest.approx(expected / y[0].square().sum().item(), rel=1e-5)


def test_the_percentage_error_leaves_out_answers_of_zero():
    y, out = torch.tensor([[2.0], [0.0], [-4.0]]), torch.tensor([[3.0], [9.0], [-3.0]])
    assert metrics.percentage_error(out, y).item() == pytest.approx((0.5 + 0.25) / 2)
