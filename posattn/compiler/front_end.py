"""Programs as plain Python functions: ``@posattn.program`` on a generator that says what one machine does.

    @posattn.program(near=[Whole(0, N)] * 3, start=Bit)
    def bfs(me, n, near, start):
        level = select(start, 0, n)
        for _ in range(n - 1):
            heard = yield send(near, level + 1, when=[other < n for other in near])
            level = minimum(level, heard.min(n))
        return level

All machines run the function in step. ``yield`` ends a round: it sends, waits for all machines, and gives the messages that
arrived. Variables are the function's own, and keep their values from round to round.

The function is executed once, on a :class:`Value` in place of every number, which notes how it was computed, in which round
and line. What later rounds read is known afterwards, and becomes a memory position (``front_end_to_pcoc``).
"""

import inspect
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import reduce, wraps
from itertools import pairwise
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ParamSpec

import numpy as np

from posattn.compiler import analysis, expressions
from posattn.compiler.analysis import Analysis, Known
from posattn.compiler.expressions import Array, Assume, Expression, Me, MemoryCell, Select, Sort, as_expression
from posattn.errors import UsageError, several, shown, whole

P = ParamSpec("P")
_EXACT = 1 << 40  # sums of whole numbers below this are exact
_LONGEST_SUM = 16  # a quotient with more values than this is found by long division
_OWN_FILES = {__file__, expressions.__file__, analysis.__file__}


# --- what inputs may be ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machines:
    """A number that depends on the number of machines: ``N``, or a sum or multiple of it, such as ``2 * N - 1``."""

    factor: float = 1
    added: float = 0

    def __add__(self, other: float) -> "Machines":
        return Machines(self.factor, self.added + other)

    def __sub__(self, other: float) -> "Machines":
        return self + -other

    def __mul__(self, other: float) -> "Machines":
        return Machines(self.factor * other, self.added * other)

    def __neg__(self) -> "Machines":
        return self * -1

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: float) -> "Machines":
        return -self + other


N = Machines()
Limit = float | Machines


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
    return limit.factor * n + limit.added if isinstance(limit, Machines) else limit


def Whole(lo: Limit, hi: Limit) -> Range:
    """A whole number from ``lo`` to ``hi``."""
    return Range(lo, hi, True)


def Real(lo: Limit | None = None, hi: Limit | None = None) -> Range:
    """A real number from ``lo`` to ``hi``, or any within the bound that ``compile`` is given."""
    return Range(lo, hi)


Bit = Whole(0, 1)


# --- numbers while a program is traced ---------------------------------------------------------------------------------

_TRACING: ContextVar["Tracing | None"] = ContextVar("tracing", default=None)


def traced(made: Callable[P, Expression]) -> Callable[P, Expression]:
    """A function of expressions whose result is noted as a :class:`Value` while a program is traced."""

    @wraps(made)
    def noted(*args: P.args, **kwargs: P.kwargs) -> Expression:
        tracing = _TRACING.get()
        if tracing is None:
            return made(*args, **kwargs)
        tracing.reading = list(values_in(args))
        return tracing.value(made(*args, **kwargs))

    return noted


