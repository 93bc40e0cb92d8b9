"""The folded network in half precision, for lists that the fused kernels do not hold: states are float16, sums float32.

Positional attention does not depend on the input, so A_h times the states of all lists is one product per member and head.
Self-attention goes through PyTorch's fused attention. It is for prompts, whose answer is read off the scratchpad, so the last
layer computes no other position.

Gradients of weights are sums over all lists, with few rows and columns, so each product would keep a few multiprocessors busy
for long. The lists of a member are therefore split into parts, which the products take for members of their own.

Float16 has few exponents. Gradients therefore start at size one (posattn.training.ways), and those of weights, which are sums
over all lists, are float32.

Letters as in posattn.folding.fold: M members, L layers, b lists, N positions, H heads, s the state.
"""

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from posattn.folding.fold import Tensors, member_axis
from posattn.folding.forward import by_layer
from posattn.model import ModelConfig

HALF = torch.float16
_PARTS = 32  # of a member's lists at most
Heads = tuple[Tensor, ...]  # U_h (M, d, w) of every head


def half_forward(folded: Tensors, features: Float[Tensor, "M b N d_in"], config: ModelConfig) -> Float[Tensor, "M b 1"]:
    """The network's outputs from the encoder's input, for every member on lists of its own."""
    members, lists = features.shape[:2]
    parts = next(parts for parts in range(_PARTS, 0, -1) if lists % parts == 0)
    split = {name: _repeated(value, parts, member_axis(name)) for name, value in folded.items()}
    return _forward(split, features.reshape(members * parts, -1, *features.shape[2:]), config).view(members, lists, 1)


def _repeated(x: Tensor, times: int, axis: int) -> Tensor:
    """Every entry of the axis ``times`` times, one after another."""
    return x.unsqueeze(axis + 1).expand(*x.shape[: axis + 1], times, *x.shape[axis + 1 :]).flatten(axis, axis + 1)


def _forward(folded: Tensors, features: Float[Tensor, "M b N d_in"], config: ModelConfig) -> Float[Tensor, "M b 1"]:
    positional = config.design.attends == "position"
    # Positions first, so that mixing them is one matrix product; self-attention mixes within each list.
    s = (features.transpose(1, 2) if positional else features).to(HALF)
    constants = folded["c"].unbind() if config.bias else [None] * config.layers
    for layer, (u, c) in enumerate(zip(by_layer(folded, "U"), constants, strict=True)):
        only = layer == config.layers - 1
        own = (s[:, -1:] if positional else s[:, :, -1:]) if only else s
        z = _mapped(own, u[0])
        if c is not None:
            z = z + c[:, :, None].to(HALF)
        if positional:
            attended = _positional(folded, s, layer, u[1:], only)
        else:
            attended = _self_attention(folded, s, layer, u[1:], only, config.causal)
        s = torch.relu(z + attended)
    out = _product(s.flatten(1, 2), folded["w"], 1, torch.float32)  # (M, b, 1): one position is left
    return out + folded["b"] if "b" in folded else out


def _positional(folded: Tensors, s: Float[Tensor, "M N b d"], layer: int, u: Heads, only: bool) -> Tensor:
    """Σ_h A_h s U_h."""
    a = folded["A"][layer][..., -1:, :] if only else folded["A"][layer]
    mixed = [_product(own, s.flatten(2), 0, HALF).unflatten(2, s.shape[2:]) for own in a.unbind(dim=1)]
    return reduce(add, map(_mapped, mixed, u))


def _self_attention(
    folded: Tensors, s: Float[Tensor, "M b N d"], layer: int, u: Heads, only: bool, causal: bool
) -> Tensor:
    """Σ_h softmax((s M_h + m_h) s^T) s U_h."""
    m = by_layer(folded, "M")[layer]
    rows: Any = (folded["m.first"], *folded["m"].unbind())[layer].unbind(dim=1) if "m" in folded else [None] * len(m)
    asking, parts = s[:, :, -1:] if only else s, []
    for m_h, row, u_h in zip(m, rows, u, strict=True):
        queries = _mapped(asking, m_h)
        if row is not None:
            queries = queries + row[:, None, None].to(HALF)
        parts.append(_attention(queries, s, _mapped(s, u_h), causal and not only))
    return reduce(add, parts)


def _attention(
    q: Float[Tensor, "M b k d"], keys: Float[Tensor, "M b N d"], values: Float[Tensor, "M b N w"], causal: bool
) -> Float[Tensor, "M b k w"]:
    """Fused attention wants features in multiples of eight, and as many in values as in keys."""
    width = values.shape[-1]
    wide = -(-max(q.shape[-1], width) // 8) * 8
    q, keys, values = (F.pad(x, (0, wide - x.shape[-1])) for x in (q, keys, values))
    return F.scaled_dot_product_attention(q, keys, values, is_causal=causal, scale=1.0)[..., :width]


def _mapped(x: Float[Tensor, "M p q d"], matrix: Float[Tensor, "M d e"]) -> Float[Tensor, "M p q e"]:
    return _product(x.flatten(1, 2), matrix, 1, HALF).unflatten(1, x.shape[1:3])


def _sum(x: Tensor, y: Tensor) -> Tensor:
    """x y in float32, from factors in half precision."""
    if x.is_cuda:
        return torch.bmm(x, y, out_dtype=torch.float32)
    return torch.bmm(x.float(), y.float())


class _Product(torch.autograd.Function):
    """x y in a ``dtype``. Factor number ``weights`` is weights: its gradient, a sum over all states, is float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, weights: int, dtype: torch.dtype) -> Tensor:
        x, y = x.to(HALF), y.to(HALF)
        ctx.save_for_backward(x, y)
        ctx.products = (torch.bmm, _sum) if weights else (_sum, torch.bmm)
        return torch.bmm(x, y) if dtype == HALF else _sum(x, y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (x, y), (for_x, for_y), gradient = ctx.saved_tensors, ctx.products, gradient.to(HALF)
        return for_x(gradient, y.mT), for_y(x.mT, gradient), None, None


_product: Callable[[Tensor, Tensor, int, torch.dtype], Tensor] = _Product.apply
