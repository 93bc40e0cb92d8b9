"""What the kernels share: rounding, matrix products, and reading a member's state in tiles of R rows.

A tile holds as many whole lists of N positions as fit; rows left over are zero. Letters as in ``layers``.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)  # on a CPU, where there is no PTX


@triton.jit
def rounded(x, precision: tl.constexpr):
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
def rounded_gradient(x, precision: tl.constexpr):
    """The same for gradients, which may exceed half precision's range: one infinite entry would end a member's training."""
    if precision == "fp16":
        if INTERPRETED:
            x = tl.clamp(x, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float16)
        else:  # one instruction for two entries
            x = tl.inline_asm_elementwise("cvt.rn.satfinite.f16x2.f32 $0, $2, $1;", "=r,f,f", [x], tl.float16, True, 2)
        return x
    return rounded(x, precision)


@triton.jit
def dot(a, b, total, precision: tl.constexpr):
    """total + a b."""
    if precision == "fp32":
        return tl.dot(a, b, acc=total, input_precision="tf32x3")
    else:
        return tl.dot(a, b, acc=total, input_precision="tf32")


@triton.jit
def product(a, b, precision: tl.constexpr):
    """a b."""
    if precision == "fp32":
        return tl.dot(a, b, input_precision="tf32x3")
    else:
        return tl.dot(a, b, input_precision="tf32")


@triton.jit
def added(total, a, b, precision: tl.constexpr):
    """total + a b for a total with no room in registers: the product is made first, for spills within it hold it up."""
    return tl.fma(product(a, b, precision), 1.0, total)


@triton.jit
def short_dot(a, b, precision: tl.constexpr):
    """a b, rounded for the next product."""
    return rounded(product(a, b, precision), precision)


@triton.jit
def gradient_dot(a, b, precision: tl.constexpr):
    """The same if a or b is a gradient."""
    return rounded_gradient(product(a, b, precision), precision)


@triton.jit
def in_registers(x, precision: tl.constexpr):
    """x for several products as their left operand. What is loaded they would read from shared memory, each anew."""
    return x + 0.0 if precision == "fp16" else x


@triton.jit
def mixed(total, a, s, u, P: tl.constexpr):
    """total + a s u. In half precision a s stays in registers; TensorFloat-32 wants right operands with long columns."""
    if P == "fp16":
        return dot(short_dot(a, s, P), u, total, P)
    else:
        return dot(a, tl.trans(short_dot(tl.trans(u), tl.trans(s), P)), total, P)


@triton.jit
def gradient_mixed(total, a, dz, u, P: tl.constexpr):
    """The same if dz is a gradient."""
    if P == "fp16":
        return dot(gradient_dot(a, dz, P), u, total, P)
    else:
        return dot(a, tl.trans(gradient_dot(tl.trans(u), tl.trans(dz), P)), total, P)


@triton.jit
def zeros(rows: tl.constexpr, columns: tl.constexpr):
    return tl.zeros((rows, columns), tl.float32)


@triton.jit
def values_of(pointer, head: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, P: tl.constexpr):
    """U_head out of (D_IN, 3, W); rows beyond D_IN are zero."""
    row, wide = tl.arange(0, D), tl.arange(0, W)
    place = row[:, None] * 3 * W + head * W + wide[None, :]
    return rounded(tl.load(pointer + place, mask=(row < D_IN)[:, None], other=0.0), P)


@triton.jit
def all_values_of(pointer, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr, P: tl.constexpr):
    """U_0, U_1 and U_2."""
    u_0 = values_of(pointer, 0, D_IN, D, W, P)
    u_1 = values_of(pointer, 1, D_IN, D, W, P)
    u_2 = values_of(pointer, 2, D_IN, D, W, P)
    return u_0, u_1, u_2


@triton.jit
def form_of(pointer, head: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, P: tl.constexpr):
    """M_head out of (D_IN, 2, D_IN); what lies beyond is zero."""
    row = tl.arange(0, D)
    place = row[:, None] * 2 * D_IN + head * D_IN + row[None, :]
    return rounded(tl.load(pointer + place, mask=(row < D_IN)[:, None] & (row < D_IN)[None, :], other=0.0), P)


@triton.jit
def forms_of(pointer, D_IN: tl.constexpr, D: tl.constexpr, P: tl.constexpr):
    """M_1 and M_2."""
    m_1 = form_of(pointer, 0, D_IN, D, P)
    m_2 = form_of(pointer, 1, D_IN, D, P)
    return m_1, m_2


@triton.jit
def row_of(pointer, head: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr):
    """m_head out of (2, D_IN)."""
    row = tl.arange(0, D)
    return tl.load(pointer + head * D_IN + row, mask=row < D_IN, other=0.0)


@triton.jit
def both_rows_of(pointer, D_IN: tl.constexpr, D: tl.constexpr):
    """m_1 and m_2."""
    r_1 = row_of(pointer, 0, D_IN, D)
    r_2 = row_of(pointer, 1, D_IN, D)
    return r_1, r_2


@triton.jit
def pairs_of(first, lists, down, across, N: tl.constexpr, R: tl.constexpr):
    """Where the weights of a tile, whose first list is ``first``, lie among (lists, 2, N, N), and which of them exist.

    Rows are ``down`` apart and columns ``across``: N and 1, or for transposed weights 1 and N.
    """
    row = tl.arange(0, R)
    own = row // N
    kept = (own[:, None] == own[None, :]) & ((row < (R // N) * N) & (first + own < lists))[:, None]
    return own[:, None] * 2 * N * N + (row % N)[:, None] * down + (row % N)[None, :] * across, kept


@triton.jit
def turned_about(index, count, turned):
    """The index, or if turned the same from the end: what the kernel before wrote last is still in the cache."""
    return tl.where(turned != 0, count - 1 - index, index)


@triton.jit
def rows_at(first, lists, N: tl.constexpr, R: tl.constexpr):
    """A tile's rows among the member's, and which of them exist: those left over after whole lists do not."""
    row = tl.arange(0, R)
    at = first * N + row
    return at, (row < (R // N) * N) & (at < lists * N)


@triton.jit
def tile_of(pointer, start, at, valid, columns: tl.constexpr):
    """Rows ``at`` of what begins at row ``start``."""
    place = at[:, None] * columns + tl.arange(0, columns)[None, :]
    return tl.load(pointer + start * columns + place, mask=valid[:, None], other=0.0)


@triton.jit
def store_tile(pointer, value, start, at, valid, columns: tl.constexpr):
    """The value into those rows."""
    place = at[:, None] * columns + tl.arange(0, columns)[None, :]
    tl.store(pointer + start * columns + place, value, mask=valid[:, None])


@triton.jit
def encoder_input(encoding_pointer, N: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, R: tl.constexpr):
    """A tile's ``slope`` and ``base`` out of (2, N, D_IN): the encoder reads number * slope + base."""
    row, deep = tl.arange(0, R), tl.arange(0, D)
    place, there = (row % N)[:, None] * D_IN + deep[None, :], (deep < D_IN)[None, :]
    slope = tl.load(encoding_pointer + place, mask=there, other=0.0)
    return slope, tl.load(encoding_pointer + N * D_IN + place, mask=there, other=0.0)


