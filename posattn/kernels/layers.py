"""Triton kernels for one layer of the folded ensemble, forward and backward, for two heads.

A program takes one member and a run of tiles. A tile is 64 rows of the state: as many whole lists of N positions as fit,
so attention within a list is a block-diagonal 64 x 64 matrix and every operation is a 64-wide matrix product. A layer's
matrices are read once a program, and their gradients are summed on chip over its tiles; sums over programs are left to the
caller, in a fixed order, so results do not depend on timing.

Letters as in posattn.folding: s the state, u_0, u_1, u_2 = U, c the constant, k_1, k_2 block-diagonal A, m_1, m_2 and r_1, r_2
the bilinear form M and its row m of self-attention, z the pre-activation, h = relu(z). dz is its gradient in units of 8 times
the member's root mean squared error times 2 / entries. That keeps it in the middle of half precision's range; what would lie
beyond the range becomes its largest number. Sums leave in true units.

PRECISION is what matrix products read: ``fp16`` (the state is then kept so, too), ``tf32``, or ``fp32``, where a product is
three of TensorFloat-32, of the numbers and of what rounding them leaves. Products are always summed in float32.
"""

import triton
import triton.language as tl

ROWS = 64


@triton.jit
def _rounded(x, precision: tl.constexpr):
    """x as matrix products read it. Both short forms have a fraction of ten digits, and x is rounded to the nearest.

    The matrix units would cut float32 off instead: every product too small by a part in 2000, which training adapts to
    and evaluation in float32 does not.
    """
    if precision == "tf32":
        return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    elif precision == "fp16":
        return x.to(tl.float16)
    else:
        return x


@triton.jit
def _rounded_gradient(x, precision: tl.constexpr):
    """The same for gradients, which half precision's range may not hold: one infinite entry would end a member's training."""
    if precision == "fp16":
        x = tl.clamp(x, -65504.0, 65504.0)
    return _rounded(x, precision)


@triton.jit
def _dot(a, b, total, precision: tl.constexpr):
    """total + a b."""
    if precision == "fp32":
        return tl.dot(a, b, acc=total, input_precision="tf32x3")
    else:
        return tl.dot(a, b, acc=total, input_precision="tf32")


@triton.jit
def _product(a, b, precision: tl.constexpr):
    """a b."""
    if precision == "fp32":
        return tl.dot(a, b, input_precision="tf32x3")
    else:
        return tl.dot(a, b, input_precision="tf32")


@triton.jit
def _short_dot(a, b, precision: tl.constexpr):
    """a b, rounded for the next product."""
    return _rounded(_product(a, b, precision), precision)


@triton.jit
def _gradient_dot(a, b, precision: tl.constexpr):
    """The same if a or b is a gradient."""
    return _rounded_gradient(_product(a, b, precision), precision)


@triton.jit
def _zeros(rows: tl.constexpr, columns: tl.constexpr):
    return tl.zeros((rows, columns), tl.float32)


@triton.jit
def _values_of(pointer, head: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, P: tl.constexpr):
    """U_head out of (D_IN, 3, W); rows beyond D_IN are zero."""
    row, wide = tl.arange(0, D), tl.arange(0, W)
    place = row[:, None] * 3 * W + head * W + wide[None, :]
    return _rounded(tl.load(pointer + place, mask=(row < D_IN)[:, None], other=0.0), P)


@triton.jit
def _bilinear_of(pointer, head: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, P: tl.constexpr):
    """M_head out of (D_IN, 2, D_IN); what lies beyond is zero."""
    row = tl.arange(0, D)
    place = row[:, None] * 2 * D_IN + head * D_IN + row[None, :]
    return _rounded(tl.load(pointer + place, mask=(row < D_IN)[:, None] & (row < D_IN)[None, :], other=0.0), P)


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
    return _rounded(tl.load(a + (row % N)[:, None] * N + (row % N)[None, :], mask=kept, other=0.0), P)


