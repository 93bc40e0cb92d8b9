"""OOD probability: three ways that must agree, the paper's worked examples, and where its formulas fail."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import dblquad
from scipy.stats import binom

import posattn
from posattn.theory import ood
from posattn.theory.ood import Chernoff, closed_bound, event_a, event_b2, exact_probability, printed_bound


def by_hand(n, c):
    """p_A and p_B2 as the double integrals of the paper; Eq. 26's limits read [-c, -1]."""
    a, _ = dblquad(lambda t, s: ((1 - s) / (t - s)) ** n, -1, 1, 1, c, epsabs=1e-12)
    b2, _ = dblquad(lambda t, s: (2 / (t - s)) ** n, -c, -1, 1, c, epsabs=1e-12)
    return a / (2 * (c - 1)), b2 / (c - 1) ** 2


@pytest.mark.parametrize(("n", "c"), [(2, 2.0), (3, 1.5), (8, 3.0)])
def test_the_quadrature_is_the_papers_double_integral(n, c):
    a, b2 = by_hand(n, c)
    assert event_a(n, c) == pytest.approx(a, rel=1e-7) and event_b2(n, c) == pytest.approx(b2, rel=1e-9)


@pytest.mark.parametrize(("n", "c"), [(3, 1.2), (4, 10.0), (16, 3.0), (1000, 1000.0), (1000, 1.5)])
def test_event_b2_is_its_closed_form(n, c):
    closed = (4 - 8 * (2 / (1 + c)) ** (n - 2) + 4 * c ** -(n - 2)) / ((c - 1) ** 2 * (n - 1) * (n - 2))
    assert event_b2(n, c) == pytest.approx(closed, rel=1e-10)


def test_event_b2_for_pairs_is_four_times_what_is_printed():
    for c in (1.5, 2.0, 10.0, 1000.0):
        printed = (2 * math.log(c + 1) - math.log(c) - 2 * math.log(2)) / (c - 1) ** 2
        assert event_b2(2, c) == pytest.approx(4 * printed, rel=1e-9)


def test_single_numbers_by_their_own_closed_form():
    """n = 1, which the paper leaves out and variable-length lists have: both inner integrals are logarithms."""
    c, d = 10.0, 9.0
    a = (2 * math.log1p(d / 2) + d / 2 * (2 - d * math.log(1 + 2 / d))) / (2 * d)
    b2 = 2 * (2 * c * math.log(2 * c) - 2 * (c + 1) * math.log(c + 1) + 2 * math.log(2)) / d**2
    assert exact_probability(1, c) == pytest.approx((2 * a + d / 2 * b2) / (c + 1), rel=1e-12)


@given(st.integers(2, 1000), st.floats(1e-9, 999.0))
def test_exact_is_a_probability_below_the_bound_everywhere(n, excess):
    c = 1 + excess
    exact = exact_probability(n, c)
    assert 0 < exact <= 1 and exact <= closed_bound(n, c) * (1 + 1e-9)


@given(st.integers(2, 400), st.floats(0.01, 500.0))
def test_longer_lists_and_wider_ranges_are_inside_less_often(n, excess):
    here = exact_probability(n, 1 + excess)
    assert exact_probability(n + 1, 1 + excess) < here and exact_probability(n, 1 + 1.1 * excess) < here


def test_the_limits_are_known():
    assert exact_probability(5, 1 + 1e-9) == pytest.approx(1, abs=1e-6)
    # For large c and n >= 3 the bound's leading term: 2/((n-1) c²) + 2/((n-1)(n-2) c²) = 2/((n-2) c²)
    for n in (10, 1000):
        assert exact_probability(n, 1e3) * 1e6 * (n - 2) / 2 == pytest.approx(1, rel=1e-4)
    # n = 2 is of order log c / c², not 1 / c²: 2/c² from event A and 2 log(c/4)/c² from B.2
    for c in (1e3, 1e6):
        assert exact_probability(2, c) * c**2 == pytest.approx(2 + 2 * math.log(c / 4), rel=1e-2)


@pytest.mark.parametrize(("n", "c"), [(2, 2.0), (2, 10.0), (3, 1.1), (8, 2.0), (8, 10.0), (32, 1.5)])
def test_the_sampler_agrees(n, c):
    found = posattn.ood_probability(n=n, scale=c, samples=200_000)
    assert found.interval[0] < found.exact < found.interval[1]
    assert found.interval[0] < found.simulated < found.interval[1] < found.simulated + 0.01


def test_single_numbers_have_an_exact_value_and_no_bound_of_the_paper():
    found = posattn.ood_probability(n=1, scale=2, samples=20_000)
    assert found.exact == exact_probability(1, 2) and found.interval[0] < found.exact < found.interval[1]
    assert math.isnan(found.bound) and math.isnan(found.printed)
    assert found.chernoff(lists=1000, epsilon=0.1).inside == found.exact + 0.1


