"""Triton kernels for ``posattn.folding``: from rows of parameters to the folded tensors, and from their gradients back.

Two programs take one layer of one member, and read and write the rows (M, P) in which an ensemble keeps its parameters. Every
parameter's gradient is written once: that of a map T (the encoder, or W_2 of the layer before) by the layer that folds it,
the readout's by the last layer.

Letters as in posattn.folding, for two heads: T and t the map x = s T + t, v = T W_V and o = W_O W_1a of a head, so that
U_h = v o; q = T W_Q and k = T W_K of a head of self-attention, so that M = q k^T / sqrt(d_k). A matrix W (in, out) is read
from the weight of an nn.Linear, which is (out, in). Where a tile is larger than its matrix, the rest is zero. Numbers have
one answer per position; letters have a logit per word, by a decoder or, where it is tied, by the encoder's vectors.

Products are float32's: three products of the matrix units for each, summed in float32.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from posattn.folding import Tensors
from posattn.kernels.shapes import padded
from posattn.model import ModelConfig
from posattn.tokens.token_model import TokenConfig

_WARPS = 4


@triton.jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def _times(row, matrix):
    """row matrix."""
    return tl.sum(row[:, None] * matrix, axis=0)


@triton.jit
def _times_transposed(row, matrix):
    """row matrix^T."""
    return tl.sum(row[None, :] * matrix, axis=1)


@triton.jit
def _outer(left, right):
    """left^T right."""
    return left[:, None] * right[None, :]


@triton.jit
def _matrix(pointer, stride, ins, outs, IN: tl.constexpr, OUT: tl.constexpr):
    """W (ins, outs) in a tile (IN, OUT), from a weight whose rows are ``stride`` apart."""
    row, column = tl.arange(0, IN)[:, None], tl.arange(0, OUT)[None, :]
    return tl.load(pointer + column * stride + row, mask=(row < ins) & (column < outs), other=0.0)


@triton.jit
def _keep_matrix(pointer, value, stride, ins, outs, IN: tl.constexpr, OUT: tl.constexpr):
    """Writes what ``_matrix`` would read; returns its sum of squares."""
    row, column = tl.arange(0, IN)[:, None], tl.arange(0, OUT)[None, :]
    tl.store(pointer + column * stride + row, value, mask=(row < ins) & (column < outs))
    return tl.sum(value * value)


@triton.jit
def _row(pointer, size, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    return tl.load(pointer + at, mask=at < size, other=0.0)


@triton.jit
def _keep_row(pointer, value, size, SIZE: tl.constexpr):
    """Writes what ``_row`` would read; returns its sum of squares."""
    at = tl.arange(0, SIZE)
    tl.store(pointer + at, value, mask=at < size)
    return tl.sum(value * value)


@triton.jit
def _rows(pointer, stride, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A matrix (rows, columns) in a tile, whose rows are ``stride`` apart."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    return tl.load(pointer + row * stride + column, mask=(row < rows) & (column < columns), other=0.0)


@triton.jit
def _encodings(pointer, N: tl.constexpr, NP: tl.constexpr, D_P: tl.constexpr, F: tl.constexpr):
    """P (N, D_P)."""
    row, column = tl.arange(0, NP)[:, None], tl.arange(0, F)[None, :]
    return tl.load(pointer + row * D_P + column, mask=(row < N) & (column < D_P), other=0.0)


@triton.jit
def _features(
    p, pointer, head, D_P: tl.constexpr, F: tl.constexpr, D_K: tl.constexpr, K: tl.constexpr, BIAS: tl.constexpr
):
    """p W + b of a head, queries or keys; in rows beyond those of p it is b, which nothing reads."""
    features = _dot(p, _matrix(pointer + head * D_K * D_P, D_P, D_P, D_K, F, K))
    if BIAS:
        features += _row(pointer + 2 * D_K * D_P + head * D_K, D_K, K)[None, :]
    return features


@triton.jit
def _words(
    start, DECODER: tl.constexpr, D_IN: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, WORDS: tl.constexpr, C: tl.constexpr,
    TIED: tl.constexpr,
):  # fmt: skip
    """The decoder's matrix (E, WORDS), which is that of the encoder for its first features if it is tied."""
    if TIED:
        return _rows(start, D_IN, E, WORDS, EP, C)
    return _matrix(start + DECODER, E, E, WORDS, EP, C)


