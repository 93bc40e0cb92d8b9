"""Static analysis of expressions: the range of each, whether it is an integer, and how far softmax can move it.

Softmax attention gives the wanted source all but a share ε of the weight. It moves a value by at most ε times the range of
what it attends to. Errors are kept as multiples of ε. So a single pass finds the largest ε, and with it the lowest
temperature, at which every comparison still sees the right integer and every output is accurate enough.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from posattn.compiler import expressions as ex
from posattn.compiler.expressions import Array, Expression
from posattn.errors import UsageError, shown

STEP_MARGIN = 0.2  # a step rises between 1/4 and 3/4 above an integer, so an error of 1/5 does not change it
SLACK = 0.01  # a gate stays shut for numbers that exceed their range by up to this share
LARGEST = 2.0**1000  # the largest number allowed: gates are up to twice as wide, and float64 ends at 2^1024
LARGEST_COMPARED = 2.0**50  # the largest |a| + |b| in [a > b]: up to here 2(a - b) - 3/2 is exact in float64


@dataclass(frozen=True)
class Known:
    """A value lies in [lo, hi]. Softmax moves it by at most ``error`` · ε.

    Fitted functions move it by ``misfit`` if they err nowhere more than at the points where they were tried.
    """

    lo: float
    hi: float
    integer: bool = False
    error: float = 0.0
    misfit: float = 0.0

    def __post_init__(self) -> None:
        number = (int, float, Real)  # most are one of the first two, which is told faster
        if not isinstance(self.lo, number) or not isinstance(self.hi, number):
            raise UsageError(f"a value lies in [{shown(self.lo)}, {shown(self.hi)}]; both ends must be numbers.")

    @property
    def size(self) -> float:
        return max(abs(self.lo), abs(self.hi))

    def join(self, other: "Known") -> "Known":
        return Known(
            min(self.lo, other.lo),
            max(self.hi, other.hi),
            self.integer and other.integer,
            max(self.error, other.error),
            max(self.misfit, other.misfit),
        )

    def times(self, factor: float) -> "Known":
        ends = (self.lo * factor, self.hi * factor)
        whole = self.integer and float(factor).is_integer()
        return Known(min(ends), max(ends), whole, self.error * abs(factor), self.misfit * abs(factor))

    def plus(self, other: "Known") -> "Known":
        return Known(
            self.lo + other.lo,
            self.hi + other.hi,
            self.integer and other.integer,
            self.error + other.error,
            self.misfit + other.misfit,
        )


BLANK = Known(0.0, 0.0, True)  # what is known of a memory position that receives nothing


class Margins:
    """The conditions error · ε ≤ room under which a compiled network is right: ``epsilon`` is the largest ε that meets all."""

    epsilon: float = 1.0

    def need(self, error: float, room: float) -> None:
        if error > 0:
            self.epsilon = min(self.epsilon, room / error)


class Analysis:
    """Computes what is known of expressions over ``cells`` on machines 0 to ``last`` (the sink).

    ``first`` is below 0 where an overflow may have replaced a machine's number by a negative code.
    """

    def __init__(
        self, cells: Sequence[Known], last: int, margins: Margins | None = None, place: str = "", first: int = 0
    ):
        self.cells, self.first, self.last, self.place = cells, first, last, place
        self.margins = Margins() if margins is None else margins
        self.done: dict[Expression, Known] = {}
        self.fits: dict[ex.Fitted, Fit] = {}

    def known(self, node: Expression) -> Known:
        return ex.resolved(node, self.done, self._checked)

    def _checked(self, node: Expression) -> Generator[Any, Any, Known]:
        """What is known of an expression; raises if it may be too large."""
        found = yield from self._find(node)
        if not found.size <= LARGEST:
            raise UsageError(
                f"{self.place}numbers may reach {found.size:.3g}; weights can be made for {LARGEST:.3g} at most."
            )
        return found

    def _find(self, node: Expression) -> Generator[Any, Any, Known]:
        match node:
            case ex.MemoryCell(index):
                return self.cells[index]
            case ex.Me(lost):
                return Known(float(self.first * lost), float(self.last), True)
            case ex.Linear(terms, offset):
                total = Known(offset, offset, float(offset).is_integer())
                for term, weight in terms:
                    total = total.plus((yield term).times(weight))
                return total
            case ex.Relu(x):
                inner = yield x
                return Known(max(inner.lo, 0.0), max(inner.hi, 0.0), inner.integer, inner.error, inner.misfit)
            case ex.Smaller(a, b):
                one, other = (yield a), (yield b)
                joined = one.join(other)
                return Known(joined.lo, min(one.hi, other.hi), joined.integer, joined.error, joined.misfit)
            case ex.Greater(a, b):
                self._check_comparison((yield a), (yield b))
                return Known(0.0, 1.0, True)
            case ex.Bit(x, user):
                bit = yield x
                self.check_bit(bit, user)
                return bit
            case ex.Select(chosen, a, b):
                bit = yield chosen
                self.check_bit(bit, "select")
                self.margins.need(bit.error, STEP_MARGIN)  # a step removes what softmax adds to the bit
                one, other = (yield a), (yield b)
                for passed in (one, other):  # a shut gate must stay shut whatever softmax adds to the value
                    self.margins.need(passed.error, gate_bound(passed) - passed.size)
                return one.join(other)
            case ex.ByMachine(values):
                return Known(min(values), max(values), all(value.is_integer() for value in values))
            case ex.Assume(x, lo, hi, integer):
                inner = yield x
                return Known(max(lo, inner.lo), min(hi, inner.hi), integer, inner.error, inner.misfit)
            case ex.Fitted():
                parts = yield from ex.each(node.arguments)
                fit = self.fit(node)
                spread = sum(part.error for part in parts) * fit.slope
                return Known(fit.lo, fit.hi, False, spread, fit.error + fit.slope * sum(part.misfit for part in parts))
        raise TypeError(f"{type(node).__name__} is no expression")

    def _check_comparison(self, a: Known, b: Known) -> None:
        if not (a.integer and b.integer):
            told = f"{self.place}a comparison is of numbers that need not be integers"
            raise UsageError(f"{told}; compare integers, or reals by greater(a, b, gap).")
        if a.misfit + b.misfit > STEP_MARGIN:
            raise UsageError(
                f"{self.place}a comparison is of fitted numbers with an error of {a.misfit + b.misfit:.2g}."
            )
        if a.size + b.size > LARGEST_COMPARED:
            raise UsageError(
                f"{self.place}a comparison is of integers of up to {a.size:.4g} and {b.size:.4g}; together they must not "
                f"exceed 2^50 = {LARGEST_COMPARED:.4g}, so that float64 tells neighbours apart."
            )
        self.margins.need(a.error + b.error, STEP_MARGIN)

    def check_bit(self, bit: Known, user: str) -> None:
        if not bit.integer or bit.lo < 0 or bit.hi > 1:
            real = "" if bit.integer else " that need not be whole"
            raise UsageError(
                f"{self.place}{user} was given a number in [{bit.lo:g}, {bit.hi:g}]{real}; it needs a bit, 0 or 1."
            )

    def fit(self, node: ex.Fitted) -> "Fit":
        if node not in self.fits:
            ranges = [self.known(argument) for argument in node.arguments]
            self.fits[node] = fit(node, [(known.lo, known.hi) for known in ranges])
        return self.fits[node]


@dataclass(frozen=True)
class Fit:
    """f(x) ≈ relu(x @ directions + offsets) @ weights + constant on a box; ``error`` is the largest at the points tried."""

    directions: Array
    offsets: Array
    weights: Array
    constant: float
    error: float
    slope: float  # the largest change of the fitted function for a unit change of one argument
    lo: float
    hi: float


def fit(node: ex.Fitted, box: Sequence[tuple[float, float]]) -> Fit:
    """Fits a hidden layer: one argument by interpolation at equal distances, several by least squares on random ReLUs."""
    low, high = (np.array(ends, dtype=float) for ends in zip(*box, strict=True))
    width = np.maximum(high - low, 1e-12)
    random = np.random.default_rng(0)
    if len(box) == 1:
        knots = np.linspace(low[0], high[0], node.units + 1)
        values = _call(node, knots[:, None])
        slopes = np.diff(values) / np.diff(knots) if high[0] > low[0] else np.zeros(node.units)
        directions, offsets = np.ones((1, node.units)), -knots[:-1]
        weights, constant = np.diff(slopes, prepend=0.0), values[0]
        slope = float(np.abs(slopes).max())
        probes = np.linspace(low[0], high[0], 20 * node.units + 1)[:, None]
    else:
        directions = random.standard_normal((len(box), node.units)) / width[:, None]
        anchors = low + random.random((node.units, len(box))) * width
        offsets = -np.einsum("ud,du->u", anchors, directions)
        samples = low + random.random((40 * node.units, len(box))) * width
        hidden = np.maximum(samples @ directions + offsets, 0.0)
        hidden = np.concatenate([hidden, np.ones((len(hidden), 1))], axis=1)
        solved = np.linalg.lstsq(hidden, _call(node, samples), rcond=1e-9)[0]
        weights, constant = solved[:-1], solved[-1]
        slope = float(np.abs(directions * weights).sum(axis=1).max())
        corners = np.stack(np.meshgrid(*([-0.0, 1.0] for _ in box)), axis=-1).reshape(-1, len(box))
        probes = low + np.concatenate([random.random((20_000, len(box))), corners]) * width
    answers = np.maximum(probes @ directions + offsets, 0.0) @ weights + constant
    error = np.abs(answers - _call(node, probes)).max()
    # What oscillates may vanish at all points of equal distances, so others are tried too.
    others = low + random.random((20 * node.units, len(box))) * (high - low)
    found = np.maximum(others @ directions + offsets, 0.0) @ weights + constant
    error = float(max(error, np.abs(found - _call(node, others)).max()))
    return Fit(directions, offsets, weights, float(constant), error, slope, float(answers.min()), float(answers.max()))


def _call(node: ex.Fitted, points: Array) -> Array:
    values = ex.applied(node.function, *points.T)
    if not np.isfinite(values).all():
        raise UsageError(
            "a fitted function must give one finite number for every point of its range, "
            f"{[f'[{low:g}, {high:g}]' for low, high in zip(points.min(0), points.max(0), strict=True)]}."
        )
    return values


def gate_bound(known: Known) -> float:
    """A power of two above the value's size: large enough to shut a gate, and multiplying by it is exact."""
    return 2.0 ** math.ceil(math.log2(max(known.size * (1 + SLACK), 2.0**-20)))
