"""Y = A V for a whole batch. A depends on no sequence, so that the values of all sequences are columns of one product per head.

A GPU computes it in ``posattn.kernels.mixing`` where that is faster. Letters: H heads, n positions, k rows of A, e value width.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posattn.attention import softmax
from posattn.devices import runs_kernels

Product = Callable[[Tensor], Tensor]  # from V (..., n, H, e) to Y (..., n, H, e)
Values = Float[Tensor, "*batch n H e"]  # V, and Y
Queries = Float[Tensor, "H n d_k"]  # and keys
Padding = Bool[Tensor, "*#batch n"] | None
_LEAST = 1e4  # times the smallest normal number: the gradient of 1/x is finite from there on


def product(a: Float[Tensor, "H k n"], v: Float[Tensor, "*batch n H e"]) -> Float[Tensor, "*batch k H e"]:
    """Y = A V as one product per head, of V with n rows and a column for each sequence and entry."""
    lead, (n, heads, e) = v.shape[:-3], v.shape[-3:]
    columns = v.reshape(-1, n, heads, e).permute(2, 1, 0, 3).reshape(heads, n, -1)
    return (a.to(v.dtype) @ columns).unflatten(-1, (-1, e)).permute(2, 1, 0, 3).reshape(*lead, a.shape[1], heads, e)


def product_each(a: Float[Tensor, "*#batch H n n"], v: Values, padding: Padding) -> Values:
    """Y = A V with a matrix A for each sequence, zero at padding. Not even a nan in the padding counts."""
    v = v if padding is None else v.masked_fill(padding[..., None, None], 0)
    return (a.to(v.dtype) @ v.transpose(-3, -2)).transpose(-3, -2)


def product_of(q: Queries, k: Queries, causal: bool, v: Values) -> Product:
    """The function V → softmax(Q K^T / sqrt(d_k)) V, for values of the kind of ``v``."""
    if served(q, v):
        from posattn.kernels.mixing import mixed

        short = (q.to(v.dtype), k.to(v.dtype))
        return lambda v: mixed(*short, v.reshape(-1, *v.shape[-3:]), causal)[0].reshape(v.shape)
    a = softmax(q / math.sqrt(q.shape[-1]) @ k.mT, causal)
    return lambda v: product(a, v)


def over_padding(apply: Product, v: Values, padding: Padding) -> Values:
    """Y of weights renormalised over what is not padding: (A V)_i / (A m)_i with V and m zero at padding, m one elsewhere.

    A row that attends to padding alone is zero. So is one whose other weights are too small to divide by.
    """
    if padding is None or not v.numel():
        return apply(v)
    n, heads = v.shape[-3:-1]
    y = apply(v.masked_fill(padding[..., None, None], 0))
    real = (~padding).reshape(-1, n).mT.to(v.dtype)  # a column for each sequence
    kept = apply(real[:, None].expand(n, heads, -1)).permute(2, 0, 1).reshape(*padding.shape, heads, 1)
    return y / kept.where(kept > _LEAST * torch.finfo(v.dtype).tiny, 1)


def underflows(v: Values, padding: Padding) -> bool:
    """Whether ``over_padding`` would lose weights: those of float16 end at 6e-8, a lead of 17 in the logits."""
    return padding is not None and v.dtype == torch.float16


def served(q: Queries, v: Values) -> bool:
    """Whether the kernels are there and faster: in half precision on a GPU, with narrow queries and values in whole words.

    They have no rules for the transforms of torch.func, under which a forward-mode derivative would be zero.
    """
    narrow = q.shape[-1] <= 128 and v.shape[-1] % 8 == 0
    return narrow and _half_on_gpu(v) and not torch._C._are_functorch_transforms_active()


def _half_on_gpu(v: Values) -> bool:
    return v.is_cuda and v.dtype in (torch.bfloat16, torch.float16) and _kernels_on(v.device.index)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch.compile cannot trace what it asks
def _kernels_on(index: int) -> bool:
    return runs_kernels(torch.device("cuda", index))
