"""Theorem 5.1 as a program: MPC to PCOC to the weights of a positional Transformer, one call per lemma.

    built = program.build(machines, bound, route)   what to run: rounds of messages (MPC) or of fixed communication (PCOC)
    pcoc = fixed_communication(built)               Lemma B.1, if it is MPC
    lowered = lower(pcoc, epsilon)                  Lemmas B.2 and B.3: attention and MLPs

Every level can be run, and :meth:`Compilation.check` compares them on random inputs.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import FunctionType
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from posattn.compiler import interpreter, library, mpc, pcoc
from posattn.compiler.compiled_model import CompiledTransformer, attention_parameters, require_room_for
from posattn.compiler.expressions import Array
from posattn.compiler.function_programs import Program, forget
from posattn.compiler.machine_memory import with_length
from posattn.compiler.mpc import MPC
from posattn.compiler.mpc_to_pcoc import CELLS, Layout, fixed_communication, layout
from posattn.compiler.pcoc import PCOC
from posattn.compiler.pcoc_to_weights import Lowered, lower
from posattn.compiler.selection import SelectionNetwork
from posattn.compiler.traces import Trace
from posattn.devices import require_room
from posattn.errors import UsageError, choice, counted, flag, positive, seed_number, whole
from posattn.model import Transformer
from posattn.names import BOUND, ROUTES

EXACT = 1e-9  # how far two exact levels may differ, relative to an output's largest answer: rounding in float64
SMALL = 1e-18  # checks also multiply real inputs by this: numbers so far below the bound keep no digits beside it

_TRIED = 8  # lists of a shorter length that a program for every length is tried on when it is compiled
_DRAWN = 64  # lists that are drawn for it, of which some may break the program's rules
_EVERY = 8  # up to so many machines every shorter length is tried


@dataclass(frozen=True)
class Compilation:
    """A program at every level: as written, in PCOC, and as a network."""

    written: PCOC | MPC
    program: PCOC
    lowered: Lowered
    source: Program | None = None
    bound: float = BOUND

    @property
    def model(self) -> CompiledTransformer:
        return self.lowered.model

    @cached_property
    def routing(self) -> Layout | None:
        """Sizes of the Beneš routing; None for a PCOC program."""
        return layout(self.written) if isinstance(self.written, MPC) else None

    def run(self, x: Array) -> Array:
        """The network's answers (..., N, outputs) to inputs (..., N, c), or (..., N) if c = 1 and lists have one length."""
        answers = self.model(self._words(x)).numpy()
        return answers[..., None] if len(self.program.outputs) == 1 else answers

    def _words(self, x: Array) -> Tensor:
        """Such inputs as the network takes them."""
        one, shape, n = self.model.config.inputs == 1, np.shape(x), self.program.length
        if self.program.lengths:  # a list may be shorter, and the network checks it
            if one and (len(shape) < 2 or shape[-1] != 1):  # (2, 1) would be one list of two, or two lists of one
                raise UsageError(f"x has shape {shape}; with lists of every length it must be (..., length, 1).")
            x = np.asarray(x, dtype=float)
        else:
            flat = one and shape[-1:] == (n,) and shape[-2:] != (n, 1)
            x = self.program.given(np.asarray(x)[..., None] if flat else x)
        return torch.from_numpy(x[..., 0] if one else x)

    def _with_length(self, run: Callable[[Array], Array]) -> Callable[[Array], Array]:
        """``run``, of a level at which the length of a list is an input, as a function of lists alone."""
        config = self.model.config

        def answers(x: Array) -> Array:
            every = with_length(torch.from_numpy(x), config.n, config.bounds, config.integers).numpy()
            return run(every)[..., : x.shape[-2], :]

        return answers if config.lengths else run

    def trace(self, x: Array) -> Trace:
        """Every variable at every machine and round, from the network's own states, for such inputs.

        On the theorem's route only the answers have a place of their own in the states.
        """
        return self.model.trace(self._words(x), self.program.name)

    def sizes(self) -> pd.DataFrame:
        """The sizes of the network beside those of the theorem, and by what factors padding enlarges it."""
        config, machines = self.model.config, self.program.machines
        rows: list[tuple[str, object, str]] = [
            *self._counts(),
            ("padding of machines", machines / config.n, f"{machines} for {counted(config.n, 'input')}"),
        ]
        if (plan := self.routing) is not None:
            multiple = f"2^{plan.network.k - 1} = {1 << (plan.network.k - 1)}"
            why = f"{plan.padded} tuples per message, a multiple of {multiple}; at most N/2 times"
            rows.append(("padding of words", plan.factor, why))
        if self.source is not None:
            said = self.source.counts(config.n)
            rows = [(size, network, said.get(size, theorem)) for size, network, theorem in rows]
        rows += [
            ("width d_X", config.embed, f"s + 1 = {self.program.memory + 1}"),
            ("deepest MLP, linear maps", 1 + max(map(len, config.mlp)), "2, approximating"),
            ("widest MLP", config.width, ""),
            *((what, count, "") for what, count in self.model.sizes()),
        ]
        size, network, theorem = zip(*rows, strict=True)
        return pd.DataFrame({"size": size, "network": pd.Series(network, dtype=object), "theorem": theorem})

    def _counts(self) -> list[tuple[str, object, str]]:
        config, n, rounds = self.model.config, self.written.machines, len(self.written.rounds)
        if (plan := self.routing) is None:
            said = f"N + 1 = {n + 1}", f"R + 1 = {rounds + 1}", f"s = {self.written.memory}"
        else:
            k = plan.network.k
            bound = f"2R⌈log N⌉ = {2 * rounds * k}" if rounds else "1, the initial layer"
            said = (
                f"N + 1 = {2**k + 1}, N = 2^{k} for {n} machines",
                f"at most {bound}; all routed {(2 * k - 1) * rounds + 1}",
                f"2s = {2 * self.written.memory}, times padding of words, times {CELLS} numbers per tuple",
            )
        counts = ("nodes n", config.positions), ("layers", config.layers), ("heads", config.heads)
        return [(*count, theorem) for count, theorem in zip(counts, said, strict=True)]

    def check(self, samples: int = 20, seed: int = 0, epsilon: float = 1e-3) -> pd.DataFrame:
        """Compares every level with the direct answer on random inputs: the largest difference, and how much is allowed.

        It runs both kinds of network, hardmax and softmax: the one that was compiled, and the other, compiled here. Levels that
        are exact also answer small numbers, the same inputs times ``SMALL``. A program for lists of every length is tried on
        ``samples`` of each, and the row of a level is that of the length at which it is worst.
        """
        if self.source is None:
            raise UsageError("this program is not from the library, so it has no direct answer to check against.")
        random = np.random.default_rng(seed_number(seed))
        states = whole("samples", samples) * self.program.machines * self.program.memory * np.float64().itemsize
        machines = counted(self.program.machines, "machine")
        require_room(f"samples is {samples}; the states of {machines} for so many inputs", states)
        kinds = self._both_kinds(epsilon)
        n = self.program.length
        lengths = range(1, n + 1) if self.program.lengths else [n]
        table = pd.concat([self._compared(self.source.sample(random, samples, k, self.bound), kinds) for k in lengths])
        share = table["largest difference"] / table["allowed"]
        worst = share.where(table["agrees"], np.inf).argsort(kind="stable")
        rows = table.iloc[worst[::-1]].drop_duplicates("level").set_index("level")
        return rows.loc[list(dict.fromkeys(table["level"]))].reset_index()

    def _compared(self, x: Array, kinds: list[Lowered]) -> pd.DataFrame:
        """Every level beside the direct answer on some inputs."""
        assert self.source is not None
        truth = self.source.answers(x)
        exact = _rounding(truth)
        levels: list[tuple[str, Callable[[Array], Array], Array]] = [
            ("as written", self._with_length(self._as_written), exact)
        ]
        if isinstance(self.written, MPC):
            levels.append(("MPC", partial(mpc.run, self.written), exact))
        levels.append(("PCOC", self._with_length(partial(pcoc.run, self.program)), exact))
        for lowered in kinds:
            name, rounding = "hardmax network", exact
            if lowered.temperature is not None:  # beyond its own error, softmax is allowed rounding in float64 only
                name, rounding = f"softmax network, T = {lowered.temperature:.2f}", 1e-3 * exact
            levels.append((name, replace(self, lowered=lowered).run, rounding + lowered.error + lowered.misfit))
        small = self._small(x)
        rows = []
        for name, run, allowed in levels:
            rows.append(_row(name, run(x), truth, allowed))
            if small is not None and (allowed == exact).all():
                answers = self.source.answers(small)
                allowed = _rounding(answers, least=0.0)
                rows.append(_row(f"{name}, numbers times {SMALL:g}", run(small), answers, allowed))
        return pd.DataFrame(rows, columns=["level", "largest difference", "allowed", "agrees"])

    def _as_written(self, x: Array) -> Array:
        """The answers of the program's function; spare machines have inputs 0."""
        assert self.source is not None
        n = x.shape[-2]
        traced = self.source.traced(n, self.bound, self.program.lengths)
        rows = np.zeros((*x.shape[:-2], traced.n, x.shape[-1]))
        rows[..., :n, :] = x
        return interpreter.run(traced, rows)[..., :n, :]

    def _small(self, x: Array) -> Array | None:
        """Inputs whose real numbers are far below the bound; None where there are none, or they need not be legal or exact."""
        assert self.source is not None
        reals = [place for place in range(x.shape[-1]) if place not in self.program.integers]
        around_zero = all(lo <= 0 <= hi for lo, hi in (self.program.bounds[place] for place in reals))
        if not reals or self.lowered.misfit or not (self.source.any_scale and around_zero):
            return None
        small = x.copy()
        small[..., reals] *= SMALL
        return small

    def _both_kinds(self, epsilon: float) -> list[Lowered]:
        if isinstance(self.model, SelectionNetwork):  # which only hardmax has
            return [self.lowered]
        hard, lean = self.lowered.temperature is None, self.model.config.d_v == 1
        other = lower(self.program, epsilon if hard else None, lean)
        return [self.lowered, other] if hard else [other, self.lowered]