class Value(MemoryCell):
    """A number of a program: how it is computed from others (``x``; None if it is given), and in which round and line.

    ``pure`` is set if it depends on the machine's number alone: the same without other values. ``source`` and ``senders`` are
    set if it is received: the sender's number, and who sends to each machine (-1: nobody). ``delivered`` names the message that
    it is a part of: (send, sender or place, which word, or -1 for whether there is one).
    """

    def __init__(self, index: int, x: Expression | None, r: int, line: int):
        super().__init__(index)
        reads = () if x is None else tuple(values_in(x))
        pure = None
        if x is not None and all(read.pure is not None for read in reads):
            pure = rebuilt(x, {read: read.pure for read in reads if read.pure is not None})
        self._set(x=x, round=r, line=line, reads=reads, pure=pure, source=None, senders=(), delivered=None)

    def _set(self, **fields: Any) -> "Value":
        vars(self).update(fields)
        return self

    x: Expression | None
    round: int
    line: int
    reads: tuple["Value", ...]
    pure: Expression | None
    source: "Value | None"
    senders: tuple[int, ...]
    delivered: tuple[int, int, int] | None

    def __and__(self, other: Any) -> Expression:
        return both(self, other)

    def __or__(self, other: Any) -> Expression:
        return either(self, other)

    def __invert__(self) -> Expression:
        return 1 - _bit(self)

    def __bool__(self) -> bool:
        _known(self)
        raise UsageError(
            "machines run in step, so if, and, or, not, min and max of Python do not apply to their numbers; use select, "
            "& | ~, minimum and maximum, or when= of a message."
        )

    def __floordiv__(self, divisor: int) -> Expression:
        return quotient(self, divisor)

    def __mod__(self, divisor: int) -> Expression:
        known = _known(self)
        rest = self - quotient(self, divisor) * divisor
        if known.lo // divisor == known.hi // divisor:
            return rest
        return traced(Assume)(rest, 0.0, divisor - 1.0, True)

    __rand__, __ror__ = __and__, __or__


for _name in ("add", "sub", "mul", "neg", "rsub", "radd", "rmul", "gt", "lt", "ge", "le", "eq", "ne", "truediv", "abs"):
    setattr(Value, f"__{_name}__", traced(getattr(Expression, f"__{_name}__")))
Value.__hash__ = object.__hash__  # type: ignore[method-assign, assignment]


def values_in(node: object) -> Iterable[Value]:
    """The values that an expression reads."""
    if isinstance(node, Value):
        yield node
    elif isinstance(node, (Expression, Sort)):
        for part in vars(node).values():
            yield from values_in(part)
    elif isinstance(node, tuple):
        for part in node:
            yield from values_in(part)


def rebuilt(node: Any, of: dict[Value, Expression], sorts: dict[Any, Any] | None = None) -> Any:
    """An expression with every value replaced; ``sorts`` keeps what several expressions share."""
    sorts = {} if sorts is None else sorts
    if isinstance(node, Value):
        return of[node]
    if isinstance(node, tuple):
        return tuple(rebuilt(part, of, sorts) for part in node)
    if isinstance(node, Sort):
        if node not in sorts:
            sorts[node] = Sort(rebuilt(node.records, of, sorts), node.key)
        return sorts[node]
    if isinstance(node, Expression):
        return type(node)(**{name: rebuilt(part, of, sorts) for name, part in vars(node).items()})
    return node


def _known(x: Expression | float) -> Known:
    tracing = _TRACING.get()
    if tracing is None:
        raise UsageError("this function is for programs of @posattn.program; it was called outside of one.")
    tracing.reading = list(values_in(x))
    return tracing.analysis.known(as_expression(x))


# --- functions of numbers ----------------------------------------------------------------------------------------------

minimum, maximum = traced(expressions.minimum), traced(expressions.maximum)
relu, absolute, equal = traced(expressions.relu), traced(expressions.absolute), traced(expressions.equal)
by_machine, fitted = traced(expressions.by_machine), traced(expressions.fitted)


def _bit(x: Expression | float) -> Expression:
    if _TRACING.get() is not None and not ((known := _known(x)).integer and known.lo >= 0 and known.hi <= 1):
        raise UsageError(f"a number in [{known.lo:g}, {known.hi:g}] is used as a bit; a bit is 0 or 1.")
    return as_expression(x)


@traced
def both(*bits: Expression | float) -> Expression:
    """1 if all bits are 1."""
    return expressions.both(*map(_bit, bits))


@traced
def either(*bits: Expression | float) -> Expression:
    """1 if any bit is 1."""
    return expressions.either(*map(_bit, bits))


@traced
def select(chosen: Expression | float, a: Expression | float, b: Expression | float) -> Expression:
    """``a`` where the bit ``chosen`` is 1, ``b`` where it is 0."""
    return as_expression((b, a)[int(chosen)]) if isinstance(chosen, (int, float)) else expressions.select(chosen, a, b)


