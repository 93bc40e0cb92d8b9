"""A layer on long lists: a list fills a tile of R rows, and one kernel carries all gradients back.

With e_h = dz U_h^T and v_h = A_h^T dz, they are dU_0 = s^T dz, dU_h = s^T v_h, dc, and ds = dz U_0^T + Σ_h v_h U_h^T.
Positional attention has dA_h = e_h s^T, summed over lists. Self-attention computes its weights anew from q_h = s M_h + m_h.
Their gradient is e_h s^T, and with dl_h that of the logits and dq_h = dl_h s, dM_h = s^T dq_h, dm_h sums the rows of dq_h, and
ds has dq_h M_h^T + dl_h^T q_h as well. Letters as in ``layers``.
"""

import triton
import triton.language as tl

from posattn.kernels.tiles import (
    all_values_of,
    both_rows_of,
    dot,
    forms_of,
    gradient_dot,
    product,
    rounded,
    rounded_gradient,
    rows_at,
    short_dot,
    tile_of,
    unit_of,
    zeros,
)


@triton.jit
def _square_of(pointer, down, across, N: tl.constexpr, R: tl.constexpr, P: tl.constexpr):
    """A (N, N), whose rows are ``down`` apart and columns ``across``; what lies beyond is zero."""
    row = tl.arange(0, R)
    there = (row < N)[:, None] & (row < N)[None, :]
    return rounded(tl.load(pointer + row[:, None] * down + row[None, :] * across, mask=there, other=0.0), P)


@triton.jit
def _beside(left, right):
    """The columns of two matrices, side by side."""
    columns: tl.constexpr = 2 * left.shape[1]
    return tl.reshape(tl.permute(tl.join(left, right), (0, 2, 1)), (left.shape[0], columns))


