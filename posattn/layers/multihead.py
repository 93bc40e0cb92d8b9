"""Positional attention called as ``nn.MultiheadAttention`` is, for networks that were written for that."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from posattn.errors import UsageError, flag, instance

if TYPE_CHECKING:
    from posattn.layers.mixing_layer import MixingLayer


class Multihead(nn.Module):
    """A layer of positional attention with the arguments and results of ``nn.MultiheadAttention``::

        encoder_layer.self_attn = posattn.PositionalAttention(128, 256, 8).as_multihead(batch_first=True)

    Query and key have no part in the weights; value is what is mixed. All three must have the same shape, as in self-attention.
    """

    # What nn.TransformerEncoderLayer asks before its fast path, which would compute self-attention: this is none.
    _qkv_same_embed_dim = False
    in_proj_weight = in_proj_bias = None

    def __init__(self, layer: "MixingLayer", batch_first: bool = False):
        super().__init__()
        self.layer, self.batch_first = layer, flag("batch_first", batch_first)
        self.embed_dim, self.num_heads = layer.W_V.in_features, layer.heads

    def forward(
        self,
        query: Float[Tensor, "*shape"],
        key: Float[Tensor, "*other_shape"],
        value: Float[Tensor, "*third_shape"],
        key_padding_mask: Shaped[Tensor, "*batch n"] | None = None,
        need_weights: bool = True,
        attn_mask: Shaped[Tensor, "*mask n n"] | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*weights n n"] | None]:
        """The output, and with ``need_weights`` the weights, (batch, n, n), or of each head unless these are averaged."""
        instance("query", query, Tensor, "a tensor")
        for name, other in (("key", key), ("value", value)):
            if instance(name, other, Tensor, "a tensor").shape != query.shape:
                shapes = f"{name} has shape {tuple(other.shape)} and query {tuple(query.shape)}"
                raise UsageError(f"{shapes}; positional attention is self-attention, of a sequence to itself.")
        if query.ndim not in (2, 3):
            raise UsageError(f"query has shape {tuple(query.shape)}; it must have two axes, or three with a batch.")
        turned = query.ndim == 3 and not self.batch_first
        x = value.transpose(0, 1) if turned else value
        n = x.shape[-2]
        padding = None if key_padding_mask is None else as_boolean("key_padding_mask", key_padding_mask)
        causal, seen = self.layer.causal or is_causal, None
        if attn_mask is not None and not is_causal:
            if instance("attn_mask", attn_mask, Tensor, "a tensor").shape != (n, n):
                shape = f"attn_mask has shape {tuple(attn_mask.shape)}"
                raise UsageError(f"{shape}; it must be ({n}, {n}), as all sequences and heads share it.")
            seen = ~as_boolean("attn_mask", attn_mask)
        y = self.layer.attend(x, padding, causal, seen)
        y = y.transpose(0, 1) if turned else y
        if not need_weights:
            return y, None
        a = self.layer.pattern(n, padding, causal, seen)
        a = a.mean(dim=-3) if average_attn_weights else a
        # Sequences without a padding mask of their own share the weights, in memory too.
        return y, a.expand(*x.shape[:-2], *a.shape[-2 if average_attn_weights else -3 :])


def as_boolean(name: str, mask: Shaped[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """A mask that is True where nobody may attend, from one that is -inf there and 0 elsewhere, as PyTorch's layers pass it."""
    if instance(name, mask, Tensor, "a tensor").dtype == torch.bool:
        return mask
    hidden = mask.isneginf()
    # Reading the entries waits for a GPU, and cannot be traced.
    if not torch.compiler.is_compiling() and not (hidden | (mask == 0)).all():
        raise UsageError(
            f"{name} adds to the logits; it must be boolean, or 0 where attention is allowed and -inf elsewhere."
        )
    return hidden
