"""Numbers of a program that is written as a function (``front_end``): what inputs may be, and what can be computed.

While the function is executed a number is a :class:`Value`. It notes how it was computed, and what the analysis knows of it, so
that a wrong operation is an error in its own line.
"""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce, wraps
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec

import numpy as np

from posattn.compiler import expressions
from posattn.compiler.analysis import LARGEST_COMPARED, Known
from posattn.compiler.expressions import Assume, Expression, Me, MemoryCell, as_expression, each, resolved
from posattn.errors import UsageError, several, shown, whole

if TYPE_CHECKING:
    from posattn.compiler.front_end import Tracing

P = ParamSpec("P")
_EXACT = 1 << 40  # sums of whole numbers below this are exact
_LONGEST_SUM = 16  # a quotient with more values than this is found by long division


# --- what inputs may be ------------------------------------------------------------------------------------------------


class Machines(Me):
    """The number of machines as a limit of inputs: ``N``, or an expression of it, such as ``2 * N - 1``."""

    def __truediv__(self, divisor: object) -> NoReturn:
        raise UsageError("N is divided; a limit is a sum or multiple of N, such as 2 * N - 1.")

    __floordiv__ = __truediv__


N = Machines()
Limit = float | Expression


@dataclass(frozen=True)
class Range:
    """What an input may be: numbers from ``lo`` to ``hi``; without them, from minus the bound to the bound."""

    lo: Limit | None = None
    hi: Limit | None = None
    integer: bool = False

    def known(self, n: int, bound: float) -> Known:
        lo, hi = (
            _number(end, n) for end in (-bound if self.lo is None else self.lo, bound if self.hi is None else self.hi)
        )
        return Known(lo, hi, self.integer)


def _number(limit: Limit, n: int) -> float:
    if not isinstance(limit, Expression):
        return limit
    return expressions.evaluate_expressions([limit], np.empty((1, 0)), np.array([float(n)]))[0].item()


Ranges = dict[str, Range | list[Range]]  # of a program's inputs by name; a list is that of an input of several numbers


def kinds(ranges: Ranges) -> list[Range]:
    """The range of every number that a machine is given."""
    return [each for kind in ranges.values() for each in (kind if isinstance(kind, list) else [kind])]


def by_name(ranges: Ranges, numbers: Iterable[Any]) -> dict[str, Any]:
    """A machine's numbers as the program takes them: one for each input, or a list."""
    rest = iter(numbers)
    return {
        name: list(islice(rest, len(kind))) if isinstance(kind, list) else next(rest) for name, kind in ranges.items()
    }


def Whole(lo: Limit, hi: Limit) -> Range:
    """A whole number from ``lo`` to ``hi``."""
    return Range(lo, hi, True)


def Real(lo: Limit | None = None, hi: Limit | None = None) -> Range:
    """A real number from ``lo`` to ``hi``, or any within the bound that ``compile`` is given."""
    return Range(lo, hi)


Bit = Whole(0, 1)


# --- numbers while a program is traced ---------------------------------------------------------------------------------

TRACING: ContextVar["Tracing | None"] = ContextVar("tracing", default=None)


def traced(made: Callable[P, Expression]) -> Callable[P, Expression]:
    """A function of expressions whose result is noted as a :class:`Value` while a program is traced."""

    @wraps(made)
    def noted(*args: P.args, **kwargs: P.kwargs) -> Expression:
        tracing = TRACING.get()
        if tracing is None:
            return made(*args, **kwargs)
        tracing.read(args)
        return tracing.value(made(*args, **kwargs))

    return noted


@dataclass(eq=False)
class Value(MemoryCell):
    """A number of a program: how it is computed from others (``x``; None if it is given), and in which round and line.

    ``pure`` is set if it depends on the machine's number alone: the same without other values. ``source`` and ``senders`` are
    set if it is received: the sender's number, and who sends to each machine (-1: nobody). ``delivered`` says which part of a
    message it is: for each machine the number of the message at its sender, and which word (-1: whether there is one).
    """

    x: Expression | None
    round: int
    line: int
    source: "Value | None" = None
    senders: tuple[int, ...] = ()
    delivered: tuple[tuple[int, ...], int] | None = None

    def __post_init__(self) -> None:
        self.reads = values_in(self.x)
        given = self.x is None or any(read.pure is None for read in self.reads)
        self.pure: Expression | None = None if given else rebuilt(self.x, {})

    def __bool__(self) -> bool:
        known_of(self)
        raise UsageError(
            "machines run in step, so if, and, or, not, min and max of Python do not apply to their numbers; use select, "
            "& | ~, minimum and maximum, or when= of a message."
        )

    def __floordiv__(self, divisor: int) -> Expression:  # type: ignore[override]
        return quotient(self, divisor)

    def __mod__(self, divisor: int) -> Expression:  # type: ignore[override]
        known = known_of(self)
        rest = self - quotient(self, divisor) * divisor
        if known.lo // divisor == known.hi // divisor:
            return rest
        return traced(Assume)(rest, 0.0, divisor - 1.0, True)


