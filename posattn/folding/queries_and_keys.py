"""Queries and keys of the folded network where they do not multiply out.

A rotary embedding stands between W_Q and W_K^T, and so do encodings that queries and keys read beside the state. With s the
folded state and x = s T + t as in posattn.folding.fold, the logits of a head are then

    q_i k_j^T,      q = R (s Q + B_q),      k = R (s K + B_k),
    Q = T W_Q,x,    B_q = t W_Q,x + P W_Q,p + b_Q,    and likewise for keys,

where W_,x and W_,p are the rows that read X and P, B has a row for each position, and R turns a vector by its position
(``rotate``) or is the identity. 1/sqrt(d_k) is inside Q and B_q. Without a rotary embedding the
keys' constant shifts whole rows of logits, which softmax ignores, so it is left out.

Letters as in posattn.folding.fold: M members, L layers, b lists, N positions, H heads; G = 2 H queries and keys.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from posattn.encodings import rotate
from posattn.model import ModelConfig, positions_of

Logits = Callable[[Tensor], list[Tensor]]  # of one layer: from the state (M, b, N, d) to (M b, N, N) for each head
QUERY, KEY = "layers.attention.W_Q", "layers.attention.W_K"


def keeps_queries_apart(config: ModelConfig) -> bool:
    """Whether a self-attention keeps two maps, because something comes between W_Q and W_K^T."""
    return config.design.attends == "both" or (config.design.rotary and config.design.attends == "input")


class QueriesAndKeys:
    """``folded``, and ``adjoint``: from gradients of the folded tensors to those of W_Q, W_K and T.

    ``QK.first`` (M, d_in, 2 H, d_k) and ``QK`` (L-1, M, w, 2 H, d_k), queries of all heads first; ``B`` (L, M, N, 2 H, d_k),
    with one row for all positions if it holds biases only, and absent if there are none. With biases the maps T carry t as
    one more row.
    """

    def __init__(
        self,
        stacked: Mapping[str, Tensor],
        config: ModelConfig,
        p: Float[Tensor, "N d_P"],
        first_map: Float[Tensor, "M d_in_1 d"],
        inner_map: Float[Tensor, "L_1 M w_1 d"],
    ):
        self.config, self.p, self.first_map, self.inner_map = config, p, first_map, inner_map
        self.weight = self._both(stacked, "weight", dim=-2).mT  # (L, M, d + d_P, 2 H d_k)
        self.state, self.places = self.weight[..., : config.embed, :], self.weight[..., config.embed :, :]
        first, inner = first_map @ self.state[0], inner_map @ self.state[1:]
        d_in, parts = config.input_dim, (2 * config.heads, config.d_k)
        self.folded = {
            "QK.first": first[:, :d_in].unflatten(-1, parts),
            "QK": inner[..., : config.width, :].unflatten(-1, parts),
        }
        tables = []
        if config.bias:
            rows = torch.cat([first[None, :, d_in:], inner[..., config.width :, :]])
            tables.append((rows + self._both(stacked, "bias", dim=-1)[..., None, :]) * self._effective())
        if config.design.attends == "both":
            tables.append(p @ self.places)
        if tables:
            self.folded["B"] = sum(tables[1:], start=tables[0]).unflatten(-1, parts)

    def _both(self, stacked: Mapping[str, Tensor], kind: str, dim: int) -> Tensor:
        """Weight or bias of queries, over sqrt(d_k), and keys."""
        return torch.cat([stacked[f"{QUERY}.{kind}"] / math.sqrt(self.config.d_k), stacked[f"{KEY}.{kind}"]], dim=dim)

    def _effective(self) -> Float[Tensor, " columns"]:
        """1 where a constant has an effect: everywhere if it is rotated, else in queries."""
        ones = self.weight.new_ones(2, self.config.heads * self.config.d_k)
        if not self.config.design.rotary:
            ones[1] = 0
        return ones.flatten()

    def adjoint(self, gradients: Mapping[str, Tensor], found: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Gradients of W_Q and W_K; returns those of T."""
        first, inner = gradients["QK.first"].flatten(-2), gradients["QK"].flatten(-2)
        if self.config.bias:
            constants = gradients["B"].flatten(-2).sum(dim=-2, keepdim=True) * self._effective()
            first, inner = torch.cat([first, constants[0]], dim=-2), torch.cat([inner, constants[1:]], dim=-2)
            self._part(constants.squeeze(-2), "bias", -1, found)
        weight = torch.cat([(self.first_map.mT @ first)[None], self.inner_map.mT @ inner])
        if self.config.design.attends == "both":
            weight = torch.cat([weight, self.p.mT @ gradients["B"].flatten(-2)], dim=-2)
        self._part(weight.mT, "weight", -2, found)
        return first @ self.state[0].mT, inner @ self.state[1:].mT

    def _part(self, value: Tensor, kind: str, dim: int, found: dict[str, Tensor]) -> None:
        """Splits the gradient of both into those of queries and keys."""
        queries, keys = value.chunk(2, dim=dim)
        found |= {f"{QUERY}.{kind}": queries / math.sqrt(self.config.d_k), f"{KEY}.{kind}": keys}


def logits_by_layer(folded: Mapping[str, Tensor], config: ModelConfig) -> list[Logits]:
    tables = folded["B"].unbind() if "B" in folded else [None] * config.layers
    matrices = (folded["QK.first"], *folded["QK"].unbind())
    return [partial(_logits, qk, table, config) for qk, table in zip(matrices, tables, strict=True)]


def _logits(
    qk: Float[Tensor, "M d G d_k"],
    table: Float[Tensor, "M rows G d_k"] | None,
    config: ModelConfig,
    s: Float[Tensor, "M b N d"],
) -> list[Float[Tensor, "Mb N N"]]:
    both = torch.bmm(s.flatten(1, 2), qk.flatten(-2)).unflatten(1, s.shape[1:3]).unflatten(-1, qk.shape[-2:])
    if table is not None:
        both = both + table[:, None]
    both = both.transpose(2, 3).flatten(0, 1)  # (M b, 2 H, N, d_k)
    if config.design.rotary:
        both = rotate(both, positions_of(s.shape[2] - 1, config, s.device))
    queries, keys = both.chunk(2, dim=1)
    return [torch.bmm(q, k.mT) for q, k in zip(queries.unbind(dim=1), keys.unbind(dim=1), strict=True)]
