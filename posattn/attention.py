"""Attention whose weights come from the data (Eq. 2) or from positions alone (Eq. 3).

Both equations are one formula, A = softmax((F W_Q)(F W_K)^T), with F = X or F = P; :class:`Attention` computes it for the
features it is given. The F = P case as a layer for anyone's network is ``posattn.layers``.

Letters: n positions, H heads, d width of X, d_k query and key width of one head, A attention weights (H, n, n).
The published runs divide the logits by sqrt(d_k), which the equations leave out.
"""

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from posattn.encodings import rotate

Features = Float[Tensor, "*batch n d_features"]  # F
Positions = Int64[Tensor, " n"]
Mask = Bool[Tensor, "*mask k n"]  # True where a row may attend


def attention_weights(
    queries: Float[Tensor, "*shared k d_k"], keys: Float[Tensor, "*shared n d_k"], mask: Mask | None = None
) -> Float[Tensor, "*batch k n"]:
    """A = softmax(Q K^T / sqrt(d_k)); a row that may attend nowhere is zero."""
    return masked_softmax(queries @ keys.mT / math.sqrt(queries.shape[-1]), mask)


def masked_softmax(logits: Float[Tensor, "*shared k n"], mask: Mask | None) -> Float[Tensor, "*batch k n"]:
    """Softmax over the positions where ``mask`` is True; a row without any is zero."""
    if mask is None:
        return logits.softmax(dim=-1)
    # The lowest finite number, not -inf: a fully masked row would be nan, and so would its gradient.
    return logits.where(mask, torch.finfo(logits.dtype).min).softmax(dim=-1) * mask


def causal_mask(positions: Positions) -> Bool[Tensor, "n n"]:
    """Whether a position (row) may attend to another (column): to itself and to those before it."""
    return positions[:, None] >= positions


def softmax(logits: Float[Tensor, "*lead n n"], causal: bool) -> Float[Tensor, "*lead n n"]:
    """Softmax over all positions, or if ``causal`` over those up to the row's own."""
    if not causal:
        return logits.softmax(dim=-1)
    mask = causal_mask(torch.arange(logits.shape[-1], device=logits.device))
    return logits.where(mask, -math.inf).softmax(dim=-1)


def hardmax(logits: Float[Tensor, "*batch n m"]) -> Float[Tensor, "*batch n m"]:
    """Eq. 6: 1 where a row has its largest entry, 0 elsewhere."""
    return (logits == logits.amax(dim=-1, keepdim=True)).to(logits.dtype)


def split_heads(x: Float[Tensor, "*batch n Hd"], heads: int) -> Float[Tensor, "*batch {heads} n d"]:
    """(..., n, H d) to (..., H, n, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def merge_heads(x: Float[Tensor, "*batch H n d"]) -> Float[Tensor, "*batch n Hd"]:
    """(..., H, n, d) to (..., n, H d): the concatenation over heads of Eq. 1."""
    return x.transpose(-3, -2).flatten(-2)


class Attention(nn.Module):
    r"""The attention of Eq. 1: :math:`\left(\bigoplus_h A^{(h)} X W_V^{(h)}\right) W_O` with A from the features F."""

    def __init__(
        self,
        d_model: int,
        d_features: int,
        d_k: int,
        heads: int,
        bias: bool = True,
        rotary: bool = False,
        d_v: int | None = None,
    ):
        """``d_v`` is the value width of a head, d_model / heads by default."""
        super().__init__()
        self.heads, self.rotary = heads, rotary
        d_values = d_model if d_v is None else heads * d_v
        self.W_Q = nn.Linear(d_features, heads * d_k, bias=bias)
        self.W_K = nn.Linear(d_features, heads * d_k, bias=bias)
        self.W_V = nn.Linear(d_model, d_values, bias=bias)
        self.W_O = nn.Linear(d_values, d_model, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform, as published: Q and K are drawn as one stacked matrix, so its fan-out counts both."""
        bound = math.sqrt(6 / (self.W_Q.in_features + self.W_Q.out_features + self.W_K.out_features))
        for query_or_key in (self.W_Q, self.W_K):
            nn.init.uniform_(query_or_key.weight, -bound, bound)
        for value_or_output in (self.W_V, self.W_O):
            nn.init.xavier_uniform_(value_or_output.weight)
        for linear in (self.W_Q, self.W_K, self.W_V, self.W_O):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def logits(self, features: Features, positions: Positions | None = None) -> Float[Tensor, "*batch H n n"]:
        """Q K^T / sqrt(d_k) of every head; ``positions``, by default 0..n-1, are for the rotary embedding."""
        queries, keys = (split_heads(linear(features), self.heads) for linear in (self.W_Q, self.W_K))
        if self.rotary:
            if positions is None:
                positions = torch.arange(features.shape[-2], device=features.device)
            queries, keys = rotate(queries, positions), rotate(keys, positions)
        return queries @ keys.mT / math.sqrt(queries.shape[-1])

    def weights(
        self, features: Features, positions: Positions | None = None, mask: Mask | None = None
    ) -> Float[Tensor, "*batch H n n"]:
        """A of every head. Eq. 2 for features X, Eq. 3 for features P."""
        return masked_softmax(self.logits(features, positions), mask)

    def mix(self, a: Float[Tensor, "*#batch H n n"], x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """(⊕_h A_h X W_V,h) W_O."""
        return self.W_O(merge_heads(a @ split_heads(self.W_V(x), self.heads)))
