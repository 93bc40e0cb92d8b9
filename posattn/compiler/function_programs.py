"""``@posattn.program``: a function of the front end as a program that can be compiled, checked and saved."""

import inspect
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

import numpy as np

from posattn.compiler import interpreter
from posattn.compiler.expressions import Array
from posattn.compiler.front_end import Tracing
from posattn.compiler.front_end_to_mpc import as_mpc, directed_by_data
from posattn.compiler.front_end_to_pcoc import as_pcoc
from posattn.compiler.mpc import MPC
from posattn.compiler.pcoc import PCOC
from posattn.compiler.program_numbers import Range, Ranges, Real, by_name, kinds
from posattn.errors import UsageError, choice, counted, shown
from posattn.errors import function as callable_
from posattn.names import ROUTES

Truth = Callable[..., Any]
OWN = ("me", "n", "length")  # parameters that are no inputs
Draw = Callable[[np.random.Generator, int], Any]
OWN_PROGRAMS: dict[str, "Program"] = {}  # the latest of every name, so that saved networks find their truth


class Program:
    """A program that a function of one machine describes; ``ranges`` says what its inputs may be.

    task: the task of :mod:`posattn.tasks` that the program solves, if any.
    also: further tasks that it solves.
    counts: the paper's sizes for lists of n numbers where they are not those of Theorem 5.1.
    machines: how many machines a list of n numbers needs; those beyond n have inputs 0, and answers that nobody asks for.
    """

    task: str | None = None
    also: tuple[str, ...] = ()
    counts: Callable[[int], dict[str, str]] = staticmethod(lambda n: {})
    machines: Callable[[int], int] = staticmethod(lambda n: n)
    _truth: Truth | None = None
    _draw: Draw | None = None

    def __init__(self, function: Callable[..., Any], ranges: dict[str, Any]):
        self.name = getattr(callable_("program", function), "__name__", "program").replace("_", "-")
        if not hasattr(function, "__code__"):
            raise UsageError(f"program is {shown(function)}; it must be a function of Python with named inputs.")
        self.function, self.ranges = function, _inputs(function, ranges)
        for each in ranges:
            if each not in self.ranges:
                known = ", ".join(self.ranges) or "none"
                raise UsageError(f"{self.name} states a range for {each}, which is none of its inputs: {known}.")
        if not self.ranges:
            raise UsageError(f"{self.name} has no inputs; it must have at least one beside {', '.join(OWN)}.")
        self.title = (function.__doc__ or self.name).strip().splitlines()[0].rstrip(".")
        self.own = Path(__file__).parent not in Path(function.__code__.co_filename).parents
        if self.own:
            OWN_PROGRAMS[self.name] = self

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that the program solves."""
        return () if self.task is None else (self.task, *self.also)

    def build(self, n: int, bound: float, route: str = ROUTES[0], lengths: bool = False) -> PCOC | MPC:
        """The program for lists of ``n`` numbers, or with ``lengths`` of every length up to n; real ones up to ``bound``.

        It is PCOC, with a layer per round; on the theorem's route it is MPC if the data directs messages.
        """
        theorem, machines = choice("route", route, ROUTES) == "theorem", self.machines(n)
        if lengths:
            self._require_lengths(n, machines, theorem)
        routed = theorem and directed_by_data(self.traced(n, bound))
        if routed and machines != n:
            raise UsageError(
                f"route is {route!r}; {self.name} has {_sizes(machines, n)}, and its data directs messages, which this route "
                "does for a machine per input."
            )
        traced = self.traced(n, bound, lengths)
        return as_mpc(traced) if routed else as_pcoc(traced, spare=machines - n)

    def _require_lengths(self, n: int, machines: int, theorem: bool) -> None:
        """Raises if a network for lists of every length up to ``n`` cannot be made."""
        if theorem:
            raise UsageError("lengths is True and route 'theorem'; a network for lists of every length is lean.")
        if machines != n:
            raise UsageError(f"lengths is True; {self.name} has {_sizes(machines, n)}, and one length.")
        for k in range(1, n):
            try:
                self.machines(k)
            except UsageError as error:
                raise UsageError(f"lengths is True; {self.name} is not for every length: {error}") from error

    def traced(self, n: int, bound: float, lengths: bool = False) -> Tracing:
        """What the function does, for the machines that ``n`` numbers need."""
        return _traced(self, self.machines(n), float(bound), lengths)

    @property
    def standard(self) -> str:
        """What its right answers are, in words."""
        return "the program as it is written" if self._truth is None else "the direct answer"

    def truth(self, answer: Truth) -> Truth:
        """States the right answers: a function from the inputs, a list of all machines' for each, to the list of answers."""
        self._truth = callable_("truth", answer)
        return answer

    def samples(self, draw: Draw) -> Draw:
        """Says how inputs are drawn for checks: ``draw(random, n)`` gives a row of inputs for every machine."""
        self._draw = callable_("samples", draw)
        return draw

    @property
    def any_scale(self) -> bool:
        """Whether samples stay legal if real numbers shrink."""
        return self._draw is None

    def sample(self, random: np.random.Generator, count: int, n: int, bound: float) -> Array:
        """Inputs (count, n, c)."""
        known = [each.known(n, bound) for each in kinds(self.ranges)]
        if self._draw is None:
            drawn = [
                random.integers(math.ceil(k.lo), math.floor(k.hi) + 1, (count, n))
                if k.integer
                else random.uniform(k.lo, k.hi, (count, n))
                for k in known
            ]
            return np.stack(drawn, axis=-1).astype(float)
        what = f"the sample of {self.name}"
        return np.array([_as_rows(what, self._draw(random, n), n, len(known)) for _ in range(count)])

    def answers(self, x: Array) -> Array:
        """The right answers (..., n, outputs) to inputs (..., n, c): by the truth, or else as the program is written."""
        n = x.shape[-2]
        if self._truth is None:
            bound = 2.0 ** np.ceil(np.log2(max(1.0, np.abs(x).max(initial=0.0))))  # it holds for these inputs
            return interpreter.run(self.traced(n, bound), x)
        what, width = f"the truth of {self.name}", len(self.traced(n, 1.0).answers)
        rows = x.reshape(-1, *x.shape[-2:]).tolist()
        found = [_as_rows(what, self._truth(**self._columns(each)), n, width) for each in rows]
        return np.array(found).reshape(*x.shape[:-1], width)

    def _columns(self, rows: list[list[float]]) -> dict[str, list[Any]]:
        """The inputs as lists of all machines', with whole numbers as ``int``."""
        given = [by_name(self.ranges, (int(x) if float(x).is_integer() else x for x in row)) for row in rows]
        return {name: [each[name] for each in given] for name in self.ranges}


