"""The looped network, folded, for an ensemble: what training and evaluation compute with (docs/any-length.md).

The state is X = [h, g] [W_2; e], with h the hidden activation of the layer, g what has stayed of the input, and e the encoder.
In these coordinates a loop is

    [h, g]' = m relu([h, g] U_0 + Σ_h A_h [h, g] U_h) + (1 - m) [h, g],     U = [W_2; e] [W_1x | W_V,1 O_1 | W_V,2 O_2 | ...],

with O_h = W_O,h W_1a, and zeros in the place of g after the relu. It is the ``LoopedTransformer`` in fewer operations, and
where the state is as wide as the hidden layer in three fifths of the products. Positions come before lists: attention is one
product of matrices for short lists, and slices for long ones.

Letters: M members, n positions, b lists, H heads, d width of the state, w hidden width, D = w + 1 rounded up to 8s.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot, pad

from posattn.errors import UsageError
from posattn.looped.families import FAMILIES, Family, Loop
from posattn.looped.looped_model import LoopedConfig
from posattn.looped.offsets import rows, split_weights

_DENSE = 64  # numbers: up to here the attention of a loop is a small matrix
_LAYER = "layers.0."


class Maps(NamedTuple):
    """The network in the coordinates [h, g]: U (M, H+1, D, .), the maps after it, and the readout (M, D, 1)."""

    u: Tensor
    between: list[Tensor]
    readout: Tensor


def looped_forward(
    named: Mapping[str, Tensor], x: Float[Tensor, "M b n"], config: LoopedConfig
) -> Float[Tensor, "M b n"]:
    """The answers of M networks to lists of their own; ``named`` are the parameters, by their names in ``Transformer``."""
    family, (b, n) = config.shape, x.shape[1:]
    if n < 1:
        raise UsageError("the list is empty; this model takes lists of 1 number or more.")
    maps = fold(named, config.heads)
    table = (config.sharpness * named[f"{_LAYER}attention.logits"]).softmax(dim=-1)
    hidden = named[f"{_LAYER}W_2.weight"].shape[-1]
    state = pad(x.mT[..., None], (hidden, maps.u.shape[-2] - hidden - 1)).flatten(1, 2)  # [0, x]
    for loop in family.loops(n):
        places = _places(config.family, n, loop, x.device)
        a, m = split_weights(places.classes.to(table.dtype) @ table, places.inside)
        # Before U_0: the order in which the state is used decides the last bits of its gradient.
        attended = _attended(a, state, family, loop, places)
        new = torch.bmm(state, maps.u[:, 0])
        for part, u in zip(attended, maps.u[:, 1:].unbind(1), strict=True):
            new = torch.baddbmm(new, part, u)
        new = new.relu()
        for linear in maps.between:  # the rest of Φ
            new = torch.bmm(new, linear).relu()
        if config.stay:
            old, there = (each.unflatten(1, (n, b)) for each in (state, new))
            new = torch.lerp(old, there, m[..., None, None]).flatten(1, 2)
        state = new
    return (state @ maps.readout).view(-1, n, b).mT


def fold(named: Mapping[str, Tensor], heads: int) -> Maps:
    """The products that serve all loops."""
    w_1, w_2, w_v, w_o = (
        named[f"{_LAYER}{name}.weight"].mT for name in ("W_1", "W_2", "attention.W_V", "attention.W_O")
    )
    d = w_o.shape[-1]  # of what attention brings
    o = (w_o @ w_1[:, :d]).unflatten(1, (heads, -1))
    by_head = w_v.unflatten(2, (heads, -1)).transpose(1, 2) @ o
    basis = torch.cat([w_2, named["encoder.weight"].mT], dim=1)  # [W_2; e]
    below = -basis.shape[1] % 8
    u = pad(basis[:, None] @ torch.cat([w_1[:, None, d:], by_head], dim=1), (0, 0, 0, below))
    between = [value.mT for name, value in named.items() if name.startswith(f"{_LAYER}between")]
    aside = 1 + below  # the last map has no part in g
    if between:
        between[-1] = pad(between[-1], (0, aside))
    else:
        u = pad(u, (0, aside))
    return Maps(u, between, pad(basis @ named["decoder.weight"].mT, (0, 0, 0, below)))


class _Places(NamedTuple):
    """Where a loop looks in lists of n.

    The class of every position, one-hot (n, K); which candidates are in the list (n, C); for short lists also E (n, C, n),
    which is 1 at the place of every candidate.
    """

    classes: Tensor
    inside: Tensor
    one_hot: Tensor | None


@lru_cache(maxsize=4096)
def _places(name: str, n: int, loop: Loop, device: torch.device) -> _Places:
    """Made once: a CUDA graph can hold no copy from the host."""
    family = FAMILIES[name]
    with torch.inference_mode(False), torch.no_grad():
        classes = one_hot(family.class_of(n, loop, device), family.classes).float()
        inside = family.inside(n, loop, device)
        if n > _DENSE:
            return _Places(classes, inside, None)
        places = family.places(n, loop, device)
        return _Places(classes, inside, (places[..., None] == torch.arange(n, device=device)).float())


def _attended(
    a: Float[Tensor, "M H n C"], state: Float[Tensor, "M nb D"], family: Family, loop: Loop, places: _Places
) -> list[Tensor]:
    """A_h [h, g] of every head, (M, nb, D)."""
    n, by_place = a.shape[2], state.unflatten(1, (a.shape[2], -1)).flatten(2)
    if places.one_hot is not None:
        dense = (a[..., None, :] @ places.one_hot.to(a.dtype)).squeeze(-2)  # (M, H, n, n)
        mixed = torch.bmm(dense.flatten(1, 2), by_place)
        return list(mixed.view(len(a), -1, *state.shape[1:]).unbind(1))
    heads = []
    for own in a.unbind(1):
        terms = [
            own[..., place, None] * rows(by_place, r * loop.stride, n + r * loop.stride)
            for place, r in enumerate(family.candidates)
            if abs(r) * loop.stride < n
        ]
        heads.append(sum(terms[1:], start=terms[0]).view_as(state))
    return heads
