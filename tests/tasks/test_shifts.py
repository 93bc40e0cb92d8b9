"""What defines each distribution, against its exact probabilities and moments, and what a list depends on."""

import math

import pytest
import torch

from posattn.errors import UsageError
from posattn.tasks import SHIFTS, sample_lists, sample_shift
from posattn.tasks.shifts import SMALLEST, TIE

COUNT, N = 10_000, 5
SIZE = COUNT * N
SIGMA = math.sqrt(8 / 9)


def lists(name):
    return sample_shift(name, COUNT, N, seed=1).double()


def close_share(found, p, size=SIZE):
    """Within five standard errors of a probability."""
    return abs(found.double().mean().item() - p) < 5 * math.sqrt(p * (1 - p) / size)


def test_training_lists_are_the_test_lists_of_the_sampler():
    assert torch.equal(sample_shift("training", 20, 8, seed=4), sample_lists(20, 8, 1.0, 4, split="test"))


def test_uniform_fills_the_training_range():
    x = lists("uniform")
    assert x.abs().max() <= 2
    for edge in (-1.5, 0.0, 1.0):
        assert close_share(x < edge, (edge + 2) / 4)


def test_gaussian_values_have_the_variance_of_training_values():
    x, own = lists("gaussian"), sample_lists(50_000, 8, split="test").double()
    assert x.var().item() == pytest.approx(8 / 9, rel=5 * math.sqrt(2 / SIZE))
    assert own.var().item() == pytest.approx(8 / 9, rel=0.03)
    for z in (-1.0, 0.0, 2.0):
        assert close_share(x < z * SIGMA, (1 + math.erf(z / math.sqrt(2))) / 2)
    assert close_share(x.abs() > 2, 0.0339)
    assert abs((x[:, 0] * x[:, 1]).mean()) < 5 * SIGMA**2 / math.sqrt(COUNT)  # entries are independent


def test_heavy_tails_are_students_t_with_two_degrees_of_freedom():
    x = lists("heavy-tailed")
    for t in (-3.0, 0.0, math.sqrt(2 / 3), 10.0):
        assert close_share(x < t, 0.5 + t / (2 * math.sqrt(2 + t**2)))
    assert close_share(x.abs() < math.sqrt(2 / 3), 0.5)  # the median magnitude

    def tail(values):
        q = torch.quantile(values.abs().flatten(), torch.tensor([0.5, 0.999], dtype=values.dtype))
        return (q[1] / q[0]).item()

    assert tail(x) > 5 * tail(lists("gaussian")) and x.isfinite().all()


def test_the_logarithms_of_mixed_magnitudes_are_uniform():
    x = lists("mixed-magnitudes")
    assert x.abs().min() >= SMALLEST * (1 - 1e-6) and x.abs().max() <= 2
    assert close_share(x > 0, 0.5)
    for share in (0.1, 0.5, 0.9):
        assert close_share(x.abs() < 0.01 * 200**share, share)
    assert close_share(
        (x.abs() < 0.1) & (x > 0), math.log(10) / math.log(200) / 2
    )  # sign and magnitude are independent


def test_near_ties_lie_about_a_value_of_their_own():
    x = lists("near-ties")
    width = x.amax(dim=-1) - x.amin(dim=-1)
    assert width.max() <= 2 * TIE + 1e-6
    # The expected range of N uniform numbers is (N - 1) / (N + 1) of the interval's length.
    assert width.mean().item() == pytest.approx(2 * TIE * (N - 1) / (N + 1), rel=0.02)
    for edge in (-1.0, 0.5):
        assert close_share(x[:, 0] < edge, (edge + 2) / 4, COUNT)


def test_sorted_and_reversed_lists_are_the_training_lists_in_order():
    up, down, own = lists("sorted"), lists("reversed"), lists("training")
    assert (up.diff(dim=-1) >= 0).all() and torch.equal(down, up.flip(-1))
    assert torch.equal(up, own.sort(dim=-1).values)


def test_three_quarters_of_sparse_lists_are_zero_and_the_rest_is_training_lists():
    x, own = lists("sparse"), lists("training")
    assert close_share(x == 0, 3 / 4)
    assert torch.equal(x[x != 0], own[x != 0])
    assert close_share((x[:, 0] == 0) & (x[:, 1] == 0), 9 / 16, COUNT)  # entries are independent


@pytest.mark.parametrize("name", SHIFTS)
def test_a_list_depends_on_its_seed_and_index_alone(name):
    x = sample_shift(name, 300, 7, seed=2)
    assert x.shape == (300, 7) and x.dtype == torch.float32
    assert torch.equal(x, sample_shift(name, 300, 7, seed=2, device="cpu"))
    assert torch.equal(x[:11], sample_shift(name, 11, 7, seed=2))
    assert (x == sample_shift(name, 300, 7, seed=3)).double().mean() < (
        0.7 if name == "sparse" else 0.01
    )  # (3/4)² zeros


def test_distributions_share_no_numbers_but_those_of_training():
    drawn = {name: lists(name).flatten() for name in ("uniform", "gaussian", "heavy-tailed", "mixed-magnitudes")}
    ranks = torch.stack([x.argsort().argsort().double() for x in drawn.values()])
    assert (torch.corrcoef(ranks) - torch.eye(len(drawn))).abs().max() < 5 / math.sqrt(SIZE)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"name": "cauchy"}, f"distribution is 'cauchy'; it must be one of {', '.join(SHIFTS)}."),
        ({"samples": 0}, "samples is 0; it must be a whole number of at least 1."),
        ({"n": 2.5}, "n is 2.5; it must be a whole number of at least 1."),
        ({"seed": -1}, "seed is -1; it must be a whole number of at least 0."),
    ],
)
def test_bad_arguments_are_named_in_one_sentence(given, sentence):
    with pytest.raises(UsageError) as raised:
        sample_shift(**{"name": "uniform", "samples": 3} | given)
    assert str(raised.value) == sentence
