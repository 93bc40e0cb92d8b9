"""Lists from other distributions than the training one, at its scale: shifts that the scale factor c does not cover.

A list depends only on (distribution, seed, n) and its index, so a larger sample begins with the smaller one. Lists are drawn
in float64 on the CPU, rounded to float32 and then moved, so every device gets the same lists.

``SHIFTS`` is the table of distributions; to add one, add a row.

Letters: n values per list, u uniform on (0, 1), x the lists.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from posattn.devices import pick_device
from posattn.errors import choice, seed_number, whole
from posattn.tasks import sampling
from posattn.tasks.sampling import Device, sample_lists

LIMIT = 2.0  # the largest training value
# A training value is (1 - u) a + u b with a, b uniform on [-2, 2]: 4/3 E[(1 - u)² + u²] = 4/3 · 2/3.
TRAINING_VARIANCE = 8 / 9
SMALLEST = 1e-2  # the smallest of mixed magnitudes
TIE = 1e-3  # the largest distance of near ties from their common value
ZEROS = 3 / 4  # the share of zeros in sparse lists


def sample_shift(
    name: str, samples: int, n: int = 8, seed: int = 0, device: Device = None
) -> Float32[Tensor, "samples n"]:
    """``samples`` lists of n values from the distribution of that name."""
    draw = SHIFTS[choice("distribution", name, SHIFTS)]
    place = None if device is None else pick_device(device)
    return draw(whole("samples", samples), whole("n", n), seed_number(seed)).float().to(place)


def training(samples: int, n: int, seed: int) -> Tensor:
    """The training distribution: the test lists of ``Task.sample`` at scale 1."""
    return sample_lists(samples, n, 1.0, seed, split="test")


def uniform(samples: int, n: int, seed: int) -> Tensor:
    """Independent values, uniform on [-2, 2]: the training range without bounds per list."""
    return LIMIT * (2 * _draw("uniform", samples, n, seed) - 1)


def gaussian(samples: int, n: int, seed: int) -> Tensor:
    """Independent Gaussian values with the variance of a training value, 8/9; 3% lie outside [-2, 2]."""
    return math.sqrt(TRAINING_VARIANCE) * torch.special.ndtri(_draw("gaussian", samples, n, seed))


def heavy_tailed(samples: int, n: int, seed: int) -> Tensor:
    """Independent values of Student's t with 2 degrees of freedom, not clipped: median magnitude √(2/3) ≈ 0.82, no variance."""
    u = _draw("heavy-tailed", samples, n, seed)
    return (2 * u - 1) / (2 * u * (1 - u)).sqrt()  # the inverse of F(t) = 1/2 + t / (2 √(2 + t²))


def mixed_magnitudes(samples: int, n: int, seed: int) -> Tensor:
    """Independent values of random sign, their magnitudes log-uniform from 0.01 to 2."""
    u = _draw("mixed-magnitudes", samples, n, seed, "magnitude")
    sign = _draw("mixed-magnitudes", samples, n, seed, "sign") - 0.5
    return torch.copysign(SMALLEST * (LIMIT / SMALLEST) ** u, sign)


def near_ties(samples: int, n: int, seed: int) -> Tensor:
    """One value per list, uniform on [-2, 2], plus noise per entry, uniform on [-0.001, 0.001]."""
    common = LIMIT * (2 * _draw("near-ties", samples, 1, seed, f"common to {n}") - 1)
    return common + TIE * (2 * _draw("near-ties", samples, n, seed, "noise") - 1)


def ascending(samples: int, n: int, seed: int) -> Tensor:
    """The lists of ``training``, smallest value first."""
    return training(samples, n, seed).sort(dim=-1).values


def descending(samples: int, n: int, seed: int) -> Tensor:
    """The lists of ``training``, largest value first."""
    return training(samples, n, seed).sort(dim=-1, descending=True).values


def sparse(samples: int, n: int, seed: int) -> Tensor:
    """The lists of ``training``, each entry set to zero with probability 3/4."""
    return training(samples, n, seed).masked_fill(_draw("sparse", samples, n, seed) < ZEROS, 0.0)


def _draw(name: str, samples: int, n: int, seed: int, part: str = "values") -> Float[Tensor, "samples n"]:
    """u in float64: midpoints of the 2^24 cells that ``posattn.streams`` draws from, so neither 0 nor 1 occurs."""
    return sampling.uniform(samples, n, seed, None, "shift", name, n, part).double().add_(2.0**-25)


SHIFTS: dict[str, Callable[[int, int, int], Tensor]] = {  # from samples, n and seed to lists (samples, n)
    "training": training,
    "uniform": uniform,
    "gaussian": gaussian,
    "heavy-tailed": heavy_tailed,
    "mixed-magnitudes": mixed_magnitudes,
    "near-ties": near_ties,
    "sorted": ascending,
    "reversed": descending,
    "sparse": sparse,
}
