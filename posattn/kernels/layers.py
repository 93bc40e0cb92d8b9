"""Triton kernels for one layer of the folded ensemble, forward and backward, for two heads.

A program takes one member and a run of tiles. A tile is 64 rows of the state: as many whole lists of N positions as fit,
so attention within a list is a block-diagonal 64 x 64 matrix and every operation is a 64-wide matrix product. The layer's
matrices are loaded once a program, and the gradients of all of them are summed on chip over its tiles; sums over programs
are left to the caller, in a fixed order, so results do not depend on timing.

Letters as in posattn.folding: s the state, u_0, u_1, u_2 = U, c the constant, k_1, k_2 block-diagonal A, m_1, m_2 and r_1, r_2
the bilinear form M and its row m of self-attention, z the pre-activation, h = relu(z), g the gradient of the outputs.
"""

import triton
import triton.language as tl

ROWS = 64


@triton.jit
def _rounded(x, precision: tl.constexpr):
    """x with TensorFloat-32's ten digits, rounded to nearest; the matrix units would cut the others off.

    Cut off, every product is too small by a part in 2000, which training adapts to and evaluation in float32 does not.
    """
    if precision == "tf32":
        return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    else:
        return x


@triton.jit
def _dot(a, b, precision: tl.constexpr):
    return tl.dot(_rounded(a, precision), _rounded(b, precision), input_precision=precision)


@triton.jit
def _add_dot(total, a, b, precision: tl.constexpr):
    return tl.dot(_rounded(a, precision), _rounded(b, precision), acc=total, input_precision=precision)


@triton.jit
def _matrix(pointer, rows: tl.constexpr, columns: tl.constexpr):
    """A contiguous matrix."""
    return tl.load(pointer + tl.arange(0, rows)[:, None] * columns + tl.arange(0, columns)[None, :])


@triton.jit
def _store(pointer, value, rows: tl.constexpr, columns: tl.constexpr):
    tl.store(pointer + tl.arange(0, rows)[:, None] * columns + tl.arange(0, columns)[None, :], value)


