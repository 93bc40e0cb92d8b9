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
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posattn.compiler import expressions as ex
from posattn.compiler.analysis import LARGEST_COMPARED, Analysis, Known, gate_bound
from posattn.compiler.expressions import Array, Expression, comparators

LARGEST_SUMMED = 2.0**40  # sums of 2^10 such integers, and of halves of them, are exact in float64
LARGEST_WEIGHT = 2.0**10  # softmax gives integers fractions, whose rounding a larger weight would make matter


@dataclass(frozen=True)
class Affine:
    """Σ coefficient · unit + constant."""

    terms: dict[int, float]
    constant: float = 0.0

    def plus(self, other: "Affine", factor: float = 1.0) -> "Affine":
        return combined([(self, 1.0), (other, factor)])

    def times(self, factor: float) -> "Affine":
        return combined([(self, factor)])


def combined(parts: Iterable[tuple[Affine, float]], constant: float = 0.0) -> Affine:
    """Σ factor · part + constant."""
    terms: dict[int, float] = {}
    for part, factor in parts:
        constant += factor * part.constant
        for unit, weight in part.terms.items():
            terms[unit] = terms.get(unit, 0.0) + factor * weight
    return Affine({unit: weight for unit, weight in terms.items() if weight}, constant)


@dataclass(frozen=True)
class Unit:
    """relu(``reads``) in hidden layer ``level``; an input of the MLP has level 0 and reads nothing."""

    level: int
    largest: float  # a bound of its absolute value
    reads: Affine | None = None
    negative: bool = False  # whether it is an input that can be below 0