@triton.jit
def _map_at(layer, BODY: tl.constexpr, LAYER: tl.constexpr, W_2: tl.constexpr, D_IN: tl.constexpr, W: tl.constexpr):
    """Where T begins in a member's row, and how many features it reads: t follows it."""
    return tl.where(layer == 0, 0, BODY + (layer - 1) * LAYER + W_2), tl.where(layer == 0, D_IN, W)


@triton.jit
def fold_layers(
    rows_pointer, p_pointer, u_first_pointer, u_pointer, c_pointer, a_pointer, m_first_pointer, m_pointer,
    r_first_pointer, r_pointer, w_pointer, b_pointer, scale,
    P: tl.constexpr, BODY: tl.constexpr, LAYER: tl.constexpr, DECODER: tl.constexpr, W_Q: tl.constexpr, W_K: tl.constexpr,
    W_V: tl.constexpr, W_O: tl.constexpr, W_1: tl.constexpr, W_2: tl.constexpr,
    N: tl.constexpr, NP: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, W: tl.constexpr,
    D_K: tl.constexpr, K: tl.constexpr, D_P: tl.constexpr, F: tl.constexpr, LAYERS: tl.constexpr, WORDS: tl.constexpr,
    C: tl.constexpr, BIAS: tl.constexpr, POSITIONAL: tl.constexpr, CAUSAL: tl.constexpr, TIED: tl.constexpr,
):  # fmt: skip
    """The folded tensors of one layer: one program has U_0 = T W_1x, U_h = (T W_V,h)(W_O,h W_1a) and c, one A or M and m."""
    layer, member, members = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    V: tl.constexpr = E // 2
    VP: tl.constexpr = EP // 2
    start = rows_pointer + member * P
    own = start + BODY + layer * LAYER
    at, wide = _map_at(layer, BODY, LAYER, W_2, D_IN, W)
    if layer == 0:
        u_pointer = u_first_pointer + member * 3 * D_IN * W
        m_pointer = m_first_pointer + member * 2 * D_IN * D_IN
        r_pointer = r_first_pointer + member * 2 * D_IN
    else:
        inner = (layer - 1) * members + member
        u_pointer += inner * 3 * W * W
        m_pointer += inner * 2 * W * W
        r_pointer += inner * 2 * W
    deep, hidden = tl.arange(0, D), tl.arange(0, W)
    u_place, u_inside = deep[:, None] * 3 * W + hidden[None, :], (deep < wide)[:, None]
    big_t = _matrix(start + at, wide, wide, E, D, EP)
    if BIAS:
        t = _row(start + at + wide * E, E, EP)
    if tl.program_id(2) == 0:
        w_1x = _matrix(own + W_1 + E, 2 * E, E, W, EP, W)
        tl.store(u_pointer + u_place, _dot(big_t, w_1x), mask=u_inside)
        w_1a = _matrix(own + W_1, 2 * E, E, W, EP, W)
        if BIAS:
            c = _times(t, w_1x) + _times(_row(own + W_O + E * E, E, EP), w_1a) + _row(own + W_1 + 2 * E * W, W, W)
        for head in range(2):
            o = _dot(_matrix(own + W_O + head * V, E, V, E, VP, EP), w_1a)
            w_v = _matrix(own + W_V + head * V * E, E, E, V, EP, VP)
            tl.store(u_pointer + (head + 1) * W + u_place, _dot(_dot(big_t, w_v), o), mask=u_inside)
            if BIAS:
                c += _times(_times(t, w_v) + _row(own + W_V + E * E + head * V, V, VP), o)
        if BIAS:
            tl.store(c_pointer + (layer * members + member) * W + hidden, c)
        if layer == LAYERS - 1:
            if WORDS == 1:
                decoder = _row(start + DECODER, E, EP)
                tl.store(w_pointer + member * W + hidden, _times_transposed(decoder, _matrix(own + W_2, W, W, E, W, EP)))
                if BIAS:
                    b = tl.sum(_row(own + W_2 + E * W, E, EP) * decoder) + tl.load(start + DECODER + E)
                    tl.store(b_pointer + member, b)
            else:
                words, word = _words(start, DECODER, D_IN, E, EP, WORDS, C, TIED), tl.arange(0, C)
                place = member * W * WORDS + hidden[:, None] * WORDS + word[None, :]
                tl.store(w_pointer + place, _dot(_matrix(own + W_2, W, W, E, W, EP), words), mask=word[None, :] < WORDS)
                if BIAS:
                    b_row = _times(_row(own + W_2 + E * W, E, EP), words)
                    if not TIED:
                        b_row += _row(start + DECODER + WORDS * E, WORDS, C)
                    tl.store(b_pointer + member * WORDS + word, b_row, mask=word < WORDS)
    else:
        if POSITIONAL:
            row, column = tl.arange(0, NP)[:, None], tl.arange(0, NP)[None, :]
            p = _encodings(p_pointer, N, NP, D_P, F)
            for head in range(2):
                q = _features(p, own + W_Q, head, D_P, F, D_K, K, BIAS) * scale
                k = _features(p, own + W_K, head, D_P, F, D_K, K, BIAS)
                seen = column < N
                if CAUSAL:
                    seen = seen & (column <= row)
                logits = tl.where(seen, _dot(q, tl.trans(k)), float("-inf"))
                a = tl.exp(logits - tl.max(logits, axis=1)[:, None])
                a /= tl.sum(a, axis=1)[:, None]
                place = ((layer * members + member) * 2 + head) * N * N + row * N + column
                tl.store(a_pointer + place, a, mask=(row < N) & (column < N))
        else:
            for head in range(2):
                w_q = _matrix(own + W_Q + head * D_K * E, E, E, D_K, EP, K)
                k = _dot(big_t, _matrix(own + W_K + head * D_K * E, E, E, D_K, EP, K)) * scale
                m = _dot(_dot(big_t, w_q), tl.trans(k))
                place, inside = (
                    deep[:, None] * 2 * wide + head * wide + deep[None, :],
                    (deep < wide)[:, None] & (deep < wide)[None, :],
                )
                tl.store(m_pointer + place, m, mask=inside)
                if BIAS:
                    q_row = _times(t, w_q) + _row(own + W_Q + 2 * D_K * E + head * D_K, D_K, K)
                    tl.store(r_pointer + head * wide + deep, _times_transposed(q_row, k), mask=deep < wide)


