"""Attention whose weights come from the data (Eq. 2) or from positions alone (Eq. 3).

Both equations are one formula, A = softmax((F W_Q)(F W_K)^T), with F = X or F = P; :class:`Attention` computes it for the
features it is given, and :class:`PositionalAttention` is the F = P case as a layer for anyone's network.

Letters: n positions, H heads, d width of X, d_k query and key width of one head, A attention weights (H, n, n).
The published runs divide the logits by sqrt(d_k), which the equations leave out.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from posattn.devices import require_room
from posattn.encodings import ENCODINGS, rotate
from posattn.errors import UsageError, choice, flag, instance, share, whole
from posattn.network import check_input


def attention_weights(
    queries: Float[Tensor, "*shared n d_k"],
    keys: Float[Tensor, "*shared n d_k"],
    mask: Bool[Tensor, "*mask n n"] | None = None,
) -> Float[Tensor, "*batch n n"]:
    """A = softmax(Q K^T / sqrt(d_k)); ``mask`` is True where a row may attend; a row that may attend nowhere is zero."""
    return masked_softmax(queries @ keys.mT / math.sqrt(queries.shape[-1]), mask)


def masked_softmax(
    logits: Float[Tensor, "*shared n n"], mask: Bool[Tensor, "*mask n n"] | None
) -> Float[Tensor, "*batch n n"]:
    """Softmax over the positions where ``mask`` is True; a row without any is zero."""
    if mask is None:
        return logits.softmax(dim=-1)
    # The lowest finite number, not -inf: a fully masked row would be nan, and so would its gradient.
    return logits.where(mask, torch.finfo(logits.dtype).min).softmax(dim=-1) * mask


def causal_mask(positions: Int64[Tensor, " n"]) -> Bool[Tensor, "n n"]:
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
        fan_in, fan_out = self.W_Q.in_features, self.W_Q.out_features + self.W_K.out_features
        for query_or_key in (self.W_Q, self.W_K):
            bound = math.sqrt(6 / (fan_in + fan_out))
            nn.init.uniform_(query_or_key.weight, -bound, bound)
        for value_or_output in (self.W_V, self.W_O):
            nn.init.xavier_uniform_(value_or_output.weight)
        for linear in (self.W_Q, self.W_K, self.W_V, self.W_O):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def logits(
        self, features: Float[Tensor, "*batch n d_features"], positions: Int64[Tensor, " n"] | None = None
    ) -> Float[Tensor, "*batch H n n"]:
        """Q K^T / sqrt(d_k) of every head; ``positions``, by default 0..n-1, are for the rotary embedding."""
        queries = split_heads(self.W_Q(features), self.heads)
        keys = split_heads(self.W_K(features), self.heads)
        if self.rotary:
            if positions is None:
                positions = torch.arange(features.shape[-2], device=features.device)
            queries, keys = rotate(queries, positions), rotate(keys, positions)
        return queries @ keys.mT / math.sqrt(queries.shape[-1])

    def weights(
        self,
        features: Float[Tensor, "*batch n d_features"],
        positions: Int64[Tensor, " n"] | None = None,
        mask: Bool[Tensor, "*mask n n"] | None = None,
    ) -> Float[Tensor, "*batch H n n"]:
        """A of every head. Eq. 2 for features X, Eq. 3 for features P."""
        return masked_softmax(self.logits(features, positions), mask)

    def mix(self, a: Float[Tensor, "*#batch H n n"], x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """(⊕_h A_h X W_V,h) W_O."""
        return self.W_O(merge_heads(a @ split_heads(self.W_V(x), self.heads)))


def _extends(shape: torch.Size, whole: torch.Size) -> bool:
    """Whether a shape can be extended to the ``whole`` one."""
    try:
        return torch.broadcast_shapes(shape, whole) == whole
    except RuntimeError:
        return False


class PositionalAttention(nn.Module):
    """Multi-head attention whose weights depend on positions alone: Eq. 3 as a layer for your own network.

    ``forward`` maps (..., n, d_model) to (..., n, d_model) for any n up to ``n_positions`` and any leading shape::

        layer = PositionalAttention(n_positions=128, d_model=256, n_heads=8, causal=True)
        y = layer(x)                   # x: (batch, 100, 256)
        layer.weights(100)             # (8, 100, 100): no input needed

    Args:
        n_positions: the longest sequence.
        d_model: width of input and output, a multiple of ``n_heads``.
        n_heads: number of attention patterns.
        causal: position i attends to positions up to i.
        dropout: probability of dropping an attention weight while training.
        encoding: ``one-hot`` (any pattern can be learned), ``binary`` or ``sinusoidal``.
        d_k: query and key width of a head. The default is the smaller of the encoding's dimension, which is the
            paper's choice, and d_model / n_heads, which keeps long sequences affordable.
        bias: biases in the four projections; without them the layer is linear in x.
    """

    P: Tensor | None

    def __init__(
        self,
        n_positions: int,
        d_model: int,
        n_heads: int = 8,
        *,
        causal: bool = False,
        dropout: int | float = 0.0,
        encoding: str = "one-hot",
        d_k: int | None = None,
        bias: bool = True,
    ):
        super().__init__()
        whole("n_positions", n_positions)
        whole("n_heads", n_heads)
        if whole("d_model", d_model) % n_heads:
            raise UsageError(f"d_model is {d_model}; it must be a multiple of n_heads, which is {n_heads}.")
        share("dropout", dropout)
        flag("causal", causal)
        flag("bias", bias)
        row = ENCODINGS[choice("encoding", encoding, ENCODINGS)]
        d_p = row.dim(n_positions, n_positions)
        self.n_positions, self.causal, self.dropout, self.encoding = n_positions, causal, dropout, encoding
        d_k = min(d_p, d_model // n_heads) if d_k is None else whole("d_k", d_k)
        numbers = 2 * d_p * n_heads * d_k + 2 * d_model**2 + (0 if encoding == "one-hot" else n_positions * d_p)
        what = f"the weights of n_positions = {n_positions}, d_model = {d_model} and d_k = {d_k}"
        require_room(what, 4 * numbers, torch.get_default_device())
        self.attention = Attention(d_model, d_p, d_k, n_heads, bias)
        # One-hot encodings are the identity: P W is W, and neither P nor the product need exist.
        self.register_buffer("P", None if encoding == "one-hot" else row.matrix(n_positions, d_p), persistent=False)

    def weights(
        self, n: int | None = None, key_padding_mask: Bool[Tensor, "*batch n"] | None = None
    ) -> Float[Tensor, "*batch H n n"]:
        """A for a sequence on the first ``n`` positions (all by default): (H, n, n), or one per padding mask."""
        n = self.n_positions if n is None else whole("n", n, least=0)
        if not 1 <= n <= self.n_positions:
            raise UsageError(f"the sequence has {n} positions; this layer takes 1 to {self.n_positions}.")
        heads = self.attention.heads
        queries, keys = (self._encode(linear, n) for linear in (self.attention.W_Q, self.attention.W_K))
        mask = causal_mask(torch.arange(n, device=queries.device)) if self.causal else None
        if key_padding_mask is not None:
            instance("key_padding_mask", key_padding_mask, Tensor, "a tensor")
            if key_padding_mask.dtype != torch.bool or key_padding_mask.shape[-1:] != (n,):
                kind = f"{key_padding_mask.dtype} of shape {tuple(key_padding_mask.shape)}"
                raise UsageError(f"key_padding_mask is {kind}; it must be torch.bool of shape (..., {n}).")
            real = ~key_padding_mask[..., None, None, :]
            mask = real.expand(*real.shape[:-2], n, n) if mask is None else real & mask
        return attention_weights(split_heads(queries, heads), split_heads(keys, heads), mask)

    def _encode(self, linear: nn.Linear, n: int) -> Float[Tensor, "n Hd_k"]:
        """P W + b for the first n positions."""
        if self.P is not None:
            return linear(self.P[:n])
        rows = linear.weight.mT[:n]
        return rows if linear.bias is None else rows + linear.bias

    def forward(
        self, x: Float[Tensor, "*batch n d"], key_padding_mask: Bool[Tensor, "*#batch n"] | None = None
    ) -> Float[Tensor, "*batch n d"]:
        """``key_padding_mask`` is True at padding, to which no position attends (the convention of nn.MultiheadAttention)."""
        d_model = self.attention.W_V.in_features
        check_input(x, self.attention.W_V.weight.dtype)
        if x.ndim < 2 or x.shape[-1] != d_model:
            raise UsageError(f"x has shape {tuple(x.shape)}; it must be (..., n, {d_model}).")
        a = self.weights(x.shape[-2], key_padding_mask)
        if key_padding_mask is not None and not _extends(key_padding_mask.shape[:-1], x.shape[:-2]):
            found = f"key_padding_mask has shape {tuple(key_padding_mask.shape)}"
            raise UsageError(f"{found}; for x of shape {tuple(x.shape)} it must be {tuple(x.shape[:-1])}, or fewer axes.")
        if self.dropout and self.training:
            # Each sequence drops other weights, although all sequences share A.
            a = F.dropout(a.expand(*x.shape[:-2], *a.shape[-3:]), self.dropout)
        return self.attention.mix(a.to(x.dtype), x)

    def extra_repr(self) -> str:
        return (
            f"n_positions={self.n_positions}, encoding={self.encoding!r}, causal={self.causal}, dropout={self.dropout}"
        )