@triton.jit
def _pairs(first, lists, N: tl.constexpr, R: tl.constexpr):
    """Where the weights of a tile, whose first list is ``first``, lie among (lists, 2, N, N), and which are there."""
    row = tl.arange(0, R)
    own = row // N
    kept = (own[:, None] == own[None, :]) & ((row < (R // N) * N) & (first + own < lists))[:, None]
    return own[:, None] * 2 * N * N + (row % N)[:, None] * N + (row % N)[None, :], kept


@triton.jit
def _at(first, lists, N: tl.constexpr, R: tl.constexpr):
    """A tile's rows among the member's, and which are there: rows left over after whole lists are not."""
    row = tl.arange(0, R)
    at = first * N + row
    return at, (row < (R // N) * N) & (at < lists * N)


@triton.jit
def _tile(pointer, start, at, valid, columns: tl.constexpr):
    """Rows ``at`` of the member that begins at row ``start``."""
    place = (start + at)[:, None] * columns + tl.arange(0, columns)[None, :]
    return tl.load(pointer + place, mask=valid[:, None], other=0.0)


@triton.jit
def _encoder_input(encoding_pointer, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, R: tl.constexpr):
    """A tile's ``slope`` and ``base`` out of (2, N, D_IN): the encoder reads number * slope + base."""
    row, deep = tl.arange(0, R), tl.arange(0, D)
    place, there = (row % N)[:, None] * D_IN + deep[None, :], (deep < D_IN)[None, :]
    slope = tl.load(encoding_pointer + place, mask=there, other=0.0)
    return slope, tl.load(encoding_pointer + N * D_IN + place, mask=there, other=0.0)


@triton.jit
def _first_state(x_pointer, at, valid, slope, base, N: tl.constexpr, P: tl.constexpr):
    """The encoder's input of a tile, from the lists of numbers; the scratchpad holds 0."""
    number = tl.load(x_pointer + (at // N) * (N - 1) + at % N, mask=valid & (at % N < N - 1), other=0.0)
    return _rounded(tl.where(valid[:, None], number[:, None] * slope + base, 0.0), P)


@triton.jit
def _softmax(logits, same):
    logits = tl.where(same, logits, float("-inf"))
    weight = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    return weight / tl.sum(weight, axis=1)[:, None]


@triton.jit
def _attend(z, s, m, r, u, pairs_pointer, place, kept, same, BIAS: tl.constexpr, P: tl.constexpr):
    """z plus one head of self-attention, whose weights it writes down for the way back."""
    if BIAS:
        q = _rounded(_dot(s, m, tl.zeros_like(s).to(tl.float32) + r[None, :], P), P)
    else:
        q = _short_dot(s, m, P)
    a = _rounded(_softmax(_dot(q, tl.trans(s), tl.zeros(same.shape, tl.float32), P), same), P)
    tl.store(pairs_pointer + place, a, mask=kept)
    return _dot(a, tl.trans(_short_dot(tl.trans(u), tl.trans(s), P)), z, P)


@triton.jit
def layer_forward(
    x_pointer, encoding_pointer, s_pointer, u_pointer, c_pointer, a_pointer, m_pointer, r_pointer, pairs_pointer, h_pointer,
    w_pointer, b_pointer, y_pointer, error_pointer, loss_pointer, dw_pointer, db_pointer,
    x_stride, y_stride, u_stride, m_stride, r_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, POSITIONAL: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """h = relu(s U_0 + Σ_h A_h s U_h + c); the last layer goes on to the outputs h w + b and their errors.

    Errors count over all but the scratchpad. Of the loss and the gradients of w and b it sums the program's part.
    """
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    u_pointer += member * u_stride
    u_0 = _values_of(u_pointer, 0, D_IN, D, W, PRECISION)
    u_1 = _values_of(u_pointer, 1, D_IN, D, W, PRECISION)
    u_2 = _values_of(u_pointer, 2, D_IN, D, W, PRECISION)
    row, wide = tl.arange(0, R), tl.arange(0, W)
    if POSITIONAL:
        k_1 = _block_diagonal(a_pointer + member * 2 * N * N, N, R, PRECISION)
        k_2 = _block_diagonal(a_pointer + member * 2 * N * N + N * N, N, R, PRECISION)
    else:
        m_1 = _bilinear_of(m_pointer + member * m_stride, 0, D_IN, D, PRECISION)
        m_2 = _bilinear_of(m_pointer + member * m_stride, 1, D_IN, D, PRECISION)
        same = (row // N)[:, None] == (row // N)[None, :]
        r_1 = tl.zeros((D,), tl.float32)
        r_2 = tl.zeros((D,), tl.float32)
        if BIAS:
            r_1 = _row_of(r_pointer + member * r_stride, 0, D_IN, D)
            r_2 = _row_of(r_pointer + member * r_stride, 1, D_IN, D)
    if FIRST:
        slope, base = _encoder_input(encoding_pointer, N, D_IN, D, R)
    if LAST:
        w = tl.load(w_pointer + member * W + wide)
        loss = tl.zeros((R,), tl.float32)
        db = tl.zeros((R,), tl.float32)
        dw = tl.zeros((W,), tl.float32)
    for tile in range(TILES):
        first = (part * TILES + tile) * (R // N)
        at, valid = _at(first, lists, N, R)
        if FIRST:
            s = _first_state(x_pointer + member * x_stride, at, valid, slope, base, N, PRECISION)
        else:
            s = _tile(s_pointer, start, at, valid, D)
        z = _dot(s, u_0, _zeros(R, W), PRECISION)
        if BIAS:
            z += tl.load(c_pointer + member * W + wide)[None, :]
        if POSITIONAL:
            z = _dot(k_1, tl.trans(_short_dot(tl.trans(u_1), tl.trans(s), PRECISION)), z, PRECISION)
            z = _dot(k_2, tl.trans(_short_dot(tl.trans(u_2), tl.trans(s), PRECISION)), z, PRECISION)
        else:
            place, kept = _pairs(first, lists, N, R)
            pairs = pairs_pointer + (member * lists + first) * 2 * N * N
            z = _attend(z, s, m_1, r_1, u_1, pairs, place, kept, same, BIAS, PRECISION)
            z = _attend(z, s, m_2, r_2, u_2, pairs + N * N, place, kept, same, BIAS, PRECISION)
        h = tl.maximum(z, 0.0)
        tl.store(h_pointer + (start + at)[:, None] * W + wide[None, :], _rounded(h, PRECISION), mask=valid[:, None])
        if LAST:
            answer = tl.sum(h * w[None, :], axis=1)
            if BIAS:
                answer += tl.load(b_pointer + member)
            scored = valid & (at % N < N - 1)
            y = tl.load(y_pointer + member * y_stride + (at // N) * (N - 1) + at % N, mask=scored, other=0.0)
            error = tl.where(scored, answer - y, 0.0)
            tl.store(error_pointer + start + at, error, mask=valid)
            loss += error * error
            db += error
            dw += tl.sum(error[:, None] * h, axis=0)
    if LAST:
        out = member * tl.num_programs(0) + part
        entries = lists * (N - 1)
        tl.store(loss_pointer + out, tl.sum(loss, axis=0) / entries)
        tl.store(dw_pointer + out * W + wide, dw * (2.0 / entries))
        if BIAS:
            tl.store(db_pointer + out, tl.sum(db, axis=0) * (2.0 / entries))


@triton.jit
def _unit(loss_pointer, member):
    """8 times the root mean squared error: the unit of dz, but for 2 / entries."""
    return 8 * tl.sqrt(tl.maximum(tl.load(loss_pointer + member), 1e-30))


@triton.jit
def _gradient(
    dz_pointer,
    h_pointer,
    error_pointer,
    w,
    unit,
    start,
    at,
    valid,
    W: tl.constexpr,
    LAST: tl.constexpr,
    P: tl.constexpr,
):
    """dz of a tile: of the last layer, error w^T where the ReLU is on."""
    if LAST:
        h = _tile(h_pointer, start, at, valid, W)
        error = tl.load(error_pointer + start + at, mask=valid, other=0.0) / unit
        dz = _rounded_gradient(tl.where(h > 0, error[:, None] * w[None, :], 0.0), P)
    else:
        dz = _tile(dz_pointer, start, at, valid, W)
    return dz


@triton.jit
def positional_state(
    s_pointer, dz_pointer, h_pointer, error_pointer, loss_pointer, w_pointer, u_pointer, a_pointer, out_pointer,
    u_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, W: tl.constexpr, R: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dz of the layer before: ds = dz U_0^T + Σ_h A_h^T dz U_h^T where its ReLU is on."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    u_pointer += member * u_stride
    u_0 = _values_of(u_pointer, 0, W, W, W, PRECISION)
    u_1 = _values_of(u_pointer, 1, W, W, W, PRECISION)
    u_2 = _values_of(u_pointer, 2, W, W, W, PRECISION)
    k_1 = _block_diagonal(a_pointer + member * 2 * N * N, N, R, PRECISION)
    k_2 = _block_diagonal(a_pointer + member * 2 * N * N + N * N, N, R, PRECISION)
    wide = tl.arange(0, W)
    w, unit = tl.load(w_pointer + member * W + wide), _unit(loss_pointer, member)
    for tile in range(TILES):
        at, valid = _at((part * TILES + tile) * (R // N), lists, N, R)
        dz = _gradient(dz_pointer, h_pointer, error_pointer, w, unit, start, at, valid, W, LAST, PRECISION)
        on = _tile(s_pointer, start, at, valid, W) > 0
        ds = _dot(dz, tl.trans(u_0), _zeros(R, W), PRECISION)
        ds = _dot(tl.trans(k_1), tl.trans(_gradient_dot(u_1, tl.trans(dz), PRECISION)), ds, PRECISION)
        ds = _dot(tl.trans(k_2), tl.trans(_gradient_dot(u_2, tl.trans(dz), PRECISION)), ds, PRECISION)
        ds = _rounded_gradient(tl.where(on, ds, 0.0), PRECISION)
        tl.store(out_pointer + (start + at)[:, None] * W + wide[None, :], ds, mask=valid[:, None])


@triton.jit
def _store_values(pointer, head, value, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr):
    """A program's dU_head into (D_IN, 3, W)."""
    row, wide = tl.arange(0, D), tl.arange(0, W)
    tl.store(pointer + row[:, None] * 3 * W + head * W + wide[None, :], value, mask=(row < D_IN)[:, None])


@triton.jit
def positional_weights(
    x_pointer, encoding_pointer, s_pointer, dz_pointer, h_pointer, error_pointer, loss_pointer, w_pointer, u_pointer, a_pointer,
    du_pointer, dc_pointer, dk_pointer, x_stride, u_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dU_0 = s^T dz, dU_h = (A_h s)^T dz, dc, and (dz U_h^T) s^T, whose diagonal blocks add up to dA_h."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    u_1 = _values_of(u_pointer + member * u_stride, 1, D_IN, D, W, PRECISION)
    u_2 = _values_of(u_pointer + member * u_stride, 2, D_IN, D, W, PRECISION)
    k_1 = _block_diagonal(a_pointer + member * 2 * N * N, N, R, PRECISION)
    k_2 = _block_diagonal(a_pointer + member * 2 * N * N + N * N, N, R, PRECISION)
    row, wide = tl.arange(0, R), tl.arange(0, W)
    w, unit = tl.load(w_pointer + member * W + wide), _unit(loss_pointer, member)
    if FIRST:
        slope, base = _encoder_input(encoding_pointer, N, D_IN, D, R)
    du_0, du_1, du_2 = _zeros(D, W), _zeros(D, W), _zeros(D, W)
    dk_1, dk_2 = _zeros(R, R), _zeros(R, R)
    dc = tl.zeros((W,), tl.float32)
    for tile in range(TILES):
        at, valid = _at((part * TILES + tile) * (R // N), lists, N, R)
        if FIRST:
            s = _first_state(x_pointer + member * x_stride, at, valid, slope, base, N, PRECISION)
        else:
            s = _tile(s_pointer, start, at, valid, D)
        dz = _gradient(dz_pointer, h_pointer, error_pointer, w, unit, start, at, valid, W, LAST, PRECISION)
        du_0 = _dot(tl.trans(s), dz, du_0, PRECISION)
        if BIAS:
            dc += tl.sum(dz.to(tl.float32), axis=0)
        du_1 = _dot(_short_dot(tl.trans(s), tl.trans(k_1), PRECISION), dz, du_1, PRECISION)
        du_2 = _dot(_short_dot(tl.trans(s), tl.trans(k_2), PRECISION), dz, du_2, PRECISION)
        dk_1 = _dot(_gradient_dot(dz, tl.trans(u_1), PRECISION), tl.trans(s), dk_1, PRECISION)
        dk_2 = _dot(_gradient_dot(dz, tl.trans(u_2), PRECISION), tl.trans(s), dk_2, PRECISION)
    out = member * tl.num_programs(0) + part
    unit *= 2.0 / (lists * (N - 1))
    du_pointer += out * 3 * D_IN * W
    _store_values(du_pointer, 0, du_0 * unit, D_IN, D, W)
    _store_values(du_pointer, 1, du_1 * unit, D_IN, D, W)
    _store_values(du_pointer, 2, du_2 * unit, D_IN, D, W)
    dk_pointer += out * 2 * R * R + row[:, None] * R + row[None, :]
    tl.store(dk_pointer, dk_1 * unit)
    tl.store(dk_pointer + R * R, dk_2 * unit)
    if BIAS:
        tl.store(dc_pointer + out * W + wide, dc * unit)


@triton.jit
def _back_through_attention(
    ds, s, dz, m, r, u, pairs_pointer, slopes_pointer, place, kept,
    FIRST: tl.constexpr, BIAS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Writes down one head's gradient dl of the logits, and adds its part to ds: through the values and through dl."""
    a = tl.load(pairs_pointer + place, mask=kept, other=0.0)
    e = _gradient_dot(dz, tl.trans(u), P)
    da = _dot(e, tl.trans(s), tl.zeros(kept.shape, tl.float32), P)
    weighted = a.to(tl.float32) * da
    dl = _rounded_gradient(weighted - a.to(tl.float32) * tl.sum(weighted, axis=1)[:, None], P)
    tl.store(slopes_pointer + place, dl, mask=kept)
    if not FIRST:
        ds = _dot(tl.trans(a), e, ds, P)
        ds = _dot(_gradient_dot(dl, s, P), tl.trans(m), ds, P)
        ds = _dot(_gradient_dot(tl.trans(dl), s, P), m, ds, P)
        if BIAS:
            ds += tl.sum(dl.to(tl.float32), axis=0)[:, None] * r[None, :]
    return ds


@triton.jit
def attention_state(
    x_pointer, encoding_pointer, s_pointer, dz_pointer, h_pointer, error_pointer, loss_pointer, w_pointer, u_pointer,
    m_pointer, r_pointer, pairs_pointer, slopes_pointer, out_pointer, x_stride, u_stride, m_stride, r_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of the logits, and dz of the layer before. With l = (s M + m) s^T, ds has dl s M^T and dl^T (s M + m)."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    u_pointer += member * u_stride
    u_0 = _values_of(u_pointer, 0, D_IN, D, W, PRECISION)
    u_1 = _values_of(u_pointer, 1, D_IN, D, W, PRECISION)
    u_2 = _values_of(u_pointer, 2, D_IN, D, W, PRECISION)
    m_1 = _bilinear_of(m_pointer + member * m_stride, 0, D_IN, D, PRECISION)
    m_2 = _bilinear_of(m_pointer + member * m_stride, 1, D_IN, D, PRECISION)
    r_1 = tl.zeros((D,), tl.float32)
    r_2 = tl.zeros((D,), tl.float32)
    if BIAS:
        r_1 = _row_of(r_pointer + member * r_stride, 0, D_IN, D)
        r_2 = _row_of(r_pointer + member * r_stride, 1, D_IN, D)
    deep = tl.arange(0, D)
    w, unit = tl.load(w_pointer + member * W + tl.arange(0, W)), _unit(loss_pointer, member)
    if FIRST:
        slope, base = _encoder_input(encoding_pointer, N, D_IN, D, R)
    for tile in range(TILES):
        first = (part * TILES + tile) * (R // N)
        at, valid = _at(first, lists, N, R)
        if FIRST:
            s = _first_state(x_pointer + member * x_stride, at, valid, slope, base, N, PRECISION)
        else:
            s = _tile(s_pointer, start, at, valid, D)
        dz = _gradient(dz_pointer, h_pointer, error_pointer, w, unit, start, at, valid, W, LAST, PRECISION)
        place, kept = _pairs(first, lists, N, R)
        here = (member * lists + first) * 2 * N * N
        pairs, slopes = pairs_pointer + here, slopes_pointer + here
        ds = _zeros(R, D)
        if not FIRST:
            ds = _dot(dz, tl.trans(u_0), ds, PRECISION)
        ds = _back_through_attention(ds, s, dz, m_1, r_1, u_1, pairs, slopes, place, kept, FIRST, BIAS, PRECISION)
        pairs, slopes = pairs + N * N, slopes + N * N
        ds = _back_through_attention(ds, s, dz, m_2, r_2, u_2, pairs, slopes, place, kept, FIRST, BIAS, PRECISION)
        if not FIRST:
            ds = _rounded_gradient(tl.where(s > 0, ds, 0.0), PRECISION)
            tl.store(out_pointer + (start + at)[:, None] * D + deep[None, :], ds, mask=valid[:, None])


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
    wide, deep = tl.arange(0, W), tl.arange(0, D)
    w, unit = tl.load(w_pointer + member * W + wide), _unit(loss_pointer, member)
    if FIRST:
        slope, base = _encoder_input(encoding_pointer, N, D_IN, D, R)
    du_0, du = _zeros(D, W), _zeros(D, W)
    dm = _zeros(D, D)
    dc = tl.zeros((W,), tl.float32)
    dr = tl.zeros((D,), tl.float32)
    for tile in range(TILES):
        first = (part * TILES + tile) * (R // N)
        at, valid = _at(first, lists, N, R)
        if FIRST:
            s = _first_state(x_pointer + member * x_stride, at, valid, slope, base, N, PRECISION)
        else:
            s = _tile(s_pointer, start, at, valid, D)
        dz = _gradient(dz_pointer, h_pointer, error_pointer, w, unit, start, at, valid, W, LAST, PRECISION)
        place, kept = _pairs(first, lists, N, R)
        here = ((member * lists + first) * 2 + head) * N * N
        a = tl.load(pairs_pointer + here + place, mask=kept, other=0.0)
        du = _dot(_short_dot(tl.trans(s), tl.trans(a), PRECISION), dz, du, PRECISION)
        dl = tl.load(slopes_pointer + here + place, mask=kept, other=0.0)
        dq = _dot(tl.trans(s), tl.trans(dl), _zeros(D, R), PRECISION)
        if BIAS:
            dr += tl.sum(dq, axis=1)
        dm = _dot(tl.trans(s), tl.trans(_rounded_gradient(dq, PRECISION)), dm, PRECISION)
        if head == 0:
            du_0 = _dot(tl.trans(s), dz, du_0, PRECISION)
            if BIAS:
                dc += tl.sum(dz.to(tl.float32), axis=0)
    out = member * tl.num_programs(0) + part
    unit *= 2.0 / (lists * (N - 1))
    du_pointer += out * 3 * D_IN * W
    if head == 0:
        _store_values(du_pointer, 0, du_0 * unit, D_IN, D, W)
        if BIAS:
            tl.store(dc_pointer + out * W + wide, dc * unit)
    _store_values(du_pointer, head + 1, du * unit, D_IN, D, W)
    place = out * 2 * D_IN * D_IN + deep[:, None] * 2 * D_IN + head * D_IN + deep[None, :]
    tl.store(dm_pointer + place, dm * unit, mask=(deep < D_IN)[:, None] & (deep < D_IN)[None, :])
    if BIAS:
        tl.store(dr_pointer + out * 2 * D_IN + head * D_IN + deep, dr * unit, mask=deep < D_IN)