class Lowering:
    """Expressions over the inputs of one MLP, turned into units."""

    def __init__(self, analysis: Analysis):
        self.analysis = analysis
        self.units: list[Unit] = [Unit(0, known.size, negative=known.lo < 0) for known in analysis.cells]
        self.me = len(self.units)
        self.units.append(Unit(0, float(max(analysis.last, -analysis.first)), negative=analysis.first < 0))
        self._same: dict[tuple[object, float], int] = {}
        self._done: dict[Expression | ex.Sort, Any] = {}

    def relu(self, x: Affine, largest: float = math.inf) -> Affine:
        """relu(x) as a unit; equal units are made once. ``largest`` bounds it where more is known than of x's units."""
        if not x.terms:
            return Affine({}, max(x.constant, 0.0))
        if x.constant == 0 and len(x.terms) == 1:
            ((unit, weight),) = x.terms.items()
            if weight > 0 and self.units[unit].level:
                return x  # a ReLU is not negative
        key = (frozenset(x.terms.items()), x.constant)
        if key not in self._same:
            self._same[key] = len(self.units)
            self.units.append(Unit(1 + self.level(x), min(largest, self.passed(x)), x))
        return Affine({self._same[key]: 1.0})

    def passed(self, x: Affine) -> float:
        """The largest number that a sum over the units of ``x`` can pass through, in whatever order it is formed."""
        return abs(x.constant) + sum(abs(weight) * self.units[unit].largest for unit, weight in x.terms.items())

    def held(self, x: Affine, known: Known) -> Affine:
        """``x`` as at most two units, which are cheap to carry: x = relu(x) - relu(-x)."""
        signed = known.lo < 0
        if len(x.terms) <= 1 + signed and not (x.terms and x.constant):
            return x
        above = self.relu(x, known.size)
        return above.plus(self.relu(x.times(-1.0), known.size), -1.0) if signed else above

    def gate(self, closed: Affine, x: Affine, known: Known) -> Affine:
        """``x``, of which ``known`` tells, where the bit ``closed`` is 0, and 0 where it is 1."""
        if not closed.terms:
            return Affine({}) if closed.constant else x
        if not x.terms and not x.constant:
            return x
        # The bit in a unit of its own is exactly 0 or 1, so x passes an open gate without rounding.
        closed = self.relu(closed, 1.0)
        x, bound = self.held(x, known), gate_bound(known)
        above = self.relu(x.plus(closed, -bound), known.size)
        below = x.times(-1.0).plus(closed, -bound)
        return above.plus(self.relu(below, known.size), -1.0) if known.lo < 0 else above

    def level(self, x: Affine) -> int:
        """The first hidden layer after which ``x`` can be read."""
        return max((self.units[unit].level for unit in x.terms), default=0)

    def affine(self, node: Expression) -> Affine:
        found: Affine = ex.resolved(node, self._done, self._lower)
        return found

    def _lower(self, node: Expression | ex.Sort) -> Generator[Any, Any, Any]:
        """The affine combination that an expression is, or those of the fields of a sort's records."""
        if isinstance(node, ex.Sort):
            return (yield from self._sorted(node))
        known = self.analysis.known
        known(node)  # raises if the node's parts do not suit it
        match node:
            case ex.MemoryCell(index):
                return Affine({index: 1.0})
            case ex.Me():
                return Affine({self.me: 1.0})
            case ex.Linear(terms, constant):
                addends = []
                for term, weight in terms:
                    addends.append((self._addend(term, (yield term), known(node).integer, weight), weight))
                return combined(addends, constant)
            case ex.Relu(x):
                if known(x).lo >= 0 or known(x).hi <= 0:
                    return (yield x) if known(x).lo >= 0 else Affine({})
                return self.relu((yield x), known(x).size)
            case ex.Smaller(a, b):
                return (yield from self._smaller(a, b))
            case ex.Greater(a, b):
                return (yield from self._greater(a, b))
            case ex.Select(chosen, a, b):
                bit, one, other = (yield chosen), (yield a), (yield b)
                bit = self._step(bit, 1.0) if known(chosen).error else bit
                return self.gate(_not(bit), one, known(a)).plus(self.gate(bit, other, known(b)))
            case ex.ByMachine(values):
                return self._table(values)
            case ex.Assume(x) | ex.Bit(x):
                return (yield x)
            case ex.Sorted(sort, place, field):
                return (yield sort)[place][field]
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
        return mine.plus(self.relu(mine.plus(theirs, -1.0), one.size + other.size), -1.0)

    def _addend(self, node: Expression, affine: Affine, among_integers: bool, weight: float = 1.0) -> Affine:
        """``node`` times ``weight`` as a part of a sum.

        The units of an integer cancel, which takes digits from small real numbers, and from integers if the units are large.
        """
        known = self.analysis.known(node)
        exact = abs(weight) < LARGEST_WEIGHT and abs(weight) * self.passed(affine) <= LARGEST_SUMMED
        return self.held(affine, known) if known.integer and not (among_integers and exact) else affine

    def _greater(self, a: Expression, b: Expression) -> Generator[Any, Any, Affine]:
        one, other = self.analysis.known(a), self.analysis.known(b)
        if one.lo > other.hi or one.hi <= other.lo:
            return Affine({}, float(one.lo > other.hi))
        mine, theirs = (yield a), (yield b)
        return self._step(mine.plus(theirs, -1.0), one.size + other.size)

    def _step(self, difference: Affine, largest: float) -> Affine:
        """The step function: 0 at integers up to 0, and 1 at integers from 1 to ``largest``."""
        first = self.relu(difference.times(2.0).plus(Affine({}, -0.5)), 2 * largest)
        return first.plus(self.relu(difference.times(2.0).plus(Affine({}, -1.5)), 2 * largest), -1.0)

    def _table(self, values: tuple[float, ...]) -> Affine:
        largest = 4 * len(values) * (self.analysis.last + 1) * max(map(abs, values))  # of any sum of second differences
        if not all(value.is_integer() for value in values) or largest > LARGEST_COMPARED:
            return combined((self._is_machine(j, j == len(values) - 1), value) for j, value in enumerate(values))
        parts, slope = [], 0.0
        for j, (here, following) in enumerate(zip(values, [*values[1:], values[-1]], strict=True)):
            bend, slope = following - here - slope, following - here
            if bend:
                step = Affine({self.me: 1.0}, -float(j))
                parts.append((self.relu(step) if j else step, bend))
        return combined(parts, values[0])

    def _is_machine(self, j: int, or_later: bool) -> Affine:
        """The bit whether the machine's number is ``j``, as one unit, which is exactly 0 or 1."""
        before = self.relu(Affine({self.me: -1.0}, float(j)))
        after = Affine({}) if or_later else self.relu(Affine({self.me: 1.0}, -float(j)))
        return self.relu(combined([(before, -1.0), (after, -1.0)], 1.0))

    def _sorted(self, sort: ex.Sort) -> Generator[Any, Any, list[list[Affine]]]:
        table = []
        for record in sort.records:
            table.append((yield from ex.each(record)))
        fields = [self.analysis.known(ex.Sorted(sort, 0, field)) for field in range(len(table[0]))]
        for low, high in comparators(len(table)):
            difference = table[low][sort.key].plus(table[high][sort.key], -1.0)
            swap = self._step(difference, 2 * fields[sort.key].size)
            for field, known in enumerate(fields):
                a, b = (self.held(table[place][field], known) for place in (low, high))
                table[low][field], table[high][field] = (
                    self.gate(swap, kept, known).plus(self.gate(_not(swap), other, known))
                    for kept, other in ((a, b), (b, a))
                )
        return table

    def _fitted(self, node: ex.Fitted) -> Generator[Any, Any, Affine]:
        fit = self.analysis.fit(node)
        # Every unit reads the arguments, so an argument of many parts is first made one number.
        arguments = []
        for argument in node.arguments:
            arguments.append(self.held((yield argument), self.analysis.known(argument)))
        units = zip(fit.directions.T.tolist(), fit.offsets.tolist(), fit.weights.tolist(), strict=True)
        hidden = [
            (self.relu(combined(zip(arguments, direction, strict=True), offset)), weight)
            for direction, offset, weight in units
        ]
        return combined(hidden, fit.constant)


