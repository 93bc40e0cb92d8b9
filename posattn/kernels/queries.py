"""What the kernels of ``layers`` do where queries and keys do not multiply out (posattn.folding.queries_and_keys).

Of a head, q = R (s Q + B_q) and k = R (s K + B_k), and the logits are q k^T. R turns pairs of entries by an angle that the
position determines, so a vector is kept in halves of K columns, each with one of every pair: (l, r) becomes
(l cos - r sin, l sin + r cos). Slots 0 and 1 are the heads' queries, 2 and 3 their keys. Matrices lie in memory as
(D_IN, 4, 2, K), tables B as (TABLE, 4, 2, K), one row per position or one for all, and rotations as (N, 2, K), cosines and
sines; columns that a half lacks are zero. Other letters as in ``layers``.
"""

import triton
import triton.language as tl

from posattn.kernels.tiles import (
    all_values_of,
    dot,
    encoder_input,
    first_state,
    gradient_dot,
    gradient_of,
    logits_gradient,
    pairs_of,
    product,
    rounded,
    rounded_gradient,
    rows_at,
    short_dot,
    softmax,
    store_values,
    tile_of,
    unit_of,
    weighed,
    zeros,
)


@triton.jit
def _halves_of(pointer, slot, D_IN: tl.constexpr, D: tl.constexpr, K: tl.constexpr, P: tl.constexpr):
    """The matrix of a slot; rows beyond D_IN are zero."""
    row, column = tl.arange(0, D), tl.arange(0, K)
    place = row[:, None] * 8 * K + slot * 2 * K + column[None, :]
    left = tl.load(pointer + place, mask=(row < D_IN)[:, None], other=0.0)
    right = tl.load(pointer + K + place, mask=(row < D_IN)[:, None], other=0.0)
    return rounded(left, P), rounded(right, P)


@triton.jit
def _turned(left, right, turn_pointer, BACK: tl.constexpr, N: tl.constexpr, R: tl.constexpr, K: tl.constexpr):
    """A tile's vectors turned by their positions, or turned back."""
    place = (tl.arange(0, R) % N)[:, None] * 2 * K + tl.arange(0, K)[None, :]
    cos, sin = tl.load(turn_pointer + place), tl.load(turn_pointer + K + place)
    if BACK:
        sin = -sin
    return left * cos - right * sin, left * sin + right * cos


