"""Expressions to ReLU layers, exactly: local functions as the MLP of Eq. 1 (Lemma B.2's φ).

Every expression is an affine combination of *units*: inputs of the MLP, or ReLUs of such combinations. With B no smaller
than |x| and bits c that are 0 or 1,

    min(a, b)  =  a - relu(a - b)
    [a > b]    =  relu(2(a - b) - 1/2) - relu(2(a - b) - 3/2)         for integers: flat for a quarter around each of them
    c x        =  relu(x - B(1-c)) - relu(-x - B(1-c))                exact in floating point: if c = 1, nothing is added
    t(i)       =  t(0) + Σ_j (second difference of t at j) relu(i - j)        a table of integers, read by the machine's number
    t(i)       =  Σ_j t(j) relu(1 - relu(i - j) - relu(j - i))                any other table: all terms but t(i) are 0

A unit belongs to the hidden layer after the last unit that it reads. Layers in between carry what is needed later: relu(x) if
the number cannot be negative, else relu(x) and relu(-x).
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posattn.compiler import expressions as ex
from posattn.compiler.analysis import LARGEST_COMPARED, Analysis, Known, gate_bound
from posattn.compiler.expressions import Array, Expression, Linear, linear

LARGEST_SUMMED = 2.0**40  # sums of 2^10 such integers, and of halves of them, are exact in float64
LARGEST_WEIGHT = 2.0**10  # softmax gives integers fractions, whose rounding a larger weight would make matter


NOTHING = Linear((), 0.0)


@dataclass(frozen=True, eq=False)
class Unit(Expression):
    """relu(``reads``) in hidden layer ``level``; an input of the MLP has level 0 and reads nothing."""

    level: int
    largest: float  # a bound of its absolute value
    reads: Linear = NOTHING
    negative: bool = False  # whether it is an input that can be below 0


class Lowering:
    """Expressions over the inputs of one MLP, turned into sums of units."""

    def __init__(self, analysis: Analysis):
        self.analysis = analysis
        known = [*analysis.cells, Known(float(analysis.first), float(analysis.last))]  # and the machine's number
        self.units = [Unit(0, each.size, negative=each.lo < 0) for each in known]
        *self.cells, self.me = (linear((unit, 1.0)) for unit in self.units)
        self._same: dict[tuple[object, float], Linear] = {}
        self._done: dict[Expression, Linear] = {}

    def relu(self, x: Linear, largest: float = math.inf) -> Linear:
        """relu(x) as a unit; equal units are made once. ``largest`` bounds it where more is known than of x's units."""
        if not x.terms:
            return Linear((), max(x.constant, 0.0))
        if x.constant == 0 and len(x.terms) == 1:
            ((unit, weight),) = x.terms
            if weight > 0 and unit.level:
                return x  # a ReLU is not negative
        key = (frozenset(x.terms), x.constant)
        if key not in self._same:
            self.units.append(Unit(1 + level(x), min(largest, passed(x)), x))
            self._same[key] = linear((self.units[-1], 1.0))
        return self._same[key]

    def held(self, x: Linear, known: Known) -> Linear:
        """``x`` as at most two units, which are cheap to carry: x = relu(x) - relu(-x)."""
        if len(x.terms) <= 1 + (known.lo < 0) and not (x.terms and x.constant):
            return x
        return self._passed_on(x, known)

    def gate(self, closed: Linear, x: Linear, known: Known) -> Linear:
        """``x``, of which ``known`` tells, where the bit ``closed`` is 0, and 0 where it is 1."""
        if not closed.terms:
            return NOTHING if closed.constant else x
        if not x.terms and not x.constant:
            return x
        # The bit in a unit of its own is exactly 0 or 1, so x passes an open gate without rounding.
        bar = self.relu(closed, 1.0), -gate_bound(known)
        return self._passed_on(self.held(x, known), known, bar)

    def _passed_on(self, x: Linear, known: Known, *bar: tuple[Linear, float]) -> Linear:
        """relu(x + bar), less relu(-x + bar) if ``x`` may be negative: x if the bar is 0, and 0 if it is far below."""
        above = self.relu(linear((x, 1.0), *bar), known.size)
        return above if known.lo >= 0 else _difference(above, self.relu(linear((x, -1.0), *bar), known.size))

    def lowered(self, node: Expression) -> Linear:
        return ex.resolved(node, self._done, self._lower)

    def _lower(self, node: Expression) -> Generator[Any, Any, Linear]:
        """The sum of units that an expression is."""
        known = self.analysis.known
        known(node)  # raises if the node's parts do not suit it
        match node:
            case ex.MemoryCell(index):
                return self.cells[index]
            case ex.Me():
                return self.me
            case Linear(terms, constant):
                addends = []
                for term, weight in terms:
                    addends.append((self._addend(term, (yield term), known(node).integer, weight), weight))
                return linear(*addends, constant=constant)
            case ex.Relu(x):
                if known(x).lo >= 0 or known(x).hi <= 0:
                    return (yield x) if known(x).lo >= 0 else NOTHING
                return self.relu((yield x), known(x).size)
            case ex.Smaller(a, b):
                return (yield from self._smaller(a, b))
            case ex.Greater(a, b):
                return (yield from self._greater(a, b))
            case ex.Select(chosen, a, b):
                bit, one, other = (yield chosen), (yield a), (yield b)
                bit = self._step(bit, 1.0) if known(chosen).error else bit
                return linear((self.gate(_not(bit), one, known(a)), 1.0), (self.gate(bit, other, known(b)), 1.0))
            case ex.ByMachine(values):
                return self._table(values)
            case ex.Assume(x) | ex.Bit(x):
                return (yield x)
            case ex.Fitted():
                return (yield from self._fitted(node))
        raise TypeError(f"{type(node).__name__} is no expression")

    def _smaller(self, a: Expression, b: Expression) -> Generator[Any, Any, Any]:
        one, other = self.analysis.known(a), self.analysis.known(b)
        if one.hi <= other.lo:
            return (yield a)
        if other.hi <= one.lo:
            return (yield b)
        integers = one.integer and other.integer
        mine, theirs = (yield a), (yield b)
        mine, theirs = self._addend(a, mine, integers), self._addend(b, theirs, integers)
        return linear((mine, 1.0), (self.relu(_difference(mine, theirs), one.size + other.size), -1.0))

    def _addend(self, node: Expression, x: Linear, among_integers: bool, weight: float = 1.0) -> Linear:
        """``node`` times ``weight`` as a part of a sum.

        The units of an integer cancel, which takes digits from small real numbers, and from integers if the units are large.
        """
        known = self.analysis.known(node)
        exact = abs(weight) < LARGEST_WEIGHT and abs(weight) * passed(x) <= LARGEST_SUMMED
        return self.held(x, known) if known.integer and not (among_integers and exact) else x

    def _greater(self, a: Expression, b: Expression) -> Generator[Any, Any, Linear]:
        one, other = self.analysis.known(a), self.analysis.known(b)
        if one.lo > other.hi or one.hi <= other.lo:
            return Linear((), float(one.lo > other.hi))
        mine, theirs = (yield a), (yield b)
        return self._step(_difference(mine, theirs), one.size + other.size)

    def _step(self, difference: Linear, largest: float) -> Linear:
        """The step function: 0 at integers up to 0, and 1 at integers from 1 to ``largest``."""
        first, second = (self.relu(linear((difference, 2.0), constant=start), 2 * largest) for start in (-0.5, -1.5))
        return _difference(first, second)

    def _table(self, values: tuple[float, ...]) -> Linear:
        largest = 4 * len(values) * (self.analysis.last + 1) * max(map(abs, values))  # of any sum of second differences
        if not all(value.is_integer() for value in values) or largest > LARGEST_COMPARED:
            return linear(*((self._is_machine(j, j == len(values) - 1), value) for j, value in enumerate(values)))
        parts, slope = [], 0.0
        for j, (here, following) in enumerate(zip(values, [*values[1:], values[-1]], strict=True)):
            bend, slope = following - here - slope, following - here
            if bend:
                parts.append((self.relu(linear((self.me, 1.0), constant=-float(j))) if j else self.me, bend))
        return linear(*parts, constant=values[0])

    def _is_machine(self, j: int, or_later: bool) -> Linear:
        """The bit whether the machine's number is ``j``, as one unit, which is exactly 0 or 1."""
        before = self.relu(linear((self.me, -1.0), constant=float(j)))
        after = NOTHING if or_later else self.relu(linear((self.me, 1.0), constant=-float(j)))
        return self.relu(linear((before, -1.0), (after, -1.0), constant=1.0))

    def _fitted(self, node: ex.Fitted) -> Generator[Any, Any, Linear]:
        fit = self.analysis.fit(node)
        # Every unit reads the arguments, so an argument of many parts is first made one number.
        arguments = []
        for argument in node.arguments:
            arguments.append(self.held((yield argument), self.analysis.known(argument)))
        units = zip(fit.directions.T.tolist(), fit.offsets.tolist(), fit.weights.tolist(), strict=True)
        hidden = [
            (self.relu(linear(*zip(arguments, direction, strict=True), constant=offset)), weight)
            for direction, offset, weight in units
        ]
        return linear(*hidden, constant=fit.constant)


