"""Where a position of a looped network may look in each loop: the families of offsets.

In loop l a head attends from position i to i + r s, for r in a short list of candidates and the stride s of the loop. A family
says which strides the loops have, which candidates, and which classes of positions have logits of their own:

- ``dilated``: what a scan (Hillis and Steele) needs, ⌈log2 n⌉ loops of strides 1, 2, 4, ... backwards.
- ``butterfly``: what a bitonic sorter needs, stages k = 1..⌈log2 n⌉ with steps j = k-1..0, strides 2^j both ways, and classes
  by two binary digits of i.
- ``selector``: sorts in the same loops. Then the two middle positions take their mean, which passes outwards to all
  positions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

MIDDLE, OUTWARDS = 0, -1  # the selector's loops after the last stage


class Loop(NamedTuple):
    """One pass through the tied layer: its stride and, in families that tell directions apart, the stage's digit k."""

    stride: int
    stage: int | None = None  # k, or MIDDLE or OUTWARDS


@dataclass(frozen=True)
class Family:
    """Where positions look, what a network has by default (docs/any-length.md says why so few words), and its tasks."""

    candidates: tuple[int, ...]  # the r of i + r s
    loops: Callable[[int], list[Loop]]  # the passes for lists of n
    words: int
    heads: int
    hidden: int = 2  # hidden layers of Φ
    classes: int = 1  # K
    carries: bool = False  # a new network passes the list on and adds a little to it
    extends: str | None = None  # a family whose loops, classes and rows of tables are the first of this one
    solves: tuple[str, ...] = ()  # what some network of the family solves exactly (posattn/compiler/looped_programs.py)
    recipe: str = "looped"  # by which it learns these

    def class_of(self, n: int, loop: Loop, device: torch.device | None = None) -> Int64[Tensor, " n"]:
        """c(i): in stages by two digits of i, after the stages by the side of i; without stages there is one class."""
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
        """i + r s, without a tensor from the host: a CUDA graph can hold no copy of one."""
        i = torch.arange(n, device=device)
        return torch.stack([i + loop.stride * r for r in self.candidates], dim=-1)

    def inside(self, n: int, loop: Loop, device: torch.device | None = None) -> Bool[Tensor, "n C"]:
        """Whether i + r s is in the list."""
        places = self.places(n, loop, device)
        return (places >= 0) & (places < n)


def depth(n: int) -> int:
    """⌈log2 n⌉, exactly."""
    return (n - 1).bit_length()


def _scan_loops(n: int) -> list[Loop]:
    """Strides below n. Counted by comparing, which torch.compile can do for many n at once."""
    strides = [1]
    while strides[-1] < n:
        strides.append(2 * strides[-1])
    return [Loop(stride) for stride in strides[:-1]]


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
        (0, -1, 1), _sorter_loops, words=1, heads=2, hidden=1, classes=4, carries=True, solves=("sort",), recipe="sorter",
    ),
    "selector": Family(
        (0, -1, 1), _selector_loops, words=1, heads=2, hidden=1, classes=7, carries=True, extends="butterfly",
        solves=("median-total",), recipe="selector",
    ),
}  # fmt: skip


def family_of(task: str) -> str | None:
    """The family whose looped networks solve a task, if there is one."""
    return next((family for family, row in FAMILIES.items() if task in row.solves), None)