def sort_records(records: Sequence[Sequence[Expression | float]], key: int = 0) -> list[list[Expression]]:
    """The records in ascending order of field ``key``, which must be an integer."""
    found, tracing = expressions.sort_records(records, key), _TRACING.get()
    return found if tracing is None else [[tracing.value(part) for part in record] for record in found]


def clamp(x: Expression | float, lo: Expression | float, hi: Expression | float) -> Expression:
    """The number from ``lo`` to ``hi`` that is nearest to ``x``."""
    return maximum(minimum(x, hi), lo)


def within(x: Expression | float, lo: float, hi: float) -> Expression:
    """``x``, of which the program states that it lies from ``lo`` to ``hi``: more than the ranges of its parts show.

    For whole numbers every level checks it. Of real numbers the network believes it.
    """
    known, tracing = _known(x), _TRACING.get()
    found = traced(Assume)(as_expression(x), float(lo), float(hi), known.integer)
    assert tracing is not None and isinstance(found, Value)
    tracing.here.stated.append(Stated(tracing.value(as_expression(x)), float(lo), float(hi), known.integer, found))
    return found


def quotient(x: Expression, divisor: int) -> Expression:
    """x // divisor of a whole number, exactly: a sum of comparisons, or long division where the sum would be long."""
    known, divisor = _known(x), whole("the divisor of // or %", divisor)
    if not known.integer:
        raise UsageError("// and % are of numbers that need not be whole; they are exact for whole numbers only.")
    first, last = int(known.lo // divisor), int(known.hi // divisor)
    if last - first <= _LONGEST_SUM:
        steps = [(x >= value * divisor, 1.0) for value in range(first + 1, last + 1)]
        return traced(Assume)(expressions.linear(*steps, constant=float(first)), float(first), float(last), True)
    rest, found = x - first * divisor, as_expression(float(first))
    for power in reversed(range((last - first).bit_length())):
        digit = rest >= divisor << power
        rest, found = rest - digit * (divisor << power), found + digit * (1 << power)
        rest = traced(Assume)(rest, 0.0, float((divisor << power) - 1), True)
    return traced(Assume)(found, float(first), float(last), True)


def times(count: Expression | float, x: Expression | float) -> Expression:
    """count · x for a whole number ``count``: x is added up by the binary digits of the count."""
    known = _known(count)
    if not known.integer:
        raise UsageError("times is given a count that need not be whole; its first argument must be a whole number.")
    rest, found = as_expression(count) - known.lo, as_expression(x) * known.lo
    for power in reversed(range(int(known.hi - known.lo).bit_length())):
        digit = rest >= 1 << power
        rest = traced(Assume)(rest - digit * (1 << power), 0.0, float((1 << power) - 1), True)
        found = found + select(digit, as_expression(x) * float(1 << power), 0)
    return traced(as_expression)(found)


def lookup(table: Sequence[Any], *indices: Expression | float) -> Expression:
    """``table[i]``, or ``table[i][j]`` and so on, of numbers that may themselves be computed; indices are whole numbers."""
    index, *others = indices
    if others:
        return lookup([lookup(row, *others) for row in several("table", table)], index)
    entries, known = several("table", table), _known(index)
    if not known.integer or known.lo < 0 or known.hi >= len(entries):
        raise UsageError(
            f"lookup is given an index in [{known.lo:g}, {known.hi:g}]; a table of {len(entries)} has whole indices "
            f"from 0 to {len(entries) - 1}."
        )
    entries, first = entries[int(known.lo) : int(known.hi) + 1], int(known.lo)
    steps = [as_expression(index) >= first + place for place in range(1, len(entries))]
    if all(isinstance(entry, int) and abs(entry) < _EXACT for entry in entries):
        rises = ((step, float(b - a)) for step, (a, b) in zip(steps, pairwise(entries), strict=True))
        found = expressions.linear(*rises, constant=float(entries[0]))
    else:
        ends = pairwise([as_expression(1.0), *steps, as_expression(0.0)])
        bits = [Assume(here - after, 0.0, 1.0, True) for here, after in ends]
        found = _sum(select(bit, entry, 0) for bit, entry in zip(bits, entries, strict=True))
    return one_of(found, entries)


def one_of(x: Expression, numbers: Sequence[Any]) -> Expression:
    """``x``, which is known to be one of the numbers."""
    joined = reduce(Known.join, map(_known, numbers))
    return traced(Assume)(x, joined.lo, joined.hi, joined.integer)


def greater(a: Expression | float, b: Expression | float, gap: float) -> Expression:
    """The bit [a > b] of real numbers that are equal or differ by ``gap`` or more; otherwise it need not be a bit."""
    if not gap > 0:
        raise UsageError(f"gap is {shown(gap)}; it must be a number above 0.")
    share = (as_expression(a) - b) / gap
    step = Assume(relu(share) - relu(share - 1), 0.0, 1.0, True)
    return traced(as_expression)(step >= 1)


# --- messages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Messages to the machines ``to``, each of the same ``words``, and to each where its bit in ``when`` is 1."""

    to: tuple[Any, ...]
    words: tuple[Any, ...]
    when: tuple[Any, ...]


def send(to: Any, *words: Any, when: Any = 1) -> Send:
    """A message of ``words`` for the machine ``to``, or for each of a list, sent where the bit ``when`` is 1."""
    addresses = tuple(to) if isinstance(to, (list, tuple, range)) else (to,)
    bits = tuple(when) if isinstance(when, (list, tuple)) else (when,) * len(addresses)
    if len(bits) != len(addresses):
        raise UsageError(f"a message has {len(addresses)} addresses and {len(bits)} bits of when; give one for each.")
    if not words:
        raise UsageError("a message has no words; it must have at least one.")
    return Send(addresses, words, bits)


@dataclass(frozen=True)
class Place:
    """A place of an inbox, for a message: the bit ``present``, and the words, which are 0 if there is none."""

    present: Expression
    words: tuple[Expression, ...]

    def __getitem__(self, word: int) -> Expression:
        return self.words[word]

    def __iter__(self) -> Any:
        return iter(self.words)


class Inbox(Sequence[Place]):
    """The messages of one ``send``, ordered by sender; of a send to several addresses, address by address.

    ``inbox[q]`` is the q-th message that there is; after the last one messages are empty.
    """

    def __init__(self, places: Sequence[Place], words: int):
        zero = traced(as_expression)(0.0)
        self.places, self.empty = list(places), Place(zero, (zero,) * words)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, q: Any) -> Any:
        if not isinstance(q, int) or q < 0:
            raise UsageError(f"message {shown(q)} of an inbox is read; the first is 0.")
        if q >= len(self):
            return self.empty
        if all(_known(place.present).lo == 1 for place in self.places[: q + 1]) or len(self) == 1:
            return self.places[q]
        before, hits = as_expression(0.0), list[Expression]()
        for place in self.places:
            hits.append(both(place.present, equal(before, q)) if q or hits else place.present)
            before = before + place.present
        words = zip(*(place.words for place in self.places), strict=True)
        chosen = [
            one_of(_sum(select(hit, word, 0) for hit, word in zip(hits, column, strict=True)), column)
            for column in words
        ]
        return Place(before > q, tuple(chosen))

    def __iter__(self) -> Iterator[Place]:
        """The places in order; some may be empty."""
        return iter(self.places)

    def count(self) -> Expression:  # type: ignore[override]
        """How many messages arrived."""
        return _sum(place.present for place in self.places)

    def sum(self, word: int = 0) -> Expression:
        """The sum of a word of all messages; 0 if none arrived."""
        return _sum(place.words[word] for place in self.places)

    def get(self, word: int = 0, empty: Expression | float = 0) -> Expression:
        """A word of the first message; ``empty`` if none arrived."""
        first = self[0]
        return (
            first[word] if isinstance(empty, (int, float)) and empty == 0 else select(first.present, first[word], empty)
        )

    def min(self, empty: Expression | float, word: int = 0) -> Expression:
        """The smallest word of all messages; ``empty`` if none arrived."""
        return self._best(minimum, empty, word)

    def max(self, empty: Expression | float, word: int = 0) -> Expression:
        """The largest word of all messages; ``empty`` if none arrived."""
        return self._best(maximum, empty, word)

    def _best(self, better: Callable[..., Expression], empty: Any, word: int) -> Expression:
        pairs: list[tuple[Any, Any]] = [(place.present, place.words[word]) for place in self.places]
        if not pairs:
            return traced(as_expression)(empty)
        known = reduce(Known.join, (_known(x) for _, x in pairs))
        if known.integer:
            # Absent words, which are 0, become the worst number. Of real numbers the sum would lose digits.
            worst = known.hi if better is minimum else known.lo
            found = _folded(better, [one_of(x + worst * (1 - present), [x, worst]) for present, x in pairs])
            if isinstance(empty, (int, float)) and empty == worst:
                return found
            there = either(*(present for present, _ in pairs))
        else:
            there, found = _folded(lambda one, other: _better(better, one, other), pairs)
        return found if _known(there).lo == 1 else select(there, found, empty)


