"""Attention over a few offsets, for lists of every length: positional attention without a matrix of positions.

In loop l a head attends from position i to i + r s, for r in a short list of candidates and the stride s of the loop, and to
a sink, whose value is blank (zero):

    A_h(i) = softmax(S T_h[c(i)]),        attended_h(i) = Σ_r A_h(i)_r V_h(i + r s),

with T_h a learned table of logits, a row for each class of positions, c(i) the class of position i in this loop, and S the
sharpness. What lies outside the list is blank as well. A depends on the position and the loop alone, so this is positional
attention in the sense of Eq. 3, and the weights exist for every n. A loop costs O(n) time and memory.

A family says which strides the loops have, which candidates, and which classes. ``dilated`` is what a scan (Hillis and Steele)
needs: ⌈log2 n⌉ loops of strides 1, 2, 4, ... backwards. ``butterfly`` is what a bitonic sorter needs: stages k = 1..⌈log2 n⌉
with steps j = k-1..0, strides 2^j both ways, and classes by two binary digits of i. ``selector`` sorts in the same loops, and
goes on: the two middle positions take their mean, and what is in the middle passes outwards, to all positions.

Letters: n positions, H heads, C candidates, K classes, d width of X, T logits (H, K, C+1), S sharpness, s stride.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

MIDDLE, OUTWARDS = 0, -1  # the selector's loops after the last stage


class Loop(NamedTuple):
    """One pass through the tied layer: its stride and, in families that tell directions apart, the stage's digit k."""

    stride: int
    stage: int | None = None  # k, or MIDDLE or OUTWARDS


@dataclass(frozen=True)
class Family:
    """``candidates`` are the r of i + r s; ``loops(n)`` are the passes for lists of n; ``classes`` are K.

    ``words``, ``heads`` and ``hidden``, the hidden layers of Φ, are what a network has by default. The state is narrow on
    purpose: see docs/any-length.md. ``carries``: a new network hands the list on, and adds a little to it. ``extends`` names
    a family whose loops and classes are the first of this one, so that its tables are the first rows of tables here.
    ``solves`` are the tasks that some network of the family solves exactly (``posattn/compiler/looped_programs.py``).
    """

    candidates: tuple[int, ...]
    loops: Callable[[int], list[Loop]]
    words: int
    heads: int
    hidden: int = 2
    classes: int = 1
    carries: bool = False
    extends: str | None = None
    solves: tuple[str, ...] = ()

    def class_of(self, n: int, loop: Loop, device: torch.device | None = None) -> Int64[Tensor, " n"]:
        """c(i): with stages, two digits of i; without, all positions are of one class; after the stages by the side of i."""
        i = torch.arange(n, device=device)
        if loop.stage is None:
            return torch.zeros_like(i)
        if loop.stage in (MIDDLE, OUTWARDS):
            return _class_by_side(i, n, loop)
        # The lower or upper of a pair, and the direction that its block is sorted in: the opposite of its neighbour's, and
        # that of the block with the last number is upwards. So lists of every length sort, as if followed by infinities.
        upper = i // loop.stride % 2
        down = (i >> loop.stage) % 2 != ((n - 1) >> loop.stage) % 2
        return 2 * upper + down

    def places(self, n: int, loop: Loop, device: torch.device | None = None) -> Int64[Tensor, "n C"]:
        """i + r s."""
        return torch.arange(n, device=device)[:, None] + loop.stride * torch.tensor(self.candidates, device=device)

    def inside(self, n: int, loop: Loop, device: torch.device | None = None) -> Bool[Tensor, "n C"]:
        """Whether i + r s is in the list."""
        places = self.places(n, loop, device)
        return (places >= 0) & (places < n)


def depth(n: int) -> int:
    """⌈log2 n⌉, exactly."""
    return (n - 1).bit_length()


def _scan_loops(n: int) -> list[Loop]:
    return [Loop(2**step) for step in range(depth(n))]


def _sorter_loops(n: int) -> list[Loop]:
    return [Loop(2**step, stage) for stage in range(1, depth(n) + 1) for step in range(stage - 1, -1, -1)]