def level(x: Linear) -> int:
    """The first hidden layer after which a sum of units can be read."""
    return max((unit.level for unit, _ in x.terms), default=0)


def passed(x: Linear) -> float:
    """The largest number that a sum of units can pass through, in whatever order it is formed."""
    return abs(x.constant) + sum(abs(weight) * unit.largest for unit, weight in x.terms)


def _difference(a: Linear, b: Linear) -> Linear:
    return linear((a, 1.0), (b, -1.0))


def _not(bit: Linear) -> Linear:
    return linear((bit, -1.0), constant=1.0)


# (unit, sign) to the layer's column that holds relu(x) (sign 1) or relu(-x) (sign -1)
Columns = dict[tuple[Unit, int], int]


class Map:
    """A linear map of an MLP, x to W x + b. Most weights are 0, so W is stored as its other entries."""

    def __init__(self, rows: Sequence[Linear], columns: Columns, inputs: int):
        self.shape = (len(rows), inputs)
        self.bias: Array = np.array([x.constant for x in rows], dtype=float)
        entries = [
            (row, columns[unit, sign], sign * weight)
            for row, x in enumerate(rows)
            for unit, weight in x.terms
            for sign in (1, -1)
            if (unit, sign) in columns
        ]
        self.indices = np.array([entry[:2] for entry in entries], dtype=np.int64).reshape(-1, 2)
        self.values: Array = np.array([entry[2] for entry in entries], dtype=float)

    def dense(self) -> Array:
        """W, (out, in)."""
        weight = np.zeros(self.shape)
        weight[self.indices[:, 0], self.indices[:, 1]] = self.values
        return weight