def _folded(join: Callable[[Any, Any], Any], found: list[Any]) -> Any:
    """All of a list joined, as a tree of few levels."""
    while len(found) > 1:
        joined = [join(*pair) for pair in zip(found[::2], found[1::2], strict=False)]
        found = joined + found[2 * len(joined) :]
    return found[0]


def _better(better: Callable[..., Expression], one: Any, other: Any) -> tuple[Any, Any]:
    """The better of two numbers, each of which is there where its bit is 1."""
    (has, a), (too, b) = one, other
    if _known(has).lo == 1 and _known(too).lo == 1:
        return has, better(a, b)
    # Where one is absent it takes the other's place, so that nothing foreign is compared.
    return either(has, too), better(select(has, a, b), select(too, b, a))


def _sum(parts: Iterable[Expression]) -> Expression:
    found = expressions.linear(*((part, 1.0) for part in parts))
    return traced(as_expression)(found)


# --- one execution of the function -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stated:
    """A range that ``within`` states."""

    value: Value
    lo: float
    hi: float
    integer: bool
    named: Value


@dataclass(frozen=True)
class Sent:
    """A message to one address, as the round computes it. ``always``: it is sent whatever the data."""

    to: Value
    words: tuple[Value, ...]
    when: Value
    line: int


@dataclass
class Part:
    """A round of the program: what it states, what it sends at its end, and the names of its variables then."""

    stated: list[Stated] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    names: dict[Value, str] = field(default_factory=dict)
    line: int = 0


