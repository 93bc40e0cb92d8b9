"""What the encoder reads of a list: which positions its entries have, and what stands at each.

Letters: n list length, N = n + 1 positions with the scratchpad, P (N, d_P) the positional encodings.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from posattn.config import ModelConfig
from posattn.errors import UsageError
from posattn.memory import memory_cells
from posattn.tokens import token_features

Sequence = Float[Tensor, "*batch k"] | Int64[Tensor, "*batch k"]  # numbers, or tokens


def check_input(x: object, config: ModelConfig, kind: torch.dtype) -> None:
    """Raises unless ``x`` is a tensor of what a network whose weights are of ``kind`` reads."""
    if not isinstance(x, Tensor):
        raise UsageError(f"the input is a {type(x).__name__}; it must be a tensor, such as torch.tensor([3.0, 1.0]).")
    if not x.ndim:
        raise UsageError("the input is a single number; it must be a list of them, (..., n).")
    wanted = kind if config.vocabulary.numbers else torch.int64
    if x.dtype == wanted or config.bounds is not None:  # numbers within bounds are cast
        return
    cast = x.is_floating_point() and x.dtype != torch.float64 and torch.is_autocast_enabled(x.device.type)
    if not cast:
        raise UsageError(f"the input is of {x.dtype}; this network reads {wanted}, which x.to({wanted}) gives.")


def positions_of(length: int, config: ModelConfig, device: torch.device | None = None) -> Int64[Tensor, " N"]:
    """Where the entries of a list of ``length`` sit: 0..length-1, and the scratchpad at n."""
    if config.compiled and length != config.n:
        raise UsageError(f"the list has {length} numbers; this compiled program takes {config.n}.")
    if config.any_length:
        if length < 1:
            raise UsageError("the list is empty; this model takes lists of 1 number or more.")
        return torch.arange(length, device=device)
    if not 1 <= length <= config.n:
        what = f"sequence has {length} tokens" if config.vocabulary.words else f"list has {length} numbers"
        raise UsageError(f"the {what}; this model takes 1 to {config.n}.")
    if config.spare:
        return torch.arange(config.positions, device=device)
    return torch.cat([torch.arange(length, device=device), torch.full((1,), config.n, device=device)])


def input_features(
    x: Sequence,
    p: Float[Tensor, "*lists N d_P"],
    positions: Int64[Tensor, " N"],
    config: ModelConfig,
    table: Float[Tensor, "V C"] | None = None,
) -> Float[Tensor, "*any N d_in"]:
    """What the encoder reads: each number or row of ``table``, with its encoding or not, or Diag(X); the scratchpad holds 0."""
    if config.compiled:
        return memory_cells(x, positions, config.inputs, config.numbered)
    value = x[..., None] if table is None else token_features(x, table, config.vocabulary.numbers)
    if not config.any_length:
        value = torch.cat([value, torch.zeros_like(value[..., :1, :])], dim=-2)
    if config.design.diagonal_input:
        unit = torch.nn.functional.one_hot(positions, config.positions)
        return value * unit.to(x.dtype)
    if config.design.encoded_input:
        return torch.cat([value, p.expand(*value.shape[:-1], -1)], dim=-1)
    return value


def input_encoding(
    p: Float[Tensor, "N d_P"], positions: Int64[Tensor, " N"], config: ModelConfig
) -> Float[Tensor, "2 N d_in"]:
    """``input_features`` as number * slope + base: slope and base, which are the same for all lists."""
    nothing = p.new_zeros(len(positions) - 1)
    base, one = (input_features(value, p, positions, config) for value in (nothing, nothing + 1))
    return torch.stack([one - base, base])
