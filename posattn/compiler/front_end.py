"""A program that is a plain Python function, executed once: what one machine does, as values and rounds.

All machines run the function in step, and ``yield`` ends a round (docs/compiler.md has the language). It is executed on a
:class:`Value` in place of every number, which notes how it was computed, in which round and line. What later rounds read is
known afterwards, and becomes a memory position (``front_end_to_pcoc``).
"""

import inspect
import os
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posattn.compiler import expressions
from posattn.compiler.analysis import BLANK, Analysis, Known
from posattn.compiler.expressions import Array, Expression, Me, Select, as_expression
from posattn.compiler.program_messages import Inbox, Place, Send
from posattn.compiler.program_numbers import TRACING, Ranges, Stated, Value, by_name, equal, kinds, values_in
from posattn.errors import UsageError, shown

_PACKAGE = str(Path(__file__).parents[1]) + os.sep


@dataclass(frozen=True)
class Sent:
    """A message to one address, as the round computes it, and which ``send`` it is of."""

    to: Value
    words: tuple[Value, ...]
    when: Value
    send: Send


@dataclass
class Part:
    """A round of the program: what it states, what it sends at its end, and the names of its variables then."""

    stated: list[Stated] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    names: dict[Value, str] = field(default_factory=dict)
    line: int = 0

    @property
    def checked(self) -> list[Stated]:
        """The stated ranges that networks check."""
        return [each for each in self.stated if each.integer and each.value.pure is None]


