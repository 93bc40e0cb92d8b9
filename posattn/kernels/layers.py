"""Triton kernels for one layer of the folded ensemble, forward and backward, for two heads.

A program takes one member and a run of tiles. A tile is 64 rows of the state: as many whole lists of N positions as fit,
so attention within a list is a block-diagonal 64 x 64 matrix and every operation is a 64-wide matrix product. A layer's
matrices are read once per program, and their gradients are summed on chip over its tiles; sums over programs are left to the
caller, in a fixed order, so results do not depend on timing.

Letters as in posattn.folding: s the state, u_0, u_1, u_2 = U, c the constant, k_1, k_2 block-diagonal A, m_1, m_2 and r_1, r_2
the bilinear form M and its row m of self-attention, z the pre-activation, h = relu(z). dz is its gradient in units of 8 times
the member's root mean squared error times 2 / entries. That keeps it in the middle of half precision's range; larger numbers
are clamped to the range. Sums leave in true units.

Where queries and keys do not multiply out, K is their half width, and 0 elsewhere; m_pointer and r_pointer are then their
matrices and table, and ``queries`` computes with them. Matrices of queries and keys are read anew for every tile, since
all of them together leave no room on chip.

PRECISION is what matrix products read: ``fp16`` (the state is then kept so, too), ``tf32``, or ``fp32``, where a product is
three of TensorFloat-32, of the rounded numbers and their remainders. Products are always summed in float32.
"""

import triton
import triton.language as tl

from posattn.kernels.queries import attend_by_queries, back_through_queries
from posattn.kernels.tiles import (
    dot,
    encoder_input,
    first_state,
    gradient_dot,
    gradient_mixed,
    gradient_of,
    in_registers,
    mixed,
    pairs_of,
    rounded,
    rounded_gradient,
    rows_at,
    short_dot,
    slopes_of,
    store_tile,
    store_values,
    tile_of,
    turned_about,
    unit_of,
    values_of,
    weighed,
    zeros,
)


@triton.jit
def _bilinear_of(pointer, head: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, P: tl.constexpr):
    """M_head out of (D_IN, 2, D_IN); what lies beyond is zero."""
    row = tl.arange(0, D)
    place = row[:, None] * 2 * D_IN + head * D_IN + row[None, :]
    return rounded(tl.load(pointer + place, mask=(row < D_IN)[:, None] & (row < D_IN)[None, :], other=0.0), P)


@triton.jit
def _row_of(pointer, head: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr):
    """m_head out of (2, D_IN)."""
    row = tl.arange(0, D)
    return tl.load(pointer + head * D_IN + row, mask=row < D_IN, other=0.0)


