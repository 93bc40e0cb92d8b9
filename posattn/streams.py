"""Random numbers as a pure function of (seed, purpose, index), equal bit for bit on every device.

A run draws data, initial weights and shuffles from separate *streams*. A stream is one 64-bit key; its i-th number is
SplitMix64 at counter i, computed with integer tensor arithmetic. There is no generator state: resuming a run at any
epoch, training a member alone or beside others, on a CPU or a GPU, gives the same numbers.

Letters: ``keys`` is an int64 tensor of any shape, one stream each (an ensemble passes one key per member).
"""

import hashlib
import json

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def _signed(value: int) -> int:
    """The int64 that has the same 64 bits as the unsigned ``value``."""
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_CHUNK = 1 << 15  # numbers per pass: small enough for the intermediate integers to stay in a core's cache


def stream(seed: int, *purpose: str | int) -> int:
    """The key of the stream that ``seed`` has for ``purpose``, for example ``stream(0, "data", "train")``."""
    text = json.dumps([int(seed), *purpose])
    return _signed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"))


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's output function, in place. ``>>`` is arithmetic on int64, so the copied sign bits are masked off."""
    z ^= (z >> 30) & ((1 << 34) - 1)
    z *= _MIX_1
    z ^= (z >> 27) & ((1 << 37) - 1)
    z *= _MIX_2
    z ^= (z >> 31) & ((1 << 33) - 1)
    return z


def fold_in(keys: Int64[Tensor, "*shape"], number: int | Tensor) -> Int64[Tensor, "*shape"]:
    """New, independent keys: those of ``keys`` for occasion ``number`` (an epoch, say)."""
    return _mix(keys + _mix(torch.as_tensor(number) * _GOLDEN + 1))


def bits(keys: Int64[Tensor, "*shape"], count: int) -> Int64[Tensor, "*shape count"]:
    """The first ``count`` 64-bit numbers of every stream."""
    counter = torch.arange(1, count + 1, device=keys.device) * _GOLDEN
    return _mix(keys[..., None] + counter)


def uniform(keys: Int64[Tensor, "*shape"], count: int) -> Float[Tensor, "*shape count"]:
    """The first ``count`` numbers of every stream, uniform on the multiples of 2^-24 in [0, 1), as float32."""
    out = torch.empty(*keys.shape, count, dtype=torch.float32, device=keys.device)
    width = count if keys.is_cuda else max(1, _CHUNK // max(1, keys.numel()))
    for start in range(0, count, width):
        piece = out[..., start : start + width]
        shifted = keys + _signed(start * 0x9E3779B97F4A7C15 % (1 << 64))
        piece.copy_((bits(shifted, piece.shape[-1]) >> 40) & ((1 << 24) - 1)).mul_(2.0**-24)
    return out


def permutation(keys: Int64[Tensor, "*shape"], count: int) -> Int64[Tensor, "*shape count"]:
    """A random order of 0..count-1 for every stream."""
    return bits(keys, count).argsort(dim=-1)