@triton.jit
def first_state(x_pointer, at, valid, slope, base, N: tl.constexpr, P: tl.constexpr):
    """The encoder's input of a tile, from the lists of numbers; the scratchpad holds 0."""
    number = tl.load(x_pointer + (at // N) * (N - 1) + at % N, mask=valid & (at % N < N - 1), other=0.0)
    return rounded(tl.where(valid[:, None], number[:, None] * slope + base, 0.0), P)


@triton.jit
def attended(edge, N: tl.constexpr, R: tl.constexpr, CAUSAL: tl.constexpr):
    """Which rows of a tile a row attends to: those of its own list, under a causal mask up to itself.

    Rows are counted from ``edge``, any number that changes with tile and head: a mask that does not change would be kept in
    registers, of which there are too few.
    """
    row = tl.arange(0, R)
    begin = row // N * N
    end = row + 1 if CAUSAL else begin + N
    column = (edge + row)[None, :]
    return (column >= (edge + begin)[:, None]) & (column < (edge + end)[:, None])


@triton.jit
def softmax(logits, same):
    """The weights, and the logarithm to base 2 by which 2^(logits log2(e) - norm) gives them again."""
    logits = tl.where(same, logits, float("-inf"))
    peak = tl.max(logits, axis=1) * LOG2_E
    weight = tl.exp2(logits * LOG2_E - peak[:, None])
    total = tl.sum(weight, axis=1)
    return weight * (1.0 / total)[:, None], peak + tl.log2(total)


@triton.jit
def weighed(z, s, a, u, P: tl.constexpr):
    """z plus what a head with weights a attends to."""
    return dot(short_dot(a, s, P), u, z, P)


@triton.jit
def logits_gradient(a, da, P: tl.constexpr):
    """dl, from a head's weights and their gradient."""
    weight = a.to(tl.float32)
    weighted = weight * da
    return rounded_gradient(weighted - weight * tl.sum(weighted, axis=1)[:, None], P)


@triton.jit
def unit_of(loss_pointer, member):
    """8 times the root mean squared error: the unit of dz, up to the factor 2 / entries."""
    return 8 * tl.sqrt(tl.maximum(tl.load(loss_pointer + member), 1e-30))


@triton.jit
def gradient_of(
    dz_pointer, h_pointer, error_pointer, w, unit, start, at, valid, W: tl.constexpr, LAST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """dz of a tile: of the last layer, error w^T where the ReLU is on."""
    if LAST:
        h = tile_of(h_pointer, start, at, valid, W)
        error = tl.load(error_pointer + start + at, mask=valid, other=0.0) / unit
        dz = rounded_gradient(tl.where(h > 0, error[:, None] * w[None, :], 0.0), P)
    else:
        dz = tile_of(dz_pointer, start, at, valid, W)
    return dz


@triton.jit
def store_values(pointer, head, value, D_IN: tl.constexpr, D: tl.constexpr, W: tl.constexpr):
    """A program's dU_head into (D_IN, 3, W)."""
    row, wide = tl.arange(0, D), tl.arange(0, W)
    tl.store(pointer + row[:, None] * 3 * W + head * W + wide[None, :], value, mask=(row < D_IN)[:, None])
