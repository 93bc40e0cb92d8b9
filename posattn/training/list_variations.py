"""Lists for the last steps of a looped network: the training lists, varied so that their stretches point in more directions.

The join of two stretches must be right wherever long stretches lead, and by homogeneity only directions matter. A walk of
1,000 numbers without drift, or a sum of -1,000 beside a best part of 2, has directions that 16 numbers between two bounds
seldom show. Others of the same length and within the same range do.

Letters: L lists, n numbers a list, u uniform on [0, 1).
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from posattn import streams

_DECADES = 4.0  # how much smaller than the others the small numbers of a list are at most
_OVER = 1.2  # times the mean is taken off at most: drifts are turned around, too


def vary_lists(x: Float[Tensor, "L n"], key: Int64[Tensor, ""]) -> Float[Tensor, "L n"]:
    """Every fourth list as it is, and as many of each kind below; each list as large as any was."""
    lists = x.clone()
    for kind, vary in enumerate((_less_drift, _some_small, _signs_in_runs), start=1):
        lists[kind::4] = vary(x[kind::4], streams.fold_in(key, kind))
    largest = lists.abs().amax(dim=1, keepdim=True)
    return lists * torch.where(largest > 0, x.abs().max() / largest, 1.0)


def _less_drift(x: Float[Tensor, "L n"], key: Int64[Tensor, ""]) -> Float[Tensor, "L n"]:
    """Each list without a share of its mean."""
    share = _OVER * streams.uniform(key, len(x)).to(x.dtype)
    return x - share[:, None] * x.mean(dim=1, keepdim=True)


def _some_small(x: Float[Tensor, "L n"], key: Int64[Tensor, ""]) -> Float[Tensor, "L n"]:
    """Each list with some of its numbers made small, by a factor of its own; in half of the lists the others are negative."""
    u = streams.uniform(key, len(x) * (x.shape[1] + 3)).to(x.dtype).unflatten(0, (len(x), -1))
    share, decades, sign, each = u.split([1, 1, 1, x.shape[1]], dim=1)
    others = torch.where(sign < 0.5, -x.abs(), x)
    return torch.where(each < share, x * 10 ** (-_DECADES * decades), others)


def _signs_in_runs(x: Float[Tensor, "L n"], key: Int64[Tensor, ""]) -> Float[Tensor, "L n"]:
    """Each list with signs that change seldom, with a chance of its own."""
    u = streams.uniform(key, len(x) * (x.shape[1] + 1)).to(x.dtype).unflatten(0, (len(x), -1))
    changes = (u[:, 1:] < u[:, :1] / 2).cumsum(dim=1)
    return x.abs() * (1 - 2 * (changes % 2))
