"""``@posattn.program``: a function of the front end as a program that can be compiled, checked and saved."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, overload

import numpy as np

from posattn.compiler import interpreter
from posattn.compiler.expressions import Array
from posattn.compiler.front_end import Tracing
from posattn.compiler.front_end_to_pcoc import WrittenPCOC, as_pcoc
from posattn.compiler.library import Program, Rows
from posattn.compiler.program_numbers import Range, Real
from posattn.errors import UsageError, shown
from posattn.errors import function as callable_

Truth = Callable[..., Any]
OWN = ("me", "n", "length")  # parameters that are no inputs
OWN_PROGRAMS: dict[str, "FunctionProgram"] = {}  # the latest of every name, so that saved networks find their truth
Sample = Callable[[np.random.Generator, int], Any]


@dataclass(frozen=True, kw_only=True)
class FunctionProgram(Program):
    """A program that a function of one machine describes; ``ranges`` says what its inputs may be."""

    function: Callable[..., Any]
    ranges: dict[str, Any] = field(default_factory=dict)

    def for_lengths(self, n: int, bound: float) -> WrittenPCOC:
        """The program for lists of every length up to ``n``."""
        inputs = _inputs(self.function, self.ranges)
        return as_pcoc(Tracing(self.name, self.function, inputs, n, bound, lengths=True))

    def truth(self, answer: Truth) -> Truth:
        """States the right answers: a function from the inputs, a list of all machines' for each, to the list of answers."""
        callable_("truth", answer)

        def answers(rows: Rows) -> Rows:
            built = self.build(len(rows), _bound(rows))
            assert isinstance(built, WrittenPCOC)
            return _as_rows(f"the truth of {self.name}", answer(**self._columns(rows)), len(rows), len(built.outputs))

        object.__setattr__(self, "answer", answers)
        return answer

    def samples(self, draw: Sample) -> Sample:
        """Says how inputs are drawn for checks: ``draw(random, n)`` gives a row of inputs for every machine."""
        callable_("samples", draw)

        def sample(random: np.random.Generator, count: int, n: int, bound: float) -> Array:
            inputs = len(self.build(n, bound).inputs)
            drawn = [_as_rows(f"the sample of {self.name}", draw(random, n), n, inputs) for _ in range(count)]
            return np.array(drawn, dtype=float)

        object.__setattr__(self, "sample", sample)
        object.__setattr__(self, "any_scale", False)
        return draw

    def _columns(self, rows: Rows) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        place = 0
        for name, kind in _inputs(self.function, self.ranges).items():
            several = isinstance(kind, list)
            width = len(kind) if several else 1
            found[name] = [
                [_plain(x) for x in row[place : place + width]] if several else _plain(row[place]) for row in rows
            ]
            place += width
        return found


def _plain(x: float) -> float:
    return int(x) if float(x).is_integer() else x


def _as_rows(what: str, found: Any, n: int, width: int) -> Rows:
    """``found`` as a row of ``width`` numbers for each of ``n`` machines."""
    try:
        rows = np.array([np.ravel(row) for row in found], dtype=float)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} is {shown(found)}; it must be a row of numbers for each machine.") from error
    if rows.shape != (n, width):
        raise UsageError(f"{what} has shape {rows.shape}; it must be {(n, width)}: one row for each machine.")
    return rows.tolist()


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
    if not hasattr(function, "__code__"):
        raise UsageError(f"program is {shown(function)}; it must be a function of Python with named inputs.")
    inputs = _inputs(function, ranges)
    for each in ranges:
        if each not in inputs:
            raise UsageError(
                f"{name} states a range for {each}, which is none of its inputs: {', '.join(inputs) or 'none'}."
            )
    if not inputs:
        raise UsageError(f"{name} has no inputs; it must have at least one beside {', '.join(OWN)}.")

    @lru_cache(maxsize=4)
    def build(n: int, bound: float) -> WrittenPCOC:
        return as_pcoc(Tracing(name, function, inputs, n, bound))

    def answer(rows: Rows) -> Rows:
        found: Rows = interpreter.run(build(len(rows), _bound(rows)).tracing, np.array([rows]))[0].tolist()
        return found

    def sample(random: np.random.Generator, count: int, n: int, bound: float) -> Array:
        drawn = [
            random.integers(int(k.lo), int(k.hi) + 1, (count, n))
            if k.integer
            else random.uniform(k.lo, k.hi, (count, n))
            for k in build(n, bound).inputs
        ]
        return np.stack(drawn, axis=-1).astype(float)

    title = (function.__doc__ or name).strip().splitlines()[0].rstrip(".")
    OWN_PROGRAMS[name] = FunctionProgram(name, title, build, answer, sample, function=function, ranges=ranges)
    return OWN_PROGRAMS[name]


def _bound(rows: Rows) -> float:
    """A bound that holds for an input, where only its program's own answer is asked for."""
    return 2.0 ** np.ceil(np.log2(max(1.0, *(abs(x) for row in rows for x in row))))


def _inputs(function: Callable[..., Any], ranges: dict[str, Any]) -> dict[str, Any]:
    found = {
        name: ranges.get(name, Real()) for name in inspect.signature(function).parameters if name not in OWN
    }
    for name, kind in found.items():
        kinds = list(kind) if isinstance(kind, (list, tuple)) else [kind]
        if not kinds or not all(isinstance(each, Range) for each in kinds):
            raise UsageError(f"{name} is {shown(kind)}; it must be Whole(0, 9), Real(-1, 1), Bit, or a list of such.")
    return {name: list(kind) if isinstance(kind, tuple) else kind for name, kind in found.items()}
