"""A certificate for a bias-free positional model: on every list the error is at most E times the largest magnitude in it.

Attention is constant, so the network is piecewise linear; it has no biases, so f(c x) = c f(x) for c > 0. All tasks here are
piecewise linear and homogeneous too. So is the error e = f - y, and

    |e(x)| <= E · max_i |x_i|  for every x,   E = max |e| over the boundary of [-1, 1]^n:

one number for every scale. An upper bound on E comes from branch and bound on the faces of the cube, cut into simplices on
which y is linear (:mod:`posattn.theory.cones` bounds f there). A lower bound comes from a search for the worst list.

The computation is in float64 without directed rounding, so E is right up to a relative error far below one millionth.
"""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posattn.errors import UsageError, choice, positive
from posattn.theory.cones import Cones, Relaxed, bisect, largest_output, tighten, whole_network

Matrices = list[Float[Tensor, "_ _"]]
Target = Callable[[Float[Tensor, "*batch n"]], Float[Tensor, "*batch n"]]

_LONGEST = 6  # the search begins with 2n · (n-1)! cells: 1,440 at n = 6, and 80,640 at n = 8
_MOST_CELLS = 20_000
_ROOTS = 3000  # the fewest cones to begin with: the bounds on larger cones are too loose to be of use
_TOGETHER = 256  # cones bounded at once
_ROOTS_TOGETHER = 512  # divided by n²: first cones bounded at once, fewer because they hold the whole network
_TRIED = 16  # cones of a batch, those with the largest bounds, whose centres are tried as worst lists
_CLIMBERS, _STEPS = 64, 120  # lists per output and sign that climb to a worse error, and in how many steps
_STEP = 1e-6  # of a finite difference
_ZERO = 1e-12


@dataclass(frozen=True)
class Certificate:
    """|f(x) - y(x)| <= ``bound`` · max|x_i| for every list x of n numbers, in every output.

    ``adversarial`` is the largest error found, at ``worst``, a list with max|x_i| = 1. ``complete`` says whether the search
    reached the requested ratio in time. ``seconds`` is CPU time.
    """

    task: str
    n: int
    bound: float
    adversarial: float
    worst: tuple[float, ...]
    cones: int
    seconds: float
    complete: bool

    @property
    def ratio(self) -> float:
        return self.bound / self.adversarial if self.adversarial else math.inf

    def at(self, limit: int | float) -> float:
        """A bound on the error for lists with values in [-limit, limit]."""
        return self.bound * positive("limit", limit)


# The hyperplanes g·x = 0 on which a target changes from one linear map to another: where two numbers, or two segment sums, tie.
def _orders(n: int) -> Float[Tensor, "forms n"]:
    unit = torch.eye(n, dtype=torch.float64)
    return torch.stack([unit[i] - unit[j] for i, j in itertools.combinations(range(n), 2)] or [torch.zeros(n).double()])


def _segments(n: int) -> Float[Tensor, "forms n"]:
    place = torch.arange(n)
    sums = [((i <= place) & (place < j)).double() for i, j in itertools.combinations(range(n + 1), 2)]
    forms = torch.stack([a - b for a, b in itertools.combinations(sums, 2)] + sums)
    return torch.unique(torch.where(forms.sum(1, keepdim=True) < 0, -forms, forms), dim=0)


BREAKS: dict[str, Callable[[int], Tensor]] = {
    "sum": lambda n: torch.zeros(1, n, dtype=torch.float64),
    "min": _orders,
    "median": _orders,
    "sort": _orders,
    "maxsub": _segments,
}


def certify(
    matrices: Matrices, target: Target, name: str, ratio: int | float = 1.9, seconds: int | float = 600.0
) -> Certificate:
    """Certifies the network x ↦ K_{L+1} relu(K_L ... relu(K_1 x)) against ``target``, the task called ``name``.

    Branches until the bound is at most ``ratio`` times the worst error found, or until ``seconds`` of CPU time have passed,
    give or take one step of about a second. A bound that ran out of time still holds; it is only looser.
    """
    if positive("ratio", ratio) <= 1:
        raise UsageError(f"ratio is {ratio!r}; it must be above 1.")
    positive("seconds", seconds)
    n = matrices[0].shape[1]
    if n > _LONGEST:
        raise UsageError(f"n is {n}; the certificate is for lists of at most {_LONGEST} numbers.")
    start = time.process_time()
    cells = linear_cells(target, BREAKS[choice("task", name.removesuffix("-total"), BREAKS)](n))
    worst = worst_list(matrices, target, seconds=seconds / 4)
    search = _Search(matrices, target, worst, ratio, start + seconds)
    search.finish(cells)
    bound, complete = max(search.bound, search.error), search.bound <= ratio * search.error
    at = tuple((search.worst / search.worst.abs().max()).tolist())
    return Certificate(name, n, bound, search.error, at, search.cones, time.process_time() - start, complete)


