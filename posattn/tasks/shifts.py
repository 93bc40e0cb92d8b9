"""Lists from other distributions than the training one, at its scale: shifts that the scale factor c does not cover.

A list depends only on (distribution, seed, n) and its index, so a larger sample begins with the smaller one. Lists are drawn
in float64 on the CPU, rounded to float32 and then moved, so every device gets the same lists.

``SHIFTS`` is the table of distributions; to add one, add a row.

Letters: n values per list, u uniform on (0, 1), x the lists.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from posattn.devices import pick_device
from posattn.errors import choice, seed_number, whole
from posattn.tasks.sampling import Device, sample_lists, uniform

LIMIT = 2.0  # the largest training value
# A training value is (1 - u) a + u b with a, b uniform on [-2, 2]: 4/3 E[(1 - u)² + u²] = 4/3 · 2/3.
TRAINING_VARIANCE = 8 / 9
SMALLEST = 1e-2  # the smallest of mixed magnitudes
TIE = 1e-3  # the largest distance of near ties from their common value
ZEROS = 3 / 4  # the share of zeros in sparse lists


class Draw(NamedTuple):
    """What the lists of a distribution are made from."""

    name: str
    samples: int
    n: int
    seed: int

    def u(self, part: str = "values", n: int | None = None) -> Float[Tensor, "samples n"]:
        """In float64: midpoints of the 2^24 cells that ``posattn.streams`` draws from, so neither 0 nor 1 occurs."""
        each = self.n if n is None else n
        return uniform(self.samples, each, self.seed, None, "shift", self.name, each, part).double().add_(2.0**-25)

    def training(self) -> Float[Tensor, "samples n"]:
        """The test lists of ``Task.sample`` at scale 1."""
        return sample_lists(self.samples, self.n, 1.0, self.seed, split="test")


def _student_t(u: Float[Tensor, "samples n"]) -> Float[Tensor, "samples n"]:
    """The inverse of F(t) = 1/2 + t / (2 √(2 + t²))."""
    return (2 * u - 1) / (2 * u * (1 - u)).sqrt()


SHIFTS: dict[str, Callable[[Draw], Tensor]] = {
    # The training distribution.
    "training": lambda draw: draw.training(),
    # Independent values, uniform on [-2, 2]: the training range without bounds per list.
    "uniform": lambda draw: LIMIT * (2 * draw.u() - 1),
    # Independent Gaussian values with the variance of a training value, 8/9; 3% lie outside [-2, 2].
    "gaussian": lambda draw: math.sqrt(TRAINING_VARIANCE) * torch.special.ndtri(draw.u()),
    # Independent values of Student's t with 2 degrees of freedom: median magnitude √(2/3) ≈ 0.82, no variance.
    "heavy-tailed": lambda draw: _student_t(draw.u()),
    # Independent values of random sign, their magnitudes log-uniform from 0.01 to 2.
    "mixed-magnitudes": lambda draw: torch.copysign(
        SMALLEST * (LIMIT / SMALLEST) ** draw.u("magnitude"), draw.u("sign") - 0.5
    ),
    # One value per list, uniform on [-2, 2], plus noise per entry, uniform on [-0.001, 0.001].
    "near-ties": lambda draw: LIMIT * (2 * draw.u(f"common to {draw.n}", 1) - 1) + TIE * (2 * draw.u("noise") - 1),
    # The training lists, smallest value first, and largest first.
    "sorted": lambda draw: draw.training().sort(dim=-1).values,
    "reversed": lambda draw: draw.training().sort(dim=-1, descending=True).values,
    # The training lists, each entry set to zero with probability 3/4.
    "sparse": lambda draw: draw.training().masked_fill(draw.u() < ZEROS, 0.0),
}


def sample_shift(
    name: str, samples: int, n: int = 8, seed: int = 0, device: Device = None
) -> Float32[Tensor, "samples n"]:
    """``samples`` lists of n values from the distribution of that name."""
    lists = SHIFTS[choice("distribution", name, SHIFTS)]
    place = None if device is None else pick_device(device)
    return lists(Draw(name, whole("samples", samples), whole("n", n), seed_number(seed))).float().to(place)