@triton.jit
def _vectors(
    s, left, right, table_pointer, turn_pointer, slot,
    N: tl.constexpr, R: tl.constexpr, K: tl.constexpr, TABLE: tl.constexpr, ROTARY: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The queries or keys of a tile, rounded for the next product."""
    left, right = product(s, left, P), product(s, right, P)
    if TABLE:
        place = (tl.arange(0, R) % N % TABLE)[:, None] * 8 * K + slot * 2 * K + tl.arange(0, K)[None, :]
        left += tl.load(table_pointer + place)
        right += tl.load(table_pointer + K + place)
    if ROTARY:
        left, right = _turned(left, right, turn_pointer, False, N, R, K)
    return rounded(left, P), rounded(right, P)


@triton.jit
def _vectors_gradient(
    slopes, left, right, turn_pointer,
    N: tl.constexpr, R: tl.constexpr, K: tl.constexpr, ROTARY: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Of queries before their turn, from the gradient of the logits and the keys, in float32; with its transpose, of keys."""
    left, right = product(slopes, left, P), product(slopes, right, P)
    if ROTARY:
        left, right = _turned(left, right, turn_pointer, True, N, R, K)
    return left, right


@triton.jit
def attend_by_queries(
    z, s, u, matrices, table, turn_pointer, head, pairs_pointer, place, kept, same,
    N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
    TABLE: tl.constexpr, ROTARY: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """z plus one head of self-attention; stores its weights for the backward pass."""
    left, right = _halves_of(matrices, head, D_IN, D, K, P)
    q_l, q_r = _vectors(s, left, right, table, turn_pointer, head, N, R, K, TABLE, ROTARY, P)
    left, right = _halves_of(matrices, head + 2, D_IN, D, K, P)
    k_l, k_r = _vectors(s, left, right, table, turn_pointer, head + 2, N, R, K, TABLE, ROTARY, P)
    logits = dot(q_l, tl.trans(k_l), zeros(R, R), P)
    logits = dot(q_r, tl.trans(k_r), logits, P)
    weights, _ = softmax(logits, same)
    a = rounded(weights, P)
    tl.store(pairs_pointer + place, a, mask=kept)
    return weighed(z, s, a, u, P)


@triton.jit
def _back_through_slot(
    ds, s, slopes, matrices, table, turn_pointer, slot, other,
    N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
    TABLE: tl.constexpr, ROTARY: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """ds plus what comes through the queries, with dl, or the keys, with dl^T; ``other`` is the slot that they meet."""
    left, right = _halves_of(matrices, other, D_IN, D, K, P)
    left, right = _vectors(s, left, right, table, turn_pointer, other, N, R, K, TABLE, ROTARY, P)
    left, right = _vectors_gradient(slopes, left, right, turn_pointer, N, R, K, ROTARY, P)
    m_l, m_r = _halves_of(matrices, slot, D_IN, D, K, P)
    ds = dot(rounded_gradient(left, P), tl.trans(m_l), ds, P)
    return dot(rounded_gradient(right, P), tl.trans(m_r), ds, P)


@triton.jit
def _back_through_head(
    ds, s, dz, u, matrices, table, turn_pointer, head, pairs_pointer, slopes_pointer, place, kept,
    STATE: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
    TABLE: tl.constexpr, ROTARY: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Stores one head's gradient dl of the logits; if STATE, adds its part to ds: through values, queries and keys."""
    a = tl.load(pairs_pointer + place, mask=kept, other=0.0)
    e = gradient_dot(dz, tl.trans(u), P)
    dl = logits_gradient(a, product(e, tl.trans(s), P), P)
    tl.store(slopes_pointer + place, dl, mask=kept)
    if STATE:
        ds = dot(tl.trans(a), e, ds, P)
        ds = _back_through_slot(
            ds, s, dl, matrices, table, turn_pointer, head, head + 2, N, D_IN, D, R, K, TABLE, ROTARY, P
        )
        ds = _back_through_slot(
            ds, s, tl.trans(dl), matrices, table, turn_pointer, head + 2, head, N, D_IN, D, R, K, TABLE, ROTARY, P
        )
    return ds


@triton.jit
def queries_state(
    x_pointer, encoding_pointer, s_pointer, dz_pointer, h_pointer, error_pointer, loss_pointer, w_pointer, u_pointer,
    m_pointer, r_pointer, turn_pointer, pairs_pointer, slopes_pointer, out_pointer,
    x_stride, u_stride, m_stride, r_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    K: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr, ROTARY: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
    STATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of the logits, and if STATE dz of the layer before."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    u_pointer += member * u_stride
    u_0, u_1, u_2 = all_values_of(u_pointer, D_IN, D, W, PRECISION)
    matrices = m_pointer + member * m_stride
    table = r_pointer + member * r_stride
    deep = tl.arange(0, D)
    w, unit = tl.load(w_pointer + member * W + tl.arange(0, W)), unit_of(loss_pointer, member)
    if FIRST:
        slope, base = encoder_input(encoding_pointer, N, D_IN, D, R)
    for tile in range(TILES):
        first = (part * TILES + tile) * (R // N)
        at, valid = rows_at(first, lists, N, R)
        if FIRST:
            s = first_state(x_pointer + member * x_stride, at, valid, slope, base, N, PRECISION)
        else:
            s = tile_of(s_pointer, start, at, valid, D)
        dz = gradient_of(dz_pointer, h_pointer, error_pointer, w, unit, start, at, valid, W, LAST, PRECISION)
        place, kept = pairs_of(first, lists, N, 1, N, R)
        here = (member * lists + first) * 2 * N * N
        pairs, slopes = pairs_pointer + here, slopes_pointer + here
        ds = zeros(R, D)
        if STATE:
            ds = dot(dz, tl.trans(u_0), ds, PRECISION)
        ds = _back_through_head(
            ds, s, dz, u_1, matrices, table, turn_pointer, 0, pairs, slopes, place, kept,
            STATE, N, D_IN, D, R, K, TABLE, ROTARY, PRECISION,
        )  # fmt: skip
        pairs, slopes = pairs + N * N, slopes + N * N
        ds = _back_through_head(
            ds, s, dz, u_2, matrices, table, turn_pointer, 1, pairs, slopes, place, kept,
            STATE, N, D_IN, D, R, K, TABLE, ROTARY, PRECISION,
        )  # fmt: skip
        if STATE:
            ds = rounded_gradient(tl.where(s > 0, ds, 0.0), PRECISION)
            tl.store(out_pointer + (start + at)[:, None] * D + deep[None, :], ds, mask=valid[:, None])


@triton.jit
def queries_weights(
    x_pointer, encoding_pointer, s_pointer, dz_pointer, h_pointer, error_pointer, loss_pointer, w_pointer,
    m_pointer, r_pointer, turn_pointer, pairs_pointer, slopes_pointer, du_pointer, dc_pointer, dm_pointer, dr_pointer,
    x_stride, m_stride, r_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    K: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr, ROTARY: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of one slot, the grid's third axis: dQ = s^T dq with dq = R^T dl k, or dK with dl^T q, and its rows of B.

    A slot of queries also has its head's dU_h = (A_h s)^T dz; dU_0 and dc go with the first of keys. If B has rows for
    positions, a program sums every row of a tile for itself; those of one position are left to the caller.
    """
    member, part, slot = tl.program_id(1).to(tl.int64), tl.program_id(0), tl.program_id(2)
    start = member * lists * N
    other = (slot + 2) % 4
    m_l, m_r = _halves_of(m_pointer + member * m_stride, other, D_IN, D, K, PRECISION)
    table_pointer = r_pointer + member * r_stride
    row, wide, deep, column = tl.arange(0, R), tl.arange(0, W), tl.arange(0, D), tl.arange(0, K)
    down, across = tl.where(slot < 2, N, 1), tl.where(slot < 2, 1, N)  # keys read dl transposed
    w, unit = tl.load(w_pointer + member * W + wide), unit_of(loss_pointer, member)
    if FIRST:
        slope, base = encoder_input(encoding_pointer, N, D_IN, D, R)
    du, dm_l, dm_r = zeros(D, W), zeros(D, K), zeros(D, K)
    if TABLE == 1:
        dr_l, dr_r = tl.zeros((K,), tl.float32), tl.zeros((K,), tl.float32)
    elif TABLE:
        dr_l, dr_r = zeros(R, K), zeros(R, K)
    dc = tl.zeros((W,), tl.float32)
    for tile in range(TILES):
        first = (part * TILES + tile) * (R // N)
        begin = start + first * N
        at, valid = rows_at(first, lists, N, R)
        if FIRST:
            s = first_state(x_pointer + member * x_stride, at, valid, slope, base, N, PRECISION)
        else:
            s = tile_of(s_pointer, begin, row, valid, D)
        dz = gradient_of(dz_pointer, h_pointer, error_pointer, w, unit, begin, row, valid, W, LAST, PRECISION)
        place, kept = pairs_of(first, lists, down, across, N, R)
        here = ((member * lists + first) * 2 + slot % 2) * N * N
        if slot < 2:
            a = tl.load(pairs_pointer + here + place, mask=kept, other=0.0)
            du = dot(short_dot(tl.trans(s), tl.trans(a), PRECISION), dz, du, PRECISION)
        if slot == 2:
            du = dot(tl.trans(s), dz, du, PRECISION)
            if BIAS:
                dc += tl.sum(dz.to(tl.float32), axis=0)
        dl = tl.load(slopes_pointer + here + place, mask=kept, other=0.0)
        left, right = _vectors(s, m_l, m_r, table_pointer, turn_pointer, other, N, R, K, TABLE, ROTARY, PRECISION)
        left, right = _vectors_gradient(dl, left, right, turn_pointer, N, R, K, ROTARY, PRECISION)
        if TABLE == 1:
            dr_l += tl.sum(left, axis=0)
            dr_r += tl.sum(right, axis=0)
        elif TABLE:
            dr_l += left
            dr_r += right
        dm_l = dot(tl.trans(s), rounded_gradient(left, PRECISION), dm_l, PRECISION)
        dm_r = dot(tl.trans(s), rounded_gradient(right, PRECISION), dm_r, PRECISION)
    out = member * tl.num_programs(0) + part
    unit *= 2.0 / (lists * (N - 1))
    du_pointer += out * 3 * D_IN * W
    if slot < 2:
        store_values(du_pointer, slot + 1, du * unit, D_IN, D, W)
    if slot == 2:
        store_values(du_pointer, 0, du * unit, D_IN, D, W)
        if BIAS:
            tl.store(dc_pointer + out * W + wide, dc * unit)
    place = out * D_IN * 8 * K + deep[:, None] * 8 * K + slot * 2 * K + column[None, :]
    tl.store(dm_pointer + place, dm_l * unit, mask=(deep < D_IN)[:, None])
    tl.store(dm_pointer + K + place, dm_r * unit, mask=(deep < D_IN)[:, None])
    if TABLE == 1:
        place = out * 8 * K + slot * 2 * K + column
        tl.store(dr_pointer + place, dr_l * unit)
        tl.store(dr_pointer + K + place, dr_r * unit)
    elif TABLE:
        place = out * R * 8 * K + row[:, None] * 8 * K + slot * 2 * K + column[None, :]
        tl.store(dr_pointer + place, dr_l * unit)
        tl.store(dr_pointer + K + place, dr_r * unit)
