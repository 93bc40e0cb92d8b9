"""Positional attention of a whole batch on a GPU, forward and backward: one product per head, and A no larger than V.

    A_h = softmax(Q_h K_h^T / sqrt(d_k)),        Y_h = A_h V_h,        V_h of n rows and B e columns.

A depends on no sequence, so ``weigh`` makes a tile of it once for the columns of the whole batch. Where A is larger than V
(n > B e) no A is stored: ``mix`` computes its tiles again from Q, K and the sums of the softmax. The gradients, with
D_i = Σ_c dY_ic Y_ic over all columns, are

    dV_h = A_h^T dY_h,    dS_h = A_h ∘ (dY_h V_h^T - D) / sqrt(d_k),    dQ_h = dS_h K_h,    dK_h = dS_h^T Q_h.

``slope`` makes dS, for as many rows at a time as take no more memory than V. Causal tiles above the diagonal are skipped;
within blocks of FILL rows and columns on the diagonal what lies above it is stored as zero.

Letters: B sequences, n positions, H heads, e value width of a head, d_k query and key width, S = Q K^T / sqrt(d_k).
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from triton.runtime.errors import OutOfResources

from posattn.devices import current

SMALL = 256  # positions
FILL = 128  # a multiple of the blocks of rows that ``mix`` reads or writes
REACH = 2**31  # numbers of a head's part of A, at most, as ``mix`` counts them in 32 bits


class Tiling(NamedTuple):
    """A program's tile, rows by columns, the steps of its products, and how Triton compiles it."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


TILINGS = {  # the fastest on an H200
    "weigh": Tiling(64, 128, 0, 4, 2),
    "mix": Tiling(128, 256, 64, 8, 3),
    "slope": Tiling(128, 128, 64, 8, 3),
    "slope made": Tiling(64, 128, 64, 4, 4),  # where A is not stored
    "slope small": Tiling(64, 64, 64, 4, 4),  # where larger tiles would be too few
    "narrow": Tiling(64, 64, 64, 4, 4),  # ``mix`` for the d_k columns of dQ and dK
}


