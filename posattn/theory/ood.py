"""How often an out-of-distribution test list still lies in the training domain (Appendix E): p_in = P(x in [-1, 1]^n).

Two bounds are uniform on [-c, c] and not both in [-1, 1]; the n values of a list are uniform between them. (All ranges are
divided by 2, which does not change p_in.) The events are those of the paper. A: one bound is inside [-1, 1]. B.1: none is, and
both are on one side. B.2: none is, and one is on each side. With d = c - 1,

    p_in = 2/(c+1) · p_A + (c-1)/(2(c+1)) · p_B2                                                             (Eq. 23, 25)
    p_A  = 1/(2d) ∫_0^2 ∫_0^d (u/(u+v))^n dv du                                                              (Eq. 24)
    p_B2 = 1/d² ∫_0^2d (1 + v/2)^-n min(v, 2d - v) dv                                                        (Eq. 26)

where u = 1 - γ_l and v = γ_u - 1 in the first, and v = γ_u - γ_l - 2, which has a triangular density, in the second.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posattn.errors import UsageError, positive, seed_number, whole
from posattn.tasks.sampling import sample_lists

Numbers = npt.NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_HALVINGS = 80  # panels of the quadrature, each half as long as the next: the integrands vary on the scale of log u
_LARGEST = 1e30
_MOST_SAMPLES = 10**9  # minutes of simulation
_AT_ONCE = 2_000_000  # numbers sampled at once
_CONFIDENCE, _Z = 0.99, 2.575829  # of intervals, and its two-sided quantile of the normal distribution


@dataclass(frozen=True)
class OODProbability:
    """p_in for lists of ``n`` at scale c, computed, bounded and simulated, and what follows for a test set.

    ``exact`` comes from quadrature. ``bound`` is the closed bound of Eq. 27 (n >= 3) or of Eq. 28 corrected (n = 2), and
    ``printed`` that bound as printed; both are nan for n = 1, which the paper leaves out. ``simulated`` is the share among
    ``samples`` lists of the sampler, with its Wilson ``interval``.
    """

    n: int
    scale: float
    exact: float
    bound: float
    printed: float
    simulated: float
    interval: tuple[float, float]
    samples: int
    confidence: float = _CONFIDENCE

    def chernoff(self, lists: int, epsilon: float) -> "Chernoff":
        """Eq. 29: how many of N = ``lists`` test lists lie inside, except with a probability of at most exp(-2 N ε²)."""
        if positive("epsilon", epsilon) >= 1:
            raise UsageError(f"epsilon is {epsilon!r}; it is a share of the lists, so it must be above 0 and below 1.")
        return Chernoff(whole("lists", lists), float(epsilon), self.exact)

    def at_most(self, lists: int, power: float = 1.0) -> float:
        """A number that the lists inside, of N = ``lists`` in all, reach with a probability of at most N^-``power``.

        The multiplicative Chernoff bound, P(N_in >= (1 + η) N p) <= exp(-η² N p / (2 + η)), solved for η.
        """
        expected = whole("lists", lists) * self.exact
        a = positive("power", power) * math.log(lists) / expected
        return expected * (1 + (a + math.sqrt(a * a + 8 * a)) / 2)


@dataclass(frozen=True)
class Chernoff:
    """P(N_in >= N (p_in + ε)) <= exp(-2 N ε²)."""

    lists: int
    epsilon: float
    p_in: float

    @property
    def inside(self) -> float:
        """The share of lists inside stays below this, with at least ``probability``."""
        return self.p_in + self.epsilon

    @property
    def probability(self) -> float:
        """The probability with which the share stays below ``inside``, at least."""
        return -math.expm1(-2 * self.lists * self.epsilon**2)


def ood_probability(n: int, scale: float, samples: int = 100_000, seed: int = 0) -> OODProbability:
    """The probability that a test list of ``n`` numbers at ``scale`` c > 1 lies inside the training domain."""
    c = above_one("scale", scale)
    hits = count_inside(whole("n", n), c, whole("samples", samples, most=_MOST_SAMPLES), seed_number(seed))
    bounds = (closed_bound(n, c), printed_bound(n, c)) if n > 1 else (math.nan, math.nan)
    interval = wilson_interval(hits, samples)
    return OODProbability(n, c, exact_probability(n, c), *bounds, hits / samples, interval, samples)


def exact_probability(n: int, scale: float) -> float:
    """p_in by quadrature, to about twelve digits; also for n = 1, which the paper's formulas exclude."""
    c = above_one("scale", scale)
    # Eq. 23 and 25: event A has probability 2/(c+1), event B (c-1)/(c+1), and half of B is B.2.
    return (2 * event_a(whole("n", n), c) + (c - 1) / 2 * event_b2(n, c)) / (c + 1)


