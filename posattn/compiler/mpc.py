"""Massively Parallel Computation (Definition A.1): the data may decide where messages go.

N machines with a memory of s words each work in rounds. In a round every machine reads its inbox, the messages that it
received, computes, and sends messages to machines whose numbers it may compute. Afterwards it holds only its new inbox, so it
keeps a word by sending it to itself. It may send s words and receive s words per round; a breach is an error that names the
machine, the round and the count. The inbox is ordered by sender, and messages of one sender as the sender lists them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from posattn.compiler.analysis import Known
from posattn.compiler.expressions import (
    Array,
    Expression,
    Me,
    MemoryCell,
    as_expression,
    check_cells,
    evaluate_expressions,
)
from posattn.compiler.inputs import ParallelProgram
from posattn.compiler.machine_memory import OVERFLOWS, described_breach
from posattn.compiler.traces import Labels
from posattn.errors import UsageError, function, instance, several, whole


@dataclass(frozen=True)
class Message:
    """``words`` for machine ``to``, sent where the bit ``when`` is 1."""

    to: Expression | float
    words: Sequence[Expression | float]
    when: Expression | float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(several("words", self.words)))


@dataclass(frozen=True)
class Sent:
    """A message whose ``words`` are padded with zeros to the longest; ``length`` is how many it has of its own."""

    to: Expression
    words: tuple[Expression, ...]
    when: Expression
    length: int


@dataclass(frozen=True)
class Received:
    """A place of the inbox: the bit ``present``, and the words, which are 0 beyond the message or if there is none."""

    present: Expression
    words: tuple[Expression, ...]


class Inbox(tuple[Received, ...]):
    """The places for messages, as many as a memory can hold; empty ones come last."""

    def __getitem__(self, index: Any) -> Any:
        try:
            return super().__getitem__(index)
        except IndexError as error:
            raise UsageError(f"place {index} of an inbox is read; its places are 0 to {len(self) - 1}.") from error


@dataclass(frozen=True)
class Machine:
    """What a local function sees: the machine's number and its inbox."""

    me: Expression
    inbox: Inbox

    @property
    def received(self) -> list[Expression]:
        """Everything in the inbox."""
        return [part for box in self.inbox for part in (box.present, *box.words)]


@dataclass(frozen=True)
class MPC(ParallelProgram):
    """A program: ``rounds``, each a function from a machine to its messages, and ``finish``, which gives the answers.

    ``memory`` is s, in words. ``longest`` is the number of words of the longest message; the input, which is the first inbox,
    counts as one. The last ``spare`` machines have no input and give no answer. ``checks`` gives, of a round and a machine,
    whole numbers that must not exceed 0; the round after the last is the finish.
    """

    machines: int
    memory: int
    longest: int
    inputs: tuple[Known, ...]
    rounds: tuple[Callable[[Machine], Sequence[Message]], ...]
    finish: Callable[[Machine], Sequence[Expression]]
    name: str = "program"
    spare: int = 0
    checks: Callable[[int, Machine], Sequence[Expression]] = lambda r, machine: []

    def __post_init__(self) -> None:
        for field in ("machines", "memory"):
            object.__setattr__(self, field, whole(field, getattr(self, field)))
        for field in ("inputs", "rounds"):
            object.__setattr__(self, field, tuple(several(field, getattr(self, field))))
        most = min(whole("longest", self.longest), self.memory)
        if not 1 <= len(self.inputs) <= most:
            raise UsageError(
                f"{self.name} has {len(self.inputs)} inputs; it must have 1 to {most}, as many words as a message."
            )
        self.check_inputs()
        for number, send in enumerate(self.rounds):
            function(f"round {number + 1}", send)
        function("finish", self.finish)
        for length in self._all_lengths:
            if not 1 <= length <= most:
                raise UsageError(f"{self.name} has a message of {length} words; it must be 1 to {most}.")

    @cached_property
    def _all_lengths(self) -> frozenset[int]:
        """The lengths of all messages; a length never depends on values, so any machine shows them."""
        anyone = _view(self.memory, self.longest)
        return frozenset(len(message.words) for r in range(len(self.rounds)) for message in self._sent(r, anyone))

    @property
    def places(self) -> int:
        """How many messages s words can hold: the places of the inbox."""
        return self.memory // min(self._all_lengths, default=self.memory)

    @property
    def one_length(self) -> int | None:
        """The length of all messages; None if they differ."""
        return min(self._all_lengths) if len(self._all_lengths) == 1 else None

    def place(self, r: int) -> str:
        """What errors call round ``r``, counted from 0."""
        return f"{self.name}, round {r + 1}"

    def labels(self, steps: int) -> Labels | None:
        """The names of the rounds of PCOC, ``steps`` for each of the program's, if the program has names for its own."""
        return None

    def view(self) -> Machine:
        """A machine whose inbox is memory cells: for each place the bit, then the words."""
        return _view(self.places, self.longest)

    def _sent(self, r: int, machine: Machine) -> list[Message]:
        """The messages of round ``r`` as the program gives them."""
        found = several(f"what round {r + 1} of {self.name} sends", self.rounds[r](machine))
        for m, message in enumerate(found, start=1):
            instance(f"message {m} of {self.name}, round {r + 1},", message, Message, "a Message")
        return found

    def messages(self, r: int, machine: Machine) -> list[Sent]:
        """The messages of round ``r``, padded to the longest."""
        found = []
        for message in self._sent(r, machine):
            words = [as_expression(word) for word in message.words]
            words += [as_expression(0.0)] * (self.longest - len(words))
            to, when = as_expression(message.to), as_expression(message.when)
            found.append(Sent(to, tuple(words), when, len(message.words)))
        used = [part for sent in found for part in (sent.to, sent.when, *sent.words)]
        check_cells(used, machine.received, f"{self.name}, round {r + 1}")
        return found

    def answers(self, machine: Machine) -> list[Expression]:
        """What ``finish`` gives."""
        found = [as_expression(answer) for answer in several(f"what {self.name} answers", self.finish(machine))]
        if not found:
            raise UsageError(f"{self.name}, finish: there are no answers; it must give at least one.")
        check_cells(found, machine.received, f"{self.name}, finish")
        return found