@lru_cache(maxsize=8)
def _traced(program: Program, machines: int, bound: float, lengths: bool) -> Tracing:
    return Tracing(program.name, program.function, program.ranges, machines, bound, lengths)


def forget() -> None:
    """Drops what was traced before: what a function reads outside of it may have changed."""
    _traced.cache_clear()


def _sizes(machines: int, n: int) -> str:
    return f"{counted(machines, 'machine')} for {counted(n, 'input')}"


def _as_rows(what: str, found: Any, n: int, width: int) -> Array:
    """``found`` as a row of ``width`` numbers for each of ``n`` machines."""
    try:
        rows = np.array([np.ravel(row) for row in found], dtype=float)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} is {shown(found)}; it must be a row of numbers for each machine.") from error
    if rows.shape != (n, width):
        raise UsageError(f"{what} has shape {rows.shape}; it must be {(n, width)}: one row for each machine.")
    return rows


@overload
def program(function: Callable[..., Any], /) -> Program: ...
@overload
def program(**ranges: Range | list[Range]) -> Callable[[Callable[..., Any]], Program]: ...


def program(function: Callable[..., Any] | None = None, /, **ranges: Any) -> Any:
    """A program from a function of one machine; ``ranges`` says what each input may be, by default a real number.

    See docs/compiler.md for what the function can use.
    """
    return Program(function, {}) if function is not None else lambda function: Program(function, ranges)


def _inputs(function: Callable[..., Any], ranges: dict[str, Any]) -> Ranges:
    found: Ranges = {}
    for name in inspect.signature(function).parameters:
        if name not in OWN:
            kind = ranges.get(name, Real())
            found[name] = list(kind) if isinstance(kind, tuple) else kind
            parts = kinds({name: found[name]})
            if not parts or not all(isinstance(each, Range) for each in parts):
                raise UsageError(f"{name} is {shown(kind)}; it must be Whole(0, 9), Real(-1, 1), Bit, or a list of such.")
    return found
