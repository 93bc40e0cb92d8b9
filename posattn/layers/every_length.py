"""Positional attention for sequences of every length in O(n log n), without a table of positions.

It attends over offsets, as looped networks do (posattn.looped.offsets), in ⌈log2 n⌉ loops of strides s = 1, 2, 4, ...:

    V_h(i) ← Σ_r A_h(i)_r V_h(i + r s),        A_h(i) = softmax of T_h over the candidates r with i + r s in the sequence.

All loops share the learned logits T, so the weights exist for every n. Here the softmax leaves out what lies outside the
sequence, where looped networks hear a blank: every loop then averages, and loops of strides beyond the sequence change nothing.

Letters: n positions, H heads, C candidates, e value width of a head, T logits (H, C), s stride.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posattn.errors import UsageError, flag
from posattn.layers.mixing_layer import Masks, MixingLayer
from posattn.looped.families import FAMILIES
from posattn.looped.offsets import rows


class LoopedAttention(MixingLayer):
    """Multi-head attention over offsets, whose weights depend on positions alone, for sequences of every length.

    ``forward`` maps (..., n, d_model) to (..., n, d_model) for any n and any leading shape::

        layer = LoopedAttention(d_model=256, n_heads=8, causal=True)
        y = layer(x)                   # x: (batch, 100, 256), or (batch, 100_000, 256)

    Args:
        d_model: width of input and output, a multiple of ``n_heads``.
        n_heads: number of attention patterns.
        causal: position i attends to positions up to i.
        bias: biases in the two projections; without them the layer is linear in x.
    """

    def __init__(self, d_model: int, n_heads: int = 8, *, causal: bool = False, bias: bool = True):
        super().__init__(d_model, n_heads, causal, None)
        self.candidates = FAMILIES["dilated" if causal else "butterfly"].candidates
        self.logits = nn.Parameter(torch.empty(n_heads, len(self.candidates)))
        self.W_V, self.W_O = (nn.Linear(d_model, d_model, bias=flag("bias", bias)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Logits near 0, and different from head to head; values and outputs as in ``Attention``."""
        nn.init.normal_(self.logits, std=1 / math.sqrt(self.logits.shape[-1]))
        for linear in (self.W_V, self.W_O):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def mix(self, v: Float[Tensor, "*batch n H e"], masks: Masks) -> Float[Tensor, "*batch n H e"]:
        """The values after all loops. Weights are in float32 at least, as near an end of the sequence small ones count."""
        if masks.seen is not None:
            built = "" if self.causal else " when built with causal=True"
            raise UsageError(f"attn_mask is given; this layer takes only the causal mask, by is_causal=True{built}.")
        if masks.causal != self.causal:
            raise UsageError("is_causal is True; this layer was built with causal=False: build it with causal=True.")
        n, padding = v.shape[-3], masks.padding
        real = v.new_ones(n, 1, dtype=torch.bool) if padding is None else ~padding[..., None]
        logits = self.logits.to(torch.promote_types(self.logits.dtype, torch.float32))  # (H, C)
        never = torch.finfo(logits.dtype).min
        blank = None if padding is None else padding[..., None, None]
        v = v if blank is None else v.masked_fill(blank, 0)
        for loop in FAMILIES["dilated"].loops(n):
            shifts = [r * loop.stride for r in self.candidates]
            inside = torch.stack([rows(real, ahead, ahead + n) for ahead in shifts], dim=-1)
            weights = logits.where(inside, never).softmax(dim=-1).to(v.dtype)  # (..., n, H, C)
            parts = [
                weights[..., place, None] * rows(v.flatten(-2), ahead, ahead + n).view(v.shape)
                for place, ahead in enumerate(shifts)
                if abs(ahead) < n
            ]
            v = sum(parts[1:], parts[0])
            v = v if blank is None else v.masked_fill(blank, 0)
        return v

    def pattern(self, n: int, masks: Masks) -> Float[Tensor, "*batch H {n} {n}"]:
        """What the loops make of the identity, O(n² log n): for pictures and tests."""
        one = torch.eye(n, dtype=self.logits.dtype, device=self.logits.device)[:, None].expand(n, self.heads, n)
        lead = () if masks.padding is None else masks.padding.shape[:-1]
        return self.mix(one.expand(*lead, *one.shape), masks).transpose(-3, -2)

    def extra_repr(self) -> str:
        return f"causal={self.causal}, candidates={self.candidates}"