@triton.jit
def _same_list(N: tl.constexpr, R: tl.constexpr):
    """Which pairs of a tile's rows belong to one list; rows left over at the end belong together."""
    row = tl.arange(0, R)
    return (row // N)[:, None] == (row // N)[None, :]


@triton.jit
def _block_diagonal(a, N: tl.constexpr, R: tl.constexpr):
    """The (R, R) matrix that applies A (N, N) to every list of a tile."""
    row = tl.arange(0, R)
    whole = row < (R // N) * N
    kept = _same_list(N, R) & whole[:, None] & whole[None, :]
    return tl.load(a + (row % N)[:, None] * N + (row % N)[None, :], mask=kept, other=0.0)


@triton.jit
def _softmax(logits, same):
    logits = tl.where(same, logits, float("-inf"))
    weight = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    return weight / tl.sum(weight, axis=1)[:, None]


@triton.jit
def _attention(s, s_t, m, r_pointer, same, D: tl.constexpr, BIAS: tl.constexpr, precision: tl.constexpr):
    """The queries s M + m and the self-attention weights of a tile."""
    q = _dot(s, m, precision)
    if BIAS:
        q += tl.load(r_pointer + tl.arange(0, D))[None, :]
    return q, _softmax(_dot(q, s_t, precision), same)


@triton.jit
def _tile_of(pointer, start, at, valid, columns: tl.constexpr):
    """Rows ``at`` of the member that begins at row ``start``."""
    place = (start + at)[:, None] * columns + tl.arange(0, columns)[None, :]
    return tl.load(pointer + place, mask=valid[:, None], other=0.0)


@triton.jit
def _pre_activation_gradient(
    h, dh_pointer, g_pointer, w_pointer, start, at, valid, member, W: tl.constexpr, LAST: tl.constexpr
):
    """dz: dh where the ReLU is on. The last layer's dh is g w^T."""
    if LAST:
        g = tl.load(g_pointer + start + at, mask=valid, other=0.0)
        w = tl.load(w_pointer + member * W + tl.arange(0, W))
        dh = g[:, None] * w[None, :]
    else:
        dh = _tile_of(dh_pointer, start, at, valid, W)
    return tl.where(h > 0, dh, 0.0)


@triton.jit
def layer_forward(
    s_pointer, u_pointer, c_pointer, a_pointer, m_pointer, r_pointer, h_pointer, lists,
    TILES: tl.constexpr, N: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, POSITIONAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """h = relu(s U_0 + Σ_h A_h s U_h + c)."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    u_pointer += member * 3 * D * W
    u_0, u_1, u_2 = _matrix(u_pointer, D, W), _matrix(u_pointer + D * W, D, W), _matrix(u_pointer + 2 * D * W, D, W)
    if POSITIONAL:
        k_1 = _block_diagonal(a_pointer + member * 2 * N * N, N, R)
        k_2 = _block_diagonal(a_pointer + member * 2 * N * N + N * N, N, R)
    else:
        m_1 = _matrix(m_pointer + member * 2 * D * D, D, D)
        m_2 = _matrix(m_pointer + member * 2 * D * D + D * D, D, D)
        same = _same_list(N, R)
    used: tl.constexpr = (R // N) * N
    row, wide = tl.arange(0, R), tl.arange(0, W)
    for tile in range(TILES):
        at = (part * TILES + tile) * used + row
        valid = (row < used) & (at < lists * N)
        s = _tile_of(s_pointer, start, at, valid, D)
        z = _dot(s, u_0, PRECISION)
        if BIAS:
            z += tl.load(c_pointer + member * W + wide)[None, :]
        if POSITIONAL:
            z = _add_dot(z, k_1, _dot(s, u_1, PRECISION), PRECISION)
            z = _add_dot(z, k_2, _dot(s, u_2, PRECISION), PRECISION)
        else:
            s_t = tl.trans(s)
            _, a = _attention(s, s_t, m_1, r_pointer + member * 2 * D, same, D, BIAS, PRECISION)
            z = _add_dot(z, a, _dot(s, u_1, PRECISION), PRECISION)
            _, a = _attention(s, s_t, m_2, r_pointer + member * 2 * D + D, same, D, BIAS, PRECISION)
            z = _add_dot(z, a, _dot(s, u_2, PRECISION), PRECISION)
        tl.store(h_pointer + (start + at)[:, None] * W + wide[None, :], tl.maximum(z, 0.0), mask=valid[:, None])


@triton.jit
def values_backward(
    s_pointer, h_pointer, dh_pointer, g_pointer, w_pointer, a_pointer, m_pointer, r_pointer, du_pointer, dc_pointer, lists,
    TILES: tl.constexpr, N: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, POSITIONAL: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dU_0 = s^T dz, dU_h = (A_h s)^T dz and dc, summed over the program's tiles."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    row, wide = tl.arange(0, R), tl.arange(0, W)
    if POSITIONAL:
        k_1 = _block_diagonal(a_pointer + member * 2 * N * N, N, R)
        k_2 = _block_diagonal(a_pointer + member * 2 * N * N + N * N, N, R)
    else:
        m_1 = _matrix(m_pointer + member * 2 * D * D, D, D)
        m_2 = _matrix(m_pointer + member * 2 * D * D + D * D, D, D)
        same = _same_list(N, R)
    du_0 = tl.zeros((D, W), tl.float32)
    du_1 = tl.zeros((D, W), tl.float32)
    du_2 = tl.zeros((D, W), tl.float32)
    dc = tl.zeros((W,), tl.float32)
    used: tl.constexpr = (R // N) * N
    for tile in range(TILES):
        at = (part * TILES + tile) * used + row
        valid = (row < used) & (at < lists * N)
        s = _tile_of(s_pointer, start, at, valid, D)
        h = _tile_of(h_pointer, start, at, valid, W)
        dz = _pre_activation_gradient(h, dh_pointer, g_pointer, w_pointer, start, at, valid, member, W, LAST)
        du_0 = _add_dot(du_0, tl.trans(s), dz, PRECISION)
        dc += tl.sum(dz, axis=0)
        if POSITIONAL:
            du_1 = _add_dot(du_1, tl.trans(_dot(k_1, s, PRECISION)), dz, PRECISION)
            du_2 = _add_dot(du_2, tl.trans(_dot(k_2, s, PRECISION)), dz, PRECISION)
        else:
            s_t = tl.trans(s)
            _, a = _attention(s, s_t, m_1, r_pointer + member * 2 * D, same, D, BIAS, PRECISION)
            du_1 = _add_dot(du_1, tl.trans(_dot(a, s, PRECISION)), dz, PRECISION)
            _, a = _attention(s, s_t, m_2, r_pointer + member * 2 * D + D, same, D, BIAS, PRECISION)
            du_2 = _add_dot(du_2, tl.trans(_dot(a, s, PRECISION)), dz, PRECISION)
    out = member * tl.num_programs(0) + part
    _store(du_pointer + out * 3 * D * W, du_0, D, W)
    _store(du_pointer + out * 3 * D * W + D * W, du_1, D, W)
    _store(du_pointer + out * 3 * D * W + 2 * D * W, du_2, D, W)
    if BIAS:
        tl.store(dc_pointer + out * W + wide, dc)


@triton.jit
def positional_backward(
    s_pointer, h_pointer, dh_pointer, g_pointer, w_pointer, u_pointer, a_pointer, ds_pointer, da_pointer, lists,
    TILES: tl.constexpr, N: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """ds = dz U_0^T + Σ_h A_h^T e_h with e_h = dz U_h^T, and the sums e_h s^T, whose diagonal blocks add up to dA_h."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    row, deep = tl.arange(0, R), tl.arange(0, D)
    u_pointer += member * 3 * D * W
    u_0, u_1, u_2 = _matrix(u_pointer, D, W), _matrix(u_pointer + D * W, D, W), _matrix(u_pointer + 2 * D * W, D, W)
    k_1 = _block_diagonal(a_pointer + member * 2 * N * N, N, R)
    k_2 = _block_diagonal(a_pointer + member * 2 * N * N + N * N, N, R)
    dk_1 = tl.zeros((R, R), tl.float32)
    dk_2 = tl.zeros((R, R), tl.float32)
    used: tl.constexpr = (R // N) * N
    for tile in range(TILES):
        at = (part * TILES + tile) * used + row
        valid = (row < used) & (at < lists * N)
        s = _tile_of(s_pointer, start, at, valid, D)
        h = _tile_of(h_pointer, start, at, valid, W)
        dz = _pre_activation_gradient(h, dh_pointer, g_pointer, w_pointer, start, at, valid, member, W, LAST)
        e_1 = _dot(dz, tl.trans(u_1), PRECISION)
        dk_1 = _add_dot(dk_1, e_1, tl.trans(s), PRECISION)
        e_2 = _dot(dz, tl.trans(u_2), PRECISION)
        dk_2 = _add_dot(dk_2, e_2, tl.trans(s), PRECISION)
        if not FIRST:
            ds = _dot(dz, tl.trans(u_0), PRECISION)
            ds = _add_dot(ds, tl.trans(k_1), e_1, PRECISION)
            ds = _add_dot(ds, tl.trans(k_2), e_2, PRECISION)
            tl.store(ds_pointer + (start + at)[:, None] * D + deep[None, :], ds, mask=valid[:, None])
    out = member * tl.num_programs(0) + part
    _store(da_pointer + out * 2 * R * R, dk_1, R, R)
    _store(da_pointer + out * 2 * R * R + R * R, dk_2, R, R)


@triton.jit
def _self_attention_head(
    s, s_t, dz, m, u, r_pointer, same, ds, dm, dr,
    D: tl.constexpr, BIAS: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds one head's part to ds, dM and dm: through the values, and through the logits l = q s^T."""
    q, a = _attention(s, s_t, m, r_pointer, same, D, BIAS, PRECISION)
    e = _dot(dz, tl.trans(u), PRECISION)
    da = _dot(e, s_t, PRECISION)
    dl = a * (da - tl.sum(a * da, axis=1)[:, None])
    dq = _dot(dl, s, PRECISION)
    dm = _add_dot(dm, s_t, dq, PRECISION)
    dr += tl.sum(dq, axis=0)
    if not FIRST:
        ds = _add_dot(ds, tl.trans(a), e, PRECISION)
        ds = _add_dot(ds, tl.trans(dl), q, PRECISION)
        ds = _add_dot(ds, dq, tl.trans(m), PRECISION)
    return ds, dm, dr


@triton.jit
def self_attention_backward(
    s_pointer, h_pointer, dh_pointer, g_pointer, w_pointer, u_pointer, m_pointer, r_pointer,
    ds_pointer, dm_pointer, dr_pointer, lists,
    TILES: tl.constexpr, N: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """ds, and the sums over the program's tiles of dM_h and dm_h."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * lists * N
    row, deep = tl.arange(0, R), tl.arange(0, D)
    u_pointer += member * 3 * D * W
    u_0, u_1, u_2 = _matrix(u_pointer, D, W), _matrix(u_pointer + D * W, D, W), _matrix(u_pointer + 2 * D * W, D, W)
    m_1 = _matrix(m_pointer + member * 2 * D * D, D, D)
    m_2 = _matrix(m_pointer + member * 2 * D * D + D * D, D, D)
    same = _same_list(N, R)
    dm_1 = tl.zeros((D, D), tl.float32)
    dm_2 = tl.zeros((D, D), tl.float32)
    dr_1 = tl.zeros((D,), tl.float32)
    dr_2 = tl.zeros((D,), tl.float32)
    used: tl.constexpr = (R // N) * N
    r_pointer += member * 2 * D
    for tile in range(TILES):
        at = (part * TILES + tile) * used + row
        valid = (row < used) & (at < lists * N)
        s = _tile_of(s_pointer, start, at, valid, D)
        h = _tile_of(h_pointer, start, at, valid, W)
        dz = _pre_activation_gradient(h, dh_pointer, g_pointer, w_pointer, start, at, valid, member, W, LAST)
        s_t = tl.trans(s)
        ds = _dot(dz, tl.trans(u_0), PRECISION)
        ds, dm_1, dr_1 = _self_attention_head(
            s, s_t, dz, m_1, u_1, r_pointer, same, ds, dm_1, dr_1, D, BIAS, FIRST, PRECISION
        )
        ds, dm_2, dr_2 = _self_attention_head(
            s, s_t, dz, m_2, u_2, r_pointer + D, same, ds, dm_2, dr_2, D, BIAS, FIRST, PRECISION
        )
        if not FIRST:
            tl.store(ds_pointer + (start + at)[:, None] * D + deep[None, :], ds, mask=valid[:, None])
    out = member * tl.num_programs(0) + part
    _store(dm_pointer + out * 2 * D * D, dm_1, D, D)
    _store(dm_pointer + out * 2 * D * D + D * D, dm_2, D, D)
    if BIAS:
        tl.store(dr_pointer + out * 2 * D + deep, dr_1)
        tl.store(dr_pointer + out * 2 * D + D + deep, dr_2)


@triton.jit
def readout(
    h_pointer, w_pointer, b_pointer, y_pointer, g_pointer, loss_pointer, dw_pointer, db_pointer, lists,
    TILES: tl.constexpr, N: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The outputs h w + b, the mean squared error over all but the scratchpad, its gradient g, and those of w and b."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    entries = lists * N
    row, wide = tl.arange(0, R), tl.arange(0, W)
    w = tl.load(w_pointer + member * W + wide)
    loss = tl.zeros((R,), tl.float32)
    db = tl.zeros((R,), tl.float32)
    dw = tl.zeros((W,), tl.float32)
    first = part * TILES
    for tile in range(TILES):
        at = (first + tile) * R + row
        inside = at < entries
        h = tl.load(h_pointer + (member * entries + at)[:, None] * W + wide[None, :], mask=inside[:, None], other=0.0)
        answer = tl.sum(h * w[None, :], axis=1)
        if BIAS:
            answer += tl.load(b_pointer + member)
        scored = inside & (at % N < N - 1)
        y = tl.load(y_pointer + member * lists * (N - 1) + (at // N) * (N - 1) + at % N, mask=scored, other=0.0)
        error = tl.where(scored, answer - y, 0.0)
        g = error * (2.0 / (lists * (N - 1)))
        tl.store(g_pointer + member * entries + at, g, mask=inside)
        loss += error * error
        db += g
        dw += tl.sum(g[:, None] * h, axis=0)
    out = member * tl.num_programs(0) + part
    tl.store(loss_pointer + out, tl.sum(loss, axis=0) / (lists * (N - 1)))
    tl.store(dw_pointer + out * W + wide, dw)
    if BIAS:
        tl.store(db_pointer + out, tl.sum(db, axis=0))
