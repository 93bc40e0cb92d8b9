"""``@posattn.program``: a function of the front end as a program that can be run, compiled, checked and saved.

It is run here as it is written, message by message, without any network: :func:`run` is what every level is held against.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, overload

import numpy as np

from posattn.compiler.expressions import Array, evaluate_expressions
from posattn.compiler.front_end import Range, Real, Sent, Tracing, Value
from posattn.compiler.front_end_to_pcoc import WrittenPCOC, as_pcoc
from posattn.compiler.library import Program, Rows
from posattn.compiler.traces import Trace
from posattn.errors import UsageError, function as callable_, shown

Truth = Callable[..., Any]
Sample = Callable[[np.random.Generator, int], Any]


@dataclass(frozen=True, kw_only=True)
class FunctionProgram(Program):
    """A program that a function of one machine describes; ``ranges`` says what its inputs may be."""

    function: Callable[..., Any]
    ranges: dict[str, Any] = field(default_factory=dict)

    def truth(self, answer: Truth) -> Truth:
        """States the right answers: a function from the inputs, a list of all machines' for each, to the list of answers."""
        callable_("truth", answer)
        object.__setattr__(self, "answer", lambda rows: _as_rows(answer(**self._columns(rows))))
        return answer

    def samples(self, draw: Sample) -> Sample:
        """Says how inputs are drawn for checks: ``draw(random, n)`` gives a row of inputs for every machine."""
        callable_("samples", draw)

        def sample(random: np.random.Generator, count: int, n: int, bound: float) -> Array:
            return np.array([_as_rows(draw(random, n)) for _ in range(count)], dtype=float)

        object.__setattr__(self, "sample", sample)
        return draw

    def _columns(self, rows: Rows) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        place = 0
        for name, kind in _inputs(self.function, self.ranges).items():
            several = isinstance(kind, list)
            width = len(kind) if several else 1
            found[name] = [[_plain(x) for x in row[place : place + width]] if several else _plain(row[place]) for row in rows]
            place += width
        return found


def _plain(x: float) -> float:
    return int(x) if float(x).is_integer() else x


def _as_rows(found: Any) -> Rows:
    return [[float(x) for x in np.ravel(row)] for row in found]


@overload
def program(function: Callable[..., Any], /) -> FunctionProgram: ...
@overload
def program(**ranges: Range | list[Range]) -> Callable[[Callable[..., Any]], FunctionProgram]: ...


def program(function: Callable[..., Any] | None = None, /, **ranges: Any) -> Any:
    """A program from a function of one machine; ``ranges`` says what each input may be, by default a real number.

    See docs/compiler.md for what the function can use.
    """
    if function is None:
        return lambda function: program_of(function, ranges)
    return program_of(function, {})


def program_of(function: Callable[..., Any], ranges: dict[str, Any]) -> FunctionProgram:
    name = getattr(callable_("program", function), "__name__", "program").replace("_", "-")
    inputs = _inputs(function, ranges)
    for each in ranges:
        if each not in inputs:
            raise UsageError(f"{name} states a range for {each}, which is none of its inputs: {', '.join(inputs) or 'none'}.")
    if not inputs:
        raise UsageError(f"{name} has no inputs; it must have at least one beside me and n.")

    @lru_cache(maxsize=4)
    def build(n: int, bound: float) -> WrittenPCOC:
        return as_pcoc(Tracing(name, function, inputs, n, bound))

    def answer(rows: Rows) -> Rows:
        found: Rows = run(build(len(rows), _bound(rows)).tracing, np.array([rows]))[0].tolist()
        return found

    def sample(random: np.random.Generator, count: int, n: int, bound: float) -> Array:
        known = [known for known in build(n, bound).inputs]
        drawn = [
            random.integers(int(k.lo), int(k.hi) + 1, (count, n)) if k.integer else random.uniform(k.lo, k.hi, (count, n))
            for k in known
        ]
        return np.stack(drawn, axis=-1).astype(float)

    title = (function.__doc__ or name).strip().splitlines()[0].rstrip(".")
    return FunctionProgram(name, title, build, answer, sample, function=function, ranges=ranges)


