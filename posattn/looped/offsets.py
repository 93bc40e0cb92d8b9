"""Attention over a few offsets, for lists of every length: positional attention without a matrix of positions.

In loop l a head attends from position i to i + r s, for r among the candidates of a family (posattn.looped.families) and the
stride s of the loop, and to a sink, whose value is blank (zero):

    A_h(i) = softmax(S T_h[c(i)]),        attended_h(i) = Σ_r A_h(i)_r V_h(i + r s),

with T_h a learned table of logits, one row per class of positions, c(i) the class of position i in this loop, and S the
sharpness. What lies outside the list is blank as well. A depends on the position and the loop alone, so this is positional
attention in the sense of Eq. 3, and the weights exist for every n. A loop costs O(n) time and memory.

Letters: n positions, H heads, C candidates, K classes, d width of X, T logits (H, K, C+1), S sharpness, s stride.
"""

import math
from functools import reduce

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from posattn.looped.families import FAMILIES, Loop


def rows(x: Shaped[Tensor, "*batch n d"], start: int, stop: int) -> Shaped[Tensor, "*batch k d"]:
    """x_start..x_{stop - 1}, blank where that is outside the list."""
    n = x.shape[-2]
    first, last = min(max(start, 0), n), max(min(stop, n), 0)
    if first >= last:
        return x.new_zeros(*x.shape[:-2], stop - start, x.shape[-1])
    return nn.functional.pad(x[..., first:last, :], (0, 0, first - start, stop - last))


def split_weights(
    own: Float[Tensor, "*members H n C1"], inside: Bool[Tensor, "n C"]
) -> tuple[Float[Tensor, "*members H n C"], Float[Tensor, "*members n"]]:
    """A for the candidates within the list, and m, the share of the attention that stays in the list:

    m(i) = Π_h (1 - the weight that head h gives to candidates outside the list). The sink counts as inside.
    """
    own = own[..., :-1]
    kept = 1 - (own * ~inside).sum(dim=-1)
    return own * inside, reduce(torch.mul, kept.unbind(-2))


class OffsetAttention(nn.Module):
    r"""The attention of Eq. 1, :math:`\left(\bigoplus_h A^{(h)} X W_V^{(h)}\right) W_O`, over the candidates of a family."""

    def __init__(self, d_model: int, heads: int, d_v: int, family: str, sharpness: float):
        super().__init__()
        self.heads, self.family, self.sharpness = heads, FAMILIES[family], sharpness
        self.logits = nn.Parameter(torch.empty(heads, self.family.classes, len(self.family.candidates) + 1))
        self.W_V = nn.Linear(d_model, heads * d_v, bias=False)
        self.W_O = nn.Linear(heads * d_v, heads * d_v, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Logits near 0, and different from head to head; values and outputs as in ``Attention``."""
        nn.init.normal_(self.logits, std=1 / math.sqrt(self.logits.shape[-1]))
        for linear in (self.W_V, self.W_O):
            nn.init.xavier_uniform_(linear.weight)

    def table(self) -> Float[Tensor, "H K C1"]:
        """softmax(S T): what each class of positions gives to the candidates and, last, to the sink."""
        return (self.sharpness * self.logits).softmax(dim=-1)

    def weights(self, n: int, loop: Loop) -> tuple[Float[Tensor, "H n C"], Float[Tensor, " n"]]:
        """A for the candidates within a list of n, and m; see ``split_weights``."""
        family, device = self.family, self.logits.device
        return split_weights(self.table()[:, family.class_of(n, loop, device)], family.inside(n, loop, device))

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
                # Each head's weight for all of its columns.
                attended = attended + weight.repeat_interleave(each, dim=-1) * rows(values, start + ahead, stop + ahead)
        return self.W_O(attended)


def edges(attention: OffsetAttention, n: int, least: float = 0.3) -> list[list[tuple[int, int, float]]]:
    """Strong edges, those to the sink left out: per loop (j, i, weight) where i gives j ``least`` in some head."""
    found = []
    for loop in attention.family.loops(n):
        strongest = attention.weights(n, loop)[0].detach().amax(dim=0)
        places = attention.family.places(n, loop, strongest.device)
        strong = ((strongest >= least) & (strongest > 0)).nonzero().tolist()  # float32 rounds a tiny least to 0
        found.append([(int(places[i, c]), i, float(strongest[i, c])) for i, c in strong])
    return found
