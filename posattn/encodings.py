"""Positional encodings: the matrix P of Eq. 3, whose row i describes position i, and the rotary embedding.

Letters: n list length, N positions (n and the scratchpad), d_P dimension of an encoding.
A new encoding is one row in ``ENCODINGS``: the paper's dimension for it, and its matrix.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from posattn.names import ENCODINGS as OURS
from posattn.names import KNOWN_ENCODING


def one_hot(positions: int, dim: int) -> Float[Tensor, "positions dim"]:
    """Row i is the i-th unit vector."""
    return torch.eye(positions, dim)


def binary(positions: int, dim: int) -> Float[Tensor, "positions dim"]:
    """Row i holds the lowest ``dim`` binary digits of i, most significant first, with zeros written as -1."""
    digits = torch.arange(positions)[:, None] >> torch.arange(dim - 1, -1, -1)
    return (2 * (digits & 1) - 1).to(torch.get_default_dtype())


def sinusoidal(positions: int, dim: int) -> Float[Tensor, "positions dim"]:
    """P[i, 2k] = sin(i / 10000^(2k/d_P)) and P[i, 2k+1] = cos of the same angle (Vaswani et al., 2017)."""
    column = torch.arange(dim)
    kept = torch.get_default_dtype()
    own = torch.promote_types(kept, torch.float32)  # half precision cannot count the positions
    angle = torch.arange(positions, dtype=own)[:, None] / 10000.0 ** (2 * (column // 2).to(own) / dim)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).to(kept)


@dataclass(frozen=True)
class Encoding:
    """``dim(n, N)`` is the default dimension for lists of n at N positions; ``matrix(N, d_P)`` is P."""

    dim: Callable[[int, int], int]
    matrix: Callable[[int, int], Tensor]
    full_rank: bool = False  # one-hot needs a dimension for every position; the others take any


ENCODINGS: dict[str, Encoding] = {
    "one-hot": Encoding(lambda n, positions: positions, one_hot, full_rank=True),
    # The paper writes ceil(log2 n), which gives the scratchpad and the first position one code; see docs/paper-map.md.
    "binary": Encoding(lambda n, positions: max(1, math.ceil(math.log2(positions))), binary),
    "sinusoidal": Encoding(lambda n, positions: math.ceil(n / 2), sinusoidal),
}


def encoding_of_own(config: Any) -> dict[str, list[list[float]]]:
    """Numbers by which the P of a network is known again if its encoding is one's own: |P|, and uᵀPv for three fixed u and v.

    Unlike a digest they also serve on a machine that rounds otherwise.
    """
    name, shape = getattr(config, "encoding", None), getattr(config, "input", config)
    if name in OURS or name not in ENCODINGS or not hasattr(shape, "encoded_positions"):
        return {}
    p = ENCODINGS[name].matrix(shape.encoded_positions, shape.encoding_dim).double().cpu()
    row, column = (torch.arange(1, size + 1, dtype=torch.float64) for size in p.shape)
    products = [float((k * row).cos() @ p @ (k * math.sqrt(2) * column).cos()) for k in (1, 2, 3)]
    return {KNOWN_ENCODING + name: [[float(p.norm()), *products]]}


def random_places(x: Float[Tensor, "*batch n"], places: int) -> Int64[Tensor, "*batch n"]:
    """Different places in ascending order among 0..places-1, at random: a fixed pseudo-random function of each list.

    No generator is involved, so a list has the same places in training and in a test. The places are n numbers of
    0..places-n, sorted, each raised by its rank.
    """
    n = x.shape[-1]
    rank = torch.arange(n, device=x.device)
    # The hash that shaders use: the far digits of a sine.
    u = torch.frac(
        torch.sin(x.detach().double().sum(dim=-1, keepdim=True) * 12.9898 + rank * 78.233) * 43758.5453
    ).abs()
    return (u * (places - n + 1)).long().sort(dim=-1).values + rank


def rotate(x: Float[Tensor, "*batch n d"], positions: Int64[Tensor, " n"]) -> Float[Tensor, "*batch n d"]:
    """Rotary embedding (Su et al., 2024): turns the pair (k, k + d//2) of the vector at position i by i / 10000^(2k/d).

    Turning queries and keys alike makes their products depend on the offset i - j alone. If d is odd, the last entry is not
    turned.
    """
    d = x.shape[-1]
    half = d // 2
    speed = 10000.0 ** (-2 * torch.arange(half, dtype=torch.float64, device=x.device) / d)
    angle = positions[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, first * sin + second * cos, rest], dim=-1)
