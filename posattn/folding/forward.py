"""The folded network's answers, for an ensemble: what training and evaluation compute with.

Letters as in posattn.folding.fold: M members, L layers, b lists, N positions, H heads, s the state.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from posattn.attention import softmax
from posattn.folding.fold import Tensors
from posattn.folding.queries_and_keys import Logits, keeps_queries_apart, logits_by_layer
from posattn.model import ModelConfig


def by_layer(folded: Tensors, name: str) -> list[tuple[Tensor, ...]]:
    """The matrices (M, in, out) of ``name`` for every layer and head."""
    return [layer.unbind(dim=-2) for layer in (folded[f"{name}.first"], *folded[name].unbind())]


def folded_forward(
    folded: Tensors, features: Float[Tensor, "M b N d_in"], config: ModelConfig
) -> Float[Tensor, "M b *out"]:
    """The network's outputs from the encoder's input, for every member on lists of its own."""
    run = _positional_forward if config.design.attends == "position" else _self_attention_forward
    return config.answers(run(folded, features, config))


def _positional_forward(folded: Tensors, features: Float[Tensor, "M b N d_in"], config: ModelConfig) -> Tensor:
    members, b, n, _ = features.shape
    s = features.transpose(1, 2)  # positions first, so that mixing them is one matrix product
    constants = folded["c"].unbind() if config.bias else [None] * config.layers
    weights = [layer.unbind(dim=1) for layer in folded["A"].unbind()]
    for u, a, c in zip(by_layer(folded, "U"), weights, constants, strict=True):
        d = s.shape[-1]
        by_position, by_entry = s.reshape(members, n, b * d), s.reshape(members, n * b, d)
        z = _affine(by_entry, u[0], c)
        for a_h, u_h in zip(a, u[1:], strict=True):
            # A_h s for all lists at once: (N, N) times (N, b d)
            z = torch.baddbmm(z, torch.bmm(a_h, by_position).view(by_entry.shape), u_h)
        s = torch.relu_(z).view(members, n, b, config.width)
    out = _affine(s.view(members, n * b, config.width), folded["w"], folded.get("b"))
    return out.view(members, n, b, -1).transpose(1, 2)


def _self_attention_forward(folded: Tensors, features: Float[Tensor, "M b N d_in"], config: ModelConfig) -> Tensor:
    members, b, n, _ = features.shape
    s = features
    constants = folded["c"].unbind() if config.bias else [None] * config.layers
    logits = logits_by_layer(folded, config) if keeps_queries_apart(config) else _bilinear_by_layer(folded, config)
    for u, logits_of, c in zip(by_layer(folded, "U"), logits, constants, strict=True):
        by_entry = s.reshape(members, b * n, s.shape[-1])
        z = _affine(by_entry, u[0], c).view(members * b, n, config.width)
        for logits_h, u_h in zip(logits_of(s), u[1:], strict=True):
            weights = softmax(logits_h, config.causal)
            z = torch.baddbmm(z, weights, torch.bmm(by_entry, u_h).view(z.shape))
        s = torch.relu_(z).view(members, b, n, config.width)
    out = _affine(s.view(members, b * n, config.width), folded["w"], folded.get("b"))
    return out.view(members, b, n, -1)


def _bilinear_by_layer(folded: Tensors, config: ModelConfig) -> list[Logits]:
    rows: list[tuple[Tensor | None, ...]] = [(None,) * config.heads] * config.layers
    if config.bias:
        rows = [layer.split(1, dim=1) for layer in (folded["m.first"], *folded["m"].unbind())]
    return [partial(_bilinear, m, row) for m, row in zip(by_layer(folded, "M"), rows, strict=True)]


def _bilinear(m: tuple[Tensor, ...], rows: tuple[Tensor | None, ...], s: Float[Tensor, "M b N d"]) -> list[Tensor]:
    """(s_i M + m) s_j^T of every head."""
    by_entry, by_list = s.flatten(1, 2), s.flatten(0, 1)
    queries = [_affine(by_entry, m_h, row).view(by_list.shape) for m_h, row in zip(m, rows, strict=True)]
    return [torch.bmm(q, by_list.mT) for q in queries]


def _affine(x: Float[Tensor, "M rows d"], matrix: Float[Tensor, "M d e"], row: Float[Tensor, "M 1 e"] | None) -> Tensor:
    return torch.bmm(x, matrix) if row is None else torch.baddbmm(row, x, matrix)