@triton.jit
def _sums(x):
    """Parts of the sums of columns: of rows that a thread holds."""
    return tl.sum(tl.reshape(x.to(tl.float32), (x.shape[0] // 64, 64, x.shape[1])), axis=0)


@triton.jit
def _store_values(pointer, du, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr):
    """dU_0^T, dU_1^T and dU_2^T, one below the other, into (D_IN, 3, W)."""
    down, deep = tl.arange(0, 4 * W), tl.arange(0, D)
    place = down[:, None] + deep[None, :] * 3 * W
    tl.store(pointer + place, du, mask=(down < 3 * W)[:, None] & (deep < D_IN)[None, :])


@triton.jit
def positional_forward(
    s_pointer, u_pointer, c_pointer, a_pointer, h_pointer, u_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """h = relu(s U_0 + Σ_h A_h s U_h + c) of sequences."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    u_pointer += member * u_stride
    u_0, u_1, u_2 = all_values_of(u_pointer, D_IN, D, W, PRECISION)
    a_pointer += member * 2 * N * N
    a_1 = _square_of(a_pointer, N, 1, N, R, PRECISION)
    a_2 = _square_of(a_pointer + N * N, N, 1, N, R, PRECISION)
    wide = tl.arange(0, W)
    c = tl.zeros((W,), tl.float32)
    if BIAS:
        c = tl.load(c_pointer + member * W + wide)
    for tile in range(TILES):
        at, valid = rows_at(part * TILES + tile, lists, N, R)
        s = tile_of(s_pointer, start, at, valid, D)
        z = dot(s, u_0, zeros(R, W) + c[None, :], PRECISION)
        z = dot(short_dot(a_1, s, PRECISION), u_1, z, PRECISION)
        z = dot(short_dot(a_2, s, PRECISION), u_2, z, PRECISION)
        place = (start + at)[:, None] * W + wide[None, :]
        tl.store(h_pointer + place, rounded(tl.maximum(z, 0.0), PRECISION), mask=valid[:, None])


@triton.jit
def positional_backward(
    s_pointer, dz_pointer, loss_pointer, u_pointer, a_pointer,
    out_pointer, du_pointer, dc_pointer, da_pointer, u_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, STATE: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Parts of the gradients of weights; and if STATE, dz of the layer before, or of a first state without RELU."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    u_pointer += member * u_stride
    u_0, u_1, u_2 = all_values_of(u_pointer, D_IN, D, W, PRECISION)
    a_pointer += member * 2 * N * N
    a_1 = _square_of(a_pointer, 1, N, N, R, PRECISION)  # transposed
    a_2 = _square_of(a_pointer + N * N, 1, N, N, R, PRECISION)
    row, wide, deep = tl.arange(0, R), tl.arange(0, W), tl.arange(0, D)
    unit = unit_of(loss_pointer, member)
    du = zeros(4 * W, D)  # dU_0^T, dU_1^T and dU_2^T below one another: matrix units take 64 rows at least
    da_1, da_2 = zeros(R, R), zeros(R, R)
    dc = zeros(64, W)
    for tile in range(TILES):
        at, valid = rows_at(part * TILES + tile, lists, N, R)
        s = tile_of(s_pointer, start, at, valid, D)
        dz = tile_of(dz_pointer, start, at, valid, W)
        v_1, v_2 = gradient_dot(a_1, dz, PRECISION), gradient_dot(a_2, dz, PRECISION)
        if STATE:
            ds = dot(dz, tl.trans(u_0), zeros(R, D), PRECISION)
            ds = dot(v_1, tl.trans(u_1), ds, PRECISION)
            ds = dot(v_2, tl.trans(u_2), ds, PRECISION)
            if RELU:
                ds = tl.where(s > 0, ds, 0.0)
            place = (start + at)[:, None] * D + deep[None, :]
            tl.store(out_pointer + place, rounded_gradient(ds, PRECISION), mask=valid[:, None])
        da_1 = dot(gradient_dot(dz, tl.trans(u_1), PRECISION), tl.trans(s), da_1, PRECISION)
        da_2 = dot(gradient_dot(dz, tl.trans(u_2), PRECISION), tl.trans(s), da_2, PRECISION)
        du = dot(tl.trans(_beside(_beside(dz, v_1), _beside(v_2, dz))), s, du, PRECISION)
        if BIAS:
            dc += _sums(dz)
    out = member * tl.num_programs(0) + part
    unit *= 2.0 / (lists * (N - 1))
    _store_values(du_pointer + out * 3 * D_IN * W, du * unit, D_IN, D, W)
    there = (row < N)[:, None] & (row < N)[None, :]
    da_pointer += out * 2 * N * N + row[:, None] * N + row[None, :]
    tl.store(da_pointer, da_1 * unit, mask=there)
    tl.store(da_pointer + N * N, da_2 * unit, mask=there)
    if BIAS:
        tl.store(dc_pointer + out * W + wide, tl.sum(dc, axis=0) * unit)


@triton.jit
def _weights_of(s, m, r, N: tl.constexpr, R: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr, P: tl.constexpr):
    """q = s M + m of a head, and its weights A."""
    if BIAS:
        q = rounded(dot(s, m, tl.zeros_like(s).to(tl.float32) + r[None, :], P), P)
    else:
        q = short_dot(s, m, P)
    row = tl.arange(0, R)
    kept = (row < N)[None, :]
    if CAUSAL:
        kept = kept & (row[:, None] >= row[None, :])
    logits = tl.where(kept, product(q, tl.trans(s), P) * 1.4426950408889634, float("-inf"))
    weight = tl.exp2(logits - tl.max(logits, axis=1)[:, None])
    return q, rounded(weight * (1.0 / tl.sum(weight, axis=1))[:, None], P)


@triton.jit
def attention_forward(
    s_pointer, u_pointer, c_pointer, m_pointer, r_pointer, h_pointer, u_stride, m_stride, r_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """h = relu(s U_0 + Σ_h A_h s U_h + c) of sequences."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    u_pointer += member * u_stride
    u_0, u_1, u_2 = all_values_of(u_pointer, D_IN, D, W, PRECISION)
    m_1, m_2 = forms_of(m_pointer + member * m_stride, D_IN, D, PRECISION)
    wide = tl.arange(0, W)
    r_1, r_2, c = tl.zeros((D,), tl.float32), tl.zeros((D,), tl.float32), tl.zeros((W,), tl.float32)
    if BIAS:
        r_1, r_2 = both_rows_of(r_pointer + member * r_stride, D_IN, D)
        c = tl.load(c_pointer + member * W + wide)
    for tile in range(TILES):
        at, valid = rows_at(part * TILES + tile, lists, N, R)
        s = tile_of(s_pointer, start, at, valid, D)
        z = dot(s, u_0, zeros(R, W) + c[None, :], PRECISION)
        _, a = _weights_of(s, m_1, r_1, N, R, BIAS, CAUSAL, PRECISION)
        z = dot(short_dot(a, s, PRECISION), u_1, z, PRECISION)
        _, a = _weights_of(s, m_2, r_2, N, R, BIAS, CAUSAL, PRECISION)
        z = dot(short_dot(a, s, PRECISION), u_2, z, PRECISION)
        place = (start + at)[:, None] * W + wide[None, :]
        tl.store(h_pointer + place, rounded(tl.maximum(z, 0.0), PRECISION), mask=valid[:, None])


@triton.jit
def _back_through_head(
    ds, s, dz, m, r, u,
    N: tl.constexpr, R: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr, STATE: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """ds with a head's part, v and dq."""
    q, a = _weights_of(s, m, r, N, R, BIAS, CAUSAL, P)
    v = gradient_dot(tl.trans(a), dz, P)
    weighted = a.to(tl.float32) * product(gradient_dot(dz, tl.trans(u), P), tl.trans(s), P)
    dl = rounded_gradient(weighted - a.to(tl.float32) * tl.sum(weighted, axis=1)[:, None], P)
    dq = gradient_dot(dl, s, P)
    if STATE:
        ds = dot(v, tl.trans(u), ds, P)
        ds = dot(dq, tl.trans(m), ds, P)
        ds = dot(tl.trans(dl), q, ds, P)
    return ds, v, dq


@triton.jit
def attention_backward(
    s_pointer, dz_pointer, loss_pointer, u_pointer, m_pointer, r_pointer,
    out_pointer, du_pointer, dc_pointer, dm_pointer, dr_pointer, u_stride, m_stride, r_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, CAUSAL: tl.constexpr, STATE: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Parts of the gradients of weights; and if STATE, dz of the layer before, or of a first state without RELU."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    u_pointer += member * u_stride
    u_0, u_1, u_2 = all_values_of(u_pointer, D_IN, D, W, PRECISION)
    m_1, m_2 = forms_of(m_pointer + member * m_stride, D_IN, D, PRECISION)
    deep, twice = tl.arange(0, D), tl.arange(0, 2 * D)
    unit = unit_of(loss_pointer, member)
    r_1, r_2 = tl.zeros((D,), tl.float32), tl.zeros((D,), tl.float32)
    if BIAS:
        r_1, r_2 = both_rows_of(r_pointer + member * r_stride, D_IN, D)
    du, dm = zeros(4 * W, D), zeros(2 * D, D)  # transposed, heads below one another: matrix units take 64 rows at least
    dc, dr = zeros(4 * W, 16), zeros(2 * D, 16)
    ones = rounded(zeros(R, 16) + 1, PRECISION)  # with which matrix units sum rows
    for tile in range(TILES):
        at, valid = rows_at(part * TILES + tile, lists, N, R)
        s = tile_of(s_pointer, start, at, valid, D)
        dz = tile_of(dz_pointer, start, at, valid, W)
        ds = zeros(R, D)
        if STATE:
            ds = dot(dz, tl.trans(u_0), ds, PRECISION)
        ds, v_1, dq_1 = _back_through_head(ds, s, dz, m_1, r_1, u_1, N, R, BIAS, CAUSAL, STATE, PRECISION)
        ds, v_2, dq_2 = _back_through_head(ds, s, dz, m_2, r_2, u_2, N, R, BIAS, CAUSAL, STATE, PRECISION)
        v, dq = tl.trans(_beside(_beside(dz, v_1), _beside(v_2, dz))), tl.trans(_beside(dq_1, dq_2))
        du = dot(v, s, du, PRECISION)
        dm = dot(dq, s, dm, PRECISION)
        if BIAS:
            dc = dot(v, ones, dc, PRECISION)
            dr = dot(dq, ones, dr, PRECISION)
        if STATE:
            if RELU:
                ds = tl.where(s > 0, ds, 0.0)
            place = (start + at)[:, None] * D + deep[None, :]
            tl.store(out_pointer + place, rounded_gradient(ds, PRECISION), mask=valid[:, None])
    out = member * tl.num_programs(0) + part
    unit *= 2.0 / (lists * (N - 1))
    _store_values(du_pointer + out * 3 * D_IN * W, du * unit, D_IN, D, W)
    head, column = twice // D, twice % D
    place = deep[None, :] * 2 * D_IN + (head * D_IN + column)[:, None]
    there = (column < D_IN)[:, None] & (deep < D_IN)[None, :]
    tl.store(dm_pointer + out * 2 * D_IN * D_IN + place, dm * unit, mask=there)
    if BIAS:
        down = tl.arange(0, 4 * W)
        tl.store(dc_pointer + out * W + down, tl.sum(dc, axis=1) * (unit / 16), mask=down < W)
        place = out * 2 * D_IN + head * D_IN + column
        tl.store(dr_pointer + place, tl.sum(dr, axis=1) * (unit / 16), mask=column < D_IN)
