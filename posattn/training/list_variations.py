"""Variations of the training lists for the last steps of a looped network.

The join of two stretches must be right for every state that a long list leads to. The network is homogeneous, so only the
direction of a state matters. A walk of 1,000 numbers without drift, or a sum of -1,000 with a best part of 2, leads to
directions that 16 numbers drawn from an interval seldom reach. The variations, of the same length and range, reach them.

Letters: L lists, n numbers per list, u uniform on [0, 1).
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from posattn import streams

_DECADES = 4.0  # small numbers are up to 10^4 times smaller
_OVER = 1.2  # times the mean is subtracted at most, so that some drifts change sign


def vary_lists(x: Float[Tensor, "L n"], key: Int64[Tensor, ""]) -> Float[Tensor, "L n"]:
    """A quarter of the lists as they are and a quarter by each function below, all scaled to the largest number in ``x``."""
    lists = x.clone()
    for kind, vary in enumerate((_less_drift, _some_small, _signs_in_runs), start=1):
        lists[kind::4] = vary(x[kind::4], streams.fold_in(key, kind))
    largest = lists.abs().amax(dim=1, keepdim=True)
    return lists * torch.where(largest > 0, x.abs().max() / largest, 1.0)


def _less_drift(x: Float[Tensor, "L n"], key: Int64[Tensor, ""]) -> Float[Tensor, "L n"]:
    """Each list with a random share of its mean subtracted."""
    share = _OVER * streams.uniform(key, len(x)).to(x.dtype)
    return x - share[:, None] * x.mean(dim=1, keepdim=True)


def _some_small(x: Float[Tensor, "L n"], key: Int64[Tensor, ""]) -> Float[Tensor, "L n"]:
    """Each list with some numbers scaled down, by one factor per list; in half of the lists the others become negative."""
    u = streams.uniform(key, len(x) * (x.shape[1] + 3)).to(x.dtype).unflatten(0, (len(x), -1))
    share, decades, sign, each = u.split([1, 1, 1, x.shape[1]], dim=1)
    others = torch.where(sign < 0.5, -x.abs(), x)
    return torch.where(each < share, x * 10 ** (-_DECADES * decades), others)


def _signs_in_runs(x: Float[Tensor, "L n"], key: Int64[Tensor, ""]) -> Float[Tensor, "L n"]:
    """Each list with signs that seldom change, with one probability per list."""
    u = streams.uniform(key, len(x) * (x.shape[1] + 1)).to(x.dtype).unflatten(0, (len(x), -1))
    changes = (u[:, 1:] < u[:, :1] / 2).cumsum(dim=1)
    return x.abs() * (1 - 2 * (changes % 2))
