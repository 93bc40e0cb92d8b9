"""A program of the front end as it is written: round by round and message by message, without any network.

Every level is held against it. Letters: n machines, c inputs of each, V values of the program.
"""

import numpy as np
from numpy.typing import NDArray

from posattn.compiler.expressions import Array, evaluate_expressions
from posattn.compiler.front_end import Sent, Tracing
from posattn.compiler.front_end_to_pcoc import WrittenPCOC
from posattn.compiler.program_numbers import Value
from posattn.compiler.traces import Trace
from posattn.errors import UsageError


def run(tracing: Tracing, x: Array) -> Array:
    """The answers (..., n, outputs) to inputs (..., n, c)."""
    return values_of(tracing, x)[..., [answer.index for answer in tracing.answers]]


def trace(program: WrittenPCOC, x: Array) -> Trace:
    """Every variable at every machine and round, as the program is written, for inputs (..., n, c)."""
    cells = values_of(program.tracing, program.given(x))
    rounds = [{name: cells[..., value.index] for name, (value, _) in each.items()} for each in program.variables]
    return Trace(program.name, tuple(map(program.tracing.place, range(len(rounds)))), tuple(rounds))


def values_of(tracing: Tracing, x: Array) -> Array:
    """All values of a program (..., n, V), round by round; raises where a rule is broken."""
    me = np.arange(tracing.n, dtype=float)
    cells = np.zeros((*x.shape[:-1], len(tracing.values)))
    length = np.full(x.shape[:-1], tracing.n) if tracing.length is None else x[..., -1]
    for place, value in enumerate(tracing.inputs):
        cells[..., value.index] = x[..., place]
    for r, part in enumerate(tracing.parts):
        for value in tracing.values:
            if value.round == r:
                if value.delivered is not None:
                    cells[..., value.index] = _delivered(tracing, tracing.parts[r - 1].sent, value, cells, length)
                elif value.x is not None:
                    cells[..., value.index] = evaluate_expressions([value.x], cells, me)[0]
        for each in (each for each in part.stated if each.integer):
            found = cells[..., each.value.index]
            _refuse((me < length) & ((found < each.lo) | (found > each.hi)), found, tracing.place(r, each.named.line),
                    f"a number is {{:g}}, stated to be from {each.lo:g} to {each.hi:g}")  # fmt: skip
        for sent in part.sent:
            to, when = cells[..., sent.to.index], (cells[..., sent.when.index] > 0.5) & (me < length)
            after = length if sent.to.pure is None else tracing.n  # where the data does not direct it, it gets lost
            last = "0 to " + (f"{tracing.n - 1}" if tracing.length is None else "the last of its list")
            _refuse(when & ((to < 0) | (to >= after)), to, tracing.place(r, part.line),
                    f"it sends to machine {{:g}}; it must be {last}")  # fmt: skip
    return cells


def _delivered(tracing: Tracing, sent: list[Sent], value: Value, cells: Array, length: Array) -> Array:
    """A part of a message, for every machine: whether there is one (-1), or a word of it."""
    assert value.delivered is not None
    numbers, part = value.delivered
    message, senders = sent[numbers[0]], np.array(value.senders)  # all messages of a send have the same words
    to, when = (cells[..., each.index][..., senders] for each in (message.to, message.when))
    expected = message.to.pure is not None  # then the places are laid out by the addresses
    there = (senders >= 0) if expected else (to == np.arange(tracing.n))
    there = there & (senders < length)
    if message.when.pure is None or not expected:
        there = there & (when > 0.5)
    word = np.ones(to.shape) if part < 0 else cells[..., message.words[part].index][..., senders]
    return np.where(there, word, 0.0)


def _refuse(broken: NDArray[np.bool_], found: Array, place: str, what: str) -> None:
    if broken.any():
        where = tuple(np.argwhere(broken)[0])
        raise UsageError(f"{place}, machine {where[-1]}: {what.format(found[where])}.")