@triton.jit
def _unfold_maps(
    rows_pointer, du_first_pointer, du_pointer, dc_pointer, dm_first_pointer, dm_pointer, dr_first_pointer, dr_pointer,
    out_pointer, squares_pointer, scale,
    P: tl.constexpr, BODY: tl.constexpr, LAYER: tl.constexpr, DECODER: tl.constexpr, W_Q: tl.constexpr, W_K: tl.constexpr,
    W_V: tl.constexpr, W_O: tl.constexpr, W_1: tl.constexpr, W_2: tl.constexpr,
    N: tl.constexpr, NP: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, W: tl.constexpr,
    D_K: tl.constexpr, K: tl.constexpr, D_P: tl.constexpr, F: tl.constexpr, LAYERS: tl.constexpr, WORDS: tl.constexpr,
    C: tl.constexpr, BIAS: tl.constexpr, POSITIONAL: tl.constexpr, CAUSAL: tl.constexpr, TIED: tl.constexpr,
):  # fmt: skip
    """The gradients of T, W_1x and W_V of a layer, and of W_Q and W_K of self-attention; the sum of their squares.

    dT is summed over all that reads x: dU_0 W_1x^T, dv W_V^T with dv = dU_h o^T, dq W_Q^T with dq = dM k, and dk W_K^T with
    dk = dM^T q. T is read anew for every product, since it would take up half of a program's registers.
    """
    layer, member, members = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    V: tl.constexpr = E // 2
    VP: tl.constexpr = EP // 2
    start, out = rows_pointer + member * P, out_pointer + member * P
    own, mine = start + BODY + layer * LAYER, out + BODY + layer * LAYER
    at, wide = _map_at(layer, BODY, LAYER, W_2, D_IN, W)
    if layer == 0:
        du_pointer = du_first_pointer + member * 3 * D_IN * W
        dm_pointer = dm_first_pointer + member * 2 * D_IN * D_IN
        dr_pointer = dr_first_pointer + member * 2 * D_IN
    else:
        inner = (layer - 1) * members + member
        du_pointer += inner * 3 * W * W
        dm_pointer += inner * 2 * W * W
        dr_pointer += inner * 2 * W

    w_1x = _matrix(own + W_1 + E, 2 * E, E, W, EP, W)
    du = _rows(du_pointer, 3 * W, wide, W, D, W)
    d_1x = _dot(tl.trans(_matrix(start + at, wide, wide, E, D, EP)), du)
    if BIAS:
        t = _row(start + at + wide * E, E, EP)
        dc = _row(dc_pointer + (layer * members + member) * W, W, W)
        d_1x += _outer(t, dc)
        dt = _times_transposed(dc, w_1x)
    squares = _keep_matrix(mine + W_1 + E, d_1x, 2 * E, E, W, EP, W)
    d_big_t = _dot(du, tl.trans(w_1x))
    for head in range(2):
        o = _dot(_matrix(own + W_O + head * V, E, V, E, VP, EP), _matrix(own + W_1, 2 * E, E, W, EP, W))
        w_v = _matrix(own + W_V + head * V * E, E, E, V, EP, VP)
        dv = _dot(_rows(du_pointer + (head + 1) * W, 3 * W, wide, W, D, W), tl.trans(o))
        d_w_v = _dot(tl.trans(_matrix(start + at, wide, wide, E, D, EP)), dv)
        if BIAS:
            dv_row = _times_transposed(dc, o)
            d_w_v += _outer(t, dv_row)
            dt += _times_transposed(dv_row, w_v)
            squares += _keep_row(mine + W_V + E * E + head * V, dv_row, V, VP)
        squares += _keep_matrix(mine + W_V + head * V * E, d_w_v, E, E, V, EP, VP)
        d_big_t += _dot(dv, tl.trans(w_v))
    if not POSITIONAL:
        for head in range(2):
            w_q = _matrix(own + W_Q + head * D_K * E, E, E, D_K, EP, K)
            w_k = _matrix(own + W_K + head * D_K * E, E, E, D_K, EP, K)
            k = _dot(_matrix(start + at, wide, wide, E, D, EP), w_k) * scale
            dq = _dot(_rows(dm_pointer + head * wide, 2 * wide, wide, wide, D, D), k)
            d_w_q = _dot(tl.trans(_matrix(start + at, wide, wide, E, D, EP)), dq)
            if BIAS:
                b_q, b_k = W_Q + 2 * D_K * E + head * D_K, W_K + 2 * D_K * E + head * D_K
                dr = _row(dr_pointer + head * wide, wide, D)
                q_row, dq_row = _times(t, w_q) + _row(own + b_q, D_K, K), _times(dr, k)
                d_w_q += _outer(t, dq_row)
                dt += _times_transposed(dq_row, w_q)
                squares += _keep_row(mine + b_q, dq_row, D_K, K)
                _keep_row(mine + b_k, tl.zeros((K,), tl.float32), D_K, K)
            squares += _keep_matrix(mine + W_Q + head * D_K * E, d_w_q, E, E, D_K, EP, K)
            d_big_t += _dot(dq, tl.trans(w_q))
            q = _dot(_matrix(start + at, wide, wide, E, D, EP), w_q)
            dm = _rows(dm_pointer + head * wide, 2 * wide, wide, wide, D, D)
            dk = _dot(tl.trans(dm), q)
            if BIAS:
                dk += _outer(dr, q_row)
            dk *= scale
            d_w_k = _dot(tl.trans(_matrix(start + at, wide, wide, E, D, EP)), dk)
            squares += _keep_matrix(mine + W_K + head * D_K * E, d_w_k, E, E, D_K, EP, K)
            d_big_t += _dot(dk, tl.trans(w_k))
    squares += _keep_matrix(out + at, d_big_t, wide, wide, E, D, EP)
    if BIAS:
        squares += _keep_row(out + at + wide * E, dt, E, EP)
    tl.store(squares_pointer + member * 2 * LAYERS + layer, squares)