def test_it_is_stable_at_the_far_corner():
    found = posattn.ood_probability(n=1000, scale=1000.0, samples=1000)
    assert found.exact == pytest.approx(2.004010020042e-9, rel=1e-10) and found.bound == pytest.approx(found.exact)
    assert found.simulated == 0 and found.interval[0] == 0 and 0 < found.interval[1] < 0.01


def test_the_printed_bound_fails_for_pairs_above_two_and_a_half_and_nowhere_else():
    assert printed_bound(2, 2.5) > exact_probability(2, 2.5) and printed_bound(2, 2.52) < exact_probability(2, 2.52)
    assert exact_probability(2, 10) == pytest.approx(0.0400, abs=5e-5)
    assert printed_bound(2, 10) == pytest.approx(0.0243, abs=5e-5)
    assert closed_bound(8, 2) / exact_probability(8, 2) == pytest.approx(1.017, abs=5e-4)
    assert all(printed_bound(n, c) == closed_bound(n, c) for n in (3, 8, 100) for c in (2.0, 10.0))


def test_the_first_worked_example():
    """N = 1000, n = 2, c = 2: p_in <= 0.4375 is true, though the corrected bound does not show it."""
    found = posattn.ood_probability(n=2, scale=2, samples=1000)
    assert found.exact == pytest.approx(0.379, abs=5e-4) and found.exact <= 0.4375 < found.bound
    tail = replace(found, exact=0.4375).chernoff(1000, 0.0625)
    assert tail.inside == 0.5 and 0.9995 <= tail.probability < 1


def test_the_second_worked_example():
    """N = 1000, n = 8, c = 10: p_in <= 0.0034, so more than 95% lie outside with a probability of at least 0.98."""
    found = posattn.ood_probability(n=8, scale=10, samples=1000)
    assert found.exact <= found.bound <= 0.0034
    tail = replace(found, exact=0.0034).chernoff(1000, 0.0466)
    assert tail.inside == pytest.approx(0.05) and tail.probability >= 0.98


@given(st.floats(0.001, 0.9), st.integers(1, 3000), st.floats(0.001, 0.3))
def test_chernoff_against_the_binomial_tail(p, lists, epsilon):
    tail = Chernoff(lists, epsilon, p)
    assert binom.sf(math.ceil(lists * tail.inside - 1e-9) - 1, lists, p) <= 1 - tail.probability + 1e-12


@given(st.integers(2, 100), st.floats(1.05, 50.0), st.integers(2, 100_000), st.floats(0.1, 3.0))
def test_the_multiplicative_bound_against_the_binomial_tail(n, c, lists, power):
    p = exact_probability(n, c)
    found = ood.OODProbability(n, c, p, 1.0, 1.0, 0.0, (0.0, 1.0), 1)
    assert binom.sf(math.floor(found.at_most(lists, power)), lists, p) <= lists**-power * (1 + 1e-9)


def test_wilsons_interval_covers_what_it_should():
    for p in (0.01, 0.03, 0.5):
        intervals = [ood.wilson_interval(hits, 500) for hits in range(501)]
        covered = sum(binom.pmf(hits, 500, p) for hits, (low, high) in enumerate(intervals) if low <= p <= high)
        assert 0.97 < covered < 0.998


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"n": 0, "scale": 2}, "n is 0; it must be a whole number of at least 1."),
        ({"n": 2.5, "scale": 2}, "n is 2.5; it must be a whole number of at least 1."),
        ({"n": 8, "scale": 1}, "scale is 1; it must be above 1, where lists are out of distribution."),
        ({"n": 8, "scale": float("nan")}, "scale is nan; it must be a finite number above 0."),
        ({"n": 8, "scale": 2, "samples": 0}, "samples is 0; it must be a whole number of at least 1."),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(given, sentence):
    with pytest.raises(posattn.UsageError) as caught:
        posattn.ood_probability(**given)
    assert str(caught.value) == sentence


def test_scales_that_float32_cannot_sample_are_refused():
    with pytest.raises(posattn.UsageError, match=r"^scale is 1e\+40; it must be at most 1e\+30"):
        posattn.ood_probability(n=3, scale=1e40)


@pytest.mark.parametrize("scale", [3.0, 10.0, 100.0])
def test_the_corrected_bound_for_pairs_is_close_above_the_truth(scale):
    """Eq. 26 lacks a factor 4 for n = 2; with less than that the bound would fall below the truth."""
    found = posattn.ood_probability(n=2, scale=scale, samples=1000)
    assert found.exact <= found.bound <= 1.2 * found.exact
