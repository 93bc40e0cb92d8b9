"""The folded network in half precision, for lists that the fused kernels do not hold: states are float16, sums float32.

Positional attention does not depend on the input, so A_h times the states of all lists is one product per member and head.
Self-attention goes through PyTorch's fused attention. It is for prompts, whose answer is read off the scratchpad, so the last
layer computes no other position.

Gradients of weights are sums over all lists, with few rows and columns, so each product would keep a few multiprocessors busy
for long. The lists of a member are therefore split into parts, which the products take for members of their own.

Float16 has few exponents. Gradients therefore start at size one (posattn.training.ways), and those of weights, which are sums
over all lists, are float32.

Letters as in posattn.folding.fold: M members, L layers, b lists, N positions, H heads, s the state; T and t are the encoder
(posattn.training.ways.Half).
"""

from collections.abc import Callable
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
_EVEN = 8  # features that matrix units load at once
Heads = tuple[Tensor, ...]  # U_h (M, d, w) of every head


def half_forward(folded: Tensors, tokens: Float[Tensor, "M b N F"], config: ModelConfig) -> Float[Tensor, "M b 1"]:
    """The network's outputs from the features of its tokens, for every member on lists of its own."""
    members, lists = tokens.shape[:2]
    parts = next(parts for parts in range(_PARTS, 0, -1) if lists % parts == 0)
    split = {name: _repeated(value, parts, member_axis(name)) for name, value in folded.items()}
    return _forward(split, tokens.reshape(members * parts, -1, *tokens.shape[2:]), config).view(members, lists, 1)


def _repeated(x: Tensor, times: int, axis: int) -> Tensor:
    """Every entry of the axis ``times`` times, one after another."""
    return x.unsqueeze(axis + 1).expand(*x.shape[: axis + 1], times, *x.shape[axis + 1 :]).flatten(axis, axis + 1)


def _forward(folded: Tensors, tokens: Float[Tensor, "M b N F"], config: ModelConfig) -> Float[Tensor, "M b 1"]:
    positional = config.design.attends == "position"
    s = (_mapped(_even(tokens), _even(folded["T"].mT).mT) + folded["t"][:, None]).to(HALF)
    if positional:  # positions first, so that mixing them is one matrix product; self-attention mixes within each list
        s = s.transpose(1, 2).contiguous()
    constants = folded["c"].unbind() if config.bias else [None] * config.layers
    for layer, (u, c) in enumerate(zip(by_layer(folded, "U"), constants, strict=True)):
        only = layer == config.layers - 1
        own = (s[:, -1:] if positional else s[:, :, -1:]) if only else s
        z = _mapped(own, u[0], c)
        if positional:
            z = _positional(z, folded, s, layer, u[1:], only)
        else:
            z = _self_attention(z, folded, s, layer, u[1:], only, config.causal)
        s = torch.relu(z)
    out = _product(s.flatten(1, 2), folded["w"], 1, torch.float32, None)  # (M, b, 1): one position is left
    return out + folded["b"] if "b" in folded else out


def _positional(z: Tensor, folded: Tensors, s: Float[Tensor, "M N b d"], layer: int, u: Heads, only: bool) -> Tensor:
    """z + Σ_h A_h s U_h."""
    a = folded["A"][layer][..., -1:, :] if only else folded["A"][layer]
    for a_h, u_h in zip(a.unbind(dim=1), u, strict=True):
        z = _mapped(_product(a_h, s.flatten(2), 0, HALF, None).unflatten(2, s.shape[2:]), u_h, z.flatten(1, 2))
    return z


def _self_attention(
    z: Tensor, folded: Tensors, s: Float[Tensor, "M b N d"], layer: int, u: Heads, only: bool, causal: bool
) -> Tensor:
    """z + Σ_h softmax((s M_h + m_h) s^T) s U_h."""
    m = by_layer(folded, "M")[layer]
    rows: Any = (folded["m.first"], *folded["m"].unbind())[layer].unbind(dim=1) if "m" in folded else [None] * len(m)
    asking = s[:, :, -1:] if only else s
    for m_h, row, u_h in zip(m, rows, u, strict=True):
        queries = _mapped(asking, m_h, None if row is None else row[:, None])
        z = z + _attention(queries, s, _mapped(s, u_h), causal and not only)
    return z


def _attention(
    q: Float[Tensor, "M b k d"], keys: Float[Tensor, "M b N d"], values: Float[Tensor, "M b N w"], causal: bool
) -> Float[Tensor, "M b k w"]:
    """Fused attention wants an even number of features, and as many in values as in keys."""
    most, width = max(q.shape[-1], values.shape[-1]), values.shape[-1]
    q, keys, values = (_even(x, most) for x in (q, keys, values))
    out = F.scaled_dot_product_attention(q, keys, values, is_causal=causal, scale=1.0)
    return out if out.shape[-1] == width else out[..., :width]


def _even(x: Float[Tensor, "*lead d"], least: int = 0) -> Float[Tensor, "*lead e"]:
    """x with zeros after its features, so that there are ``least`` of them, and a multiple of eight. F.pad by 0 would copy."""
    wide = -(-max(x.shape[-1], least) // _EVEN) * _EVEN
    return x if wide == x.shape[-1] else F.pad(x, (0, wide - x.shape[-1]))


def _mapped(
    x: Float[Tensor, "M p q d"], matrix: Float[Tensor, "M d e"], added: Float[Tensor, "M r e"] | None = None
) -> Float[Tensor, "M p q e"]:
    """x times a matrix of weights; ``added`` is a row for all of x, or one for each of its rows."""
    return _product(x.flatten(1, 2), matrix, 1, HALF, added).unflatten(1, x.shape[1:3])


def _sum(x: Tensor, y: Tensor) -> Tensor:
    """x y in float32, from factors in half precision."""
    if x.is_cuda:
        return torch.bmm(x, y, out_dtype=torch.float32)
    return torch.bmm(x.float(), y.float())


class _Product(torch.autograd.Function):
    """x y in a ``dtype``. Factor number ``weights`` is weights: its gradient, a sum over all states, is float32.

    To a product in half precision rows may be ``added``, or one row, whose gradient is such a sum too.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, weights: int, dtype: torch.dtype, added: Tensor | None) -> Tensor:
        x, y = x.to(HALF), y.to(HALF)
        ctx.save_for_backward(x, y)
        ctx.products = (torch.bmm, _sum) if weights else (_sum, torch.bmm)
        ctx.one_row = added is not None and added.shape[1] == 1 < x.shape[1]
        if added is not None:
            return torch.baddbmm(added.to(HALF), x, y)
        return torch.bmm(x, y) if dtype == HALF else _sum(x, y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, Tensor | None]:
        (x, y), (for_x, for_y), gradient = ctx.saved_tensors, ctx.products, gradient.to(HALF)
        needs_x, needs_y, *_, needs_added = ctx.needs_input_grad
        rows = gradient.sum(dim=1, keepdim=True, dtype=torch.float32) if ctx.one_row else gradient
        return (
            for_x(gradient, y.mT) if needs_x else None, for_y(x.mT, gradient) if needs_y else None, None, None,
            rows if needs_added else None,
        )  # fmt: skip


_product: Callable[[Tensor, Tensor, int, torch.dtype, Tensor | None], Tensor] = _Product.apply
