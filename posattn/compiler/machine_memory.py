"""The input of a program: X of Lemma B.2, whose row i is the memory of machine i, and the codes of broken rules in it.

Letters: n machines with an input, c numbers per machine, N positions including spare machines and the sink.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from posattn.compiler.analysis import LARGEST, Known
from posattn.compiler.expressions import Array
from posattn.errors import UsageError, counted, flag, instance, several, whole


class ParallelProgram:
    """What MPC and PCOC programs share. The last ``spare`` machines have no input; every other one has c = len(``inputs``)."""

    name: str
    machines: int
    memory: int
    spare: int
    inputs: tuple[Known, ...]
    lengths: bool = False

    @property
    def length(self) -> int:
        """How many machines have an input: the length of the list."""
        return self.machines - self.spare

    @property
    def bounds(self) -> tuple[tuple[float, float], ...]:
        """The smallest and the largest value of each input of a list."""
        return tuple((float(known.lo), float(known.hi)) for known in self.inputs[: len(self.inputs) - self.lengths])

    @property
    def integers(self) -> tuple[int, ...]:
        """Which of these must be whole numbers."""
        return tuple(place for place in range(len(self.bounds)) if self.inputs[place].integer)

    def _check(self, room: int) -> None:
        """Raises if a size is none, if ``room`` words or the memory do not hold the inputs, or if one has no range."""
        for field in ("machines", "memory"):
            object.__setattr__(self, field, whole(field, getattr(self, field)))
        object.__setattr__(self, "inputs", tuple(several("inputs", self.inputs)))
        instance("name", self.name, str, "a text")
        if not 1 <= len(self.inputs) <= (most := min(room, self.memory)):
            held = f"{self.name} has {counted(len(self.inputs), 'input')}"
            raise UsageError(f"{held}; it must have 1 to {most}, which a message and the memory hold.")
        for place, known in enumerate(self.inputs):
            instance(f"input {place}", known, Known, "a Known, such as Known(-1, 1)")
            flag(f"integer of input {place}", known.integer)
            if not -math.inf < known.lo <= known.hi < math.inf or known.size > LARGEST:
                raise UsageError(
                    f"{self.name} has input {place} in [{known.lo:g}, {known.hi:g}]; the bounds must be numbers of at most "
                    f"{LARGEST:.3g}, the smaller one first."
                )
        if whole("spare", self.spare, least=0) >= self.machines:
            raise UsageError(f"{self.name} has {self.spare} spare machines; it has {self.machines} in all.")

    def given(self, x: Array) -> Array:
        """``x`` as an array (..., n, c) of numbers; raises if the program does not take it."""
        try:
            if np.iscomplexobj(x):
                raise TypeError
            x = np.asarray(x, dtype=float)
        except (TypeError, ValueError) as error:
            raise UsageError(f"the input of {self.name} must be an array of real numbers.") from error
        n, c = self.length, len(self.bounds)
        if x.shape[-2:] != (n, len(self.inputs)):
            raise UsageError(f"the input has shape {x.shape}; {self.name} takes (..., {n}, {len(self.inputs)}).")
        within_bounds(torch.from_numpy(x[..., 0] if c == 1 else x[..., :c]), n, self.bounds, self.integers)
        return x


def within_bounds(
    x: Float[Tensor, "*batch"],
    n: int,
    bounds: tuple[tuple[float, float], ...],
    integers: tuple[int, ...] = (),
    lengths: bool = False,
) -> Float[Tensor, "*any k c"]:
    """``x`` as c numbers per machine, if it is a list of n, each input lies within its bounds, and ``integers`` are whole.

    A program's weights are right for such inputs only, so others are refused. With ``lengths`` a list may be shorter.
    """
    c = len(bounds)
    if x.ndim < 1 + (c > 1) or (c > 1 and x.shape[-1] != c):
        raise UsageError(f"the input has shape {tuple(x.shape)}; it must be (..., {n}{f', {c}' * (c > 1)}).")
    words = x if c > 1 else x[..., None]
    if (length := words.shape[-2]) != n and not (lengths and 1 <= length <= n):
        raise UsageError(f"the list has {counted(length, 'number')}; this compiled program takes {'1 to ' * lengths}{n}.")
    if torch.compiler.is_exporting():  # an exported program cannot raise
        return words
    for place, (low, high) in enumerate(bounds):
        numbers = words[..., place].double() if words.dtype == torch.bool else words[..., place]
        if numbers.numel() and not bool(((numbers >= low) & (numbers <= high)).all()):
            found = f"{numbers.min().item():g} to {numbers.max().item():g}"
            raise UsageError(
                f"input {place} has numbers from {found}; the program was compiled for {low:g} to {high:g}."
            )
        if place in integers and bool((broken := numbers != numbers.round()).any()):
            found = f"{numbers[broken][0].item():g}"
            raise UsageError(f"input {place} has the number {found}; the program was compiled for whole numbers.")
    return words


def with_length(
    words: Float[Tensor, "*batch k c"], n: int, bounds: tuple[tuple[float, float], ...], integers: tuple[int, ...] = ()
) -> Float[Tensor, "*batch n c+1"]:
    """A list of up to n as the inputs of all n machines, with its length as the last one.

    Machines beyond the list are given the number nearest to 0 that they may be given, so that what they compute is legal.
    """
    length = words.shape[-2]
    nearest = words.new_tensor([min(max(0.0, low), high) for low, high in bounds])
    nearest[list(integers)] = nearest[list(integers)].ceil()
    blank = nearest.expand(*words.shape[:-2], n - length, len(bounds))
    return pad(torch.cat([words, blank], dim=-2), (0, 1), value=float(length))


def memory_cells(words: Float[Tensor, "*batch k c"], positions: Int64[Tensor, " N"]) -> Float[Tensor, "*batch N c+1"]:
    """Each machine's input and, in the last column, its number (Lemma B.2). The input of spare machines and the sink is 0."""
    words = pad(words, (0, 0, 0, len(positions) - words.shape[-2]))
    return torch.cat([words, positions.to(words.dtype)[:, None].expand(*words.shape[:-1], 1)], dim=-1)