@triton.jit
def _unfold_rest(
    rows_pointer, p_pointer, a_pointer, du_first_pointer, du_pointer, dc_pointer, da_pointer, dw_pointer, db_pointer,
    out_pointer, squares_pointer, tied_pointer, scale,
    P: tl.constexpr, BODY: tl.constexpr, LAYER: tl.constexpr, DECODER: tl.constexpr, W_Q: tl.constexpr, W_K: tl.constexpr,
    W_V: tl.constexpr, W_O: tl.constexpr, W_1: tl.constexpr, W_2: tl.constexpr,
    N: tl.constexpr, NP: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, W: tl.constexpr,
    D_K: tl.constexpr, K: tl.constexpr, D_P: tl.constexpr, F: tl.constexpr, LAYERS: tl.constexpr, WORDS: tl.constexpr,
    C: tl.constexpr, BIAS: tl.constexpr, POSITIONAL: tl.constexpr, CAUSAL: tl.constexpr, TIED: tl.constexpr,
):  # fmt: skip
    """The gradients of W_O and W_1a of a layer, and of W_Q and W_K if attention is positional; the sum of their squares.

    The last layer's program adds those of its W_2 and the decoder.
    """
    layer, member, members = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    V: tl.constexpr = E // 2
    VP: tl.constexpr = EP // 2
    start, out = rows_pointer + member * P, out_pointer + member * P
    own, mine = start + BODY + layer * LAYER, out + BODY + layer * LAYER
    at, wide = _map_at(layer, BODY, LAYER, W_2, D_IN, W)
    if layer == 0:
        du_pointer = du_first_pointer + member * 3 * D_IN * W
    else:
        du_pointer += ((layer - 1) * members + member) * 3 * W * W

    squares = 0.0
    d_1a = tl.zeros((EP, W), tl.float32)
    if BIAS:
        t = _row(start + at + wide * E, E, EP)
        dc = _row(dc_pointer + (layer * members + member) * W, W, W)
        d_1a += _outer(_row(own + W_O + E * E, E, EP), dc)
        db_o = _times_transposed(dc, _matrix(own + W_1, 2 * E, E, W, EP, W))
        squares += _keep_row(mine + W_O + E * E, db_o, E, EP) + _keep_row(mine + W_1 + 2 * E * W, dc, W, W)
    for head in range(2):
        w_v = _matrix(own + W_V + head * V * E, E, E, V, EP, VP)
        v = _dot(_matrix(start + at, wide, wide, E, D, EP), w_v)
        do = _dot(tl.trans(v), _rows(du_pointer + (head + 1) * W, 3 * W, wide, W, D, W))
        if BIAS:
            do += _outer(_times(t, w_v) + _row(own + W_V + E * E + head * V, V, VP), dc)
        d_w_o = _dot(do, tl.trans(_matrix(own + W_1, 2 * E, E, W, EP, W)))
        squares += _keep_matrix(mine + W_O + head * V, d_w_o, E, V, E, VP, EP)
        d_1a += _dot(tl.trans(_matrix(own + W_O + head * V, E, V, E, VP, EP)), do)
    squares += _keep_matrix(mine + W_1, d_1a, 2 * E, E, W, EP, W)

    if POSITIONAL:
        row, column = tl.arange(0, NP)[:, None], tl.arange(0, NP)[None, :]
        p = _encodings(p_pointer, N, NP, D_P, F)
        for head in range(2):
            place = ((layer * members + member) * 2 + head) * N * N + row * N + column
            a = tl.load(a_pointer + place, mask=(row < N) & (column < N), other=0.0)
            weighted = a * tl.load(da_pointer + place, mask=(row < N) & (column < N), other=0.0)
            logits = (weighted - a * tl.sum(weighted, axis=1)[:, None]) * scale
            dq = _dot(logits, _features(p, own + W_K, head, D_P, F, D_K, K, BIAS))
            dk = _dot(tl.trans(logits), _features(p, own + W_Q, head, D_P, F, D_K, K, BIAS))
            squares += _keep_matrix(mine + W_Q + head * D_K * D_P, _dot(tl.trans(p), dq), D_P, D_P, D_K, F, K)
            squares += _keep_matrix(mine + W_K + head * D_K * D_P, _dot(tl.trans(p), dk), D_P, D_P, D_K, F, K)
            if BIAS:
                squares += _keep_row(mine + W_Q + 2 * D_K * D_P + head * D_K, tl.sum(dq, axis=0), D_K, K)
                squares += _keep_row(mine + W_K + 2 * D_K * D_P + head * D_K, tl.sum(dk, axis=0), D_K, K)

    if layer == LAYERS - 1:
        if WORDS == 1:
            decoder = _row(start + DECODER, E, EP)
            dw = _row(dw_pointer + member * W, W, W)
            d_decoder = _times(dw, _matrix(own + W_2, W, W, E, W, EP))
            if BIAS:
                db = tl.load(db_pointer + member)
                d_decoder += db * _row(own + W_2 + E * W, E, EP)
                tl.store(out + DECODER + E, db)
                squares += db * db + _keep_row(mine + W_2 + E * W, db * decoder, E, EP)
            squares += _keep_matrix(mine + W_2, _outer(dw, decoder), W, W, E, W, EP) + _keep_row(
                out + DECODER, d_decoder, E, EP
            )
        else:
            words, w_2 = _words(start, DECODER, D_IN, E, EP, WORDS, C, TIED), _matrix(own + W_2, W, W, E, W, EP)
            dw = _rows(dw_pointer + member * W * WORDS, WORDS, W, WORDS, W, C)
            d_words = _dot(tl.trans(w_2), dw)
            if BIAS:
                db = _row(db_pointer + member * WORDS, WORDS, C)
                d_words += _outer(_row(own + W_2 + E * W, E, EP), db)
                squares += _keep_row(mine + W_2 + E * W, _times_transposed(db, words), E, EP)
                if not TIED:
                    squares += _keep_row(out + DECODER + WORDS * E, db, WORDS, C)
            squares += _keep_matrix(mine + W_2, _dot(dw, tl.trans(words)), W, W, E, W, EP)
            to = tied_pointer + member * WORDS * E if TIED else out + DECODER
            squares += _keep_matrix(to, d_words, E, E, WORDS, EP, C)
    tl.store(squares_pointer + member * 2 * LAYERS + LAYERS + layer, squares)


