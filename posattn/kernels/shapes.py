"""Which networks the kernels serve; from the folded tensors to the shapes that they read, and back for their gradients.

Matrix units take powers of two from 16 on, so hidden layers are padded with units whose weights are zero, and queries and
keys that do not multiply out come in padded halves. Nothing here imports Triton: others ask where there is none.
"""

from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from posattn.encodings import rotate
from posattn.folding import Tensors
from posattn.folding.queries_and_keys import keeps_queries_apart
from posattn.model import ModelConfig, positions_of
from posattn.tokens.token_model import TokenConfig

ROWS, LONG_ROWS = 64, 128  # per tile, which holds as many whole lists as fit
_WIDEST = 64  # features that a layer reads
_LONG_WIDEST = 32  # the same for long lists, whose matrices leave less room on chip
_NARROWEST = 16  # rows and columns that tl.dot needs


def rows_of(n: int) -> int:
    """Rows of a tile for lists of n positions."""
    return ROWS if n <= ROWS else LONG_ROWS


def serves(config: ModelConfig, precision: str) -> bool:
    """Two heads, lists that fit a tile, at most 64 input features and a width of at most 64.

    In full float32 the matrices of self-attention do not fit on chip, so there and for tokens PyTorch computes. Queries and
    keys that do not multiply out may have up to 64 entries. Prompts of more than 64 positions are served in half precision, up
    to 32 wide.
    """
    positional, apart = config.attends == "position" and config.reads == "none", keeps_queries_apart(config)
    if config.positions > ROWS:
        features = config.embed if enters(config) else config.input_dim
        fits = config.positions <= LONG_ROWS and max(config.width, features) <= _LONG_WIDEST
        return fits and precision == "fp16" and config.heads == 2 and _answers(config) and not apart
    return (
        (precision in ("fp16", "tf32") or (precision == "fp32" and positional))
        and config.heads == 2
        and config.width <= _WIDEST
        and config.input_dim <= _WIDEST
        and (config.d_k <= 64 or not apart)
    )


def _answers(config: ModelConfig) -> bool:
    """Whether a network reads prompts, which it answers at the scratchpad."""
    return isinstance(config, TokenConfig) and config.vocabulary.numbers


def enters(config: ModelConfig) -> bool:
    """Whether the first layer reads the encoder's output, which has a kernel of its own: on long prompts, where positions among
    the features make them more than a layer reads."""
    if config.positions <= ROWS or not isinstance(config, TokenConfig) or not _answers(config):
        return False
    return config.input_dim > _LONG_WIDEST and len(config.vocabulary.characters) + 1 <= _WIDEST


def folds_rows(config: ModelConfig) -> bool:
    """Whether the kernels of ``folds`` make the products, too: not where the encoder is more than a linear map of its own."""
    sizes = max(config.embed, config.d_k, config.encoding_dim, config.input_dim) <= 64 and config.width in (16, 32, 64)
    plain = not isinstance(config, TokenConfig) or not config.vocabulary.shared
    return sizes and plain and not keeps_queries_apart(config)


def hidden_columns(n: int) -> int:
    """Columns of a hidden layer of networks of n positions, at most 64. For products of fewer Triton 3.6 and 3.7 make code that
    is wrong on a Hopper GPU (triton-lang/triton#11366); the kernels of long lists, which are 32 wide, were checked on one."""
    return _WIDEST if n <= ROWS else _LONG_WIDEST


def input_columns(features: int, n: int) -> int:
    """The same of what the first layer reads, of which 16 were checked, too."""
    return _NARROWEST if features <= _NARROWEST and n <= ROWS else hidden_columns(n)


def padded(width: int) -> int:
    """The number of columns that matrix units take, at least ``width``."""
    return max(_NARROWEST, 2 ** (width - 1).bit_length())


def half_columns(d_k: int, precision: str) -> int:
    """Columns of half a query or key. In half precision 64 at least: for products of 32 columns Triton 3.6 and 3.7 make code
    that reads beyond the shared memory of a Hopper GPU (triton-lang/triton#11366)."""
    return max(padded(d_k - d_k // 2), 64 if precision == "fp16" else 0)


def short(x: Float[Tensor, "*any"], precision: str) -> Float[Tensor, "*any"]:
    """x as matrix products read it, by the rules of ``tiles.rounded`` and ``tiles.rounded_gradient``."""
    if precision == "fp16":
        return x.clamp(-65504, 65504).half()
    return ((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32) if precision == "tf32" else x


# Axes of hidden units.
_HIDDEN = {"U.first": (-1,), "U": (-3, -1), "c": (-1,), "M": (-3, -1), "m": (-1,), "QK": (-3,), "w": (-2,)}
_HALVED = ("QK.first", "QK", "B")  # what the kernels of queries and keys read in halves


def widened(folded: Tensors, width: int, precision: str) -> Tensors:
    """The same network with more hidden units, whose weights are zero; queries and keys in halves, as the kernels read them."""
    wide = dict(folded)
    for name in _HIDDEN.keys() & folded.keys():
        for axis in _HIDDEN[name]:
            value = wide[name]
            missing = list(value.shape)
            missing[axis] = width - value.shape[axis]
            wide[name] = torch.cat([value, value.new_zeros(missing)], dim=axis) if missing[axis] else value
    return wide | {name: _halved(wide[name], precision).contiguous() for name in _HALVED if name in wide}


def narrowed(gradients: Tensors, config: ModelConfig) -> Tensors:
    """The gradients of the configuration's hidden units, from those of what ``widened`` gives."""
    narrow = gradients | {name: _joined(gradients[name], config.d_k) for name in _HALVED if name in gradients}
    for name in _HIDDEN.keys() & gradients.keys():
        for axis in _HIDDEN[name]:
            narrow[name] = narrow[name].narrow(axis, 0, config.width)
    return {name: value.contiguous() for name, value in narrow.items()}


def _halved(value: Float[Tensor, "*lead d_k"], precision: str) -> Float[Tensor, "*lead 2 K"]:
    """The entries that ``rotate`` pairs in two rows, padded for the matrix units. An odd last entry goes with the first row."""
    half = value.shape[-1] // 2
    left, right, rest = value.split([half, half, value.shape[-1] - 2 * half], dim=-1)
    left = torch.cat([left, rest], dim=-1)
    size = half_columns(value.shape[-1], precision)
    return torch.stack([F.pad(side, (0, size - side.shape[-1])) for side in (left, right)], dim=-2)


def _joined(value: Float[Tensor, "*lead 2 K"], d_k: int) -> Float[Tensor, "*lead d_k"]:
    """What ``_halved`` was given."""
    half = d_k // 2
    left, right = value.unbind(dim=-2)
    return torch.cat([left[..., :half], right[..., :half], left[..., half : d_k - half]], dim=-1)


@cache
def turns(n: int, config: ModelConfig, device: torch.device, precision: str) -> Float[Tensor, "n 2 K"]:
    """Cosines and sines of the angles at n positions, computed in the first step: a CUDA graph then finds them cached."""
    half = config.d_k // 2
    unit = torch.ones(n, config.d_k, device=device)
    unit[:, half : 2 * half] = 0
    return _halved(rotate(unit, positions_of(n - 1, config, device)), precision).contiguous()
