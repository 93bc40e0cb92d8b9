"""Local functions as expressions: what a machine computes on its memory in one round.

An expression is built from memory cells, the machine's number and constants by the functions of this file. It has two
meanings, which must agree: :func:`evaluate_expressions` computes it, and ``expressions_to_relu`` turns it into ReLU layers.

    lambda memory: [minimum(memory[0], memory[1]), select(memory.me >= 4, memory[0], 0)]

A *bit* is an expression that is 0 or 1. Only integers can be compared: a step of a ReLU network rises continuously, and it can
do so between two integers.
"""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from posattn.errors import UsageError, whole

Array = NDArray[np.float64]
T = TypeVar("T")


def _refused(sign: str) -> Callable[..., NoReturn]:
    def refuse(self: "Expression", *others: object) -> NoReturn:
        raise UsageError(
            f"{sign} is applied to an expression; it is not piecewise linear, so use comparisons of integers, or fitted."
        )

    return refuse


class Expression:
    """A number that a machine computes. The usual operators add, multiply by constants, compare integers and join bits."""

    def __add__(self, other: "Expression | float") -> "Expression":
        return linear((self, 1.0), (as_expression(other), 1.0))

    def __sub__(self, other: "Expression | float") -> "Expression":
        return linear((self, 1.0), (as_expression(other), -1.0))

    def __mul__(self, factor: float) -> "Expression":
        if isinstance(factor, Expression):
            raise UsageError(
                "two expressions are multiplied; only a constant factor is linear, so use select or fitted, or times for "
                "whole numbers."
            )
        return linear((self, _number(factor)))

    def __neg__(self) -> "Expression":
        return self * -1.0

    def __rsub__(self, other: float) -> "Expression":
        return as_expression(other) - self

    __radd__ = __add__
    __rmul__ = __mul__

    def __gt__(self, other: "Expression | float") -> "Expression":
        return Greater(self, as_expression(other))

    def __lt__(self, other: "Expression | float") -> "Expression":
        return Greater(as_expression(other), self)

    def __ge__(self, other: "Expression | float") -> "Expression":
        return 1 - (self < other)

    def __le__(self, other: "Expression | float") -> "Expression":
        return 1 - (self > other)

    def __eq__(self, other: "Expression | float") -> "Expression":  # type: ignore[override]
        return equal(self, other)

    def __ne__(self, other: "Expression | float") -> "Expression":  # type: ignore[override]
        return 1 - equal(self, other)

    __hash__ = object.__hash__  # by identity: == builds an expression

    def __truediv__(self, divisor: float) -> "Expression":
        if isinstance(divisor, Expression):
            raise UsageError("two expressions are divided; only a constant divisor is linear, so use fitted.")
        if not _number(divisor):
            raise UsageError("an expression is divided by 0.")
        return self * (1 / _number(divisor))

    def __abs__(self) -> "Expression":
        return absolute(self)

    def __pos__(self) -> "Expression":
        return self

    def __and__(self, other: "Expression | float") -> "Expression":
        return both(self, other)

    def __or__(self, other: "Expression | float") -> "Expression":
        return either(self, other)

    def __invert__(self) -> "Expression":
        return 1 - Bit(self, "~")

    __rand__ = __and__
    __ror__ = __or__

    __mod__ = __rmod__ = _refused("%")
    __floordiv__ = __rfloordiv__ = _refused("//")
    __divmod__ = __rdivmod__ = _refused("divmod")
    __pow__ = __rpow__ = _refused("**")
    __xor__ = __rxor__ = _refused("^")
    __lshift__ = __rlshift__ = _refused("<<")
    __rshift__ = __rrshift__ = _refused(">>")
    __matmul__ = __rmatmul__ = _refused("@")
    __rtruediv__ = _refused("1 / x")
    __round__, __int__, __float__ = _refused("round"), _refused("int"), _refused("float")

    def __bool__(self) -> bool:
        raise UsageError("an expression has no truth value while a program is built; use select, both or either.")


@dataclass(eq=False)
class MemoryCell(Expression):
    """What memory position ``index`` holds when the local computation begins."""

    index: int


@dataclass(frozen=True, eq=False)
class Me(Expression):
    """The machine's number, the identifier in the last column of X.

    After an overflow it is below 0; only an expression with ``lost`` takes that into account.
    """

    lost: bool = False