@triton.jit
def unfold_layers(
    rows_pointer, p_pointer, a_pointer, du_first_pointer, du_pointer, dc_pointer, da_pointer, dm_first_pointer, dm_pointer,
    dr_first_pointer, dr_pointer, dw_pointer, db_pointer, out_pointer, squares_pointer, tied_pointer, scale,
    P: tl.constexpr, BODY: tl.constexpr, LAYER: tl.constexpr, DECODER: tl.constexpr, W_Q: tl.constexpr, W_K: tl.constexpr,
    W_V: tl.constexpr, W_O: tl.constexpr, W_1: tl.constexpr, W_2: tl.constexpr,
    N: tl.constexpr, NP: tl.constexpr, D_IN: tl.constexpr, D: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, W: tl.constexpr,
    D_K: tl.constexpr, K: tl.constexpr, D_P: tl.constexpr, F: tl.constexpr, LAYERS: tl.constexpr, WORDS: tl.constexpr,
    C: tl.constexpr, BIAS: tl.constexpr, POSITIONAL: tl.constexpr, CAUSAL: tl.constexpr, TIED: tl.constexpr,
):  # fmt: skip
    """The gradients of a layer's parameters, by two programs side by side: neither reads what the other writes."""
    if tl.program_id(2) == 0:
        _unfold_maps(
            rows_pointer, du_first_pointer, du_pointer, dc_pointer, dm_first_pointer, dm_pointer, dr_first_pointer, dr_pointer,
            out_pointer, squares_pointer, scale,
            P, BODY, LAYER, DECODER, W_Q, W_K, W_V, W_O, W_1, W_2,
            N, NP, D_IN, D, E, EP, W, D_K, K, D_P, F, LAYERS, WORDS, C, BIAS, POSITIONAL, CAUSAL, TIED,
        )  # fmt: skip
    else:
        _unfold_rest(
            rows_pointer, p_pointer, a_pointer, du_first_pointer, du_pointer, dc_pointer, da_pointer, dw_pointer, db_pointer,
            out_pointer, squares_pointer, tied_pointer, scale,
            P, BODY, LAYER, DECODER, W_Q, W_K, W_V, W_O, W_1, W_2,
            N, NP, D_IN, D, E, EP, W, D_K, K, D_P, F, LAYERS, WORDS, C, BIAS, POSITIONAL, CAUSAL, TIED,
        )  # fmt: skip