class Tracing:
    """The program for ``n`` machines, as values and rounds. ``function`` is executed here, once.

    With ``lengths`` it is for lists of every length up to n: every machine is given the length, its last input. Machines beyond
    the list run the program too, and send nothing (``listed`` is 0 there).
    """

    def __init__(
        self, name: str, function: Callable[..., Any], ranges: Ranges, n: int, bound: float, lengths: bool = False
    ):
        code = function.__code__
        self.name, self.n, self.path = name, n, code.co_filename
        self.values: list[Value] = []
        self.known: list[Known] = []
        self.analysis = Analysis(self.known, n)
        self.parts = [Part(line=code.co_firstlineno)]
        self.reading: list[Value] = []  # by the expression that was noted last
        self._waiting = False  # whether the function waits at a yield
        self._gated: dict[tuple[int, int, float], Value] = {}  # what senders gate, by what it is made of
        self.length: Value | None = None
        self.listed: Value | None = None
        token = TRACING.set(self)
        try:
            self.answers = self._execute(function, ranges, bound, lengths)
        finally:
            TRACING.reset(token)

    @property
    def here(self) -> Part:
        return self.parts[-1]

    @property
    def ranges(self) -> tuple[Known, ...]:
        """What is known of the inputs."""
        return tuple(self.known[value.index] for value in self.inputs)

    def value(self, x: Expression) -> Value:
        """``x`` as a value of this round; raises if its parts do not suit it."""
        if isinstance(x, Value):
            return self._own(x)
        self.read(x)
        return self._new(x, self.analysis.known(x))

    def read(self, x: object) -> None:
        """Notes which values are read next; raises if one is not of this trace."""
        self.reading = values_in(x)
        for value in self.reading:
            self._own(value)

    def _own(self, value: Value) -> Value:
        if value.index >= len(self.values) or self.values[value.index] is not value:
            self.reading = [value]
            raise UsageError("a number was kept from another execution of a program; numbers live for one alone.")
        return value

    def _new(self, x: Expression | None, known: Known) -> Value:
        self.known.append(known)
        self.values.append(Value(len(self.values), x, len(self.parts) - 1, self._line()))
        return self.values[-1]

    def place(self, r: int, line: int | None = None) -> str:
        """Where something is, for errors: a line of round ``r``, by default the one at which the round sends or states."""
        part = self.parts[r]
        if line is None:
            line = part.stated[0].named.line if part.stated and not part.sent else part.line
        return f"{self.name} ({Path(self.path).name}:{line}), round {r}"

    def _execute(
        self, function: Callable[..., Any], ranges: Ranges, bound: float, lengths: bool
    ) -> list[Value]:
        self.me = self.value(Me())
        if lengths:
            self.length = self._new(None, Known(1.0, float(self.n), True))
            self.listed = self.value(self.me < self.length)
        own = {"me": self.me, "n": self.n, "length": self.n if self.length is None else self.length}
        given: dict[str, Any] = {name: own[name] for name in inspect.signature(function).parameters if name in own}
        self.inputs = [self._new(None, each.known(self.n, bound)) for each in kinds(ranges)]
        given |= by_name(ranges, self.inputs)
        self.inputs += [] if self.length is None else [self.length]
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
        frame, line = self._user_frame(error.__traceback__)
        if frame is None and (waiting := _frames(running)):  # what was yielded is at fault
            frame, line = waiting[0], waiting[0].f_lineno
        reading = set(self.reading)
        names = [] if frame is None else [name for v, name in _names(frame.f_locals).items() if v in reading]
        about = f" ({', '.join(names)})" if names and isinstance(error, UsageError) else ""
        text = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}."
        for kind in (Inbox, Place):
            if isinstance(error, TypeError) and f"'{kind.__name__}'" in text:
                text = kind.NO_NUMBER
        return UsageError(f"{self.place(len(self.parts) - 1, line or self.here.line)}{about}: {text}")

    def _answered(self, found: Any) -> list[Value]:
        if found is None:
            raise UsageError("the program returns nothing; it must return its answer.")
        answers = list(found) if isinstance(found, (list, tuple)) else [found]
        self.reading = []
        return [self.value(as_expression(answer)) for answer in answers]

    def _is_programs(self, frame: FrameType) -> bool:
        """Whether a frame is of the program: of its own file, or outside this package."""
        path = frame.f_code.co_filename
        return path == self.path or not path.startswith(_PACKAGE)

    def _line(self) -> int:
        if self._waiting:
            return self.here.line
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self._is_programs(frame):
            frame = frame.f_back
        return 0 if frame is None else frame.f_lineno

    def _user_frame(self, trace: TracebackType | None) -> tuple[FrameType | None, int]:
        """The innermost frame of an error that is the program's, and its line."""
        found: tuple[FrameType | None, int] = (None, 0)
        while trace is not None:
            if self._is_programs(trace.tb_frame):
                found = trace.tb_frame, trace.tb_lineno
            trace = trace.tb_next
        return found

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
        if self.length is not None and self.listed is not None:
            names = {self.length: "length", self.listed: "listed"} | names
        part = self.here
        part.names, part.line = names, frames[0].f_lineno
        places = [self._sent(each, part) for each in sends]
        self.parts.append(Part(line=part.line))
        self._waiting = True
        arriving = [
            Inbox(self._arriving(own), len(each.words), each.most) for own, each in zip(places, sends, strict=True)
        ]
        self._waiting = False
        return arriving[0] if isinstance(asked, Send) else tuple(arriving)

    def _sent(self, each: Send, part: Part) -> range:
        """Notes the messages of a ``send``; returns their numbers in the round."""
        first = len(part.sent)
        for to, when in zip(each.to, each.when, strict=True):
            bit = self.value(as_expression(when))
            self.reading = [bit]
            self.analysis.check_bit(self.known[bit.index], "when")
            address = self.value(as_expression(to))
            if not self.known[address.index].integer:
                raise UsageError(
                    f"a message is for a machine whose number need not be whole; it must be 0 to {self.n - 1}."
                )
            words = tuple(self.value(as_expression(word)) for word in each.words)
            if address.pure is not None and bit.pure is not None:
                for i, (wanted, sends) in enumerate(zip(self.table(address), self.table(bit), strict=True)):
                    if sends and not 0 <= wanted < self.n:
                        raise UsageError(f"machine {i} sends to machine {wanted:g}, which is not there; use when=.")
            part.sent.append(Sent(address, words, bit, each))
        return range(first, len(part.sent))

    def table(self, value: Value) -> Array:
        """The numbers of a value that depends on the machine alone, for every machine."""
        assert value.pure is not None
        return expressions.evaluate_expressions([value.pure], np.zeros((self.n, 1)), np.arange(self.n, dtype=float))[0]

    def receivers(self, sent: Sent) -> NDArray[np.int64]:
        """(n,): whom each machine may send a message whose address depends on the machine alone; -1 is nobody."""
        to = self.table(sent.to)
        sends = sent.when.pure is None or self.table(sent.when) != 0
        return np.where(sends & (to >= 0) & (to < self.n), to, -1).astype(np.int64)

    def _arriving(self, numbers: range) -> list[Place]:
        """The places for the messages of one ``send``, by their numbers in the round that just ended."""
        sent = self.parts[-2].sent
        alike = len({sent[each].when for each in numbers}) == 1  # then the sender blanks all of them or none
        if all(sent[each].to.pure is not None and (alike or sent[each].when.pure is not None) for each in numbers):
            return self._expected_all(numbers)
        found: list[Place] = []
        for each in numbers:
            if sent[each].to.pure is not None:
                found += self._expected_all(range(each, each + 1))
            else:
                found += [self._addressed(sent[each], each, i) for i in range(self.n)]
        return found

    def _expected_all(self, numbers: range) -> list[Place]:
        """Places whose senders are known beforehand: the first one holds each machine's first message, and so on."""
        if not numbers:
            return []
        sent = [self.parts[-2].sent[each] for each in numbers]
        to = np.stack([self.receivers(each) for each in sent])
        (message, sender), receiver = (to >= 0).nonzero(), to[to >= 0]
        order = receiver.argsort(kind="stable")
        place = np.empty_like(receiver)  # how many messages of the same receiver come before
        place[order] = np.arange(len(order)) - np.searchsorted(receiver[order], receiver[order])
        table = np.full((2, place.max(initial=-1) + 1, self.n), [[[numbers[0]]], [[-1]]])
        table[:, place, receiver] = numbers[0] + message, sender
        return [self._expected(sent[0], *map(tuple, table[:, q].tolist())) for q in range(table.shape[1])]

    def _expected(self, sent: Sent, numbers: tuple[int, ...], senders: tuple[int, ...]) -> Place:
        """A place whose sender is known beforehand; the sender blanks what it does not send."""
        bits = [sent.when] if sent.when.pure is None else []
        bits += [] if self.listed is None else [self.listed]
        words = [self._received(reduce(self._gate, bits, x), senders, (numbers, w)) for w, x in enumerate(sent.words)]
        if bits:
            return Place(self._received(reduce(self._gate, bits), senders, (numbers, -1)), tuple(words))
        there = as_expression(1.0) if min(senders) >= 0 else expressions.by_machine(float(i >= 0) for i in senders)
        return Place(self.value(there), tuple(words))

    def _addressed(self, sent: Sent, number: int, i: int) -> Place:
        """What machine ``i`` sends, of which everyone hears the address and the words."""
        to, everyone = sent.to, (i,) * self.n
        if sent.when.pure is None or not self.table(sent.when).all():
            to = self._gate(to, sent.when, float(self.n))
        if self.listed is not None:
            to = self._gate(to, self.listed, float(self.n))
        numbers = (number,) * self.n
        present = self.value(equal(self._received(to, everyone), self.me))
        words = [
            self.value(Select(present, self._received(word, everyone), as_expression(0.0))) for word in sent.words
        ]
        for w, part in enumerate([present, *words], start=-1):
            part.senders, part.delivered = everyone, (numbers, w)
        return Place(present, tuple(words))

    def _gate(self, x: Value, when: Value, blank: float = 0.0) -> Value:
        """``x``, or ``blank`` where it is not sent, as the round that just ended computes it; equal ones are made once."""
        key = when.index, x.index, blank
        if key not in self._gated:
            self._gated[key] = self.value(Select(when, x, as_expression(blank)))
            self._gated[key].round = len(self.parts) - 2
        return self._gated[key]

    def _received(self, source: Value, senders: tuple[int, ...], delivered: Any = None) -> Value:
        found = self._new(None, self.known[source.index].join(BLANK))
        found.source, found.senders, found.delivered = source, senders, delivered
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