@dataclass(frozen=True, eq=False)
class Linear(Expression):
    """Σ coefficient · term + constant."""

    terms: tuple[tuple[Any, float], ...]
    constant: float


@dataclass(frozen=True, eq=False)
class Relu(Expression):
    x: Expression


@dataclass(frozen=True, eq=False)
class Smaller(Expression):
    """min(a, b)."""

    a: Expression
    b: Expression


@dataclass(frozen=True, eq=False)
class Greater(Expression):
    """The bit [a > b] of integers a and b."""

    a: Expression
    b: Expression


@dataclass(frozen=True, eq=False)
class Bit(Expression):
    """``x``, which must be a bit for the function or operator ``user``."""

    x: Expression
    user: str


@dataclass(frozen=True, eq=False)
class Select(Expression):
    """``a`` where the bit ``chosen`` is 1, ``b`` where it is 0."""

    chosen: Expression
    a: Expression
    b: Expression


@dataclass(frozen=True, eq=False)
class ByMachine(Expression):
    """One constant per machine; machines beyond the table have its last value."""

    values: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Assume(Expression):
    """``x`` with the assertion that it lies in [lo, hi], and whether it is an integer: more than its parts' ranges show."""

    x: Expression
    lo: float
    hi: float
    integer: bool


@dataclass(frozen=True, eq=False)
class Fitted(Expression):
    """A Python function of the arguments; the network approximates it by a hidden layer of ``units`` ReLUs."""

    function: Callable[..., Any]
    arguments: tuple[Expression, ...]
    units: int


def as_expression(value: "Expression | float") -> Expression:
    return value if isinstance(value, Expression) else Linear((), _number(value))


def _number(value: Any) -> float:
    try:
        found = float(value)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(f"{value!r} is no number and no expression.") from error
    if not math.isfinite(found):
        raise UsageError(f"{found:g} is used as a constant; constants must be finite.")
    return found


def linear(*terms: tuple[Expression, float], constant: float = 0.0) -> Linear:
    """Σ coefficient · term + constant, with sums inside sums multiplied out."""
    total: dict[Expression, float] = {}
    for term, factor in terms:
        inner, added = (term.terms, term.constant) if isinstance(term, Linear) else (((term, 1.0),), 0.0)
        constant += factor * added
        for part, weight in inner:
            total[part] = total.get(part, 0.0) + factor * weight
    return Linear(tuple(term for term in total.items() if term[1]), constant)


def relu(x: Expression | float) -> Expression:
    return Relu(as_expression(x))


def minimum(a: Expression | float, b: Expression | float) -> Expression:
    return Smaller(as_expression(a), as_expression(b))


def maximum(a: Expression | float, b: Expression | float) -> Expression:
    """max(a, b) = -min(-a, -b)."""
    return -minimum(-as_expression(a), -as_expression(b))


def absolute(x: Expression) -> Expression:
    """|x| = relu(x) + relu(-x)."""
    return relu(x) + relu(-x)


def equal(a: Expression | float, b: Expression | float) -> Expression:
    """The bit [a = b] of two integers."""
    a = as_expression(a)
    return Assume(1 - (a > b) - (a < b), 0.0, 1.0, True)  # not both comparisons hold


def both(*bits: Expression | float) -> Expression:
    """1 if all bits are 1."""
    return relu(linear(*((Bit(as_expression(bit), "both"), 1.0) for bit in bits), constant=1.0 - len(bits)))


def either(*bits: Expression | float) -> Expression:
    """1 if any bit is 1."""
    return 1 - relu(linear(*((Bit(as_expression(bit), "either"), -1.0) for bit in bits), constant=1.0))


def select(chosen: Expression | float, a: Expression | float, b: Expression | float) -> Expression:
    """``a`` where the bit ``chosen`` is 1, ``b`` where it is 0."""
    if isinstance(chosen, Expression):
        return Select(chosen, as_expression(a), as_expression(b))
    if chosen not in (0, 1):
        raise UsageError(f"{_number(chosen):g} is used as a bit; a bit is 0 or 1.")
    return as_expression(a if chosen else b)


def by_machine(values: Iterable[float]) -> Expression:
    """One constant per machine, read from a table by the machine's number; machines beyond the table have its last entry."""
    table = tuple(_number(value) for value in values)
    if not table:
        raise UsageError("by_machine was given no values; it needs one for each machine, or at least one.")
    return ByMachine(table)


