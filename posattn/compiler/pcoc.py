"""Parallel Computation with Oracle Communication (Definition A.2): communication does not depend on the data.

N machines with s memory positions each work in rounds. A round begins with communication: an oracle says from which machine
each position is received. It knows the round and the machine, but no value. Then every machine computes locally on what it
received. A word keeps its position (Lemma B.2): position h of the sender becomes position h of the receiver. A position that
receives nothing is blank, 0.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from posattn.compiler.analysis import Known
from posattn.compiler.expressions import Array, Expression, Memory, as_expression, check_cells, evaluate_expressions
from posattn.compiler.machine_memory import OVERFLOWS, ParallelProgram, refuse_excess
from posattn.compiler.traces import Labels
from posattn.errors import UsageError, function, instance, several

Local = Callable[[Memory], Sequence[Expression | float]]
IDLE = -1


@dataclass(frozen=True)
class Excess:
    """A whole number that must not exceed 0, and which of ``machine_memory.BREACHES`` it is if it does."""

    count: Expression
    kind: int = OVERFLOWS


Guard = Callable[[Memory], Sequence[Excess]]


@dataclass(frozen=True)
class Round:
    """``receive(i)``, the oracle, gives pairs (machine, positions) that machine i receives; ``compute`` the new memory.

    ``guard`` gives what must not exceed 0 when the computation begins; of several breaches the first is reported.
    """

    receive: Callable[[int], Iterable[tuple[int, Iterable[int]]]]
    compute: Local
    guard: Guard | None = None

    def __post_init__(self) -> None:
        function("receive", self.receive)
        function("compute", self.compute)
        if self.guard is not None:
            function("guard", self.guard)


@dataclass(frozen=True)
class PCOC(ParallelProgram):
    """A program: ``start`` is the local computation before the first communication.

    Args:
        machines: N.
        memory: s, the number of positions per machine.
        inputs: what is known of every machine's input, which fills the first positions; the others begin blank.
        rounds: communication and computation, in turn.
        outputs: the memory positions that hold the answer at the end.
        start: the first local computation, which by default changes nothing. ``start_guard`` is its guard.
        spare: how many machines, the last ones, have neither input nor output.
        labels: the names of rounds and variables, if the program has any.
        lengths: whether it is for lists of every length: then the last input of all machines is the length.
    """

    machines: int
    memory: int
    inputs: tuple[Known, ...]
    rounds: tuple[Round, ...]
    outputs: tuple[int, ...] = (0,)
    start: Local = tuple
    start_guard: Guard | None = None
    name: str = "program"
    spare: int = 0
    labels: Labels | None = None
    lengths: bool = False

    def __post_init__(self) -> None:
        self._check(room=self.memory)
        object.__setattr__(self, "rounds", tuple(several("rounds", self.rounds)))
        for number, each in enumerate(self.rounds):
            instance(f"round {number + 1}", each, Round, "a Round")
        function("start", self.start)
        if not several("outputs", self.outputs):
            raise UsageError(f"{self.name} has no outputs; it must have at least one.")
        for position in self.outputs:
            _check(position, self.memory, f"{self.name} has output position {position}")

    @cached_property
    def sources(self) -> NDArray[np.int64]:
        """(R, N, s): the machine that each position receives from, or IDLE; checked against the model's rules."""
        tables = [self._sources(r) for r in range(len(self.rounds))]
        return np.array(tables, dtype=np.int64).reshape(-1, self.machines, self.memory)

    def _sources(self, r: int) -> NDArray[np.int64]:
        table = np.full((self.machines, self.memory), IDLE, dtype=np.int64)
        for i in range(self.machines):
            for sender, positions in self.rounds[r].receive(i):
                where = f"{self.name}, round {r + 1}: machine {i} receives from machine {sender}"
                _check(sender, self.machines, where)
                for position in positions:
                    _check(position, self.memory, f"{where}, position {position}")
                    if table[i, position] != IDLE:
                        raise UsageError(
                            f"{where} at position {position}, where machine {table[i, position]} already sends."
                        )
                    table[i, position] = sender
        sent = np.bincount(table[table != IDLE], minlength=self.machines)
        if sent.max() > self.memory:
            i = int(sent.argmax())
            raise UsageError(
                f"{self.name}, round {r + 1}: machine {i} sends {sent[i]} words; its memory of {self.memory} allows no more."
            )
        return table

    def place(self, r: int) -> str:
        """What errors call round ``r``; 0 is the start."""
        return f"{self.name}, round {r}" if self.labels is None else self.labels.rounds[r]

    @property
    def guarded(self) -> bool:
        return any(guard is not None for guard in self._guards)

    @property
    def _guards(self) -> list[Guard | None]:
        return [self.start_guard, *(each.guard for each in self.rounds)]

    def guard(self, r: int) -> list[Excess]:
        """What must not exceed 0 when the computation after communication ``r`` begins; r = 0 is the start."""
        guard, memory = self._guards[r], Memory(self.memory)
        excesses = [] if guard is None else list(guard(memory))
        check_cells([excess.count for excess in excesses], memory, f"{self.name}, round {r}")
        return excesses

    def local(self, r: int) -> list[Expression]:
        """The s expressions of that computation."""
        memory, compute = Memory(self.memory), self.rounds[r - 1].compute if r else self.start
        found = [as_expression(value) for value in compute(memory)]
        if len(found) != self.memory:
            raise UsageError(
                f"{self.name}, round {r}: the computation gives {len(found)} words for {self.memory} positions."
            )
        check_cells(found, memory, f"{self.name}, round {r}")
        return found


def _check(number: int, count: int, where: str) -> None:
    if not isinstance(number, Integral) or not 0 <= number < count:
        raise UsageError(f"{where}; it must be a whole number from 0 to {count - 1}.")


def run(program: PCOC, x: Array) -> Array:
    """The answers (..., N, outputs) to inputs (..., N, c), round by round, without any network."""
    return states(program, x)[-1][..., : program.length, list(program.outputs)]


def states(program: PCOC, x: Array) -> list[Array]:
    """The memories (..., N, s) after the start and after every round."""
    x = program.given(x)
    me = np.arange(program.machines, dtype=float)
    memory = np.zeros((*x.shape[:-2], program.machines, program.memory))
    memory[..., : x.shape[-2], : x.shape[-1]] = x
    found = [_compute(program, 0, memory, me)]
    for r, table in enumerate(program.sources, start=1):
        received = np.take_along_axis(found[-1], np.broadcast_to(np.maximum(table, 0), found[-1].shape), axis=-2)
        found.append(_compute(program, r, np.where(table == IDLE, 0.0, received), me))
    return found


def _compute(program: PCOC, r: int, memory: Array, me: Array) -> Array:
    guards = program.guard(r)
    for guard, count in zip(guards, evaluate_expressions([guard.count for guard in guards], memory, me), strict=True):
        refuse_excess(count, guard.kind, program.place(r), program.labels is not None)
    return np.stack(evaluate_expressions(program.local(r), memory, me), axis=-1)
