"""The distribution of the lists against its exact moments and a plain rejection loop, and what a draw depends on."""

import math

import pytest
import torch

from posattn.errors import UsageError
from posattn.tasks import sample_bounds, sample_lists, task

COUNT = 50_000
CRITICAL = math.sqrt(-math.log(1e-6 / 2) / COUNT)  # the KS distance that one in a million equal pairs exceeds


def standard_errors(sample, expected):
    """How many standard errors the mean of ``sample`` lies from ``expected``."""
    sample = sample.double()
    return abs((sample.mean() - expected) / (sample.std() / math.sqrt(len(sample)))).item()


def rejection_loop(count, c):
    """Pairs of bounds drawn again until gamma_l < -2 or gamma_u > 2, as the paper words it."""
    generator = torch.Generator().manual_seed(1)
    kept = []
    while sum(map(len, kept)) < count:
        pairs = ((torch.rand(count, 2, generator=generator) * 4 - 2) * c).sort(dim=-1).values
        kept.append(pairs[(pairs[:, 0] < -2) | (pairs[:, 1] > 2)])
    return torch.cat(kept)[:count].unbind(-1)


def ks_distance(a, b):
    """The largest distance between two empirical distribution functions (Kolmogorov-Smirnov)."""
    a, b = a.sort().values, b.sort().values
    points = torch.cat([a, b])
    F_a, F_b = (torch.searchsorted(values, points, right=True) / len(values) for values in (a, b))
    return (F_a - F_b).abs().max()


@pytest.mark.parametrize("c", [1.2, 2.0, 10.0])
def test_bounds_are_distributed_as_the_rejection_loop_has_them(c):
    ours, theirs = sample_bounds(COUNT, scale=c), rejection_loop(COUNT, c)
    for l_weight, u_weight in ((1, 0), (0, 1), (-1, 1), (1, 1)):  # both bounds, and two statistics of the pair
        a, b = (l_weight * gamma_l + u_weight * gamma_u for gamma_l, gamma_u in (ours, theirs))
        assert ks_distance(a, b) < CRITICAL


@pytest.mark.parametrize("c", [1.0000001, 1.001, 1.5, 3.0, 10.0])
def test_never_both_bounds_inside_and_exactly_one_as_often_as_computed(c):
    gamma_l, gamma_u = sample_bounds(COUNT, scale=c)
    inside = (gamma_l.abs() <= 2).int() + (gamma_u.abs() <= 2).int()
    assert inside.max() <= 1
    p = 2 * (c - 1) / (c**2 - 1)  # Appendix E, event A
    assert abs((inside == 1).double().mean() - p) <= 5 * math.sqrt(p * (1 - p) / COUNT)


@pytest.mark.parametrize("c", [0.3, 1.0, 1.0000001, 1.7, 3.0, 10.0])
def test_bounds_are_ordered_and_values_lie_between_them(c):
    gamma_l, gamma_u = sample_bounds(COUNT, n=5, scale=c, seed=3)
    x = sample_lists(COUNT, n=5, scale=c, seed=3)
    limit = torch.tensor(2 * c)
    assert (-limit <= gamma_l).all() and (gamma_u <= limit).all() and (gamma_l <= gamma_u).all()
    assert (gamma_l[:, None] <= x).all() and (x <= gamma_u[:, None]).all()


def test_the_largest_uniform_number_stays_below_the_upper_bound(monkeypatch):
    gamma_l, gamma_u = sample_bounds(COUNT, n=1, scale=1.7)
    monkeypatch.setattr("posattn.tasks.sampling.sample_bounds", lambda *_, **__: (gamma_l, gamma_u))
    monkeypatch.setattr("posattn.streams.uniform", lambda keys, count: torch.full((count,), 1 - 2.0**-24))
    assert (sample_lists(COUNT, n=1, scale=1.7)[:, 0] <= gamma_u).all()


def test_values_fill_the_interval_between_the_bounds_evenly():
    gamma_l, gamma_u = sample_bounds(COUNT, n=2, scale=3.0)
    x = sample_lists(COUNT, n=2, scale=3.0)
    place = (x - gamma_l[:, None]) / (gamma_u - gamma_l)[:, None]
    assert ks_distance(place[:, 0], torch.arange(COUNT) / COUNT) < CRITICAL
    assert standard_errors(place.prod(dim=-1), 1 / 4) < 5


@pytest.mark.parametrize("c", [0.5, 1.0])
def test_moments_in_distribution(c):
    """With bounds a, b of variance s = 4c^2/3 and x = a(1-U) + bU: E x = 0, E x^2 = 2s/3, E x_1 x_2 = s/2."""
    x = sample_lists(COUNT, n=2, scale=c)
    s = 4 * c**2 / 3
    assert standard_errors(x[:, 0], 0) < 5
    assert standard_errors(x[:, 1].square(), 2 * s / 3) < 5
    assert standard_errors(x.prod(dim=-1), s / 2) < 5


