"""Every target against an oracle that is obviously right, and the symmetries that all targets have."""

import pickle
import statistics
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posattn.errors import UsageError
from posattn.tasks import TASKS, Task, register, task

NUMERIC = [name for name, row in TASKS.items() if row.TOKENS == "none"]

CUMULATIVE = ["sum", "min", "median", "sort", "maxsub"]
TOTAL = ["sum-total", "min-total", "median-total", "maxsub-total"]


def best_subarray(values):
    return max(sum(values[j : k + 1]) for j in range(len(values)) for k in range(j, len(values)))


ANSWERS = {"sum": sum, "min": min, "median": statistics.median, "maxsub": best_subarray}


def oracle(name, values):
    """The answer in plain Python: the definition, applied to every prefix."""
    if name == "sort":
        return sorted(values)
    answer = ANSWERS[name.removesuffix("-total")]
    if name.endswith("-total"):
        return [answer(values)] * len(values)
    return [answer(values[: i + 1]) for i in range(len(values))]


numbers = st.one_of(st.floats(-1000, 1000, width=32, allow_subnormal=False), st.integers(-2, 2).map(float))
lists = st.lists(numbers, min_size=1, max_size=12)
examples = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("name", CUMULATIVE + TOTAL)
@examples
@given(values=lists)
def test_target_agrees_with_the_oracle(name, values):
    x = torch.tensor(values, dtype=torch.float64)
    expected = torch.tensor(oracle(name, values), dtype=torch.float64)
    tolerance = 1e-9 if name.startswith(("sum", "maxsub")) else 0.0
    torch.testing.assert_close(task(name).target(x), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(task(name).target(x.float()), expected.float(), rtol=1e-5, atol=1e-2 if tolerance else 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sum", [3.0, 1.0, 5.0, 4.0]),
        ("min", [3.0, -2.0, -2.0, -2.0]),
        ("median", [3.0, 0.5, 3.0, 1.0]),
        ("sort", [-2.0, -1.0, 3.0, 4.0]),
        ("maxsub", [3.0, 3.0, 5.0, 5.0]),
        ("median-total", [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_answers_worked_by_hand(name, expected):
    assert task(name).target(torch.tensor([3.0, -2.0, 4.0, -1.0])).tolist() == expected


@pytest.mark.parametrize("name", NUMERIC)
def test_targets_are_homogeneous(name):
    x = torch.linspace(-1, 1, 13 * 7, dtype=torch.float64).sin().mul(1e4).frac().view(13, 7)
    torch.testing.assert_close(task(name).target(3.7 * x), 3.7 * task(name).target(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_targets_keep_shape_and_dtype_and_answer_each_list_alone(name, dtype):
    x = torch.randn(3, 13, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = x.clone()
    y = task(name).target(x)
    assert y.shape == (3, 13, 7) and y.dtype == dtype and y.is_contiguous()
    assert torch.equal(x, before)
    assert torch.equal(y[2, 5], task(name).target(x[2, 5]))


@pytest.mark.parametrize("name", ["sum", "min", "median", "maxsub"])
def test_total_form_repeats_the_last_cumulative_answer(name):
    x, y = task(name).sample(13, n=7)
    total = task(name, cumulative=False)
    assert total is task(f"{name}-total")
    assert torch.equal(total.target(x), y[:, -1:].expand(13, 7))


@pytest.mark.parametrize("name", NUMERIC)
def test_answers_to_integers_are_multiples_of_the_rounding_step(name):
    _, y = task(name).sample(101, n=7, scale=3, integers=True)
    steps = y / task(name).rounding_step
    assert torch.equal(steps, steps.round())


def test_only_the_median_has_half_steps():
    _, y = task("median").sample(101, n=7, scale=3, integers=True)
    assert {row.name for row in TASKS.values() if row.rounding_step == 0.5} == {"median", "median-total"}
    assert not torch.equal(y, y.round())


def test_median_of_long_lists_is_quick_and_right():
    x = torch.randn(100, 1000, generator=torch.Generator().manual_seed(0))
    start = time.process_time()
    y = task("median").target(x)
    assert time.process_time() - start < 1
    torch.testing.assert_close(y[:, 998], x[:, :999].median(dim=-1).values, rtol=0, atol=0)
    torch.testing.assert_close(y[:, 999], x.quantile(0.5, dim=-1))


def test_sort_has_one_form_and_totals_are_their_own():
    assert task("sort", cumulative=False) is task("sort")
    assert task("sum-total", cumulative=False) is task("sum-total")


def test_a_task_survives_pickling():
    assert pickle.loads(pickle.dumps(task("median"))) == task("median")
    x = torch.tensor([1.0, 2.0])
    assert pickle.loads(pickle.dumps(task("sum-total"))).target(x).tolist() == [3.0, 3.0]


def test_a_registered_row_is_a_task(monkeypatch):
    monkeypatch.setattr("posattn.tasks.numeric.TASKS", dict(TASKS))
    row = register(Task("max", "cumulative max", lambda x: x.cummax(dim=-1).values))
    x, y = task("max").sample(13, n=7)
    assert task("max") is row and torch.equal(y.max(dim=-1).values, x.max(dim=-1).values)
    again = register(Task("max", "again", lambda x: x))  # as a cell of a notebook does
    assert task("max") is again
    with pytest.raises(UsageError, match=r"^name is 'khop'; it must differ from the package's tasks: sum, "):
        register(Task("khop", "hops", lambda x: x))


def test_an_unknown_name_lists_the_names():
    with pytest.raises(
        UsageError, match=r"task is 'sums' \(did you mean sum\?\); it must be one of sum, min, median, sort"
    ):
        task("sums")