def _view(places: int, longest: int) -> Machine:
    stride = longest + 1
    boxes = [
        Received(MemoryCell(q * stride), tuple(MemoryCell(q * stride + 1 + word) for word in range(longest)))
        for q in range(places)
    ]
    return Machine(Me(), Inbox(boxes))


def run(program: MPC, x: Array) -> Array:
    """The answers (..., N, outputs) to inputs (..., N, c), message by message."""
    x = program.given(x)
    batch = x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])
    shape, own = (len(batch), program.machines), slice(x.shape[-2])
    me = np.arange(program.machines, dtype=float)
    inbox = np.zeros((*shape, program.places, program.longest + 1))
    inbox[:, own, 0, 0] = 1.0
    inbox[:, own, 0, 1 : 1 + x.shape[-1]] = batch
    for r in range(len(program.rounds) + 1):
        cells = inbox.reshape(*shape, math.prod(inbox.shape[2:]))
        for count in evaluate_expressions(program.checks(r, program.view()), cells, me):
            if (count > 0).any():
                place = tuple(np.argwhere(count > 0)[0])
                told = described_breach(OVERFLOWS, math.ceil(count[place]), named=True)
                raise UsageError(f"{program.place(r)}, machine {place[-1]}: it {told}.")
        inbox = _deliver(program, r, cells, me) if r < len(program.rounds) else inbox
    answers = evaluate_expressions(program.answers(program.view()), cells, me)
    return np.stack(answers, axis=-1)[:, own].reshape(*x.shape[:-1], len(answers))


def _deliver(program: MPC, r: int, cells: Array, me: Array) -> Array:
    """The inboxes (batch, N, places, 1 + words) after round ``r``; raises if a machine breaks the model's rules."""
    messages = program.messages(r, program.view())
    lengths = [message.length for message in messages]
    parts = [part for message in messages for part in (message.to, message.when, *message.words)]
    table = np.stack(evaluate_expressions(parts, cells, me), axis=-1) if parts else np.empty((*cells.shape[:2], 0))
    table = table.reshape(*cells.shape[:2], len(messages), program.longest + 2)
    inbox = np.zeros((*cells.shape[:2], program.places, program.longest + 1))
    where = f"{program.place(r)}: machine"
    for mine, boxes in zip(table, inbox, strict=True):
        filled, received = np.zeros(program.machines, dtype=int), np.zeros(program.machines, dtype=int)
        for i, own in enumerate(mine):
            sent = sum(length for (_, when, *_), length in zip(own, lengths, strict=True) if when > 0.5)
            _bound(sent, program.memory, f"{where} {i} sends")
            for (to, when, *words), length in zip(own, lengths, strict=True):
                if when > 0.5:
                    j = _address(to, program.machines, f"{where} {i}")
                    received[j] += length
                    if received[j] <= program.memory:
                        boxes[j, filled[j]] = [1.0, *words]
                        filled[j] += 1
        for j, count in enumerate(received.tolist()):
            _bound(count, program.memory, f"{where} {j} receives")
    return inbox


def _bound(count: int, most: int, what: str) -> None:
    if count > most:
        raise UsageError(f"{what} {count} words; its memory holds {most}.")


def _address(to: float, machines: int, who: str) -> int:
    if not (float(to).is_integer() and 0 <= to < machines):
        raise UsageError(f"{who} sends to machine {to:g}; it must be 0 to {machines - 1}.")
    return int(to)