class RowsFold:
    """``posattn.folding.Fold`` through the kernels: from and to rows of parameters.

    Args:
        rows: the parameters of every member, one after another.
        starts: where in a row each parameter begins, by its name in ``Transformer``.
        p: the encodings of the positions.
    """

    def __init__(
        self, rows: Float[Tensor, "M P"], starts: Mapping[str, int], config: ModelConfig, p: Float[Tensor, "N d_P"]
    ):
        assert rows.is_contiguous() and p.is_contiguous()
        self.rows, self.p, self.config, self.sizes = rows, p, config, _sizes(starts, config, rows.shape[1], len(p))
        members, n, width, d_in, inner = len(rows), len(p), config.width, config.input_dim, config.layers - 1
        self.words, self.tied = _words_answered(config)
        shapes = {  # in the order in which ``fold_layers`` takes them
            "U.first": (members, d_in, 3, width), "U": (inner, members, width, 3, width),
            "c": (config.layers, members, 1, width), "A": (config.layers, members, 2, n, n),
            "M.first": (members, d_in, 2, d_in), "M": (inner, members, width, 2, width),
            "m.first": (members, 2, d_in), "m": (inner, members, 2, width),
            "w": (members, width, self.words), "b": (members, 1, self.words),
        }  # fmt: skip
        absent = {"M.first", "M", "m.first", "m"} if config.design.attends == "position" else {"A"}
        absent |= set() if config.bias else {"c", "m.first", "m", "b"}
        self.folded: Tensors = {name: rows.new_empty(shape) for name, shape in shapes.items() if name not in absent}
        fold_layers[(config.layers, members, 2)](rows, p, *self._pointers(self.folded, tuple(shapes)), **self.sizes)

    def adjoint(self, gradients: Tensors) -> tuple[Float[Tensor, "M P"], Float[Tensor, " M"]]:
        """The gradient of every parameter, and its norm, from the gradients of the folded tensors."""
        members, count = len(self.rows), self.config.layers
        found, squares = torch.empty_like(self.rows), self.rows.new_empty(members, 2 * count)
        names = ("U.first", "U", "c", "A", "M.first", "M", "m.first", "m", "w", "b")
        given = (self.folded.get("A", self.rows), *self._pointers(gradients, names))
        by_word = self.rows.new_empty(members, self.words, self.config.embed) if self.tied else self.rows
        unfold_layers[(count, members, 2)](self.rows, self.p, *given, found, squares, by_word, **self.sizes)
        if not self.tied:
            return found, squares.sum(dim=1).sqrt_()
        encoder = found[:, : self.config.embed * self.config.input_dim].unflatten(1, (self.config.embed, -1))
        encoder[:, :, : self.words] += by_word.mT  # which another program wrote
        return found, torch.linalg.vector_norm(found, dim=1)

    def _pointers(self, tensors: Tensors, names: tuple[str, ...]) -> list[Tensor]:
        """The tensors, with stand-ins for what the architecture lacks."""
        return [tensors.get(name, self.rows) for name in names]