_ARITHMETIC = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "neg", "abs")
_OF_BITS = ("gt", "lt", "ge", "le", "eq", "ne", "and", "rand", "or", "ror", "invert")
for _name in (*_ARITHMETIC, *_OF_BITS):
    setattr(Value, f"__{_name}__", traced(getattr(Expression, f"__{_name}__")))


def values_in(node: object) -> list[Value]:
    """The values that an expression, or a tuple of them, reads."""
    return [cell for cell in expressions.cells_read([node]) if isinstance(cell, Value)]


def rebuilt(x: Any, done: dict[Any, Expression]) -> Expression:
    """An expression with every value replaced by what ``done`` has for it, or by what it is on the machine alone."""

    def find(node: Expression) -> Generator[Any, Any, Any]:
        return node.pure if isinstance(node, Value) else type(node)(*(yield from each(vars(node).values())))

    return resolved(x, done, find)


def needed(roots: Iterable[Value], computes: Callable[[Value], bool]) -> list[Value]:
    """``roots`` and what they are computed from, each after what it reads; ``computes`` tells where to look further.

    Values that depend on the machine alone are left out.
    """
    found: set[Value] = set()
    waiting = [value for value in roots if value.pure is None]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            if computes(value):
                waiting += [read for read in value.reads if read.pure is None]
    return sorted(found, key=lambda value: value.index)


class Computed(dict[Value, Expression]):
    """Values as expressions over what is given; one that depends on the machine alone is its own expression."""

    def __missing__(self, value: Value) -> Expression:
        assert value.pure is not None
        return value.pure


def computed(values: Iterable[Value], given: dict[Value, Expression]) -> Computed:
    """What is given, and the values as expressions over it."""
    found = Computed(given)
    for value in values:
        found[value] = rebuilt(value.x, found)
    return found


def known_of(x: Expression | float) -> Known:
    tracing = TRACING.get()
    if tracing is None:
        raise UsageError("this function is for programs of @posattn.program; it was called outside of one.")
    tracing.read(x)
    return tracing.analysis.known(as_expression(x))


# --- functions of numbers ----------------------------------------------------------------------------------------------

minimum, maximum = traced(expressions.minimum), traced(expressions.maximum)
relu, absolute, equal = traced(expressions.relu), traced(expressions.absolute), traced(expressions.equal)
by_machine, fitted = traced(expressions.by_machine), traced(expressions.fitted)
both, either, select = traced(expressions.both), traced(expressions.either), traced(expressions.select)


def sort_records(records: Sequence[Sequence[Expression | float]], key: int = 0) -> list[list[Expression]]:
    """The records in ascending order of field ``key``, which must be an integer."""
    found, tracing = expressions.sort_records(records, key), TRACING.get()
    return found if tracing is None else [[tracing.value(part) for part in record] for record in found]


def clamp(x: Expression | float, lo: Expression | float, hi: Expression | float) -> Expression:
    """The number from ``lo`` to ``hi`` that is nearest to ``x``."""
    return maximum(minimum(x, hi), lo)


@dataclass(frozen=True)
class Stated:
    """A range that ``within`` states. That of whole numbers is checked, unless they depend on the machine alone."""

    value: Value
    lo: float
    hi: float
    integer: bool
    named: Value

    def excess(self, found: dict[Value, Expression]) -> Expression:
        """By how much the value leaves the range."""
        x = found[self.value]
        return expressions.relu(self.lo - x) + expressions.relu(x - self.hi)


def within(x: Expression | float, lo: float, hi: float) -> Expression:
    """``x``, of which the program states that it lies from ``lo`` to ``hi``: more than the ranges of its parts show.

    For whole numbers every level checks it. Of real numbers every level believes it.
    """
    known, tracing = known_of(x), TRACING.get()
    assert tracing is not None
    held = x = as_expression(x)
    if tracing.length is not None:  # nothing is checked beyond the list, where the number may leave the range
        least, most = (math.ceil(lo), math.floor(hi)) if known.integer else (lo, hi)
        held = held - expressions.relu(x - most) if known.hi > most else held
        held = held + expressions.relu(least - x) if known.lo < least else held
    found = traced(Assume)(held, float(lo), float(hi), known.integer)
    assert isinstance(found, Value)
    value = tracing.value(x)
    if known.integer and value.pure is not None:
        for i, number in enumerate(tracing.table(value)):
            if not lo <= number <= hi:
                raise UsageError(f"machine {i} has {number:g}, stated to be from {lo:g} to {hi:g}.")
    tracing.here.stated.append(Stated(value, float(lo), float(hi), known.integer, found))
    return found