def _selector_loops(n: int) -> list[Loop]:
    """Strides 1, 2, 4, ... from the middle reach both ends, (n - 1) // 2 away."""
    means = [Loop(1, MIDDLE)] if n % 2 == 0 else []
    return _sorter_loops(n) + means + [Loop(2**step, OUTWARDS) for step in range(((n - 1) // 2).bit_length())]


def _class_by_side(i: Int64[Tensor, " n"], n: int, loop: Loop) -> Int64[Tensor, " n"]:
    """The middle two (4 and 5), those with a place s nearer to the middle (1 and 3, as if sorted downwards), and others (6).

    Left of the middle of a sorted list the larger of two numbers is the one nearer to the median, right of it the smaller.
    """
    left, right = (n - 1) // 2, n // 2
    others = torch.full_like(i, 6)
    if loop.stage == MIDDLE:
        return others.masked_fill(i == left, 4).masked_fill(i == right, 5)
    return others.masked_fill(left - i >= loop.stride, 1).masked_fill(i - right >= loop.stride, 3)


FAMILIES: dict[str, Family] = {
    "dilated": Family((0, -1, -2, -3), _scan_loops, words=4, heads=2, solves=("sum", "min", "maxsub")),
    "butterfly": Family(
        (0, -1, 1), _sorter_loops, words=1, heads=2, hidden=1, classes=4, carries=True, solves=("sort",)
    ),
    "selector": Family(
        (0, -1, 1),
        _selector_loops,
        words=1,
        heads=2,
        hidden=1,
        classes=7,
        carries=True,
        extends="butterfly",
        solves=("median-total",),
    ),
}


def rows(x: Float[Tensor, "*batch n d"], start: int, stop: int) -> Float[Tensor, "*batch k d"]:
    """x_start..x_{stop - 1}, blank where that is outside the list."""
    n = x.shape[-2]
    first, last = min(max(start, 0), n), max(min(stop, n), 0)
    if first >= last:
        return x.new_zeros(*x.shape[:-2], stop - start, x.shape[-1])
    return nn.functional.pad(x[..., first:last, :], (0, 0, first - start, stop - last))


def split_weights(
    own: Float[Tensor, "*members H n C1"], inside: Bool[Tensor, "n C"]
) -> tuple[Float[Tensor, "*members H n C"], Float[Tensor, "*members n"]]:
    """A for the candidates within the list, and m: the share of the attention that does not fall out of the list,

    m(i) = Π_h (1 - what head h gives to candidates outside the list). The sink is not outside.
    """
    own = own[..., :-1]
    kept = 1 - (own * ~inside).sum(dim=-1)
    return own * inside, reduce(torch.mul, kept.unbind(-2))


class OffsetAttention(nn.Module):
    r"""The attention of Eq. 1, :math:`\left(\bigoplus_h A^{(h)} X W_V^{(h)}\right) W_O`, over the candidates of a family."""

    def __init__(self, d_model: int, heads: int, family: str, sharpness: float, bias: bool, d_v: int | None = None):
        super().__init__()
        self.heads, self.family, self.sharpness = heads, FAMILIES[family], sharpness
        d_values = d_model if d_v is None else heads * d_v
        self.logits = nn.Parameter(torch.empty(heads, self.family.classes, len(self.family.candidates) + 1))
        self.W_V = nn.Linear(d_model, d_values, bias=bias)
        self.W_O = nn.Linear(d_values, d_values, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Logits near 0, and different from head to head; values and outputs as in ``Attention``."""
        nn.init.normal_(self.logits, std=1 / math.sqrt(self.logits.shape[-1]))
        for linear in (self.W_V, self.W_O):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def table(self) -> Float[Tensor, "H K C1"]:
        """softmax(S T): what each class of positions gives to the candidates and, last, to the sink."""
        return (self.sharpness * self.logits).softmax(dim=-1)

    def weights(self, n: int, loop: Loop) -> tuple[Float[Tensor, "H n C"], Float[Tensor, " n"]]:
        """A for the candidates within a list of n, and m; see ``split_weights``."""
        device = self.logits.device
        return split_weights(
            self.table()[:, self.family.class_of(n, loop, device)], self.family.inside(n, loop, device)
        )

    def matrix(self, n: int, loop: Loop) -> Float[Tensor, "H N N"]:
        """A as a matrix for pictures of short lists, N = n + 1: the sink, which attends to itself, is the last position."""
        a, _ = self.weights(n, loop)
        dense = a.new_zeros(self.heads, n + 1, n + 1)
        places = self.family.places(n, loop, a.device).clamp(0, n).expand(a.shape)  # outside, a is 0
        dense[:, :n].scatter_add_(2, places, a)
        dense[:, :, -1] += 1 - dense.sum(dim=-1)
        return dense

    def mix(
        self, a: Float[Tensor, "H k C"], values: Float[Tensor, "*batch n d_V"], loop: Loop, start: int = 0
    ) -> Float[Tensor, "*batch k d_V"]:
        """(⊕_h A_h V_h) W_O at the positions from ``start`` on that ``a`` is of, by shifts of V = X W_V."""
        stop = start + a.shape[1]
        each = values.shape[-1] // self.heads
        attended = values.new_zeros(())
        for weight, r in zip(a.permute(2, 1, 0), self.family.candidates, strict=True):
            ahead = r * loop.stride
            if start + ahead < values.shape[-2] and stop + ahead > 0:
                # A head's weight, for each of its columns.
                attended = attended + weight.repeat_interleave(each, dim=-1) * rows(values, start + ahead, stop + ahead)
        return self.W_O(attended)


def edges(attention: OffsetAttention, n: int, least: float = 0.3) -> list[list[tuple[int, int, float]]]:
    """Who looks where in lists of n: for every loop (j, i, weight) where position i gives j at least ``least`` in some head.

    O(n) a loop; the sink is left out.
    """
    found = []
    for loop in attention.family.loops(n):
        strongest = attention.weights(n, loop)[0].detach().amax(dim=0)
        places = attention.family.places(n, loop, strongest.device)
        strong = (strongest >= least).nonzero().tolist()
        found.append([(int(places[i, c]), i, float(strongest[i, c])) for i, c in strong])
    return found