def _words_answered(config: ModelConfig) -> tuple[int, bool]:
    """How many logits, or numbers, a position gets, and whether the encoder's vectors decode them."""
    tied = isinstance(config, TokenConfig) and config.tied
    return (len(config.vocabulary.words), True) if tied else (config.output_dim, False)


def _sizes(starts: Mapping[str, int], config: ModelConfig, size: int, n: int) -> dict[str, Any]:
    """What the kernels are compiled for."""
    body, decoder = starts["layers.0.attention.W_Q.weight"], starts.get("decoder.weight", size)
    words, tied = _words_answered(config)
    names = ("attention.W_Q", "attention.W_K", "attention.W_V", "attention.W_O", "W_1", "W_2")
    places = {name.removeprefix("attention."): starts[f"layers.0.{name}.weight"] - body for name in names}
    places |= {"P": size, "BODY": body, "LAYER": (decoder - body) // config.layers, "DECODER": decoder}
    # Products of at least 32 columns, which were checked on a GPU (``shapes.hidden_columns``).
    tiles = {"NP": n, "D": max(config.input_dim, config.width), "K": config.d_k, "F": config.encoding_dim}
    tiles |= {"EP": max(config.embed, 32), "C": max(words, 32)}
    return {
        **places,
        **{name: padded(wide) for name, wide in tiles.items()},
        "N": n, "D_IN": config.input_dim, "E": config.embed, "W": config.width, "D_K": config.d_k,
        "D_P": config.encoding_dim, "LAYERS": config.layers, "WORDS": words, "BIAS": config.bias, "TIED": tied,
        "POSITIONAL": config.design.attends == "position", "CAUSAL": config.causal, "scale": 1 / math.sqrt(config.d_k),
        "num_warps": _WARPS, "num_stages": 1,
    }  # fmt: skip
