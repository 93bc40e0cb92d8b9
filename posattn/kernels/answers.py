"""The last layer of networks that answer at the scratchpad, which comes last: no other position is computed.

With s_N the state there, z = s_N U_0 + Σ_h p_h U_h + c and p_h = Σ_j a_hj s_j, where a_h is the last row of A_h. Kernels go
from the states to s_N and p_h, which are few numbers, and back; ``fused`` has the rest. Self-attention has
a_h = softmax(s q_h) with q_h = s_N M_h + m_h, so s_N also gets dq_h M_h^T. A program takes one list at a time, and sums are
float32's throughout.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from posattn.kernels.launches import divided
from posattn.kernels.tiles import (
    both_rows_of,
    forms_of,
    rounded_gradient,
    unit_of,
)

_AT_ONCE = 8  # programs that fit one multiprocessor


class Look:
    """What the last layer sees from the scratchpad, and the way back."""

    def __init__(self, s: Float[Tensor, "M b N D"], d_in: int, attention: dict[str, Any], bias: bool):
        """``attention`` is A, or M and m, as kernels take them."""
        members, lists, n, d = s.shape
        each, parts = divided(lists, members, _AT_ONCE)
        self.s, self.d_in, self.positional = s, d_in, "m_pointer" not in attention
        self.grid = (parts, members)
        nothing = {"a_pointer": s, "m_pointer": s, "r_pointer": s, "m_stride": 0, "r_stride": 0}
        self.given = nothing | attention | {"s_pointer": s, "lists": lists, "TILES": each, "N": n, "D_IN": d_in, "D": d}
        self.given |= {"R": triton.next_power_of_2(n), "POSITIONAL": self.positional, "BIAS": bias, "num_warps": 4}

    def forward(self) -> Float[Tensor, "M b 3 d_in"]:
        """s_N and p_h."""
        members, lists, _, d = self.s.shape
        seen = self.s.new_empty(members, lists, 3, d, dtype=torch.float32)
        look[self.grid](seen_pointer=seen, **self.given)
        return seen[..., : self.d_in]

    def backward(
        self,
        slopes: Float[Tensor, "M b 3 d_in"],
        loss: Float[Tensor, " M"],
        out: Float[Tensor, "M b N D"] | None,
        relu: bool,
        precision: str,
    ) -> Float[Tensor, "M ..."]:
        """From the gradients of s_N and p_h those of a_h (M, 2, N), or of q_h (M, b, 2, d_in).

        Into ``out`` go those of s, in the unit that ``loss`` gives (see ``layers``), and with ``relu`` where they are positive.
        """
        members, lists, n, d = self.s.shape
        parts, new = self.grid[0], slopes.new_empty
        found = new(members, parts, 2, n) if self.positional else new(members, lists, 2, d)
        wide = F.pad(slopes, (0, d - self.d_in)).contiguous()
        look_back[self.grid](
            slopes_pointer=wide, loss_pointer=loss, out_pointer=self.s if out is None else out, found_pointer=found,
            STATE=out is not None, RELU=relu, PRECISION=precision, **self.given,
        )  # fmt: skip
        return found.sum(dim=1) if self.positional else found[..., : self.d_in]


@triton.jit
def _places(member, own, lists, N: tl.constexpr, D: tl.constexpr, R: tl.constexpr):
    """Which of all lists a member's own one is, which of its rows exist, and which columns: none of a list that does not."""
    row = tl.arange(0, R)
    return member * lists + own, (row < N) & (own + row * 0 < lists), own + tl.arange(0, D) * 0 < lists


@triton.jit
def _row_of_weights(pointer, head: tl.constexpr, N: tl.constexpr, R: tl.constexpr):
    """a_h out of A (2, N, N)."""
    row = tl.arange(0, R)
    return tl.load(pointer + head * N * N + (N - 1) * N + row, mask=row < N, other=0.0)


@triton.jit
def _asked(s, last, m, r, N: tl.constexpr, R: tl.constexpr):
    """q and the weights of a head."""
    q = tl.sum(last[:, None] * m, axis=0) + r
    logits = tl.where(tl.arange(0, R) < N, tl.sum(s * q[None, :], axis=1), float("-inf"))
    weight = tl.exp(logits - tl.max(logits, axis=0))
    return q, weight / tl.sum(weight, axis=0)


