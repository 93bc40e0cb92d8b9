"""Triton kernels for one layer of the folded ensemble, forward and backward, for two heads.

A program takes one member and a run of tiles. A tile is 64 rows of the state: as many whole lists of N positions as fit,
so attention within a list is a block-diagonal 64 x 64 matrix, and every operation is a matrix product. Its sides are 64, or
16 for the features of a first layer that has few. A layer's matrices are read once per program, and their gradients are
summed on chip over its tiles; sums over programs are left to the caller, in a fixed order, so results do not depend on timing.

Letters as in posattn.folding: s the state, u_0, u_1, u_2 = U, c the constant, k_1, k_2 block-diagonal A, m_1, m_2 and r the
bilinear form M and its rows m of self-attention, z the pre-activation, h = relu(z). dz is its gradient in units of 8 times
the member's root mean squared error times 2 / entries. That keeps it in the middle of half precision's range; larger numbers
are clamped to the range. Sums leave in true units.

Of self-attention, no number for a pair of rows passes through memory: the forward kernel stores one for each row and head,
the norm, by which the backward kernel finds the weights a again from s. dl is the gradient of the logits l = (s M + m) s^T.

Where queries and keys do not multiply out, K is their half width, and 0 elsewhere; m_pointer and r_pointer are then their
matrices and table, ``queries`` computes with them, and the weights themselves are stored. Matrices of queries and keys are
read anew for every tile, since all of them together leave no room on chip.

PRECISION is what matrix products read: ``fp16`` (the state is then kept so, too), ``tf32``, or ``fp32``, where a product is
three of TensorFloat-32, of the rounded numbers and their remainders. Products are always summed in float32.
"""

import triton
import triton.language as tl