def _bound(rows: Rows) -> float:
    """A bound that holds for an input, where only its program's own answer is asked for."""
    return 2.0 ** np.ceil(np.log2(max(1.0, *(abs(x) for row in rows for x in row))))


def _inputs(function: Callable[..., Any], ranges: dict[str, Any]) -> dict[str, Any]:
    import inspect

    found = {name: ranges.get(name, Real()) for name in inspect.signature(function).parameters if name not in ("me", "n")}
    for name, kind in found.items():
        kinds = list(kind) if isinstance(kind, (list, tuple)) else [kind]
        if not kinds or not all(isinstance(each, Range) for each in kinds):
            raise UsageError(f"{name} is {shown(kind)}; it must be Whole(0, 9), Real(-1, 1), Bit, or a list of such.")
    return {name: list(kind) if isinstance(kind, tuple) else kind for name, kind in found.items()}


# --- the program as it is written --------------------------------------------------------------------------------------


def run(tracing: Tracing, x: Array) -> Array:
    """The answers (..., n, outputs) to inputs (..., n, c)."""
    return np.stack([values_of(tracing, x)[..., answer.index] for answer in tracing.answers], axis=-1)


def trace(program: WrittenPCOC, x: Array) -> Trace:
    """Every variable at every machine and round, as the program is written, for inputs (..., n, c)."""
    cells = values_of(program.tracing, program.given(x))
    rounds = [{name: cells[..., value.index] for name, (value, _) in each.items()} for each in program.variables]
    return Trace(program.name, program.labels.rounds, tuple(rounds))


def values_of(tracing: Tracing, x: Array) -> Array:
    """All values of a program (..., n, V), round by round; raises where a rule is broken."""
    me = np.arange(tracing.n, dtype=float)
    cells = np.zeros((*x.shape[:-1], len(tracing.values)))
    for place, value in enumerate(tracing.inputs):
        cells[..., value.index] = x[..., place]
    for r, part in enumerate(tracing.parts):
        for value in tracing.values:
            if value.round == r:
                if value.delivered is not None:
                    cells[..., value.index] = _delivered(tracing, tracing.parts[r - 1].sent, value, cells)
                elif value.x is not None:
                    cells[..., value.index] = evaluate_expressions([value.x], cells, me)[0]
        for each in part.stated:
            found = cells[..., each.value.index]
            _refuse((found < each.lo) | (found > each.hi), found, tracing.place(r, each.named.line),
                    f"a number is {{:g}}, stated to be from {each.lo:g} to {each.hi:g}")  # fmt: skip
        for sent in part.sent:
            to, when = cells[..., sent.to.index], cells[..., sent.when.index] > 0.5
            _refuse(when & ((to < 0) | (to >= tracing.n)), to, tracing.place(r, sent.line),
                    f"it sends to machine {{:g}}; it must be 0 to {tracing.n - 1}")  # fmt: skip
    return cells


def _delivered(tracing: Tracing, sent: list[Sent], value: Value, cells: Array) -> Array:
    """A part of a message, for every machine: whether there is one (-1), or a word of it."""
    assert value.delivered is not None
    number, sender, part = value.delivered
    message = sent[number]
    senders = np.array(value.senders) if value.senders else np.full(tracing.n, sender)
    to, when = (cells[..., each.index][..., senders] for each in (message.to, message.when))
    expected = message.to.pure is not None  # then the places are laid out by the addresses
    there = (senders >= 0) if expected else (to == np.arange(tracing.n))
    if message.when.pure is None or not expected:
        there = there & (when > 0.5)
    word = np.ones(to.shape) if part < 0 else cells[..., message.words[part].index][..., senders]
    return np.where(there, word, 0.0)


def _refuse(broken: Array, found: Array, place: str, what: str) -> None:
    if broken.any():
        where = tuple(np.argwhere(broken)[0])
        raise UsageError(f"{place}, machine {where[-1]}: {what.format(found[where])}.")