def smaller(tiling: Tiling) -> Iterator[Tiling]:
    """The tiling, then others that need less and less shared memory."""
    yield tiling
    if tiling.stages > 2:
        yield from smaller(tiling._replace(stages=tiling.stages - 1))
    elif tiling.columns > max(tiling.rows, 64):
        yield from smaller(tiling._replace(columns=tiling.columns // 2))
    elif tiling.rows > 64:
        yield from smaller(tiling._replace(rows=tiling.rows // 2))
    elif tiling.stages > 1:
        yield from smaller(tiling._replace(stages=1))


def on_chip(launch: Callable[[Tiling], None], tiling: Tiling) -> None:
    """Launches a kernel with the first tiling, from this one on, for which the GPU has the shared memory."""
    for each in smaller(tiling):
        try:
            return launch(each)
        except OutOfResources as error:
            refused = error
    raise refused


@triton.jit
def logits_of(one, other, scale):
    """Products of rows in units of log2, as exp2 reads them."""
    return tl.dot(one, tl.trans(other), input_precision="ieee") * scale


@triton.jit
def rows_of(pointer, row, n, q_row, q_column, D_K: tl.constexpr, K: tl.constexpr):
    """Rows of queries or keys, in K columns."""
    column = tl.arange(0, K)
    there = (row < n)[:, None] & (column < D_K)[None, :]
    return tl.load(pointer + row[:, None] * q_row + column[None, :] * q_column, mask=there, other=0.0)


@triton.jit
def weigh(
    q_pointer, k_pointer, sums_pointer, a_pointer, n, wide, scale, q_head, q_row, q_column,
    CAUSAL: tl.constexpr, MEASURE: tl.constexpr, STORE: tl.constexpr, D_K: tl.constexpr, K: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """With MEASURE the log2 of a row's sum of exponentials; with STORE its weights. The longest causal rows come first."""
    head, first = tl.program_id(1).to(tl.int64), (tl.num_programs(0) - 1 - tl.program_id(0)) * R
    q_pointer += head * q_head
    k_pointer += head * q_head
    row = first + tl.arange(0, R)
    q = rows_of(q_pointer, row, n, q_row, q_column, D_K, K)
    stop = n
    if CAUSAL:
        stop = tl.minimum(n, first + R)
    if MEASURE:
        top, total = tl.full((R,), float("-inf"), tl.float32), tl.zeros((R,), tl.float32)
        for start in range(0, stop, C):
            column = start + tl.arange(0, C)
            seen = (column < n)[None, :]
            if CAUSAL:
                seen = seen & (row[:, None] >= column[None, :])
            s = tl.where(
                seen, logits_of(q, rows_of(k_pointer, column, n, q_row, q_column, D_K, K), scale), float("-inf")
            )
            higher = tl.maximum(top, tl.max(s, axis=1))
            total = total * tl.exp2(top - higher) + tl.sum(tl.exp2(s - higher[:, None]), axis=1)
            top = higher
        sums = top + tl.log2(total)
        tl.store(sums_pointer + head * n + row, sums, mask=row < n)
    else:
        sums = tl.load(sums_pointer + head * n + row, mask=row < n, other=0.0)
    if STORE:
        if CAUSAL:
            stop = tl.minimum(n, (first // DIAGONAL + 1) * DIAGONAL)
        for start in range(0, stop, C):
            column = start + tl.arange(0, C)
            seen = (row < n)[:, None] & (column < n)[None, :]
            a = tl.exp2(logits_of(q, rows_of(k_pointer, column, n, q_row, q_column, D_K, K), scale) - sums[:, None])
            if CAUSAL:
                a = tl.where(row[:, None] >= column[None, :], a, 0.0)
            place = a_pointer + (head * n + row[:, None]) * wide + column[None, :]
            tl.store(place, a.to(a_pointer.dtype.element_ty), mask=seen)


@triton.jit
def mix(
    a_pointer, q_pointer, k_pointer, sums_pointer, v_pointer, y_pointer, n, wide, columns, first, count, scale,
    q_head, q_row, q_column, v_sequence, v_row, v_head, v_column, y_sequence, y_row, y_head, y_column,
    CAUSAL: tl.constexpr, TRANSPOSED: tl.constexpr, STORED: tl.constexpr, ADD: tl.constexpr, EVEN: tl.constexpr,
    E: tl.constexpr, D_K: tl.constexpr, K: tl.constexpr, R: tl.constexpr, C: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Y = A V or, TRANSPOSED, A^T V, for a block of rows of Y and of columns of the batch.

    STORED, ``a_pointer`` holds the rows from ``first`` on, ``count`` of them; else A is made from Q, K and the sums, and these
    are all rows. ADD adds to what Y holds. EVEN: blocks fill n and the columns.
    """
    blocks = tl.cdiv(columns, C)
    tall = tl.cdiv(n, R) if TRANSPOSED else tl.cdiv(count, R)
    program = tl.program_id(0)
    block, head = program // blocks % tall, (program // blocks // tall).to(tl.int64)
    if CAUSAL and not TRANSPOSED:  # the longest first
        block = tall - 1 - block
    row, column = block * R + tl.arange(0, R), program % blocks * C + tl.arange(0, C)
    if not TRANSPOSED:
        row += first
    sequence = (column // E).to(tl.int64)
    v_place = v_pointer + head * v_head + (sequence * v_sequence + column % E * v_column)[None, :]
    start, stop = 0, n
    if TRANSPOSED:
        stop = count
        if CAUSAL:
            start = tl.maximum(block * R - first, 0) // T * T
    elif CAUSAL:
        stop = tl.minimum(n, first + block * R + R)
    if STORED:
        a_pointer += head * count * wide
    else:
        q_pointer += head * q_head
        k_pointer += head * q_head
        fixed = rows_of(k_pointer if TRANSPOSED else q_pointer, row, n, q_row, q_column, D_K, K)
        if not TRANSPOSED:
            sums = tl.load(sums_pointer + head * n + row, mask=row < n, other=0.0)
    total = tl.zeros((R, C), tl.float32)
    for at in range(start, stop, T):
        local = at + tl.arange(0, T)  # rows of A if TRANSPOSED, else columns
        other = local + first if TRANSPOSED else local
        if EVEN:
            v = tl.load(v_place + other[:, None] * v_row)
        else:
            v = tl.load(
                v_place + other[:, None] * v_row, mask=(local < stop)[:, None] & (column < columns)[None, :], other=0.0
            )
        if STORED:
            if TRANSPOSED:
                place = a_pointer + local[:, None] * wide + row[None, :]
                if EVEN:
                    a = tl.trans(tl.load(place))
                else:
                    a = tl.trans(tl.load(place, mask=(local < stop)[:, None] & (row < n)[None, :], other=0.0))
            else:
                place = a_pointer + (row - first)[:, None] * wide + local[None, :]
                if EVEN:
                    a = tl.load(place)
                else:
                    a = tl.load(place, mask=(row < first + count)[:, None] & (local < stop)[None, :], other=0.0)
        else:
            moving = rows_of(q_pointer if TRANSPOSED else k_pointer, other, n, q_row, q_column, D_K, K)
            s = logits_of(fixed, moving, scale)
            if TRANSPOSED:
                below = tl.load(sums_pointer + head * n + other, mask=other < n, other=0.0)
                a = tl.exp2(s - below[None, :])
                if CAUSAL:
                    a = tl.where(other[None, :] >= row[:, None], a, 0.0)
            else:
                a = tl.exp2(s - sums[:, None])
                if CAUSAL:
                    a = tl.where(row[:, None] >= other[None, :], a, 0.0)
                elif not EVEN:
                    a = tl.where((other < n)[None, :], a, 0.0)
            a = a.to(v.dtype)
        total = tl.dot(a, v, total, input_precision="ieee")
    y_place = (
        y_pointer + head * y_head + row[:, None] * y_row + (sequence * y_sequence + column % E * y_column)[None, :]
    )
    there = (row < (n if TRANSPOSED else first + count))[:, None] & (column < columns)[None, :]
    if ADD:
        total += tl.load(y_place, mask=there, other=0.0)
    tl.store(y_place, total.to(y_pointer.dtype.element_ty), mask=there)


@triton.jit
def overlap(
    dy_pointer, y_pointer, d_pointer, n, columns, dy_sequence, dy_row, dy_head, dy_column, y_sequence, y_row, y_head, y_column,
    E: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """D, the products of the rows of dY and Y."""
    head, row = tl.program_id(1).to(tl.int64), tl.program_id(0) * R + tl.arange(0, R)
    total = tl.zeros((R, T), tl.float32)
    for at in range(0, columns, T):
        column = at + tl.arange(0, T)
        sequence = (column // E).to(tl.int64)
        there = (row < n)[:, None] & (column < columns)[None, :]
        dy_at = head * dy_head + (sequence * dy_sequence + column % E * dy_column)[None, :]
        y_at = head * y_head + (sequence * y_sequence + column % E * y_column)[None, :]
        dy = tl.load(dy_pointer + row[:, None] * dy_row + dy_at, mask=there, other=0.0).to(tl.float32)
        total += dy * tl.load(y_pointer + row[:, None] * y_row + y_at, mask=there, other=0.0).to(tl.float32)
    tl.store(d_pointer + head * n + row, tl.sum(total, axis=1), mask=row < n)


@triton.jit
def slope(
    a_pointer, q_pointer, k_pointer, sums_pointer, d_pointer, dy_pointer, v_pointer, n, wide, columns, first, count, scale,
    unit, q_head, q_row, q_column, dy_sequence, dy_row, dy_head, dy_column, v_sequence, v_row, v_head, v_column,
    CAUSAL: tl.constexpr, STORED: tl.constexpr, EVEN: tl.constexpr, E: tl.constexpr, D_K: tl.constexpr, K: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, T: tl.constexpr, SQUARE: tl.constexpr,
):  # fmt: skip
    """dS of a tile, ``unit`` times A ∘ (dY V^T - D), in the place of A, which is read from there if STORED.

    Programs walk over squares of SQUARE rows and columns, of which each has (SQUARE / R) (SQUARE / C) tiles.
    """
    ACROSS: tl.constexpr = SQUARE // C
    TILES: tl.constexpr = (SQUARE // R) * ACROSS
    tile, square = tl.program_id(0) % TILES, tl.program_id(0) // TILES
    head, long = tl.program_id(1).to(tl.int64), tl.cdiv(n, SQUARE)
    down, right = square // long, square % long
    if CAUSAL:  # squares up to the diagonal: ``before`` of them in each row above ``first``, then one more in each row
        before, tall = first // SQUARE, tl.cdiv(count, SQUARE)
        # Rows pair up, the first with the last and so on, to 2 before + tall + 1 squares.
        pair = 2 * before + tall + 1
        down, right = tall - 1 - square // pair, square % pair
        if right > before + down:
            right -= before + down + 1
            if 2 * down + 1 == tall:
                right += long  # the row in the middle has no other
            down = tall - 1 - down
    row = first + down * SQUARE + tile // ACROSS * R + tl.arange(0, R)
    column = right * SQUARE + tile % ACROSS * C + tl.arange(0, C)
    if (first + down * SQUARE + tile // ACROSS * R < n) & (right * SQUARE + tile % ACROSS * C < n):
        dy_place = dy_pointer + head * dy_head + row[:, None] * dy_row
        v_place = v_pointer + head * v_head + column[:, None] * v_row
        total = tl.zeros((R, C), tl.float32)
        for at in range(0, columns, T):
            inner = at + tl.arange(0, T)
            sequence = (inner // E).to(tl.int64)
            dy_at = (sequence * dy_sequence + inner % E * dy_column)[None, :]
            v_at = (sequence * v_sequence + inner % E * v_column)[None, :]
            if EVEN:
                dy, v = tl.load(dy_place + dy_at), tl.load(v_place + v_at)
            else:
                there = (inner < columns)[None, :]
                dy = tl.load(dy_place + dy_at, mask=there & (row < n)[:, None], other=0.0)
                v = tl.load(v_place + v_at, mask=there & (column < n)[:, None], other=0.0)
            total = tl.dot(dy, tl.trans(v), total, input_precision="ieee")
        there = (row < n)[:, None] & (column < n)[None, :]
        place = a_pointer + (head * count + (row - first)[:, None]) * wide + column[None, :]
        if STORED:
            a = tl.load(place, mask=there, other=0.0).to(tl.float32)
        else:
            q = rows_of(q_pointer + head * q_head, row, n, q_row, q_column, D_K, K)
            k = rows_of(k_pointer + head * q_head, column, n, q_row, q_column, D_K, K)
            sums = tl.load(sums_pointer + head * n + row, mask=row < n, other=0.0)
            a = tl.exp2(logits_of(q, k, scale) - sums[:, None])
            if CAUSAL:
                a = tl.where(row[:, None] >= column[None, :], a, 0.0)
        d = tl.load(d_pointer + head * n + row, mask=row < n, other=0.0)
        tl.store(place, (unit * a * (total - d[:, None])).to(a_pointer.dtype.element_ty), mask=there)


class _Batch:
    """What all kernels of one call share, worked out once: without a CUDA graph the host's work bounds short steps."""

    def __init__(
        self, q: Float[Tensor, "H n d_k"], k: Float[Tensor, "H n d_k"], sums: Float[Tensor, "H n"], causal: bool
    ):
        self.q, self.k, self.sums, self.causal = q, k, sums, causal
        (_, self.n, d_k), strides = q.shape, zip(("q_head", "q_row", "q_column"), q.stride(), strict=True)
        self.wide, scale = wide_of(self.n), math.log2(math.e) / math.sqrt(d_k)
        self.sizes: dict[str, Any] = {"n": self.n, "wide": self.wide, "scale": scale, **dict(strides)}
        self.sizes |= {"CAUSAL": causal, "D_K": d_k, "K": columns_of(d_k)}

    def rows(self, count: int) -> Float[Tensor, "H {count} {self.wide}"]:
        return self.q.new_empty(len(self.q), count, self.wide)

    def weigh(self, a: Tensor | None, measure: bool) -> None:
        """Writes the sums if ``measure``, and A where there is room for it."""

        def launch(tiling: Tiling) -> None:
            weigh[(blocks_of(self.n, tiling.rows), len(self.q))](
                self.q, self.k, self.sums, self.q if a is None else a, **self.sizes,
                MEASURE=measure, STORE=a is not None, R=tiling.rows, C=tiling.columns, DIAGONAL=FILL, **_compiled(tiling),
            )  # fmt: skip

        on_chip(launch, TILINGS["weigh"])

    def mix(
        self, a: Tensor | None, v: Float[Tensor, "B n H e"], y: Float[Tensor, "B n H e"], transposed: bool = False,
        first: int = 0, add: bool = False, tiling: Tiling | None = None,
    ) -> None:  # fmt: skip
        """Y = A V, or A^T V if ``transposed``; ``a`` are the rows from ``first`` on, None for all of them unstored."""
        columns, count = v.shape[0] * v.shape[3], self.n if a is None else a.shape[1]

        def launch(tiling: Tiling) -> None:
            rows, wide, step = tiling[:3]
            even = not (self.n % rows or self.n % step or count % rows or count % step or columns % wide)
            blocks = blocks_of(columns, wide) * blocks_of(self.n if transposed else count, rows)
            mix[(blocks * len(self.q),)](
                v if a is None else a, self.q, self.k, self.sums, v, y, **self.sizes, columns=columns, first=first,
                count=count, **_strides("v", v), **_strides("y", y), TRANSPOSED=transposed, STORED=a is not None, ADD=add,
                EVEN=even, E=v.shape[3], R=rows, C=wide, T=step, **_compiled(tiling),
            )  # fmt: skip

        on_chip(launch, fitted(TILINGS["mix"] if tiling is None else tiling, self.n, columns))

    def slope(
        self, a: Float[Tensor, "H R N"], first: int, stored: bool, dy: Tensor, v: Tensor, d: Float[Tensor, "H n"]
    ) -> None:
        """dS of the rows from ``first`` on, into ``a``, which holds their weights if ``stored``."""
        columns, count = v.shape[0] * v.shape[3], a.shape[1]

        def launch(tiling: Tiling) -> None:
            rows, wide, step = tiling[:3]
            step = min(step, columns_of(columns))
            square = max(rows, wide, FILL)
            tall, long = blocks_of(count, square), blocks_of(self.n, square)
            squares = blocks_of(tall, 2) * (2 * (first // square) + tall + 1) if self.causal else tall * long
            slope[(squares * (square // rows) * (square // wide), len(self.q))](
                a, self.q, self.k, self.sums, d, dy, v, **self.sizes, columns=columns, first=first, count=count,
                unit=1 / math.sqrt(self.q.shape[-1]), **_strides("dy", dy), **_strides("v", v),
                STORED=stored, EVEN=not (self.n % square or columns % step), E=v.shape[3],
                R=rows, C=wide, T=step, SQUARE=square, **_compiled(tiling),
            )  # fmt: skip

        on_chip(launch, TILINGS[("slope" if self.n > SMALL else "slope small") if stored else "slope made"])


def blocks_of(count: int, size: int) -> int:
    """How many blocks hold so many. On the host Triton's own function for this takes ten times as long."""
    return -(-count // size)


def wide_of(n: int) -> int:
    """Numbers from a row of A to the next, so that all are read in whole words."""
    return 16 * blocks_of(n, 16)


def columns_of(width: int) -> int:
    """Columns of a tile for ``width`` numbers: 64 at least, as for less Triton 3.6 and 3.7 make code that reads beyond the
    shared memory of a Hopper GPU (triton-lang/triton#11366)."""
    return max(64, 2 ** (width - 1).bit_length())


def fitted(tiling: Tiling, n: int, columns: int) -> Tiling:
    """The tiling, no larger than the product."""
    return tiling._replace(rows=min(tiling.rows, columns_of(n)), columns=min(tiling.columns, columns_of(columns)))


def _compiled(tiling: Tiling) -> dict[str, int]:
    return {"num_warps": tiling.warps, "num_stages": tiling.stages}


_STRIDES = {name: [f"{name}_{axis}" for axis in ("sequence", "row", "head", "column")] for name in ("v", "y", "dy")}


def _strides(name: str, x: Float[Tensor, "B n H e"]) -> dict[str, int]:
    return dict(zip(_STRIDES[name], x.stride(), strict=True))


def _stores(v: Float[Tensor, "B n H e"]) -> bool:
    """Whether A takes no more memory than V, and is within reach."""
    return v.shape[1] <= min(v.shape[0] * v.shape[3], REACH // wide_of(v.shape[1]))


def _rows(v: Float[Tensor, "B n H e"]) -> int:
    """How many rows of dS exist at a time: as many as take no more memory than V and are within reach, in whole squares."""
    n, square = v.shape[1], 2 * FILL
    most = min(v.shape[0] * v.shape[3], REACH // wide_of(n))
    return n if _stores(v) else max(most // square, 1) * square


@torch.library.custom_op("posattn::mix", mutates_args=())
def mixed(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Y (B, n, H, e) from Q and K (H, n, d_k) and V (B, n, H, e); and log2 of the sums of exponentials (H, n)."""
    batch = _Batch(*_alike(q, k), q.new_empty(q.shape[:2], dtype=torch.float32), causal)
    v = _whole(v)
    a = batch.rows(batch.n) if _stores(v) else None
    y = v.new_empty(v.shape)
    with current(q.device):  # Triton launches on the current GPU, which need not be the one that has the tensors
        batch.weigh(a, measure=True)
        batch.mix(a, v, y)
    return y, batch.sums


@mixed.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


def _gradients(batch: _Batch, dy: Tensor, v: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, n = batch.q, batch.k, batch.n
    a = None
    if _stores(v):
        a = batch.rows(n)
        batch.weigh(a, measure=False)
    dv = v.new_empty(v.shape)
    batch.mix(a, dy, dv, transposed=True)

    d, columns = torch.empty_like(batch.sums), v.shape[0] * v.shape[3]
    overlap[(blocks_of(n, 16), len(q))](
        dy, y, d, n, columns, **_strides("dy", dy), **_strides("y", y), E=v.shape[3], R=16, T=256, num_warps=4
    )
    rows = _rows(v)
    # Gradients of one-hot queries are laid out as the parameters are. Sums of several parts are float32's.
    dq, dk = (torch.empty_like(q, dtype=q.dtype if rows >= n else torch.float32) for _ in range(2))
    keys, queries, d_queries, d_keys = (x.transpose(0, 1)[None] for x in (k, q, dq, dk))
    ds = batch.rows(min(rows, n)) if a is None else a
    for first in range(0, n, rows):
        part = (
            ds if first + rows <= n else ds.flatten()[: len(q) * (n - first) * batch.wide].view(len(q), n - first, -1)
        )
        batch.slope(part, first, a is not None, dy, v, d)
        batch.mix(part, keys, d_queries, first=first, tiling=TILINGS["narrow"])
        batch.mix(part, queries, d_keys, transposed=True, first=first, add=first > 0, tiling=TILINGS["narrow"])
    return dq.to(q.dtype), dk.to(k.dtype), dv


@torch.library.custom_op("posattn::mix_backward", mutates_args=())
def mixed_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, sums: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of Q, K and V."""
    with current(dy.device):
        return _gradients(_Batch(*_alike(q, k), sums, causal), _whole(dy), _whole(v), y)


@mixed_backward.register_fake
def _(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, sums: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    q, k = _alike(q, k)
    return torch.empty_like(q), torch.empty_like(k), v.new_empty(v.shape)


def _whole(x: Float[Tensor, "B n H e"]) -> Float[Tensor, "B n H e"]:
    """x, or a copy if its last axis is not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _alike(q: Float[Tensor, "H n d_k"], k: Float[Tensor, "H n d_k"]) -> tuple[Tensor, Tensor]:
    """Q and K in the same layout, which has no gaps."""
    if q.stride() == k.stride() and torch.empty_like(q).stride() == q.stride():
        return q, k
    return q.contiguous(), k.contiguous()


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    return *mixed_backward(dy, *ctx.saved_tensors, ctx.causal), None


mixed.register_autograd(_backward, setup_context=_keep)
