"""Lists of real numbers as Section 7 draws them, in distribution (c <= 1) and out of it (c > 1).

A list has two bounds, uniform on [-2c, 2c], and n values, uniform between the bounds. For c > 1 a rejection step keeps
only pairs of bounds with gamma_l < -2 or gamma_u > 2, that is, never both inside the training range [-2, 2].

A list depends only on (seed, split, n, c, integers) and its index, not on the task, the device, the other seeds of the call
or ``count``. So the tasks of one seed are compared on the same lists, a larger sample begins with the smaller one, and two
splits or two scales are independent draws.

Letters: c scale, n values per list, gamma_l and gamma_u the lower and upper bound, u, v, w uniform on [0, 1). With several
seeds, shapes have a leading members axis.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from posattn import streams
from posattn.devices import pick_device, require_room
from posattn.errors import UsageError, apiece, counted, flag, seed_number, shown, whole, within

Seeds = int | Sequence[int] | Tensor
Device = str | torch.device | None

SCALES = (1e-37, 1e37)  # the smallest and largest c for which float32 holds 4c, and values far below c
_PAST_2 = 2.0 + 2.0**-22  # the float32 next to 2: a bound outside [-2, 2] must not be rounded into it


class Drawn(TypedDict, total=False):
    """What every draw takes by name. Lists of different splits are independent; those of integers round the values."""

    split: str
    integers: bool
    device: Device


def drawn_by(split: str = "train", integers: bool = False, device: Device = None) -> tuple[str, bool, Device]:
    """A ``Drawn`` with its defaults filled in."""
    return named_split(split), flag("integers", integers), device


def sample_bounds(
    count: int, n: int = 8, scale: float = 1.0, seed: Seeds = 0, **drawn: Unpack[Drawn]
) -> tuple[Float32[Tensor, "*members count"], Float32[Tensor, "*members count"]]:
    """(gamma_l, gamma_u): the bounds between which ``sample_lists`` with the same arguments draws its values."""
    c = factor(scale)
    return two_bounds(_uniform("bounds", 3, count, n, c, seed, **drawn), c, _within, _outside)


def sample_lists(
    count: int, n: int = 8, scale: float = 1.0, seed: Seeds = 0, **drawn: Unpack[Drawn]
) -> Float32[Tensor, "*members count n"]:
    """``count`` lists of n values; with M seeds (M, count, n), where entry k is what the k-th seed alone gives.

    ``integers`` rounds the values to the nearest integers that lie in [-2c, 2c]; the paper says only 'lists containing
    integers', and this keeps the diversity of ranges that the two bounds give.
    """
    c = factor(scale)
    x = _uniform("values", n, count, n, c, seed, **drawn)
    gamma_l, gamma_u = sample_bounds(count, n, c, seed, **drawn)
    # Rounding keeps x <= gamma_u: u <= 1 - 2^-24 takes the rounded width at least one float32 below itself, hence below
    # the true width, and the sum is then rounded from something below gamma_u.
    x.mul_((gamma_u - gamma_l)[..., None]).add_(gamma_l[..., None])
    if drawn.get("integers"):
        x.round_().clamp_(-float(math.floor(2 * c)), float(math.floor(2 * c)))  # floats: int64 ends at 9e18
    return x


def _uniform(
    part: str, each: int, count: int, n: int, c: float, seed: Seeds, **drawn: Unpack[Drawn]
) -> Float32[Tensor, "*members count each"]:
    """The uniform numbers of one part of the lists, ``each`` per list."""
    split, integers, device = drawn_by(**drawn)
    kind = "integers" if integers else "reals"
    return uniform(count, each, seed, device, "lists", split, whole("n", n), repr(c), kind, part)


def _within(u: Tensor, c: float) -> Tensor:
    """Uniform on [-2c, 2c)."""
    return 4 * c * u - 2 * c


def _outside(u: Tensor, c: float) -> Tensor:
    """Uniform on [-2c, -2) and (2, 2c]: uniform on [-(2c - 2), 2c - 2], each half then moved out by 2."""
    centred = (4 * c - 4) * (u - 0.5 + 2.0**-25)  # the half step makes the grid of u symmetric, so that 0 is not on it
    return torch.copysign((centred.abs() + 2).clamp(_PAST_2, max(2 * c, _PAST_2)), centred)


Place = Callable[[Tensor, float], Tensor]  # from u and c to a bound


def two_bounds(
    numbers: Float[Tensor, "*lists 3"], c: float, within: Place, outside: Place
) -> tuple[Float[Tensor, "*lists"], Float[Tensor, "*lists"]]:
    """Two bounds on [-2c, 2c], the lower first; for c > 1 not both lie in I = [-2, 2], as if by rejection but without a loop.

    ``within`` gives a bound uniform on [-2c, 2c], ``outside`` one uniform on the part outside I. The same holds for any other
    interval I and one that is c times as long.

    A bound lies in I with probability 1/c, both with 1/c^2, so the condition holds with probability 1 - 1/c^2. It holds
    whenever the first bound is outside, hence
        P(first outside | not both in I) = (1 - 1/c) / (1 - 1/c^2) = c / (c + 1).
    If the first bound is outside, the condition holds: the first is uniform outside and the second uniform on everything. If
    the first bound is inside, the second must be outside: the first is uniform on I and the second uniform outside.
    """
    u, v, w = numbers.unbind(dim=-1)
    first, second = within(v, c), within(w, c)
    if c > 1:
        first_outside = u < c / (c + 1)
        first = torch.where(first_outside, outside(v, c), within(v, 1.0))
        second = torch.where(first_outside, second, outside(w, c))
    return torch.minimum(first, second), torch.maximum(first, second)


def uniform(
    count: int, each: int, seed: Seeds, device: Device, *purpose: str | int
) -> Float32[Tensor, "*members count each"]:
    """u for ``count`` lists, from the stream of every seed for a purpose; a single seed gives no axis of members."""
    place = None if device is None else pick_device(device)
    seeds = getattr(seed, "tolist", lambda: seed)()  # tensors and NumPy arrays
    if not isinstance(seeds, (list, tuple, range)):
        keys = torch.tensor(streams.stream(seed_number(seeds), *purpose), device=place)
    elif seeds:
        keys = torch.tensor([streams.stream(seed_number(own), *purpose) for own in seeds], device=place)
    else:
        raise UsageError(f"seed is {shown(seed)}; it must be a whole number or at least one of them.")
    what = f"count is {whole('count', count)}; so many lists of {counted(each, 'number')}{apiece(keys.numel(), 'seed')}"
    require_room(what, 4 * count * each * keys.numel(), keys.device)
    return streams.uniform(keys, count * each).unflatten(-1, (count, each))


def factor(scale: object) -> float:
    """``scale`` if it is a factor c at which float32 holds lists and their bounds."""
    return within("scale", scale, *SCALES)


def named_split(split: object) -> str:
    """``split`` if it is a nonempty string."""
    if not isinstance(split, str) or not split:
        raise UsageError(f"split is {shown(split)}; it must be a name such as train, validation or test.")
    return split