def event_a(n: int, c: float) -> float:
    """p_A,in of Eq. 24: the inner integral in closed form, the outer by quadrature."""
    d = c - 1

    def inner(u: Numbers) -> Numbers:
        far = np.log1p(d / u)  # log((c - s)/(1 - s))
        return u * far if n == 1 else -u * np.expm1(-(n - 1) * far) / (n - 1)

    return _integral(inner, 0.0, 2.0) / (2 * d)


def event_b2(n: int, c: float) -> float:
    """p_B2,in of Eq. 26 by quadrature. Its closed form is a second difference, which rounding destroys as c nears 1."""
    d = c - 1

    def weighted(v: Numbers) -> Numbers:
        return np.exp(-n * np.log1p(v / 2)) * np.minimum(v, 2 * d - v)

    return (_integral(weighted, 0.0, d) + _integral(weighted, d, 2 * d)) / d**2


def _integral(f: Callable[[Numbers], Numbers], start: float, end: float) -> float:
    """∫ f over [start, end] by Gauss-Legendre on panels that halve towards ``start``."""
    edges = np.concatenate([[0.0], 0.5 ** np.arange(_HALVINGS, -1, -1.0)]) * (end - start) + start
    half = np.diff(edges)[:, None] / 2
    nodes = edges[:-1, None] + half * (1 + _NODES)
    return float((f(nodes) * half * _WEIGHTS).sum())


def closed_bound(n: int, c: float) -> float:
    """The paper's bound, at most 1: Eq. 27 for n >= 3; for n = 2 Eq. 28 with the factor 4 that Eq. 26 lacks."""
    return min(1.0, printed_bound(n, c, factor=4.0))


def printed_bound(n: int, c: float, factor: float = 1.0) -> float:
    """Eq. 27 and the first line of Eq. 28 as printed; for n = 2 it is below p_in from c of about 2.5 on."""
    # Eq. 24 times 2/(c+1)
    event_a = (-3 * math.expm1(-(n - 1) * math.log(c)) + 1) / (2 * (c * c - 1) * (n - 1))
    if n == 2:
        # 2 log(c+1) - log c - 2 log 2 = log((c+1)²/4c) = log(1 + (c-1)²/4c), which is stable near c = 1
        return event_a + factor * math.log1p((c - 1) ** 2 / (4 * c)) / (2 * (c * c - 1))
    # Eq. 26 times (c-1)/(2(c+1)): 2 - 4 (2/(c+1))^k + 2 (1/c)^k, k = n - 2
    far, near = math.exp(-(n - 2) * math.log(c)), math.exp(-(n - 2) * math.log((c + 1) / 2))
    return event_a + max(0.0, 2 - 4 * near + 2 * far) / ((n - 1) * (n - 2) * (c * c - 1))


def count_inside(n: int, scale: float, samples: int, seed: int = 0) -> int:
    """How many of ``samples`` lists that the sampler draws lie inside the training domain."""
    inside, part = 0, max(1, _AT_ONCE // n)
    for drawn in range(0, samples, part):
        lists = sample_lists(min(part, samples - drawn), n, scale, seed, split=f"ood-probability {drawn}")
        inside += int((lists.abs() <= 2).all(dim=-1).sum())
    return inside


def wilson_interval(hits: int, samples: int) -> tuple[float, float]:
    """Wilson's interval for a probability, which stays sensible at zero hits."""
    z2, share = _Z**2, hits / samples
    centre = (share + z2 / (2 * samples)) / (1 + z2 / samples)
    reach = math.sqrt(z2 * (share * (1 - share) / samples + z2 / (4 * samples**2))) / (1 + z2 / samples)
    # At no hits and at all of them the ends are exactly 0 and 1, but for rounding.
    return max(0.0, centre - reach) if hits else 0.0, min(1.0, centre + reach) if hits < samples else 1.0


def above_one(field: str, scale: object) -> float:
    """``scale`` as a float; raises unless it is an out-of-distribution scale, above 1."""
    c = positive(field, scale)
    if c <= 1:
        raise UsageError(f"{field} is {scale!r}; it must be above 1, where lists are out of distribution.")
    if c > _LARGEST:
        raise UsageError(f"{field} is {scale!r}; it must be at most {_LARGEST:g}, since lists are sampled in float32.")
    return c