Maps = list[Map]  # of an MLP, with a ReLU between each two


def relu_layers(expressions: Sequence[Expression], analysis: Analysis, columns: Sequence[int], width: int) -> Maps:
    """The MLP that computes ``expressions``; ``columns`` of its ``width`` inputs are the cells and the machine's number."""
    lowering = Lowering(analysis)
    outputs = [lowering.lowered(expression) for expression in expressions]
    depth = max(map(level, outputs), default=0)
    # An output that is ready early and has many parts is carried as one number.
    outputs = [
        lowering.held(output, analysis.known(expression)) if level(output) < depth else output
        for expression, output in zip(expressions, outputs, strict=True)
    ]
    return _assemble(lowering.units, outputs, columns, width)


def _assemble(units: list[Unit], outputs: list[Linear], columns: Sequence[int], width: int) -> Maps:
    depth = max([1, *map(level, outputs)])
    # The columns of every hidden layer: its own units, and those that it carries.
    vectors: list[Columns] = [{} for _ in range(depth + 1)]
    for unit, until in _last_uses(units, outputs, depth).items():
        for own in vectors[unit.level : until]:
            own[unit, 1] = len(own)
            if unit.negative and own is not vectors[0]:
                own[unit, -1] = len(own)
    vectors[0] = {(unit, 1): column for unit, column in zip(units, columns, strict=False)}
    maps = []
    for layer, own in enumerate(vectors[1:], start=1):
        # The argument of a column's ReLU: the unit's own, or a number that the layer carries.
        rows = [unit.reads if unit.level == layer else linear((unit, sign)) for unit, sign in own]
        maps.append(Map(rows, vectors[layer - 1], width))
        width = len(rows)
    return [*maps, Map(outputs, vectors[depth], width)]


def _last_uses(units: list[Unit], outputs: list[Linear], depth: int) -> dict[Unit, int]:
    """The level of the last reader of every unit that is needed; outputs are read at level ``depth`` + 1."""
    last: dict[Unit, int] = {}
    for output in outputs:
        last |= dict.fromkeys((unit for unit, _ in output.terms), depth + 1)
    for reader in reversed(units):  # readers come after what they read
        if reader in last:
            for unit, _ in reader.reads.terms:
                last[unit] = max(last.get(unit, 0), reader.level)
    return last