# The breaches: what a machine can do that its model of computation forbids. A code replaces the number of such a machine:
# -(1 + since + L (kind + K (count - 1))), with L layers, K kinds of breach, and ``since`` the layers passed since then.
BREACHES = (
    "overflows by {} words",
    "has to pass on {} tuples more than it has room for",
    "receives {} words more than its memory holds",
    "sends {} words more than its memory holds",
    "sends {} messages to machines that are not there",
)
OVERFLOWS, PASSES_ON, RECEIVES, SENDS, MISADDRESSES = range(len(BREACHES))
MOST_COUNTED = 1 << 20  # a larger count is reported as this one


def breach_code(kind: int, count: Any, layers: int) -> Any:
    """The code of a breach in the layer where it happens; ``count`` is a number or an expression."""
    return -1.0 - layers * kind - (count - 1) * (layers * len(BREACHES))


def described_breach(kind: int, count: int, named: bool = False) -> str:
    """A breach in words; in a program whose rounds are ``named``, only a number that ``within`` bounds overflows."""
    if named and kind == OVERFLOWS:
        return f"has a number that is {count} beyond the range stated for it"
    text = BREACHES[kind].format(count)
    return re.sub(r"(word|tuple|message)s", r"\1", text) if count == 1 else text


def refuse_excess(count: Array, kind: int, where: str, named: bool) -> None:
    """Raises if a count (..., N) of broken rules is above 0 at any machine."""
    if (count > 0).any():
        place = tuple(np.argwhere(count > 0)[0])
        raise UsageError(f"{where}: machine {place[-1]} {described_breach(kind, math.ceil(count[place]), named)}.")


def refuse_breaches(
    z: Float[Tensor, "*batch N d"], layers: int, rounds: Sequence[str] = ()
) -> Float[Tensor, "*batch N d"]:
    """``z`` if every machine has its number in the last column; otherwise raises and describes the earliest breach.

    ``rounds`` are the names of the program's rounds, if it has any. An exported program cannot raise; its answers become NaN.
    """
    lost = z[..., -1] < -0.5
    if torch.compiler.is_exporting():
        return z.masked_fill(lost.any(dim=-1)[..., None, None], torch.nan)
    if bool(lost.any()):
        codes = (-1 - z[..., -1]).round()
        since = (codes % layers).where(lost, -1.0)
        place = (since == since.max()).nonzero()[0].tolist()
        before, kind = divmod(int(codes[tuple(place)]) // layers, len(BREACHES))
        r = layers - 1 - int(since.max())
        told = described_breach(kind, before + 1, bool(rounds))
        raise UsageError(f"{rounds[r] if rounds else f'round {r}'}: machine {place[-1]} {told}.")
    return z