def _rounding(truth: Array, least: float = 1.0) -> Array:
    """How far each output (..., machines, outputs) of an exact level may be from the truth."""
    largest: Array = np.abs(truth).max(axis=tuple(range(truth.ndim - 1)))
    return EXACT * np.maximum(least, largest)


def _row(level: str, found: Array, truth: Array, allowed: Array) -> tuple[str, float, float, bool]:
    """What is found beside the truth: for the output that comes nearest to what it is allowed, or exceeds it the most."""
    off = np.abs(found - truth).max(axis=tuple(range(truth.ndim - 1)))
    share = np.divide(off, allowed, out=np.where(off > 0, np.inf, 0.0), where=allowed > 0)
    worst = int(np.where(np.isnan(share), np.inf, share).argmax())
    return level, float(off[worst]), float(allowed[worst]), bool(((off <= allowed) & (allowed < np.inf)).all())


def compile_program(
    program: str | Program | PCOC | MPC,
    machines: int | None = None,
    *,
    epsilon: float | None = None,
    temperature: float | None = None,
    bound: float = BOUND,
    route: str = ROUTES[0],
    sparse: bool = False,
    lengths: bool = False,
) -> Compilation:
    """Compiles a program of the library or one of your own, and keeps every level of it.

    Args:
        program: a name of the library, a program that is a function, or a PCOC or MPC program.
        machines: how many machines, for a program that is a function: the length of the list.
        epsilon: use softmax, at the temperature where no answer moves by more than this; hardmax by default.
        temperature: use softmax at this temperature.
        bound: the largest absolute value of real inputs that state no range, for a program that is a function.
        route: ``lean``, a small layer for every round, or ``theorem``, the construction of the proof: messages that the data
            directs are routed over a Beneš network (Lemma B.1), and W_V = I in every head (Lemma B.2).
        sparse: a SelectionNetwork, which has indices in place of attention matrices and sparse MLPs; hardmax only.
        lengths: one network for lists of every length up to ``machines``, of a program that is a function; lean only.
    """
    choice("route", route, ROUTES)
    forget()
    source, written = _written(program, machines, bound, route, flag("sparse", sparse), flag("lengths", lengths))
    fixed = fixed_communication(written)  # Lemma B.1
    lowered = lower(fixed, epsilon, route == "lean", temperature, sparse)  # Lemmas B.2 and B.3
    return Compilation(written, fixed, lowered, source, bound)