@triton.jit
def look(
    s_pointer, a_pointer, m_pointer, r_pointer, seen_pointer, m_stride, r_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    POSITIONAL: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """s_N, p_1 and p_2 of every list."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    row, deep = tl.arange(0, R), tl.arange(0, D)
    if POSITIONAL:
        a_1 = _row_of_weights(a_pointer + member * 2 * N * N, 0, N, R)
        a_2 = _row_of_weights(a_pointer + member * 2 * N * N, 1, N, R)
    else:
        m_1, m_2 = forms_of(m_pointer + member * m_stride, D_IN, D, "fp32")
        r_1, r_2 = tl.zeros((D,), tl.float32), tl.zeros((D,), tl.float32)
        if BIAS:
            r_1, r_2 = both_rows_of(r_pointer + member * r_stride, D_IN, D)
    for tile in range(TILES):
        here, kept, every = _places(member, part * TILES + tile, lists, N, D, R)
        own = s_pointer + here * N * D + deep
        s = tl.load(own[None, :] + row[:, None] * D, mask=kept[:, None], other=0.0).to(tl.float32)
        last = tl.load(own + (N - 1) * D, mask=every, other=0.0).to(tl.float32)
        if not POSITIONAL:
            _, a_1 = _asked(s, last, m_1, r_1, N, R)
            _, a_2 = _asked(s, last, m_2, r_2, N, R)
        seen = seen_pointer + here * 3 * D + deep
        tl.store(seen, last, mask=every)
        tl.store(seen + D, tl.sum(a_1[:, None] * s, axis=0), mask=every)
        tl.store(seen + 2 * D, tl.sum(a_2[:, None] * s, axis=0), mask=every)


@triton.jit
def _back_through_asked(ds, at_last, s, last, dp, m, r, N: tl.constexpr, R: tl.constexpr):
    """ds and that of s_N with a head's part, and dq."""
    q, a = _asked(s, last, m, r, N, R)
    da = tl.sum(s * dp[None, :], axis=1)
    dl = a * (da - tl.sum(a * da, axis=0))
    dq = tl.sum(dl[:, None] * s, axis=0)
    ds += a[:, None] * dp[None, :] + dl[:, None] * q[None, :]
    return ds, at_last + tl.sum(m * dq[None, :], axis=1), dq


@triton.jit
def look_back(
    s_pointer, a_pointer, m_pointer, r_pointer, slopes_pointer, loss_pointer, out_pointer, found_pointer,
    m_stride, r_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    POSITIONAL: tl.constexpr, BIAS: tl.constexpr, STATE: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """ds if STATE; and parts of the gradients of a_1 and a_2, or those of q_1 and q_2 of every list."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    row, deep, unit = tl.arange(0, R), tl.arange(0, D), unit_of(loss_pointer, member)
    if POSITIONAL:
        a_1 = _row_of_weights(a_pointer + member * 2 * N * N, 0, N, R)
        a_2 = _row_of_weights(a_pointer + member * 2 * N * N, 1, N, R)
        da_1, da_2 = tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32)
    else:
        m_1, m_2 = forms_of(m_pointer + member * m_stride, D_IN, D, "fp32")
        r_1, r_2 = tl.zeros((D,), tl.float32), tl.zeros((D,), tl.float32)
        if BIAS:
            r_1, r_2 = both_rows_of(r_pointer + member * r_stride, D_IN, D)
    for tile in range(TILES):
        here, kept, every = _places(member, part * TILES + tile, lists, N, D, R)
        place = here * N * D + row[:, None] * D + deep[None, :]
        s = tl.load(s_pointer + place, mask=kept[:, None], other=0.0).to(tl.float32)
        slopes = slopes_pointer + here * 3 * D + deep
        dp_1, dp_2 = tl.load(slopes + D, mask=every, other=0.0), tl.load(slopes + 2 * D, mask=every, other=0.0)
        if POSITIONAL:
            da_1 += tl.sum(s * dp_1[None, :], axis=1)
            da_2 += tl.sum(s * dp_2[None, :], axis=1)
            ds = a_1[:, None] * dp_1[None, :] + a_2[:, None] * dp_2[None, :]
            at_last = tl.load(slopes, mask=every, other=0.0)
        else:
            last = tl.load(s_pointer + here * N * D + (N - 1) * D + deep, mask=every, other=0.0).to(tl.float32)
            ds, at_last = tl.zeros((R, D), tl.float32), tl.load(slopes, mask=every, other=0.0)
            ds, at_last, dq = _back_through_asked(ds, at_last, s, last, dp_1, m_1, r_1, N, R)
            found = found_pointer + here * 2 * D + deep
            tl.store(found, dq, mask=every)
            ds, at_last, dq = _back_through_asked(ds, at_last, s, last, dp_2, m_2, r_2, N, R)
            tl.store(found + D, dq, mask=every)
        if STATE:
            ds += tl.where((row == N - 1)[:, None], at_last[None, :], 0.0)
            if RELU:
                ds = tl.where(s > 0, ds, 0.0)
            tl.store(out_pointer + place, rounded_gradient(ds / unit, PRECISION), mask=kept[:, None])
    if POSITIONAL:
        found = found_pointer + (member * tl.num_programs(0) + part) * 2 * N + row
        tl.store(found, da_1, mask=row < N)
        tl.store(found + N, da_2, mask=row < N)