@triton.jit
def _block_diagonal(a, N: tl.constexpr, R: tl.constexpr, P: tl.constexpr):
    """The (R, R) matrix that applies A (N, N) to every list of a tile."""
    row = tl.arange(0, R)
    whole = row < (R // N) * N
    kept = ((row // N)[:, None] == (row // N)[None, :]) & whole[:, None] & whole[None, :]
    return rounded(tl.load(a + (row % N)[:, None] * N + (row % N)[None, :], mask=kept, other=0.0), P)


@triton.jit
def _held(a, R: tl.constexpr, P: tl.constexpr):
    """a as a product, which a program keeps in registers. What is loaded it reads from shared memory for every tile anew."""
    row = tl.arange(0, R)
    return short_dot(a, rounded(tl.where(row[:, None] == row[None, :], 1.0, 0.0), P), P)


@triton.jit
def _attend(z, s, m, r, u, pairs_pointer, place, kept, same, BIAS: tl.constexpr, P: tl.constexpr):
    """z plus one head of self-attention; stores its weights for the backward pass."""
    if BIAS:
        q = rounded(dot(s, m, tl.zeros_like(s).to(tl.float32) + r[None, :], P), P)
    else:
        q = short_dot(s, m, P)
    logits = dot(q, tl.trans(s), tl.zeros(same.shape, tl.float32), P)
    return weighed(z, s, logits, u, pairs_pointer, place, kept, same, P)


@triton.jit(do_not_specialize=["turned"])
def layer_forward(
    x_pointer, encoding_pointer, s_pointer, u_pointer, c_pointer, a_pointer, m_pointer, r_pointer, pairs_pointer, h_pointer,
    turn_pointer, w_pointer, b_pointer, y_pointer, error_pointer, loss_pointer, dw_pointer, db_pointer,
    x_stride, y_stride, u_stride, m_stride, r_stride, lists, turned,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    K: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr, ROTARY: tl.constexpr, POSITIONAL: tl.constexpr,
    CAUSAL: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """h = relu(s U_0 + Σ_h A_h s U_h + c); the last layer goes on to the outputs h w + b and their errors.

    Errors count at all positions but the scratchpad. Each program sums its part of the loss and of the gradients of w and b.
    """
    member = turned_about(tl.program_id(1), tl.num_programs(1), turned).to(tl.int64)
    part = tl.program_id(0)
    start = member * lists * N
    u_pointer += member * u_stride
    u_0 = values_of(u_pointer, 0, D_IN, D, W, PRECISION)
    u_1 = values_of(u_pointer, 1, D_IN, D, W, PRECISION)
    u_2 = values_of(u_pointer, 2, D_IN, D, W, PRECISION)
    row, wide = tl.arange(0, R), tl.arange(0, W)
    if POSITIONAL:
        k_1 = _block_diagonal(a_pointer + member * 2 * N * N, N, R, PRECISION)
        k_2 = _block_diagonal(a_pointer + member * 2 * N * N + N * N, N, R, PRECISION)
        if PRECISION == "fp16" and not LAST:
            k_1, k_2 = _held(k_1, R, PRECISION), _held(k_2, R, PRECISION)
    elif K:
        matrices = m_pointer + member * m_stride
        table = r_pointer + member * r_stride
    else:
        m_1 = _bilinear_of(m_pointer + member * m_stride, 0, D_IN, D, PRECISION)
        m_2 = _bilinear_of(m_pointer + member * m_stride, 1, D_IN, D, PRECISION)
        r_1 = tl.zeros((D,), tl.float32)
        r_2 = tl.zeros((D,), tl.float32)
        if BIAS:
            r_1 = _row_of(r_pointer + member * r_stride, 0, D_IN, D)
            r_2 = _row_of(r_pointer + member * r_stride, 1, D_IN, D)
    if not POSITIONAL:
        same = (row // N)[:, None] == (row // N)[None, :]
        if CAUSAL:
            same = same & (row[:, None] >= row[None, :])
    if BIAS and POSITIONAL:
        c = tl.load(c_pointer + member * W + wide)
    if FIRST:
        slope, base = encoder_input(encoding_pointer, N, D_IN, D, R)
    if LAST:
        w = tl.load(w_pointer + member * W + wide)
        loss = tl.zeros((R,), tl.float32)
        db = tl.zeros((R,), tl.float32)
        dw = tl.zeros((R // 16, 8, W), tl.float32)
        if BIAS:
            b = tl.load(b_pointer + member)
    for tile in range(TILES):
        first = (part * TILES + turned_about(tile, TILES, turned)) * (R // N)
        begin = start + first * N
        at, valid = rows_at(first, lists, N, R)
        if FIRST:
            s = first_state(x_pointer + member * x_stride, at, valid, slope, base, N, PRECISION)
        else:
            s = tile_of(s_pointer, begin, row, valid, D)
        if LAST:
            scored = valid & (at % N < N - 1)
            y = tl.load(y_pointer + member * y_stride + (at // N) * (N - 1) + at % N, mask=scored, other=0.0)
        z = dot(s, u_0, zeros(R, W), PRECISION)
        if BIAS:
            if not POSITIONAL:  # there it would take registers that self-attention needs
                c = tl.load(c_pointer + member * W + wide)
            z += c[None, :]
        if POSITIONAL:
            z = mixed(z, k_1, s, u_1, PRECISION)
            z = mixed(z, k_2, s, u_2, PRECISION)
        else:
            place, kept = pairs_of(first, lists, N, 1, N, R)
            pairs = pairs_pointer + (member * lists + first) * 2 * N * N
            if K:
                z = attend_by_queries(
                    z, s, u_1, matrices, table, turn_pointer, 0, pairs, place, kept, same,
                    N, D_IN, D, R, K, TABLE, ROTARY, PRECISION,
                )  # fmt: skip
                z = attend_by_queries(
                    z, s, u_2, matrices, table, turn_pointer, 1, pairs + N * N, place, kept, same,
                    N, D_IN, D, R, K, TABLE, ROTARY, PRECISION,
                )  # fmt: skip
            else:
                z = _attend(z, s, m_1, r_1, u_1, pairs, place, kept, same, BIAS, PRECISION)
                z = _attend(z, s, m_2, r_2, u_2, pairs + N * N, place, kept, same, BIAS, PRECISION)
        h = tl.maximum(z, 0.0)
        store_tile(h_pointer, rounded(h, PRECISION), begin, row, valid, W)
        if LAST:
            answer = tl.sum(h * w[None, :], axis=1)
            if BIAS:
                answer += b
            error = tl.where(scored, answer - y, 0.0)
            tl.store(error_pointer + start + at, error, mask=valid)
            loss += error * error
            db += error
            # A thread holds rows that are 8 apart; the rest of the sum waits till the end.
            dw += tl.sum(tl.reshape(error[:, None] * h, (R // 16, 2, 8, W)), axis=1)
    if LAST:
        out = member * tl.num_programs(0) + part
        entries = lists * (N - 1)
        tl.store(loss_pointer + out, tl.sum(loss, axis=0) / entries)
        tl.store(dw_pointer + out * W + wide, tl.sum(tl.sum(dw, axis=0), axis=0) * (2.0 / entries))
        if BIAS:
            tl.store(db_pointer + out, tl.sum(db, axis=0) * (2.0 / entries))


@triton.jit
def _state_and_pairs(
    x_pointer, encoding_pointer, s_pointer, dz_pointer, h_pointer, error_pointer, loss_pointer, w_pointer, u_pointer, a_pointer,
    out_pointer, da_pointer, x_stride, u_stride, lists, turned, part, parts,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, STATE: tl.constexpr, PAIRS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """STATE: dz of the layer before, ds = dz U_0^T + Σ_h A_h^T dz U_h^T where its ReLU is on.

    PAIRS: the diagonal blocks of (dz U_h^T) s^T, which add up to dA_h.
    """
    member = turned_about(tl.program_id(1), tl.num_programs(1), turned).to(tl.int64)
    start = member * lists * N
    u_pointer += member * u_stride
    u_1 = values_of(u_pointer, 1, D_IN, D, W, PRECISION)
    u_2 = values_of(u_pointer, 2, D_IN, D, W, PRECISION)
    if STATE:
        u_0 = values_of(u_pointer, 0, D_IN, D, W, PRECISION)
        k_1 = _block_diagonal(a_pointer + member * 2 * N * N, N, R, PRECISION)
        k_2 = _block_diagonal(a_pointer + member * 2 * N * N + N * N, N, R, PRECISION)
    row = tl.arange(0, R)
    w, unit = tl.load(w_pointer + member * W + tl.arange(0, W)), unit_of(loss_pointer, member)
    if FIRST:
        slope, base = encoder_input(encoding_pointer, N, D_IN, D, R)
    dk_1, dk_2 = zeros(R, R), zeros(R, R)
    for tile in range(TILES):
        first = (part * TILES + turned_about(tile, TILES, turned)) * (R // N)
        begin = start + first * N
        at, valid = rows_at(first, lists, N, R)
        if FIRST:
            s = first_state(x_pointer + member * x_stride, at, valid, slope, base, N, PRECISION)
        else:
            s = tile_of(s_pointer, begin, row, valid, D)
        dz = gradient_of(dz_pointer, h_pointer, error_pointer, w, unit, begin, row, valid, W, LAST, PRECISION)
        dz = in_registers(dz, PRECISION)
        if PAIRS:
            e_1 = gradient_dot(dz, tl.trans(u_1), PRECISION)
            dk_1 = dot(e_1, tl.trans(s), dk_1, PRECISION)
            e_2 = gradient_dot(dz, tl.trans(u_2), PRECISION)
            dk_2 = dot(e_2, tl.trans(s), dk_2, PRECISION)
        if STATE:
            ds = dot(dz, tl.trans(u_0), zeros(R, D), PRECISION)
            if PAIRS:
                ds = dot(tl.trans(k_1), e_1, ds, PRECISION)
                ds = dot(tl.trans(k_2), e_2, ds, PRECISION)
            else:
                ds = gradient_mixed(ds, tl.trans(k_1), dz, tl.trans(u_1), PRECISION)
                ds = gradient_mixed(ds, tl.trans(k_2), dz, tl.trans(u_2), PRECISION)
            on = tl.where(s > 0, tl.full((R, D), 1, s.dtype), tl.full((R, D), 0, s.dtype))
            store_tile(out_pointer, rounded_gradient(ds, PRECISION) * on, begin, row, valid, D)
    if PAIRS:
        unit *= 2.0 / (lists * (N - 1))
        place, kept = pairs_of(0, R // N, N, 1, N, R)
        da_pointer += (member * parts + part) * (R // N) * 2 * N * N + place
        tl.store(da_pointer, dk_1 * unit, mask=kept)
        tl.store(da_pointer + N * N, dk_2 * unit, mask=kept)


@triton.jit
def _values(
    x_pointer, encoding_pointer, s_pointer, dz_pointer, h_pointer, error_pointer, loss_pointer, w_pointer, a_pointer,
    du_pointer, dc_pointer, x_stride, lists, turned, part, parts,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dU_0^T = dz^T s, dU_h^T = dz^T A_h s, and dc."""
    member = turned_about(tl.program_id(1), tl.num_programs(1), turned).to(tl.int64)
    start = member * lists * N
    k_1 = _block_diagonal(a_pointer + member * 2 * N * N, N, R, PRECISION)
    k_2 = _block_diagonal(a_pointer + member * 2 * N * N + N * N, N, R, PRECISION)
    row, wide = tl.arange(0, R), tl.arange(0, W)
    w, unit = tl.load(w_pointer + member * W + wide), unit_of(loss_pointer, member)
    if FIRST:
        slope, base = encoder_input(encoding_pointer, N, D_IN, D, R)
    du_0, du_1, du_2 = zeros(W, D), zeros(W, D), zeros(W, D)
    dc = zeros(16, W)
    for tile in range(TILES):
        first = (part * TILES + turned_about(tile, TILES, turned)) * (R // N)
        begin = start + first * N
        at, valid = rows_at(first, lists, N, R)
        if FIRST:
            s = first_state(x_pointer + member * x_stride, at, valid, slope, base, N, PRECISION)
        else:
            s = tile_of(s_pointer, begin, row, valid, D)
        dz = gradient_of(dz_pointer, h_pointer, error_pointer, w, unit, begin, row, valid, W, LAST, PRECISION)
        dz = in_registers(dz, PRECISION)
        du_0 = dot(tl.trans(dz), s, du_0, PRECISION)
        if BIAS:  # over rows that a thread holds, 16 apart; the rest of the sum waits till the end
            dc += tl.sum(tl.reshape(dz, (R // 16, 16, W)).to(tl.float32), axis=0)
        du_1 = dot(gradient_dot(tl.trans(dz), k_1, PRECISION), s, du_1, PRECISION)
        du_2 = dot(gradient_dot(tl.trans(dz), k_2, PRECISION), s, du_2, PRECISION)
    out = member * parts + part
    unit *= 2.0 / (lists * (N - 1))
    du_pointer += out * 3 * D_IN * W
    store_values(du_pointer, 0, tl.trans(du_0) * unit, D_IN, D, W)
    store_values(du_pointer, 1, tl.trans(du_1) * unit, D_IN, D, W)
    store_values(du_pointer, 2, tl.trans(du_2) * unit, D_IN, D, W)
    if BIAS:
        tl.store(dc_pointer + out * W + wide, tl.sum(dc, axis=0) * unit)


@triton.jit(do_not_specialize=["turned"])
def positional_back(
    x_pointer, encoding_pointer, s_pointer, dz_pointer, h_pointer, error_pointer, loss_pointer, w_pointer, u_pointer, a_pointer,
    out_pointer, da_pointer, du_pointer, dc_pointer, x_stride, u_stride, lists, turned,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, STATE: tl.constexpr, PAIRS: tl.constexpr, VALUES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """STATE and PAIRS, or VALUES; for both, two programs that follow one another share their tiles.

    Their sums together do not fit a program's registers, and what one reads, the other then finds in the cache.
    """
    part, parts, values = tl.program_id(0), tl.num_programs(0), VALUES
    if VALUES and (STATE or PAIRS):
        values = part % 2 == 1
        part, parts = part // 2, parts // 2
    if values:
        _values(
            x_pointer, encoding_pointer, s_pointer, dz_pointer, h_pointer, error_pointer, loss_pointer, w_pointer, a_pointer,
            du_pointer, dc_pointer, x_stride, lists, turned, part, parts,
            TILES, N, D_IN, D, W, R, BIAS, FIRST, LAST, PRECISION,
        )  # fmt: skip
    else:
        _state_and_pairs(
            x_pointer, encoding_pointer, s_pointer, dz_pointer, h_pointer, error_pointer, loss_pointer, w_pointer, u_pointer,
            a_pointer, out_pointer, da_pointer, x_stride, u_stride, lists, turned, part, parts,
            TILES, N, D_IN, D, W, R, FIRST, LAST, STATE, PAIRS, PRECISION,
        )  # fmt: skip


@triton.jit
def _back_through_attention(
    ds, s, dz, m, r, u, pairs_pointer, slopes_pointer, place, kept,
    FIRST: tl.constexpr, BIAS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Stores one head's gradient dl of the logits, and adds its part to ds: through the values and through dl."""
    a, e, dl = slopes_of(s, dz, u, pairs_pointer, slopes_pointer, place, kept, P)
    if not FIRST:
        ds = dot(tl.trans(a), e, ds, P)
        ds = dot(gradient_dot(dl, s, P), tl.trans(m), ds, P)
        ds = dot(gradient_dot(tl.trans(dl), s, P), m, ds, P)
        if BIAS:
            ds += tl.sum(dl.to(tl.float32), axis=0)[:, None] * r[None, :]
    return ds


@triton.jit
def attention_state(
    x_pointer, encoding_pointer, s_pointer, dz_pointer, h_pointer, error_pointer, loss_pointer, w_pointer, u_pointer,
    m_pointer, r_pointer, turn_pointer, pairs_pointer, slopes_pointer, out_pointer,
    x_stride, u_stride, m_stride, r_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    K: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr, ROTARY: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of the logits, and dz of the layer before. With l = (s M + m) s^T, ds has dl s M^T and dl^T (s M + m)."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    u_pointer += member * u_stride
    u_0 = values_of(u_pointer, 0, D_IN, D, W, PRECISION)
    u_1 = values_of(u_pointer, 1, D_IN, D, W, PRECISION)
    u_2 = values_of(u_pointer, 2, D_IN, D, W, PRECISION)
    if K:
        matrices = m_pointer + member * m_stride
        table = r_pointer + member * r_stride
    else:
        m_1 = _bilinear_of(m_pointer + member * m_stride, 0, D_IN, D, PRECISION)
        m_2 = _bilinear_of(m_pointer + member * m_stride, 1, D_IN, D, PRECISION)
        r_1 = tl.zeros((D,), tl.float32)
        r_2 = tl.zeros((D,), tl.float32)
        if BIAS:
            r_1 = _row_of(r_pointer + member * r_stride, 0, D_IN, D)
            r_2 = _row_of(r_pointer + member * r_stride, 1, D_IN, D)
    row = tl.arange(0, R)
    w, unit = tl.load(w_pointer + member * W + tl.arange(0, W)), unit_of(loss_pointer, member)
    if FIRST:
        slope, base = encoder_input(encoding_pointer, N, D_IN, D, R)
    for tile in range(TILES):
        first = (part * TILES + tile) * (R // N)
        begin = start + first * N
        at, valid = rows_at(first, lists, N, R)
        if FIRST:
            s = first_state(x_pointer + member * x_stride, at, valid, slope, base, N, PRECISION)
        else:
            s = tile_of(s_pointer, begin, row, valid, D)
        dz = gradient_of(dz_pointer, h_pointer, error_pointer, w, unit, begin, row, valid, W, LAST, PRECISION)
        place, kept = pairs_of(first, lists, N, 1, N, R)
        here = (member * lists + first) * 2 * N * N
        pairs, slopes = pairs_pointer + here, slopes_pointer + here
        ds = zeros(R, D)
        if not FIRST:
            ds = dot(dz, tl.trans(u_0), ds, PRECISION)
        if K:
            ds = back_through_queries(
                ds, s, dz, u_1, matrices, table, turn_pointer, 0, pairs, slopes, place, kept,
                FIRST, N, D_IN, D, R, K, TABLE, ROTARY, PRECISION,
            )  # fmt: skip
            pairs, slopes = pairs + N * N, slopes + N * N
            ds = back_through_queries(
                ds, s, dz, u_2, matrices, table, turn_pointer, 1, pairs, slopes, place, kept,
                FIRST, N, D_IN, D, R, K, TABLE, ROTARY, PRECISION,
            )  # fmt: skip
        else:
            ds = _back_through_attention(ds, s, dz, m_1, r_1, u_1, pairs, slopes, place, kept, FIRST, BIAS, PRECISION)
            pairs, slopes = pairs + N * N, slopes + N * N
            ds = _back_through_attention(ds, s, dz, m_2, r_2, u_2, pairs, slopes, place, kept, FIRST, BIAS, PRECISION)
        if not FIRST:
            ds = rounded_gradient(tl.where(s > 0, ds, 0.0), PRECISION)
            store_tile(out_pointer, ds, begin, row, valid, D)


@triton.jit
def attention_weights(
    x_pointer, encoding_pointer, s_pointer, dz_pointer, h_pointer, error_pointer, loss_pointer, w_pointer,
    pairs_pointer, slopes_pointer, du_pointer, dc_pointer, dm_pointer, dr_pointer, x_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dU_h = (A_h s)^T dz, dM_h = s^T (dl_h s) and dm_h of one head, the grid's third axis; dU_0 and dc go with the first."""
    member, part, head = tl.program_id(1).to(tl.int64), tl.program_id(0), tl.program_id(2)
    start = member * lists * N
    row, wide, deep = tl.arange(0, R), tl.arange(0, W), tl.arange(0, D)
    w, unit = tl.load(w_pointer + member * W + wide), unit_of(loss_pointer, member)
    if FIRST:
        slope, base = encoder_input(encoding_pointer, N, D_IN, D, R)
    du_0, du = zeros(D, W), zeros(D, W)
    dm = zeros(D, D)
    dc = tl.zeros((W,), tl.float32)
    dr = tl.zeros((D,), tl.float32)
    for tile in range(TILES):
        first = (part * TILES + tile) * (R // N)
        begin = start + first * N
        at, valid = rows_at(first, lists, N, R)
        if FIRST:
            s = first_state(x_pointer + member * x_stride, at, valid, slope, base, N, PRECISION)
        else:
            s = tile_of(s_pointer, begin, row, valid, D)
        dz = gradient_of(dz_pointer, h_pointer, error_pointer, w, unit, begin, row, valid, W, LAST, PRECISION)
        place, kept = pairs_of(first, lists, N, 1, N, R)
        here = ((member * lists + first) * 2 + head) * N * N
        a = tl.load(pairs_pointer + here + place, mask=kept, other=0.0)
        du = dot(short_dot(tl.trans(s), tl.trans(a), PRECISION), dz, du, PRECISION)
        dl = tl.load(slopes_pointer + here + place, mask=kept, other=0.0)
        dq = dot(tl.trans(s), tl.trans(dl), zeros(D, R), PRECISION)
        if BIAS:
            dr += tl.sum(dq, axis=1)
        dm = dot(tl.trans(s), tl.trans(rounded_gradient(dq, PRECISION)), dm, PRECISION)
        if head == 0:
            du_0 = dot(tl.trans(s), dz, du_0, PRECISION)
            if BIAS:
                dc += tl.sum(dz.to(tl.float32), axis=0)
    out = member * tl.num_programs(0) + part
    unit *= 2.0 / (lists * (N - 1))
    du_pointer += out * 3 * D_IN * W
    if head == 0:
        store_values(du_pointer, 0, du_0 * unit, D_IN, D, W)
        if BIAS:
            tl.store(dc_pointer + out * W + wide, dc * unit)
    store_values(du_pointer, head + 1, du * unit, D_IN, D, W)
    place = out * 2 * D_IN * D_IN + deep[:, None] * 2 * D_IN + head * D_IN + deep[None, :]
    tl.store(dm_pointer + place, dm * unit, mask=(deep < D_IN)[:, None] & (deep < D_IN)[None, :])
    if BIAS:
        tl.store(dr_pointer + out * 2 * D_IN + head * D_IN + deep, dr * unit, mask=deep < D_IN)
