"""Sums of parts: programs of the layers' kernels leave their shares of every gradient, and one kernel adds all of them up.

The parts of all sums lie in one piece of memory, and so do the sums. They are added in a fixed order.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Int64
from torch import Tensor

from posattn.folding import Tensors

_BLOCK, _AT_ONCE = 512, 8  # sums of a program, and parts that it reads at once
_ALIGNED = 64  # entries, where a tensor begins


class Shared(NamedTuple):
    """The shape of a sum's parts, and the axis along which they are added."""

    shape: tuple[int, ...]
    axis: int

    @property
    def sides(self) -> tuple[int, int, int]:
        """Entries before the axis, parts, and entries behind it."""
        before, behind = self.shape[: self.axis], self.shape[self.axis + 1 :]
        return math.prod(before), self.shape[self.axis], math.prod(behind)


class Parts:
    """Room for the parts of several sums."""

    def __init__(self, like: Tensor, shapes: Mapping[str, Shared]):
        self.shapes = dict(shapes)
        self.memory = like.new_empty(sum(_aligned(math.prod(one.shape)) for one in shapes.values()))
        self.tensors = _views(self.memory, {name: one.shape for name, one in shapes.items()})

    def summed(self) -> Tensors:
        shapes = {name: one.shape[: one.axis] + one.shape[one.axis + 1 :] for name, one in self.shapes.items()}
        sums = self.memory.new_empty(sum(_aligned(math.prod(shape)) for shape in shapes.values()))
        plan = _plan(tuple(self.shapes.values()), self.memory.device)
        _add[(len(plan),)](self.memory, plan, sums, BLOCK=_BLOCK, AT_ONCE=_AT_ONCE)
        return _views(sums, shapes)


def _aligned(count: int) -> int:
    return math.ceil(count / _ALIGNED) * _ALIGNED


def _views(memory: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Tensors that follow one another in memory."""
    views, start = {}, 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        views[name] = memory[start : start + count].view(shape)
        start += _aligned(count)
    return views


@cache
def _plan(shapes: tuple[Shared, ...], device: torch.device) -> Int64[Tensor, "programs 6"]:
    """What every program adds up, computed in the first step: a CUDA graph then finds it cached."""
    plan, source, target = [], 0, 0
    for one in shapes:
        outer, parts, size = one.sides
        plan += [(source, target, outer * size, parts, size, first) for first in range(0, outer * size, _BLOCK)]
        source, target = source + _aligned(outer * parts * size), target + _aligned(outer * size)
    return torch.tensor(plan, device=device)


@triton.jit
def _add(parts_pointer, plan_pointer, sums_pointer, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr):
    plan_pointer += tl.program_id(0) * 6
    source, target, count = tl.load(plan_pointer), tl.load(plan_pointer + 1), tl.load(plan_pointer + 2).to(tl.int32)
    parts, size = tl.load(plan_pointer + 3).to(tl.int32), tl.load(plan_pointer + 4).to(tl.int32)
    at = tl.load(plan_pointer + 5).to(tl.int32) + tl.arange(0, BLOCK)
    inside, place = at < count, source + (at // size).to(tl.int64) * parts * size + at % size
    total, first = tl.zeros((BLOCK,), tl.float32), 0
    while first < parts:
        for part in tl.static_range(AT_ONCE):
            there = at < tl.where(parts > first + part, count, 0)
            total += tl.load(parts_pointer + place + (first + part) * size, mask=there, other=0.0)
        first += AT_ONCE
    tl.store(sums_pointer + target + at, total, mask=inside)