class Tracing:
    """The program for ``n`` machines, as values and rounds. ``function`` is executed here, once."""

    def __init__(self, name: str, function: Callable[..., Any], ranges: dict[str, Any], n: int, bound: float):
        code = function.__code__
        self.name, self.n, self.file, self.first = name, n, Path(code.co_filename).name, code.co_firstlineno
        self.values: list[Value] = []
        self.known: list[Known] = []
        self.analysis = Analysis(self.known, n)
        self.parts = [Part(line=self.first)]
        self.inputs: list[Value] = []
        self.reading: list[Value] = []  # by the expression that was noted last
        self._gated: dict[Any, Value] = {}  # what senders gate, by what it is made of
        token = _TRACING.set(self)
        try:
            self.answers = self._execute(function, ranges, bound)
        finally:
            _TRACING.reset(token)

    @property
    def here(self) -> Part:
        return self.parts[-1]

    def value(self, x: Expression) -> Value:
        """``x`` as a value of this round; raises if its parts do not suit it."""
        if isinstance(x, Value):
            return x
        self.reading = list(values_in(x))
        return self._new(x, self.analysis.known(x))

    def _new(self, x: Expression | None, known: Known) -> Value:
        self.known.append(known)
        self.values.append(Value(len(self.values), x, len(self.parts) - 1, _line()))
        return self.values[-1]

    def place(self, r: int, line: int) -> str:
        """Where something is, for errors."""
        return f"{self.name} ({self.file}:{line}), round {r}"

    def _execute(self, function: Callable[..., Any], ranges: dict[str, Any], bound: float) -> list[Value]:
        given: dict[str, Any] = {}
        self.me = self.value(Me())
        for name in inspect.signature(function).parameters:
            if name in ("me", "n"):
                given[name] = self.me if name == "me" else self.n
                continue
            kind = ranges.get(name, Real())
            kinds = kind if isinstance(kind, (list, tuple)) else [kind]
            made = [self._new(None, each.known(self.n, bound)) for each in kinds]
            self.inputs += made
            given[name] = made if isinstance(kind, (list, tuple)) else made[0]
        running = None
        try:
            running = function(**given)
            if not isinstance(running, Generator):
                return self._answered(running)
            inboxes: Any = None
            while True:
                try:
                    asked = running.send(inboxes)
                except StopIteration as ended:
                    return self._answered(ended.value)
                inboxes = self._exchanged(asked, running)
        except Exception as error:
            raise self._explained(error, running) from error

    def _explained(self, error: Exception, running: Any) -> UsageError:
        frame, line = _user_frame(error.__traceback__)
        if frame is None and (waiting := _frames(running)):  # what was yielded is at fault
            frame, line = waiting[0], waiting[0].f_lineno
        reading = set(self.reading)
        names = [] if frame is None else [name for v, name in _names(frame.f_locals).items() if v in reading]
        about = f" ({', '.join(names)})" if names and isinstance(error, UsageError) else ""
        text = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}."
        return UsageError(f"{self.place(len(self.parts) - 1, line or self.here.line)}{about}: {text}")

    def _answered(self, found: Any) -> list[Value]:
        if found is None:
            raise UsageError("the program returns nothing; it must return its answer.")
        answers = list(found) if isinstance(found, (list, tuple)) else [found]
        self.reading = []
        return [self.value(as_expression(answer)) for answer in answers]

    # --- communication ---

    def _exchanged(self, asked: Any, running: Any) -> Any:
        """Ends a round; the inboxes that the next one begins with."""
        sends = [] if asked is None else list(asked) if isinstance(asked, (list, tuple)) else [asked]
        for each in sends:
            if not isinstance(each, Send):
                self.reading = [each] if isinstance(each, Value) else []
                what = "a number" if isinstance(each, Value) else shown(each)
                raise UsageError(f"{what} is yielded; yield sends: yield send(to, word).")
        frames, names = _frames(running), dict[Value, str]()
        for frame in frames:
            names = _names(frame.f_locals) | names
        part = self.here
        part.names, part.line = names, frames[0].f_lineno
        places = [self._sent(each, part) for each in sends]
        self.parts.append(Part(line=part.line))
        inboxes = [Inbox(self._arriving(group), len(each.words)) for group, each in zip(places, sends, strict=True)]
        return inboxes[0] if isinstance(asked, Send) else tuple(inboxes)

    def _sent(self, each: Send, part: Part) -> list[int]:
        found = []
        for to, when in zip(each.to, each.when, strict=True):
            bit, address = self.value(_bit(when)), self.value(as_expression(to))
            if not self.known[address.index].integer:
                raise UsageError(
                    f"a message is for a machine whose number need not be whole; it must be 0 to {self.n - 1}."
                )
            words = tuple(self.value(as_expression(word)) for word in each.words)
            if address.pure is not None and bit.pure is not None:
                for i, (wanted, sends) in enumerate(zip(self.table(address), self.table(bit), strict=True)):
                    if sends and wanted not in range(self.n):
                        raise UsageError(f"machine {i} sends to machine {wanted:g}, which is not there; use when=.")
            found.append(len(part.sent))
            part.sent.append(Sent(address, words, bit, part.line))
        return found

    def table(self, value: Value) -> Array:
        """The numbers of a value that depends on the machine alone, for every machine."""
        assert value.pure is not None
        return expressions.evaluate_expressions([value.pure], np.zeros((self.n, 1)), np.arange(self.n, dtype=float))[0]

    def _arriving(self, numbers: list[int]) -> list[Place]:
        """The places for the messages of one ``send``, by their numbers in the round that just ended."""
        sent = [self.parts[-2].sent[number] for number in numbers]
        if not sent:
            return []
        if all(each.to.pure is not None and each.when.pure is not None for each in sent):
            return self._expected_all(numbers)
        if len(numbers) > 1:
            return [place for number in numbers for place in self._arriving([number])]
        if sent[0].to.pure is not None:
            return self._expected_all(numbers)
        return [self._addressed(sent[0], numbers[0], i) for i in range(self.n)]

    def _expected_all(self, numbers: list[int]) -> list[Place]:
        """Places whose senders are known beforehand: the first one holds each machine's first message, and so on."""
        senders: list[list[int]] = [[] for _ in range(self.n)]
        for sent in (self.parts[-2].sent[number] for number in numbers):
            to, when = self.table(sent.to), None if sent.when.pure is None else self.table(sent.when)
            for i in range(self.n):
                if when is not None and not when[i]:
                    continue
                if to[i] in range(self.n):
                    senders[int(to[i])].append(i)
        sent = self.parts[-2].sent[numbers[0]]
        return [self._expected(sent, numbers[0], q, senders) for q in range(max(map(len, senders)))]

    def _expected(self, sent: Sent, number: int, q: int, senders: list[list[int]]) -> Place:
        """A place whose sender is known beforehand; the sender blanks what it does not send."""
        known = tuple(each[q] if q < len(each) else -1 for each in senders)
        if sent.when.pure is not None:
            words = [self._received(word, known, (number, q, w)) for w, word in enumerate(sent.words)]
            present = self.value(expressions.by_machine(float(i >= 0) for i in known))
            return Place(present, tuple(words))
        words = [
            self._received(self._earlier(Select(sent.when, word, as_expression(0.0))), known, (number, q, w))
            for w, word in enumerate(sent.words)
        ]
        return Place(self._received(sent.when, known, (number, q, -1)), tuple(words))

    def _addressed(self, sent: Sent, number: int, i: int) -> Place:
        """What machine ``i`` sends, of which everyone hears the address and the words."""
        to, everyone = sent.to, (i,) * self.n
        if sent.when.pure is None or not self.table(sent.when).all():
            to = self._earlier(Select(sent.when, to, as_expression(float(self.n))))
        present = self.value(equal(self._received(to, everyone), self.me))._set(delivered=(number, i, -1))
        words = []
        for w, word in enumerate(sent.words):
            heard = self._received(word, everyone)
            words.append(self.value(Select(present, heard, as_expression(0.0)))._set(delivered=(number, i, w)))
        return Place(present, tuple(words))

    def _earlier(self, x: Expression) -> Value:
        """A value that the round that just ended computes for sending; equal ones are made once."""
        key = tuple(id(part) if isinstance(part, Value) else -1 for part in vars(x).values())
        if key not in self._gated:
            self._gated[key] = self.value(x)._set(round=len(self.parts) - 2)
        return self._gated[key]

    def _received(self, source: Value, senders: tuple[int, ...], delivered: Any = None) -> Value:
        found = self._new(None, self.known[source.index].join(Known(0.0, 0.0, True)))
        return found._set(source=source, senders=senders, delivered=delivered)


def _line() -> int:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _OWN_FILES:
        frame = frame.f_back
    return 0 if frame is None else frame.f_lineno


def _user_frame(trace: TracebackType | None) -> tuple[FrameType | None, int]:
    """The innermost frame of an error that is not this package's, and its line."""
    found: tuple[FrameType | None, int] = (None, 0)
    while trace is not None:
        if trace.tb_frame.f_code.co_filename not in _OWN_FILES:
            found = trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next
    return found


def _frames(running: Any) -> list[FrameType]:
    """The frames of a generator that waits at a yield, the innermost first."""
    found: list[FrameType] = []
    while (frame := getattr(running, "gi_frame", None)) is not None:
        found, running = [frame, *found], running.gi_yieldfrom
    return found


def _names(variables: dict[str, Any]) -> dict[Value, str]:
    """The values that variables hold, alone or in lists, by name."""
    found: dict[Value, str] = {}
    for name, held in variables.items():
        if isinstance(held, Value):
            found.setdefault(held, name)
        elif isinstance(held, (list, tuple)):
            for place, each in enumerate(held):
                if isinstance(each, Value):
                    found.setdefault(each, f"{name}[{place}]")
    return found