from posattn.kernels.queries import attend_by_queries
from posattn.kernels.tiles import (
    LOG2_E,
    added,
    all_values_of,
    attended,
    dot,
    encoder_input,
    first_state,
    forms_of,
    gradient_dot,
    gradient_mixed,
    gradient_of,
    in_registers,
    logits_gradient,
    mixed,
    pairs_of,
    product,
    rounded,
    rounded_gradient,
    row_of,
    rows_at,
    short_dot,
    softmax,
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
def _store_form(pointer, head: tl.constexpr, value, D_IN: tl.constexpr, D: tl.constexpr):
    """A program's dM_head into (D_IN, 2, D_IN)."""
    row = tl.arange(0, D)
    place = row[:, None] * 2 * D_IN + head * D_IN + row[None, :]
    tl.store(pointer + place, value, mask=(row < D_IN)[:, None] & (row < D_IN)[None, :])


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
def _queries(
    s, m, r_pointer, head: tl.constexpr,
    D_IN: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BIAS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """s M + m, whose products with s are a head's logits. The row m is read anew for every tile, to save registers."""
    q = zeros(R, D)
    if BIAS:
        q += row_of(r_pointer, head, D_IN, D)[None, :]
    return rounded(dot(s, m, q, P), P)


@triton.jit
def _attend(
    z, s, m, r_pointer, u, norm_pointer, valid, edge, head: tl.constexpr,
    N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr,
    P: tl.constexpr,
):  # fmt: skip
    """z plus one head of self-attention; stores its rows' norms, by which the backward pass finds the weights again."""
    logits = product(_queries(s, m, r_pointer, head, D_IN, D, R, BIAS, P), tl.trans(s), P)
    a, norm = softmax(logits, attended(edge + head, N, R, CAUSAL))
    tl.store(norm_pointer, norm, mask=valid)
    return weighed(z, s, rounded(a, P), u, P)


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
    u_0, u_1, u_2 = all_values_of(u_pointer, D_IN, D, W, PRECISION)
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
        m_1, m_2 = forms_of(m_pointer + member * m_stride, D_IN, D, PRECISION)
        r_pointer += member * r_stride
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
            if K:
                same = attended(first * N, N, R, CAUSAL)
                place, kept = pairs_of(first, lists, N, 1, N, R)
                pairs = pairs_pointer + (member * lists + first) * 2 * N * N
                z = attend_by_queries(
                    z, s, u_1, matrices, table, turn_pointer, 0, pairs, place, kept, same,
                    N, D_IN, D, R, K, TABLE, ROTARY, PRECISION,
                )  # fmt: skip
                z = attend_by_queries(
                    z, s, u_2, matrices, table, turn_pointer, 1, pairs + N * N, place, kept, same,
                    N, D_IN, D, R, K, TABLE, ROTARY, PRECISION,
                )  # fmt: skip
            else:
                norms = pairs_pointer + start * 2 + at
                z = _attend(
                    z, s, m_1, r_pointer, u_1, norms, valid, first * N, 0, N, D_IN, D, R, BIAS, CAUSAL, PRECISION
                )
                z = _attend(
                    z, s, m_2, r_pointer, u_2, norms + lists * N, valid, first * N, 1,
                    N, D_IN, D, R, BIAS, CAUSAL, PRECISION,
                )  # fmt: skip
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
    ds, du, dm, dr, s, dz, m, r_pointer, u, norm_pointer, valid, edge, ones, head: tl.constexpr,
    N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr,
    STATE: tl.constexpr, VALUES: tl.constexpr, LOGITS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """One head's parts of ds, dU, dM and dm. Through the logits, ds has dl s M^T and dl^T (s M + m)."""
    q = _queries(s, m, r_pointer, head, D_IN, D, R, BIAS, P)
    norm = tl.load(norm_pointer, mask=valid, other=0.0)
    logits = product(q, tl.trans(s), P) * LOG2_E - norm[:, None]
    a = rounded(tl.exp2(tl.where(attended(edge + head, N, R, CAUSAL), logits, float("-inf"))), P)
    dl = logits_gradient(a, product(gradient_dot(dz, tl.trans(u), P), tl.trans(s), P), P)
    if VALUES or STATE:
        dv = gradient_dot(tl.trans(a), dz, P)
    if VALUES:
        du = added(du, tl.trans(s), dv, P)
    if LOGITS or STATE:
        dq = gradient_dot(dl, s, P)
    if LOGITS:
        dm = dot(tl.trans(s), dq, dm, P)
        if BIAS:
            dr = dot(ones, dq, dr, P)
    if STATE:
        ds = dot(dv, tl.trans(u), ds, P)
        ds = dot(dq, tl.trans(m), ds, P)
        ds = dot(tl.trans(dl), q, ds, P)
    return ds, du, dm, dr


@triton.jit
def attention_backward(
    x_pointer, encoding_pointer, s_pointer, dz_pointer, h_pointer, error_pointer, loss_pointer, w_pointer, u_pointer,
    m_pointer, r_pointer, pairs_pointer, out_pointer, du_pointer, dc_pointer, dm_pointer, dr_pointer,
    x_stride, u_stride, m_stride, r_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, CAUSAL: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, STATE: tl.constexpr,
    VALUES: tl.constexpr, LOGITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """VALUES: dU_0 = s^T dz, dU_h = s^T (A_h^T dz), dc. LOGITS: dM_h = s^T (dl_h s), dm_h. STATE: dz of the layer below."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    u_pointer += member * u_stride
    u_0, u_1, u_2 = all_values_of(u_pointer, D_IN, D, W, PRECISION)
    m_1, m_2 = forms_of(m_pointer + member * m_stride, D_IN, D, PRECISION)
    r_pointer += member * r_stride
    row, wide, deep = tl.arange(0, R), tl.arange(0, W), tl.arange(0, D)
    w, unit = tl.load(w_pointer + member * W + wide), unit_of(loss_pointer, member)
    ones = rounded(zeros(16, R) + 1, PRECISION)  # columns are summed by the matrix units, which take 16 rows at least
    if FIRST:
        slope, base = encoder_input(encoding_pointer, N, D_IN, D, R)
    du_0, du_1, du_2 = zeros(D, W), zeros(D, W), zeros(D, W)
    dm_1, dm_2 = zeros(D, D), zeros(D, D)
    dc, dr_1, dr_2 = zeros(16, W), zeros(16, D), zeros(16, D)
    for tile in range(TILES):
        first = (part * TILES + tile) * (R // N)
        at, valid = rows_at(first, lists, N, R)
        begin = start + first * N  # rows are counted from here, so that their places do not change
        if FIRST:
            s = first_state(x_pointer + member * x_stride, at, valid, slope, base, N, PRECISION)
        else:
            s = tile_of(s_pointer, begin, row, valid, D)
        dz = gradient_of(dz_pointer, h_pointer, error_pointer, w, unit, begin, row, valid, W, LAST, PRECISION)
        norms = pairs_pointer + start * 2 + at
        ds = zeros(R, D)
        if STATE:
            ds = dot(dz, tl.trans(u_0), ds, PRECISION)
        if VALUES:
            du_0 = added(du_0, tl.trans(s), dz, PRECISION)
            if BIAS:
                dc = dot(ones, dz, dc, PRECISION)
        ds, du_1, dm_1, dr_1 = _back_through_attention(
            ds, du_1, dm_1, dr_1, s, dz, m_1, r_pointer, u_1, norms, valid, first * N, ones, 0,
            N, D_IN, D, R, BIAS, CAUSAL, STATE, VALUES, LOGITS, PRECISION,
        )  # fmt: skip
        ds, du_2, dm_2, dr_2 = _back_through_attention(
            ds, du_2, dm_2, dr_2, s, dz, m_2, r_pointer, u_2, norms + lists * N, valid, first * N, ones, 1,
            N, D_IN, D, R, BIAS, CAUSAL, STATE, VALUES, LOGITS, PRECISION,
        )  # fmt: skip
        if STATE:
            ds = rounded_gradient(ds, PRECISION)
            ds *= tl.where(s > 0, 1.0, 0.0).to(ds.dtype)  # a condition would change its layout entry by entry
            store_tile(out_pointer, ds, begin, row, valid, D)
    out = member * tl.num_programs(0) + part
    unit *= 2.0 / (lists * (N - 1))
    if VALUES:
        du_pointer += out * 3 * D_IN * W
        store_values(du_pointer, 0, du_0 * unit, D_IN, D, W)
        store_values(du_pointer, 1, du_1 * unit, D_IN, D, W)
        store_values(du_pointer, 2, du_2 * unit, D_IN, D, W)
        if BIAS:
            tl.store(dc_pointer + out * W + wide, tl.sum(dc, axis=0) * (unit / 16))
    if LOGITS:
        dm_pointer += out * 2 * D_IN * D_IN
        _store_form(dm_pointer, 0, dm_1 * unit, D_IN, D)
        _store_form(dm_pointer, 1, dm_2 * unit, D_IN, D)
        if BIAS:
            dr_pointer += out * 2 * D_IN + deep
            tl.store(dr_pointer, tl.sum(dr_1, axis=0) * (unit / 16), mask=deep < D_IN)
            tl.store(dr_pointer + D_IN, tl.sum(dr_2, axis=0) * (unit / 16), mask=deep < D_IN)