def sort_records(records: Sequence[Sequence[Expression | float]], key: int = 0) -> list[list[Expression]]:
    """The records in ascending order of field ``key``, an integer; :func:`comparators` fix the order of equal ones."""
    if len({len(record) for record in records}) > 1:
        raise UsageError("the records to sort differ in their number of fields; all must have the same.")
    if records and not 0 <= key < len(records[0]):
        raise UsageError(
            f"key is {key}; records of {len(records[0])} fields are sorted by one of 0 to {len(records[0]) - 1}."
        )
    table = [list(map(as_expression, record)) for record in records]
    for low, high in comparators(len(table)):
        swap, pairs = table[low][key] > table[high][key], list(zip(table[low], table[high], strict=True))
        table[low] = [Select(swap, other, own) for own, other in pairs]
        table[high] = [Select(swap, own, other) for own, other in pairs]
    return table


def fitted(function: Callable[..., Any], *arguments: Expression, units: int = 64) -> Expression:
    """Any function of numbers; one that also takes numpy arrays is evaluated faster.

    The network holds a hidden layer that is fitted to the function. Its error is sampled at many points, and not bounded.
    """
    if not callable(function) or not arguments:
        raise UsageError("fitted takes a function and at least one expression: fitted(np.cos, memory[0]).")
    return Fitted(function, tuple(map(as_expression, arguments)), whole("units", units, least=2))


def applied(function: Callable[..., Any], *arguments: Array) -> Array:
    """``function`` at every point: called once on the arrays if it takes them, else per point; an error names its point."""
    with suppress(Exception), np.errstate(all="ignore"):
        values = np.asarray(function(*arguments), dtype=float)
        if values.shape == arguments[0].shape:
            return values
    found: list[float] = []
    for point in np.stack(arguments, axis=-1).reshape(-1, len(arguments)).tolist():
        try:
            found.append(float(function(*point)))
        except Exception as error:
            where = ", ".join(f"{value:g}" for value in point)
            raise UsageError(f"a fitted function fails at ({where}): {type(error).__name__}: {error}.") from error
    return np.array(found).reshape(arguments[0].shape)


@cache
def comparators(count: int) -> tuple[tuple[int, int], ...]:
    """The pairs of Batcher's odd-even merge sort: comparing and exchanging them in turn sorts any ``count`` records."""
    pairs = []
    merged = 1
    while merged < count:
        step = merged
        while step:
            for start in range(step % merged, count - step, 2 * step):
                for low in range(start, min(start + step, count - step)):
                    if low // (2 * merged) == (low + step) // (2 * merged):
                        pairs.append((low, low + step))
            step //= 2
        merged *= 2
    return tuple(pairs)


def cells_read(nodes: Iterable[object]) -> list[MemoryCell]:
    """The memory cells that expressions read. Without any they depend on the machine's number and constants alone."""
    found, seen, waiting = [], set(), list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting += node
        elif isinstance(node, Expression) and id(node) not in seen:
            seen.add(id(node))
            if isinstance(node, MemoryCell):
                found.append(node)
            else:
                waiting += vars(node).values()
    return found


def check_cells(used: Iterable[Expression], given: Iterable[Expression], place: str) -> None:
    """Raises if ``used`` reads a memory cell that ``given`` does not: in this round the cell may hold another number."""
    own = set(map(id, cells_read(given)))
    if not own.issuperset(map(id, cells_read(used))):
        raise UsageError(
            f"{place}: an expression reads the memory of another round; a machine has only what it received for this one."
        )


def resolved(node: Any, done: dict[Any, T], find: Callable[[Any], Generator[Any, Any, T]]) -> T:
    """``done[node]``, found if need be by ``find(node)``, a generator that yields each part whose result it wants.

    This is recursion without Python's limit on its depth, which long programs exceed.
    """
    waiting = [] if node in done else [(node, find(node))]
    found: T | None = None
    while waiting:
        current, steps = waiting[-1]
        try:
            part = steps.send(found)
        except StopIteration as stop:
            waiting.pop()
            done[current] = found = stop.value
        else:
            found = done.get(part)
            if found is None:
                waiting.append((part, find(part)))
    return done[node]


