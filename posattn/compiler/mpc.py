"""Massively Parallel Computation (Definition A.1): the data may decide where messages go.

N machines with a memory of s words each work in rounds. In a round every machine reads its inbox, the messages that it
received, computes, and sends messages to machines whose numbers it may compute. Afterwards it holds only its new inbox, so it
keeps a word by sending it to itself. It may send s words and receive s words per round; a breach is an error that names the
machine, the round and the count. The inbox is ordered by sender, and messages of one sender as the sender lists them.
All messages of a program have one length here; shorter ones are padded with zeros, which count.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from posattn.compiler.machine_memory import OVERFLOWS, ParallelProgram, refuse_excess
from posattn.compiler.program_messages import Place
from posattn.errors import UsageError, whole


@dataclass(frozen=True)
class Message:
    """``words`` for machine ``to``, sent where the bit ``when`` is 1: each an expression or a number."""

    to: Any
    words: Sequence[Any]
    when: Any = 1.0


@dataclass(frozen=True)
class Machine:
    """What a local function sees: the machine's number and its inbox, whose empty places come last.

    The words of a place are 0 beyond the message.
    """

    me: Expression
    inbox: tuple[Place, ...]

    @property
    def received(self) -> list[Expression]:
        """Everything in the inbox."""
        return [part for box in self.inbox for part in (box.present, *box.words)]


@dataclass(frozen=True)
class MPC(ParallelProgram):
    """A program: ``rounds``, each a function from a machine to its messages, and ``finish``, which gives the answers.

    ``memory`` is s, in words, and ``longest`` the words of every message; the input, which is the first inbox, counts as one.
    ``checks`` gives, of a round and a machine, whole numbers that must not exceed 0; the round after the last is the finish.
    ``names`` are what errors call the rounds and the finish, if they have names.
    """

    machines: int
    memory: int
    longest: int
    inputs: tuple[Known, ...]
    rounds: tuple[Callable[[Machine], Sequence[Message]], ...]
    finish: Callable[[Machine], Sequence[Expression]]
    name: str = "program"
    checks: Callable[[int, Machine], Sequence[Expression]] = lambda r, machine: []
    names: tuple[str, ...] = ()

    spare = 0  # every machine has an input

    def __post_init__(self) -> None:
        self._check(room=whole("longest", self.longest))

    @property
    def places(self) -> int:
        """How many messages s words can hold: the places of the inbox."""
        return self.memory // self.longest

    def place(self, r: int) -> str:
        """What errors call round ``r``, counted from 0."""
        return self.names[r] if self.names else f"{self.name}, round {r + 1}"

    def view(self) -> Machine:
        """A machine whose inbox is memory cells: for each place the bit, then the words."""
        stride = self.longest + 1
        cells = [MemoryCell(index) for index in range(self.places * stride)]
        starts = range(0, len(cells), stride)
        return Machine(Me(), tuple(Place(cells[q], tuple(cells[q + 1 : q + stride])) for q in starts))

    def messages(self, r: int, machine: Machine) -> list[Message]:
        """The messages of round ``r``, as expressions, with words padded to the length of all."""
        found = []
        for message in self.rounds[r](machine):
            words = [as_expression(word) for word in message.words]
            words += [as_expression(0.0)] * (self.longest - len(words))
            found.append(Message(as_expression(message.to), words, as_expression(message.when)))
        used = [part for sent in found for part in (sent.to, sent.when, *sent.words)]
        check_cells(used, machine.received, f"{self.name}, round {r + 1}")
        return found

    def answers(self, machine: Machine) -> list[Expression]:
        """What ``finish`` gives."""
        found = [as_expression(answer) for answer in self.finish(machine)]
        check_cells(found, machine.received, f"{self.name}, finish")
        return found


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
            refuse_excess(count, OVERFLOWS, program.place(r), named=True)
        inbox = _deliver(program, r, cells, me) if r < len(program.rounds) else inbox
    answers = evaluate_expressions(program.answers(program.view()), cells, me)
    return np.stack(answers, axis=-1)[:, own].reshape(*x.shape[:-1], len(answers))


def _deliver(program: MPC, r: int, cells: Array, me: Array) -> Array:
    """The inboxes (batch, N, places, 1 + words) after round ``r``; raises if a machine breaks the model's rules."""
    messages = program.messages(r, program.view())
    parts = [part for message in messages for part in (message.to, message.when, *message.words)]
    table = np.stack(evaluate_expressions(parts, cells, me), axis=-1) if parts else np.empty((*cells.shape[:2], 0))
    table = table.reshape(*cells.shape[:2], len(messages), program.longest + 2)
    inbox = np.zeros((*cells.shape[:2], program.places, program.longest + 1))
    where = f"{program.place(r)}: machine"
    for mine, boxes in zip(table, inbox, strict=True):
        filled = np.zeros(program.machines, dtype=int)
        for i, own in enumerate(mine):
            _bound(int((own[:, 1] > 0.5).sum()), program, f"{where} {i} sends")
            for to, when, *words in own:
                if when > 0.5:
                    if not (float(to).is_integer() and 0 <= to < program.machines):
                        last = program.machines - 1
                        raise UsageError(f"{where} {i} sends to machine {to:g}; it must be 0 to {last}.")
                    j = int(to)
                    if filled[j] < program.places:
                        boxes[j, filled[j]] = [1.0, *words]
                    filled[j] += 1
        for j, count in enumerate(filled.tolist()):
            _bound(count, program, f"{where} {j} receives")
    return inbox


def _bound(messages: int, program: MPC, what: str) -> None:
    if (count := messages * program.longest) > program.memory:
        raise UsageError(f"{what} {count} words; its memory holds {program.memory}.")