class _Search:
    """Branch and bound: ``bound`` is the largest bound of a finished cone, ``error`` the largest error seen.

    Every cone always has a valid bound: its own, that of the cone it is half of, or that of the whole cube. At the CPU time
    ``end`` all open cones are finished with the bounds they have.
    """

    def __init__(self, matrices: Matrices, target: Target, worst: Float[Tensor, " n"], ratio: int | float, end: float):
        self.matrices, self.target, self.worst = matrices, target, worst
        self.ratio, self.end = ratio, end
        self.bound, self.error, self.cones = 0.0, 0.0, 0
        self._try(worst[None])

    def finish(self, cells: Float[Tensor, "cells n n"]) -> None:
        """Bounds every cell once, so that each has a bound if time runs out, and then branches."""
        n, whole = cells.shape[1], largest_on_cube(self.matrices, self.target(cells))
        while n > 1 and len(cells) < _ROOTS:
            cells = bisect(Cones(cells, [cells.mT], {}), []).V  # without ReLUs: in the middle of the longest edges
        batches = cells.split(max(1, _ROOTS_TOGETHER // n**2))
        known = [torch.full((len(own),), whole, dtype=cells.dtype) for own in batches]
        for index, roots in enumerate(batches):
            if self._late():
                break
            known[index] = self._bounded(self._network(roots), known[index])[2]
        for roots, bounds in zip(batches, known, strict=True):
            open_ = self._open(bounds)
            if bool(open_.any()):
                self._branch(roots[open_], bounds[open_])

    def _branch(self, roots: Float[Tensor, "B n n"], known: Float[Tensor, " B"]) -> None:
        """Finishes the ``roots`` and all cones that they are cut into."""
        stack = [(self._network(roots), known)]
        while stack:
            cones, known = stack.pop()
            if self._late():
                self._settle(known)
                continue
            cones, layers, found = self._bounded(cones, known)
            if cones.V.shape[1] == 1:  # a ray, which has no halves
                self._settle(found)
            elif bool((open_ := self._open(found)).any()):
                kept = [own[open_] for own in layers]
                units = sum((own.slope > 0).sum(dim=1) for own in kept)  # sorted, so that batches need little padding
                order = torch.as_tensor(units).repeat(2).argsort()
                halves, bounds = bisect(cones[open_], kept)[order], found[open_].repeat(2)[order]
                parts = [slice(at, at + _TOGETHER) for at in range(0, len(halves), _TOGETHER)]
                stack += [(halves[part], bounds[part]) for part in parts]

    def _network(self, roots: Float[Tensor, "B n n"]) -> Cones:
        return whole_network(self.matrices, roots, self.target(roots))

    def _bounded(self, cones: Cones, known: Float[Tensor, " B"]) -> tuple[Cones, list[Relaxed], Float[Tensor, " B"]]:
        """What is left of the network on the cones, its relaxation, and a bound per cone, at most ``known``."""
        cones, layers = tighten(cones)
        found = torch.minimum(largest_output(cones, layers), known)
        self.cones += len(cones)
        self._try(cones.V.mean(dim=1)[found.topk(min(_TRIED, len(found))).indices])
        return cones, layers, found

    def _open(self, bounds: Float[Tensor, " B"]) -> Bool[Tensor, " B"]:
        """Which cones must be halved; the others are finished."""
        open_ = bounds > self.ratio * self.error
        self._settle(bounds[~open_])
        return open_

    def _settle(self, bounds: Float[Tensor, " B"]) -> None:
        if len(bounds):
            self.bound = max(self.bound, float(bounds.max()))

    def _late(self) -> bool:
        return time.process_time() > self.end

    def _try(self, x: Float[Tensor, "b n"]) -> None:
        errors = signed_errors(self.matrices, self.target, x).amax(dim=1)
        if float(errors.max()) > self.error:
            self.error, self.worst = float(errors.max()), x[errors.argmax()]


def largest_on_cube(matrices: Matrices, y: Float[Tensor, "cells n outputs"]) -> float:
    """A quick bound on |e| over the cube by interval arithmetic, used where time runs out before there is a better one.

    ``y`` holds the answers at the vertices of cells on which they are linear, so no answer in the cube is larger.
    """
    high = torch.ones(matrices[0].shape[1], dtype=y.dtype)
    low = -high
    for k in matrices:
        plus, minus = k.clamp(min=0), k.clamp(max=0)
        least, most = plus @ low + minus @ high, plus @ high + minus @ low
        low, high = least.relu(), most.relu()
    largest = float((torch.maximum(-least, most) + y.abs().amax(dim=(0, 1))).max())
    if not math.isfinite(largest):
        raise UsageError("the network's answers may exceed what float64 holds; no bound on them can be certified.")
    return largest


def signed_errors(matrices: Matrices, target: Target, x: Float[Tensor, "b n"]) -> Float[Tensor, "b both"]:
    """f(x) - y(x) and y(x) - f(x) for every output, over max |x_i|."""
    z = x
    for k in matrices[:-1]:
        z = (z @ k.mT).relu()
    e = (z @ matrices[-1].mT - target(x)) / x.abs().amax(dim=-1, keepdim=True)
    return torch.cat([e, -e], dim=-1)


def worst_list(
    matrices: Matrices, target: Target, lists: int = 100_000, seconds: float = math.inf
) -> Float[Tensor, " n"]:
    """The worst list found within ``seconds``: gradient ascent from the worst of many random lists, per output and sign."""
    end = time.process_time() + seconds
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(lists, matrices[0].shape[1], generator=generator, dtype=torch.float64) - 1
    tried: list[Tensor] = []
    for part in x.split(4096):
        if tried and time.process_time() > end:
            break
        tried.append(signed_errors(matrices, target, part))
    errors = torch.cat(tried)
    top = errors.topk(min(_CLIMBERS, len(errors)), dim=0).indices.mT  # (output and sign, climber)
    goal = torch.arange(len(top)).repeat_interleave(top.shape[1])
    x = x[top.flatten()]
    best, best_error = x[0], -torch.inf
    for step in range(_STEPS):
        x = x / x.abs().amax(dim=-1, keepdim=True)
        errors = signed_errors(matrices, target, x)
        if float(errors.max()) > best_error:
            best, best_error = x[errors.amax(dim=1).argmax()], float(errors.max())
        if time.process_time() > end:
            break
        # Finite differences: targets need not be differentiable.
        around = x[:, None] + _STEP * torch.eye(x.shape[1], dtype=x.dtype)
        there = signed_errors(matrices, target, around.flatten(0, 1)).unflatten(0, around.shape[:2])
        slope = (there - errors[:, None])[torch.arange(len(x)), :, goal]
        x = x + 0.1 * 0.95**step * slope / slope.norm(dim=-1, keepdim=True).clamp(min=1e-100)
    return best


def linear_cells(target: Target, forms: Float[Tensor, "forms n"]) -> Float[Tensor, "cells n n"]:
    """Simplices that cover the boundary of [-1, 1]^n, on each of which ``target`` is linear; vertices are rows.

    The target is linear wherever none of the ``forms`` changes sign. Only cells on which it is not linear are cut.
    """
    cells = _faces(forms.shape[1])
    for form in forms:
        bent = ~_linear(target, cells)
        cells = torch.cat([cells[~bent], _cut(cells[bent], form)])
        if len(cells) > _MOST_CELLS:
            n = cells.shape[1]
            raise UsageError(f"n is {n}; the task has more than {_MOST_CELLS} linear pieces there, too many.")
    if not bool(_linear(target, cells).all()):
        raise UsageError("the target is not piecewise linear in the way its name says; it cannot be certified.")
    return cells


def _linear(target: Target, cells: Float[Tensor, "cells n n"]) -> Bool[Tensor, " cells"]:
    """Whether ``target`` equals, inside each cell, the linear map given by its values at the vertices.

    A convex or concave output that equals it at one inner point is linear on the whole cell; two points are tried.
    """
    generator = torch.Generator().manual_seed(0)
    weights = 0.1 + torch.rand(2, cells.shape[1], dtype=torch.float64, generator=generator)
    expected = torch.einsum("pk,bko->bpo", weights, target(cells))
    found = target(torch.einsum("pk,bko->bpo", weights, cells))
    return ((found - expected).abs() <= 1e-9).flatten(1).all(dim=1)


def _faces(n: int) -> Float[Tensor, "cells n n"]:
    """Every face of the cube in (n-1)! simplices, one per order of its free coordinates (Kuhn's triangulation)."""
    cells = []
    for fixed, sign in itertools.product(range(n), (-1.0, 1.0)):
        for order in itertools.permutations(i for i in range(n) if i != fixed):
            vertices = torch.full((n, n), -1.0, dtype=torch.float64)
            vertices[:, fixed] = sign
            for k, i in enumerate(order, start=1):
                vertices[k:, i] = 1.0
            cells.append(vertices)
    return torch.stack(cells)


def _cut(cells: Float[Tensor, "cells n n"], form: Float[Tensor, " n"]) -> Float[Tensor, "more n n"]:
    """Cuts cells along form·x = 0: splits edges that cross it until none does."""
    done = [cells[:0]]
    while len(cells):
        values = cells @ form
        low, high = values.min(dim=1), values.max(dim=1)
        crosses = (low.values < -_ZERO) & (high.values > _ZERO)
        done.append(cells[~crosses])
        cells, i, j = cells[crosses], low.indices[crosses], high.indices[crosses]
        rows = torch.arange(len(cells))
        share = (-low.values / (high.values - low.values))[crosses][:, None]
        point = (1 - share) * cells[rows, i] + share * cells[rows, j]
        one, other = cells.clone(), cells.clone()
        one[rows, i], other[rows, j] = point, point
        cells = torch.cat([one, other])
    return torch.cat(done)