def each(parts: Iterable[Any]) -> Generator[Any, Any, list[Any]]:
    """For the generators of :func:`resolved`: several parts, also of tuples, with results in place of expressions."""
    found: list[Any] = []
    for part in parts:
        if isinstance(part, Expression):
            found.append((yield part))
        else:
            found.append(tuple((yield from each(part))) if isinstance(part, tuple) else part)
    return found


def shape_of(made: Iterable[Expression], parts: dict[Any, int], done: dict[Any, Any]) -> tuple[Any, ...]:
    """A number for every expression, equal for equal computations; ``parts`` and ``done`` hold those met so far."""

    def find(node: Expression) -> Generator[Any, Any, Any]:
        key = (type(node), *(yield from each(vars(node).values())))
        return "part", parts.setdefault(key, len(parts))

    return tuple(resolved(node, done, find) for node in made)


class Memory(tuple[Expression, ...]):
    """A machine's memory as a local function sees it: ``memory[j]`` is position j, ``memory.me`` the machine's number.

    A part, ``memory[1:]``, is a list, to which a function may add words.
    """

    me: Expression = Me()

    def __new__(cls, size: int) -> "Memory":
        return super().__new__(cls, map(MemoryCell, range(size)))

    def __getitem__(self, index: Any) -> Any:
        try:
            found = super().__getitem__(index)
        except IndexError as error:
            raise UsageError(f"memory position {index} is read; positions are 0 to {len(self) - 1}.") from error
        return list(found) if isinstance(index, slice) else found


def evaluate_expressions(
    expressions: Sequence[Expression], cells: Array, me: Array, outside: dict[Any, Expression] | None = None
) -> list[Array]:
    """The value of every expression for memories ``cells`` (..., s) of the machines ``me`` (...); shared parts are once.

    With ``outside`` a number that leaves its stated range becomes the nearest in it; ``outside`` then has how far it was.
    """
    done: dict[object, Any] = {}
    machine = np.broadcast_to(me, cells.shape[:-1])

    def compute(node: Expression) -> Generator[Any, Any, Array]:
        match node:
            case MemoryCell(index):
                return cells[..., index]
            case Me():
                return machine.astype(float)
            case Linear(terms, constant):
                total = np.full(machine.shape, constant)
                for term, weight in terms:
                    total = total + weight * (yield term)
                return total
            case Relu(x):
                return np.maximum((yield x), 0.0)
            case Smaller(a, b):
                return np.minimum((yield a), (yield b))
            case Greater(a, b):
                return np.asarray((yield a) - (yield b) > 0.5, dtype=float)  # as the network steps
            case Select(chosen, a, b):
                return np.where((yield chosen) > 0.5, (yield a), (yield b))
            case ByMachine(values):
                return np.asarray(values)[np.minimum(machine.astype(int), len(values) - 1)]
            case Assume(x, lo, hi, integer) if outside is not None:
                lo, hi = (math.ceil(lo), math.floor(hi)) if integer else (lo, hi)
                found = yield x
                if (found < lo).any() or (found > hi).any():
                    outside[node] = linear((relu(lo - x), 1.0) if (found < lo).any() else (relu(x - hi), -1.0))
                return np.clip(found, lo, hi)
            case Assume(x) | Bit(x):
                return (yield x)
            case Fitted(function, arguments):
                return applied(function, *(yield from each(arguments)))
        raise TypeError(f"{type(node).__name__} is no expression")

    return [resolved(expression, done, compute) for expression in expressions]


def kept_in_range(expressions: list[Expression], memory: Array, machine: int) -> tuple[list[Expression], Array]:
    """Expressions whose parts keep their stated ranges on this ``memory`` of ``machine`` too, and their values there.

    They are those given if these do so.
    """
    outside: dict[Any, Expression] = {}
    values = evaluate_expressions(expressions, memory[None], np.array([float(machine)]), outside)
    done: dict[Any, Any] = {}

    def find(node: Expression) -> Generator[Any, Any, Any]:
        made: Any = type(node)(*(yield from each(vars(node).values())))
        if node in outside:  # a correction that is 0 in the range, where x stays as it is
            moved = yield outside[node]
            return Assume(made.x + moved, made.lo, made.hi, made.integer)
        return made

    kept = [resolved(expression, done, find) for expression in expressions] if outside else expressions
    return kept, np.concatenate(values)