def _not(bit: Affine) -> Affine:
    return Affine({}, 1.0).plus(bit, -1.0)


# (unit, sign) to the layer's column that holds relu(x) (sign 1) or relu(-x) (sign -1)
Columns = dict[tuple[int, int], int]


class Map:
    """A linear map of an MLP, x to W x + b. Most weights are 0, so W is stored as its other entries."""

    def __init__(self, rows: Sequence[Affine], columns: Columns, inputs: int):
        self.shape = (len(rows), inputs)
        self.bias: Array = np.array([affine.constant for affine in rows], dtype=float)
        entries = [
            (row, columns[unit, sign], sign * weight)
            for row, affine in enumerate(rows)
            for unit, weight in affine.terms.items()
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
    outputs = [lowering.affine(expression) for expression in expressions]
    depth = max((lowering.level(output) for output in outputs), default=0)
    # An output that is ready early and has many parts is carried as one number.
    outputs = [
        lowering.held(output, analysis.known(expression)) if lowering.level(output) < depth else output
        for expression, output in zip(expressions, outputs, strict=True)
    ]
    return _assemble(lowering.units, outputs, columns, width)


def _assemble(units: list[Unit], outputs: list[Affine], columns: Sequence[int], width: int) -> Maps:
    depth = max([1, *(units[unit].level for output in outputs for unit in output.terms)])
    last = _last_uses(units, outputs, depth)
    # The columns of every hidden layer: its own units, and those that it carries.
    vectors: list[Columns] = [{} for _ in range(depth + 1)]
    for unit, until in last.items():
        for level in range(units[unit].level, until):
            vectors[level][unit, 1] = len(vectors[level])
            if units[unit].negative and level:
                vectors[level][unit, -1] = len(vectors[level])
    vectors[0] = {(unit, 1): column for unit, column in enumerate(columns)}
    maps = []
    for level in range(1, depth + 1):
        rows = [_read(units, unit, sign, level) for unit, sign in vectors[level]]
        maps.append(Map(rows, vectors[level - 1], width))
        width = len(rows)
    return [*maps, Map(outputs, vectors[depth], width)]


def _last_uses(units: list[Unit], outputs: list[Affine], depth: int) -> dict[int, int]:
    """The level of the last reader of every unit that is needed; outputs are read at level ``depth`` + 1."""
    last: dict[int, int] = {}
    for output in outputs:
        last |= dict.fromkeys(output.terms, depth + 1)
    for unit in reversed(range(len(units))):  # readers come after what they read
        reads = units[unit].reads
        if unit in last and reads is not None:
            for read in reads.terms:
                last[read] = max(last.get(read, 0), units[unit].level)
    return last


def _read(units: list[Unit], unit: int, sign: int, level: int) -> Affine:
    """The argument of the ReLU in a column of hidden layer ``level``: the unit's own, or a number that the layer carries."""
    reads = units[unit].reads
    return reads if units[unit].level == level and reads is not None else Affine({unit: float(sign)})