@pytest.mark.parametrize("c", [1.5, 4.0])
def test_second_moments_out_of_distribution_are_one_plus_c_squared_as_large(c):
    """Unrejected, they are c^2 times those at 1; that is 1/c^2 of the draw at 1 and 1 - 1/c^2 of the draw we keep."""
    x = sample_lists(COUNT, n=2, scale=c)
    assert standard_errors(x[:, 0], 0) < 5
    assert standard_errors(x[:, 0].square(), (c**2 + 1) * 8 / 9) < 5
    assert standard_errors(x.prod(dim=-1), (c**2 + 1) * 2 / 3) < 5


@pytest.mark.parametrize("scale", [1.0, 2.6])
@pytest.mark.parametrize("seeds", [[5, 0, 11], torch.tensor([5, 0, 11]), (5, 0, 11)])
def test_member_rows_equal_single_seeds(seeds, scale):
    x, y = task("maxsub").sample(13, n=7, scale=scale, seed=seeds)
    assert x.shape == y.shape == (3, 13, 7) and x.dtype == y.dtype == torch.float32
    for k, seed in enumerate([5, 0, 11]):
        x_k, y_k = task("maxsub").sample(13, n=7, scale=scale, seed=seed)
        assert x_k.shape == (13, 7) and torch.equal(x[k], x_k) and torch.equal(y[k], y_k)


def test_one_seed_in_a_sequence_keeps_the_members_axis():
    assert sample_lists(13, n=7, seed=[0]).shape == (1, 13, 7)
    assert sample_lists(13, n=7, seed=torch.tensor(0)).shape == (13, 7)


def test_tasks_share_their_lists():
    x_sum, x_sort = (task(name).sample(13, n=7, scale=3, seed=2)[0] for name in ("sum", "sort"))
    assert torch.equal(x_sum, x_sort)


def test_a_larger_sample_begins_with_the_smaller_one():
    assert torch.equal(sample_lists(1009, n=7, scale=3)[:13], sample_lists(13, n=7, scale=3))


def test_the_form_of_the_scale_does_not_matter():
    assert torch.equal(sample_lists(13, scale=3), sample_lists(13, scale=3.0))


@pytest.mark.parametrize("other", [{"split": "test"}, {"split": "validation"}, {"seed": 1}, {"scale": 0.5}, {"n": 9}])
def test_draws_of_another_split_seed_scale_or_length_are_independent(other):
    base = {"n": 8, "scale": 1.0, "seed": 0, "split": "train"}
    a, b = (sample_lists(10_000, **(base | change))[:, 0] for change in ({}, other))
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.05


@pytest.mark.parametrize("c", [0.3, 1.0, 1.3, 10.0])
def test_integers_are_integers_in_range(c):
    x = sample_lists(1009, n=7, scale=c, integers=True)
    assert torch.equal(x, x.round()) and x.abs().max() <= 2 * c
    assert set(x.unique().tolist()) == set(map(float, range(-math.floor(2 * c), math.floor(2 * c) + 1)))


def test_lengths_are_equally_frequent_and_drawn_as_by_sample():
    by_length = task("median").sample_lengths(29, lengths=[1, 3, 7], scale=2, seed=[4, 6], split="test")
    assert {n: tuple(x.shape) for n, (x, _) in by_length.items()} == {1: (2, 10, 1), 3: (2, 10, 3), 7: (2, 9, 7)}
    x, y = task("median").sample(9, n=7, scale=2, seed=[4, 6], split="test")
    assert torch.equal(by_length[7][0], x) and torch.equal(by_length[7][1], y)
    assert not torch.equal(by_length[1][0][..., 0], by_length[3][0][..., 0])


def test_lengths_are_one_to_eight_by_default():
    by_length = task("sum").sample_lengths(19)
    assert {n: len(x) for n, (x, _) in by_length.items()} == {1: 3, 2: 3, 3: 3, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("scale", value) for value in (0, -1.0, math.nan, math.inf, "3", None, True)),
        *(("count", value) for value in (0, -5, 2.5, "10")),
        *(("n", value) for value in (0, -1, 8.0, None)),
        *(("seed", value) for value in (-1, 0.5, "7", None, [], [1, -2], [0.5])),
        *(("split", value) for value in ("", 3)),
    ],
)
def test_bad_input_is_named(field, value):
    shown = value[-1] if isinstance(value, list) and value else value
    with pytest.raises(UsageError) as error:
        task("sum").sample(**({"count": 5} | {field: value}))
    assert str(error.value).startswith(f"{field} is {shown!r};")


@pytest.mark.parametrize("lengths", [[], [3, 3], 8, [0, 1], ["a"]])
def test_bad_lengths_are_refused(lengths):
    with pytest.raises(UsageError):
        task("sum").sample_lengths(10, lengths=lengths)


def test_fewer_lists_than_lengths_are_refused():
    with pytest.raises(UsageError, match="count is 7; it must be a whole number of at least 8"):
        task("sum").sample_lengths(7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["sum", "median", "maxsub"])
@pytest.mark.parametrize("scale", [1.0, 3.3])
def test_the_gpu_draws_the_same_bits(name, scale):
    x_cpu, y_cpu = task(name).sample(1009, n=7, scale=scale, device="cpu")
    x_gpu, y_gpu = task(name).sample(1009, n=7, scale=scale, device="cuda")
    assert torch.equal(x_cpu, x_gpu.cpu()) and torch.equal(y_cpu, y_gpu.cpu())