def _written(
    program: str | Program | PCOC | MPC, machines: int | None, bound: float, route: str, sparse: bool, lengths: bool
) -> tuple[Program | None, PCOC | MPC]:
    if isinstance(program, (PCOC, MPC)):
        if machines not in (None, program.length):
            raise UsageError(f"machines is {machines}; this program was written for {program.length}.")
        if lengths:
            raise UsageError(
                f"lengths is True; {program.name} is written round by round for one length; a function "
                "(@posattn.program) can be for all."
            )
        return None, program
    source = library.program(program) if isinstance(program, str) else program
    if isinstance(source, FunctionType):
        raise UsageError(f"program is the function {source.__name__}; write @posattn.program above it.")
    if not isinstance(source, Program):
        raise UsageError(f"program is {program!r}; it must be a name, a program that is a function, PCOC or MPC.")
    count = whole("machines", machines)
    least = attention_parameters(source.machines(count) + 1, 1, 2, 1, sparse)
    require_room_for(f"{source.name} on {counted(count, 'machine')}", least, sparse)
    built = source.build(count, positive("bound", bound), route, lengths)
    if lengths:
        _try_shorter(source, built, bound)
    return source, built


def _try_shorter(source: Program, built: PCOC | MPC, bound: float) -> None:
    """Raises if a program answers some shorter lists otherwise than the program for exactly so many machines."""
    n = built.machines
    traced = source.traced(n, bound, lengths=True)
    lengths = range(1, n) if n <= _EVERY else sorted({1, 2, n // 2, n - 1})
    tried = 0
    for k in lengths:
        x, truth = _legal(source, k, bound)
        if not len(x):
            continue
        tried += 1
        otherwise = f"lengths is True; {source.name} answers lists of {k} otherwise than for exactly {counted(k, 'machine')}"
        meant = "where it computes with n, the parameter length may be meant"
        instead = meant if source.own else "this program of the library is for one length"
        try:
            found = interpreter.run(
                traced, with_length(torch.from_numpy(x), n, built.bounds, built.integers).numpy()
            )
        except UsageError as error:
            raise UsageError(f"{otherwise} ({str(error).removesuffix('.')}); {instead}.") from error
        if not _row("", found[..., :k, :], truth, _rounding(truth))[-1]:
            raise UsageError(f"{otherwise}; {instead}.")
    if lengths and not tried:
        raise UsageError(
            f"lengths is True; {source.name} cannot be tried on shorter lists, because all {_DRAWN} that were drawn of each "
            f"length break its rules; say how inputs are drawn (@{source.function.__name__}.samples)."
        )


def _legal(source: Program, k: int, bound: float) -> tuple[Array, Array]:
    """Some lists of ``k`` that keep the program's rules, if any are found, and the answers to them."""
    kept: list[tuple[Array, Array]] = []
    for x in source.sample(np.random.default_rng(k), _DRAWN, k, bound):
        with suppress(UsageError):  # inputs that are drawn without knowing the program may break its rules
            kept.append((x, source.answers(x)))
        if len(kept) == _TRIED:
            break
    return np.array([x for x, _ in kept]), np.array([truth for _, truth in kept])


def compile(program: str | Program | PCOC | MPC, machines: int | None = None, **options: Any) -> Transformer:
    """A Transformer that runs the program: ``posattn.compile("bitonic-sort", machines=8)``.

    :func:`compile_program` explains the options, and also gives sizes and checks.
    """
    return compile_program(program, machines, **options).model