def quotient(x: Expression, divisor: int) -> Expression:
    """x // divisor of a whole number, exactly: a sum of comparisons, or long division where the sum would be long."""
    if isinstance(divisor, Expression):
        raise UsageError("the divisor of // or % is a number that machines compute; it must be a constant, such as n.")
    known, divisor = known_of(x), whole("the divisor of // or %", divisor)
    if not known.integer:
        raise UsageError("// and % are of numbers that need not be whole; they are exact for whole numbers only.")
    first, last = int(known.lo // divisor), int(known.hi // divisor)
    if last - first <= _LONGEST_SUM:
        steps = [(x >= value * divisor, 1.0) for value in range(first + 1, last + 1)]
        return traced(Assume)(expressions.linear(*steps, constant=float(first)), float(first), float(last), True)
    found = as_expression(float(first))
    for value, digit in _digits(x - first * divisor, divisor, last - first):
        found = found + digit * value
    return traced(Assume)(found, float(first), float(last), True)


def _digits(rest: Expression, unit: int, most: int) -> Iterator[tuple[int, Expression]]:
    """The binary digits of rest // unit, which is 0 to ``most``, and what each is worth."""
    for power in reversed(range(most.bit_length())):
        digit = rest >= unit << power
        rest = traced(Assume)(rest - digit * (unit << power), 0.0, float((unit << power) - 1), True)
        yield 1 << power, digit


def times(count: Expression | float, x: Expression | float) -> Expression:
    """count · x for a whole number ``count``: x is added up by the binary digits of the count."""
    known = known_of(count)
    if not known.integer:
        raise UsageError("times is given a count that need not be whole; its first argument must be a whole number.")
    found = as_expression(x) * known.lo
    for value, digit in _digits(as_expression(count) - known.lo, 1, int(known.hi - known.lo)):
        found = found + select(digit, as_expression(x) * float(value), 0)
    return traced(as_expression)(found)


def lookup(table: Sequence[Any], *indices: Expression | float) -> Expression:
    """``table[i]``, or ``table[i][j]`` and so on, of numbers that may themselves be computed; indices are whole numbers."""
    index, *others = indices
    if others:
        return lookup([lookup(row, *others) for row in several("table", table)], index)
    entries, known = several("table", table), known_of(index)
    if not known.integer or known.lo < 0 or known.hi >= len(entries):
        raise UsageError(
            f"lookup is given an index in [{known.lo:g}, {known.hi:g}]; a table of {len(entries)} has whole indices "
            f"from 0 to {len(entries) - 1}."
        )
    entries, first = entries[int(known.lo) : int(known.hi) + 1], int(known.lo)
    steps = [as_expression(index) >= first + place for place in range(1, len(entries))]
    if all(isinstance(entry, int) and abs(entry) < _EXACT for entry in entries):
        rises = ((step, float(b - a)) for step, (a, b) in zip(steps, pairwise(entries), strict=True))
        found: Expression = expressions.linear(*rises, constant=float(entries[0]))
    else:
        ends = pairwise([as_expression(1.0), *steps, as_expression(0.0)])
        bits = [Assume(here - after, 0.0, 1.0, True) for here, after in ends]
        found = total(select(bit, entry, 0) for bit, entry in zip(bits, entries, strict=True))
    return one_of(found, entries)


def one_of(x: Expression, numbers: Sequence[Any]) -> Expression:
    """``x``, which is known to be one of the numbers."""
    joined = reduce(Known.join, map(known_of, numbers))
    return traced(Assume)(x, joined.lo, joined.hi, joined.integer)


def greater(a: Expression | float, b: Expression | float, gap: float) -> Expression:
    """The bit [a > b] of real numbers that are equal or differ by ``gap`` or more; otherwise it need not be a bit."""
    if not gap > 0:
        raise UsageError(f"gap is {shown(gap)}; it must be a number above 0.")
    if (known_of(a).size + known_of(b).size) / gap > LARGEST_COMPARED:
        raise UsageError(f"gap is {gap:g}; of numbers so large it must be at least their sum / 2^50, so that float64 sees it.")
    share = (as_expression(a) - b) / gap
    step = Assume(relu(share) - relu(share - 1), 0.0, 1.0, True)
    return traced(as_expression)(step >= 1)


def total(parts: Iterable[Expression]) -> Expression:
    found = expressions.linear(*((part, 1.0) for part in parts))
    return traced(as_expression)(found)
