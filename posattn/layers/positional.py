"""Multi-head attention whose weights depend on positions alone, Eq. 3, as a layer for anyone's network.

    A_h = softmax((P W_Q,h)(P W_K,h)^T / sqrt(d_k)),        Y = (⊕_h A_h X W_V,h) W_O.

Letters: n positions, H heads, d width of X, e = d / H value width of a head, d_k query and key width.
"""

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from posattn.attention import Attention, attention_weights, split_heads
from posattn.devices import require_room
from posattn.encodings import ENCODINGS
from posattn.errors import choice, flag, share, whole
from posattn.layers.mixing_layer import DecodingLayer, Masks, allowed
from posattn.layers.products import over_padding, product_each, product_of, underflows


class PositionalAttention(DecodingLayer):
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
        super().__init__(d_model, n_heads, causal, whole("n_positions", n_positions))
        share("dropout", dropout)
        flag("bias", bias)
        row = ENCODINGS[choice("encoding", encoding, ENCODINGS)]
        d_p = row.dim(n_positions, n_positions)
        self.dropout, self.encoding = dropout, encoding
        d_k = min(d_p, d_model // n_heads) if d_k is None else whole("d_k", d_k)
        numbers = 2 * d_p * n_heads * d_k + 2 * d_model**2 + (0 if encoding == "one-hot" else n_positions * d_p)
        what = f"the weights of n_positions = {n_positions}, d_model = {d_model} and d_k = {d_k}"
        require_room(what, 4 * numbers, torch.get_default_device())
        self.attention = Attention(d_model, d_p, d_k, n_heads, bias)
        # One-hot encodings are the identity: P W is W, and neither P nor the product need exist. Others are part of the state,
        # because a layer that is made on the meta device has no other way to get them.
        self.register_buffer("P", None if encoding == "one-hot" else row.matrix(n_positions, d_p))

    @property
    def W_V(self) -> nn.Linear:  # type: ignore[override]
        return self.attention.W_V

    @property
    def W_O(self) -> nn.Linear:  # type: ignore[override]
        return self.attention.W_O

    def pattern(self, n: int, masks: Masks) -> Float[Tensor, "*batch H {n} {n}"]:
        """Eq. 3."""
        queries, keys = self._queries_and_keys(n)
        return attention_weights(queries, keys, allowed(masks, n, queries.device))

    def rows(self, start: int, stop: int) -> Float[Tensor, "H k {stop}"]:
        queries, keys = self._queries_and_keys(stop)
        places = torch.arange(stop, device=keys.device)
        return attention_weights(queries[:, start:], keys, places[start:, None] >= places if self.causal else None)

    def _queries_and_keys(self, n: int) -> tuple[Float[Tensor, "H {n} d_k"], Float[Tensor, "H {n} d_k"]]:
        """P W_Q and P W_K for the first n positions, in heads."""
        queries, keys = (self._encode(linear, n) for linear in (self.attention.W_Q, self.attention.W_K))
        return split_heads(queries, self.heads), split_heads(keys, self.heads)

    def _encode(self, linear: nn.Linear, n: int) -> Float[Tensor, "{n} Hd_k"]:
        """P W + b for the first n positions."""
        if self.P is not None:
            return linear(self.P[:n])
        # Not sliced where it is whole: the gradient of a slice has to be filled up.
        rows = linear.weight.mT if self._whole(n) else linear.weight.mT[:n]
        return rows if linear.bias is None else rows + linear.bias

    def mix(self, v: Float[Tensor, "*batch n H e"], masks: Masks) -> Float[Tensor, "*batch n H e"]:
        """A V; where no weights drop and all positions are seen, without A where a GPU has kernels for it."""
        n, padding = v.shape[-3], masks.padding
        if self.dropout and self.training:
            # Each sequence drops other weights, although all sequences share A.
            a = self.pattern(n, masks).to(v.dtype)
            return product_each(F.dropout(a.expand(*v.shape[:-3], *a.shape[-3:]), self.dropout), v, padding)
        if masks.seen is None and not underflows(v, padding):
            return over_padding(product_of(*self._queries_and_keys(n), masks.causal, v), v, padding)
        return super().mix(v, masks)

    def freeze(self, n: int | None = None) -> "FrozenAttention":
        """The layer for inference on up to ``n`` positions (all by default): no queries, keys or softmax are left."""
        return FrozenAttention(self, n)

    def extra_repr(self) -> str:
        return (
            f"n_positions={self.n_positions}, encoding={self.encoding!r}, causal={self.causal}, dropout={self.dropout}"
        )


class FrozenAttention(DecodingLayer):
    """A ``PositionalAttention`` with its weights A computed once. It owns copies of what it needs and has no dropout.

    A layer in float16 holds A in float32: weights that a mask or a shorter sequence makes the largest may be tiny before.
    """

    A: Tensor

    def __init__(self, layer: PositionalAttention, n: int | None = None):
        kind = layer.W_V.weight.device.type
        exact = torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
        with torch.no_grad(), exact:
            a = layer.weights(n)
            if a.dtype == torch.float16:
                a = deepcopy(layer).float().weights(n)
        super().__init__(layer.W_V.in_features, layer.heads, layer.causal, a.shape[-1])
        self.register_buffer("A", a.clone())
        self.W_V, self.W_O = (deepcopy(linear).requires_grad_(False) for linear in (layer.W_V, layer.W_O))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What ``half``, ``to`` and ``cuda`` call: float16 is for the other tensors."""
        a = self.A
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.A.dtype == torch.float16:
            self.A = a.to(self.A.device)
        return self

    def pattern(self, n: int, masks: Masks) -> Float[Tensor, "*batch H {n} {n}"]:
        """A, renormalised where a mask or a shorter sequence leaves out some of it."""
        masks = Masks(masks.padding, masks.causal and not self.causal, masks.seen)
        places, mask = torch.arange(n, device=self.A.device), allowed(masks, n, self.A.device)
        traced = torch.compiler.is_compiling()  # a slice of a traced length may not reach to the end
        a = self.A.index_select(1, places).index_select(2, places) if traced else self.A[:, :n, :n]
        if mask is not None or not (self.causal or self._whole(n)):
            a = a if mask is None else a * mask
            total = a.sum(dim=-1, keepdim=True)
            a = a / total.where(total > 0, 1)
        return a.to(self.W_V.weight.dtype)

    def rows(self, start: int, stop: int) -> Float[Tensor, "H k {stop}"]:
        return self.A[:, start:stop, :stop]

    def extra_repr(self) -> str:
        return f"n_positions={self.n_positions}, causal={self.causal}"
