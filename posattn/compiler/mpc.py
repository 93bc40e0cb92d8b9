"""Massively Parallel Computation (Definition A.1): machines whose messages may go where the data says.

N machines with a memory of s words work in rounds. In a round every machine reads the messages that it received, its inbox,
computes, and sends messages to machines that it may name by what it computed. Afterwards it holds only what it received:
what it wants to keep it sends to itself. It may send and receive s words a round; a breach is an error that names the
machine, the round and the count. The inbox is in the order of senders, and of a sender's messages as it lists them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from posattn.compiler.analysis import Known
from posattn.compiler.expressions import Array, Cell, Expression, Me, as_expression, evaluate
from posattn.errors import UsageError, whole


@dataclass(frozen=True)
class Message:
    """``words`` for machine ``to``, sent where the bit ``when`` is 1."""

    to: Expression | float
    words: Sequence[Expression | float]
    when: Expression | float = 1.0


@dataclass(frozen=True)
class Received:
    """A place of the inbox: the bit ``present``, and the words (0 where there is no message, or a shorter one)."""

    present: Expression
    words: tuple[Expression, ...]


@dataclass(frozen=True)
class Machine:
    """What a local function sees: the machine's number and its inbox."""

    me: Expression
    inbox: tuple[Received, ...]


@dataclass(frozen=True)
class MPC:
    """A program of ``rounds``, each a function from a machine to its messages, and ``finish``, the answers at the end.

    ``memory`` is s, in words, and ``longest`` how many the longest message has, or the input, which is what the inbox holds
    in the first round. The last ``spare`` machines have no input and give no answer.
    """

    machines: int
    memory: int
    longest: int
    inputs: tuple[Known, ...]
    rounds: tuple[Callable[[Machine], Sequence[Message]], ...]
    finish: Callable[[Machine], Sequence[Expression]]
    name: str = "program"
    spare: int = 0

    def __post_init__(self) -> None:
        whole("machines", self.machines)
        whole("memory", self.memory)
        if not len(self.inputs) <= whole("longest", self.longest):
            raise UsageError(
                f"{self.name} has {len(self.inputs)} inputs; its longest message is of {self.longest} words."
            )
        for length in self._lengths:
            if not 1 <= length <= min(self.longest, self.memory):
                least = min(self.longest, self.memory)
                raise UsageError(f"{self.name} has a message of {length} words; it must be 1 to {least}.")

    @cached_property
    def _lengths(self) -> list[int]:
        """Of all messages that can be sent; a length never depends on values, so a look at any machine tells."""
        anyone = _view(self.memory, self.longest)
        return [len(message.words) for send in self.rounds for message in send(anyone)]

    @property
    def places(self) -> int:
        """How many messages s words can be: the places of the inbox."""
        return self.memory // min(self._lengths, default=self.memory)

    def view(self) -> Machine:
        """A machine whose inbox is memory cells: of each place the bit, then the words."""
        return _view(self.places, self.longest)

    def messages(self, r: int, machine: Machine) -> list[Message]:
        """Round ``r``'s messages, all words there."""
        found = []
        for message in self.rounds[r](machine):
            words = [as_expression(word) for word in message.words]
            words += [as_expression(0.0)] * (self.longest - len(words))
            found.append(Message(as_expression(message.to), tuple(words), as_expression(message.when)))
        return found


def _view(places: int, longest: int) -> Machine:
    stride = longest + 1
    boxes = [
        Received(Cell(q * stride), tuple(Cell(q * stride + 1 + word) for word in range(longest))) for q in range(places)
    ]
    return Machine(Me(), tuple(boxes))


def run(program: MPC, x: Array) -> Array:
    """The answers (..., N, outputs) to inputs (..., N, c), message by message."""
    x = np.asarray(x, dtype=float)
    given = program.machines - program.spare
    if x.shape[-2:] != (given, len(program.inputs)):
        raise UsageError(f"the input has shape {x.shape}; {program.name} takes (..., {given}, {len(program.inputs)}).")
    batch = x.reshape(-1, *x.shape[-2:])
    shape = (len(batch), program.machines)
    me = np.arange(program.machines, dtype=float)
    inbox = np.zeros((*shape, program.places, program.longest + 1))
    inbox[:, :given, 0, 0] = 1.0
    inbox[:, :given, 0, 1 : 1 + x.shape[-1]] = batch
    for r in range(len(program.rounds)):
        inbox = _deliver(program, r, inbox.reshape(*shape, -1), me)
    answers = evaluate(list(program.finish(program.view())), inbox.reshape(*shape, -1), me)
    return np.stack(answers, axis=-1)[:, :given].reshape(*x.shape[:-1], -1)


def _deliver(program: MPC, r: int, cells: Array, me: Array) -> Array:
    """The inboxes (batch, N, places, 1 + words) after round ``r``, within the model's bounds."""
    messages = program.messages(r, program.view())
    lengths = [len(message.words) for message in program.rounds[r](program.view())]
    parts = [part for message in messages for part in (message.to, message.when, *message.words)]
    table = np.stack(evaluate([as_expression(part) for part in parts], cells, me), axis=-1)
    table = table.reshape(*cells.shape[:2], len(messages), -1)
    inbox = np.zeros((*cells.shape[:2], program.places, program.longest + 1))
    where = f"{program.name}, round {r + 1}: machine"
    for mine, boxes in zip(table, inbox, strict=True):
        filled, received = np.zeros(program.machines, dtype=int), np.zeros(program.machines, dtype=int)
        for i, own in enumerate(mine):
            sent = sum(length for (_, when, *_), length in zip(own, lengths, strict=True) if when > 0.5)
            _bound(sent, program.memory, f"{where} {i} sends")
            for (to, when, *words), length in zip(own, lengths, strict=True):
                if when > 0.5:
                    j = _address(to, program.machines, f"{where} {i}")
                    received[j] += length
                    _bound(int(received[j]), program.memory, f"{where} {j} receives")
                    boxes[j, filled[j]] = [1.0, *words]
                    filled[j] += 1
    return inbox


def _bound(count: int, most: int, what: str) -> None:
    if count > most:
        raise UsageError(f"{what} {count} words; its memory holds {most}.")


def _address(to: float, machines: int, who: str) -> int:
    if not (float(to).is_integer() and 0 <= to < machines):
        raise UsageError(f"{who} sends to machine {to:g}; it must be 0 to {machines - 1}.")
    return int(to)
