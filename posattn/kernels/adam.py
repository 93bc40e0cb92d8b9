"""Adam for a whole ensemble in one pass over memory."""

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int64
from torch import Tensor

_BLOCK = 2048


@triton.jit
def _adam(
    value_pointer, gradient_pointer, first_pointer, second_pointer, lr_pointer, alive_pointer, norm_pointer, step_pointer,
    rates_pointer, spreads_pointer, size, clip, new_1, new_2, epsilon, CLIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, place = at < size, member * size + at
    alive, step = tl.load(alive_pointer + member) != 0, tl.load(step_pointer)
    gradient = tl.where(alive, tl.load(gradient_pointer + place, mask=inside, other=0.0), 0.0)
    if CLIP:
        gradient *= tl.where(alive, clip / tl.maximum(tl.load(norm_pointer + member), clip), 0.0)
    first = tl.load(first_pointer + place, mask=inside, other=0.0)
    first += (gradient - first) * new_1
    second = tl.load(second_pointer + place, mask=inside, other=0.0)
    second += (gradient * gradient - second) * new_2
    rate = tl.where(alive, tl.load(lr_pointer + member) * tl.load(rates_pointer + step), 0.0)
    change = rate * first / (tl.sqrt(second) / tl.load(spreads_pointer + step) + epsilon)
    value = tl.load(value_pointer + place, mask=inside, other=0.0)
    tl.store(value_pointer + place, value - change, mask=inside)
    tl.store(first_pointer + place, first, mask=inside)
    tl.store(second_pointer + place, second, mask=inside)


def adam(
    rows: tuple[Float[Tensor, "M P"], Float[Tensor, "M P"], Float[Tensor, "M P"], Float[Tensor, "M P"]],
    members: tuple[Float[Tensor, " M"], Bool[Tensor, " M"], Float[Tensor, " M"]],
    schedule: tuple[Int64[Tensor, ""], Float[Tensor, " steps"], Float[Tensor, " steps"]],
    betas: tuple[float, float],
    epsilon: float,
    clip: float | None,
) -> None:
    """``Trainer._adam``, in place.

    Args:
        rows: the parameters, their gradients and the two moments.
        members: learning rates, who is alive, and the gradients' norms.
        schedule: the step, and for every step the factor on the rate and the second moment's correction.
    """
    count, size = rows[0].shape
    lr, alive, norm = members
    new = [1 - beta for beta in betas]  # here in float64: a kernel's float32 would lose the last digits of 1 - 0.999
    _adam[(triton.cdiv(size, _BLOCK), count)](
        *rows, lr, alive.view(torch.uint8), norm, *schedule,
        size, 0.0 if clip is None else clip, *new, epsilon, CLIP=clip is not None, BLOCK=_BLOCK,
    )  # fmt: skip
