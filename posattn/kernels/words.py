"""The two ends of networks of tokens: what the first layer reads, and the cross-entropy of letters with its gradients.

Features of a word depend on the word and its position alone, so those of a batch are rows of a table. The readout of letters is
one kernel, run twice: dz is stored in a unit that its own size determines (see ``layers``), so the first run measures it.

Letters as in ``layers``, and V words: logits are h w + b, and the gradient of their cross-entropy is softmax(logits) - y. Its
products are float32's.

Where the encoder is too wide to be folded into the first layer, it has a kernel of its own. With a word's characters and the
number as F_IN features, x = features T + t, and T and t have the gradients features^T dx and dx summed over lists.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float, Shaped
from torch import Tensor

from posattn.folding import Tensors
from posattn.kernels.launches import divided
from posattn.kernels.shapes import LONG_ROWS, ROWS, hidden_columns, input_columns, padded, short
from posattn.kernels.tiles import (
    dot,
    product,
    rounded,
    rounded_gradient,
    rows_at,
    store_tile,
    tile_of,
    unit_of,
    zeros,
)
from posattn.tokens.token_model import TokenConfig
from posattn.tokens.vocabulary import word_code, word_index

_COPIED = 128  # rows that a program of ``read_words`` copies
READERS = 4  # programs per multiprocessor that read letters, or the encoder's input


def every_word(config: TokenConfig, length: int, device: torch.device) -> Shaped[Tensor, "V k"]:
    """Sequences of one word each; where numbers stand among words, the last is of zeros."""
    words = torch.arange(len(config.vocabulary.words), device=device)
    if config.vocabulary.numbers:
        words = torch.cat([word_code(words), words.new_zeros(1)])
    return words[:, None].expand(-1, length)


def table_of(features: Float[Tensor, "V N d_in"], precision: str) -> Float[Tensor, "N V D"]:
    """From the features of ``every_word`` to rows that the kernels read, padded for the matrix units."""
    _, n, count = features.shape
    wide = F.pad(features, (0, input_columns(count, n) - count))
    return short(wide, precision).transpose(0, 1).contiguous()


def first_states(
    x: Shaped[Tensor, "M b k"], table: Float[Tensor, "N V D"], config: TokenConfig, precision: str
) -> Float[Tensor, "M b N D"]:
    """The features of sequences. Those of the scratchpad do not depend on the word."""
    count, numbers = table.shape[1], config.vocabulary.numbers
    words = torch.where(x < 0, word_index(x), count - 1) if numbers else x
    words = words.contiguous()
    states = table.new_empty(*words.shape[:-1], *table.shape[::2])
    rows = states[..., 0].numel()
    read_words[(triton.cdiv(rows, _COPIED),)](
        words, table, states, rows, N=len(table), V=count, D=table.shape[2], R=_COPIED, num_warps=4
    )
    if numbers:
        states[..., :-1, len(config.vocabulary.characters)] = short(x.clamp_min(0), precision)
    return states


@triton.jit
def read_words(
    words_pointer, table_pointer, out_pointer, rows, N: tl.constexpr, V: tl.constexpr, D: tl.constexpr, R: tl.constexpr
):
    """The table's rows for words, N - 1 of each sequence; at the scratchpad that of the first word."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    place, there = row % N, row < rows
    word = tl.load(words_pointer + row // N * (N - 1) + place, mask=there & (place < N - 1), other=0)
    column = tl.arange(0, D)[None, :]
    states = tl.load(table_pointer + (place * V + word)[:, None] * D + column, mask=there[:, None])
    tl.store(out_pointer + row[:, None] * D + column, states, mask=there[:, None])


def characters_of(table: Float[Tensor, "V C"]) -> Float[Tensor, "V_1 F"]:
    """From a vocabulary's table to what :class:`Entrance` reads: a column for the number, and a row for all but words."""
    return F.pad(table, (0, padded(table.shape[1] + 1) - table.shape[1], 0, 1))


class Entrance:
    """The first states of long prompts from T (M, F_IN, d) and t (M, N, d) of the encoder, and the gradients of T and t."""

    def __init__(self, x: Shaped[Tensor, "M b k"], characters: Float[Tensor, "V_1 F"], folded: Tensors, precision: str):
        (members, lists, k), (features, d) = x.shape, folded["T"].shape[1:]
        assert ROWS <= k < LONG_ROWS, f"{k} tokens; a prompt that enters here has {ROWS} to {LONG_ROWS - 1}"
        self.x, self.table = x if x.stride()[1:] == (k, 1) else x.contiguous(), characters
        self.T, self.t = folded["T"].contiguous(), folded["t"].contiguous()
        self.shape = (members, lists, k + 1, hidden_columns(k + 1))
        each, parts = divided(lists, members, READERS)
        self.grid, self.precision = (parts, members), precision
        self.sizes = {"TILES": each, "N": k + 1, "V": len(characters) - 1, "C": features - 1, "F_IN": features}
        self.sizes |= {"F": characters.shape[1], "D_IN": d, "D": self.shape[-1], "R": LONG_ROWS}
        self.sizes |= {"PRECISION": precision, "num_warps": 4}

    def states(self) -> Float[Tensor, "M b N D"]:
        states = self.T.new_empty(self.shape, dtype=torch.float16 if self.precision == "fp16" else torch.float32)
        enter[self.grid](self.x, self.table, self.T, self.t, states, self.x.stride(0), self.shape[1], **self.sizes)
        return states

    def gradients(self, dx: Float[Tensor, "M b N D"], loss: Float[Tensor, " M"]) -> Tensors:
        """From the gradient of the states, in the unit that ``loss`` gives (see ``layers``)."""
        (parts, members), (_, lists, n, _), (_, features, d) = self.grid, self.shape, self.T.shape
        of_features = self.T.new_empty(members, parts, features, d)
        of_rows = self.T.new_empty(members, parts, LONG_ROWS, d)
        leave[self.grid](self.x, self.table, dx, loss, of_features, of_rows, self.x.stride(0), lists, **self.sizes)
        return {"T": of_features.sum(dim=1), "t": of_rows[:, :, :n].sum(dim=1)}


@triton.jit
def _features_of(
    x_pointer, table_pointer, at, valid,
    N: tl.constexpr, V: tl.constexpr, C: tl.constexpr, F: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """A tile's C characters and the number; row V of the table is of zeros."""
    place, column = at % N, tl.arange(0, F)[None, :]
    there = valid & (place < N - 1)
    x = tl.load(x_pointer + at // N * (N - 1) + place, mask=there, other=0)
    word = tl.where(there & (x < 0), -1 - x, V).to(tl.int32)
    features = tl.load(table_pointer + word[:, None] * F + column)
    return rounded(tl.where(column == C, tl.maximum(x, 0)[:, None], features), P)


@triton.jit
def enter(
    x_pointer, table_pointer, encoder_pointer, places_pointer, out_pointer, x_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, V: tl.constexpr, C: tl.constexpr, F_IN: tl.constexpr, F: tl.constexpr,
    D_IN: tl.constexpr, D: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """features T + t."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    row, feature, deep = tl.arange(0, R), tl.arange(0, F), tl.arange(0, D)
    there = (deep < D_IN)[None, :]
    encoder_pointer += member * F_IN * D_IN + feature[:, None] * D_IN + deep[None, :]
    encoder = rounded(tl.load(encoder_pointer, mask=there & (feature < F_IN)[:, None], other=0.0), PRECISION)
    places_pointer += member * N * D_IN + (row % N)[:, None] * D_IN + deep[None, :]
    places = tl.load(places_pointer, mask=there & (row >= 0)[:, None], other=0.0)
    for tile in range(TILES):
        at, valid = rows_at((part * TILES + tile) * (R // N), lists, N, R)
        features = _features_of(x_pointer + member * x_stride, table_pointer, at, valid, N, V, C, F, PRECISION)
        states = rounded(dot(features, encoder, places, PRECISION), PRECISION)
        tl.store(out_pointer + (member * lists * N + at)[:, None] * D + deep[None, :], states, mask=valid[:, None])


@triton.jit
def leave(
    x_pointer, table_pointer, dx_pointer, loss_pointer, encoder_pointer, places_pointer, x_stride, lists,
    TILES: tl.constexpr, N: tl.constexpr, V: tl.constexpr, C: tl.constexpr, F_IN: tl.constexpr, F: tl.constexpr,
    D_IN: tl.constexpr, D: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Parts of the gradients of T, and of t with one row per row of a tile."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    row, feature, deep = tl.arange(0, R), tl.arange(0, F), tl.arange(0, D)
    encoder, places = zeros(F, D), zeros(R, D)
    for tile in range(TILES):
        at, valid = rows_at((part * TILES + tile) * (R // N), lists, N, R)
        features = _features_of(x_pointer + member * x_stride, table_pointer, at, valid, N, V, C, F, PRECISION)
        dx = tile_of(dx_pointer, member * lists * N, at, valid, D)
        encoder = dot(tl.trans(features), dx, encoder, PRECISION)
        places += dx.to(tl.float32)
    unit = unit_of(loss_pointer, member) * (2.0 / (lists * (N - 1)))
    out, there = member * tl.num_programs(0) + part, (deep < D_IN)[None, :]
    place = out * F_IN * D_IN + feature[:, None] * D_IN + deep[None, :]
    tl.store(encoder_pointer + place, encoder * unit, mask=there & (feature < F_IN)[:, None])
    place = out * R * D_IN + row[:, None] * D_IN + deep[None, :]
    tl.store(places_pointer + place, places * unit, mask=there & (row >= 0)[:, None])


@triton.jit
def read_letters(
    h_pointer, w_pointer, b_pointer, y_pointer, y_stride, loss_pointer, squares_pointer, dw_pointer, db_pointer, dz_pointer,
    rows, TILES: tl.constexpr, N: tl.constexpr, W: tl.constexpr, V: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
    BIAS: tl.constexpr, MEASURE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """With MEASURE parts of the summed cross-entropy, of the squares of dz, and of the gradients of w and b; else dz itself.

    The scratchpad's output does not count. C columns hold V words.
    """
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = member * rows
    row, wide, column = tl.arange(0, R), tl.arange(0, W), tl.arange(0, C)
    there = (column < V)[None, :]
    w = tl.load(w_pointer + member * W * V + wide[:, None] * V + column[None, :], mask=there, other=0.0)
    b = tl.zeros((C,), tl.float32)
    if BIAS:
        b = tl.load(b_pointer + member * V + column, mask=column < V, other=0.0)
    loss, squares, db = tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32), tl.zeros((C,), tl.float32)
    dw = tl.zeros((W, C), tl.float32)
    for tile in range(TILES):
        begin = (part * TILES + tile) * R
        at = begin + row
        valid = at < rows
        scored = valid & (at % N < N - 1)
        h = tile_of(h_pointer, start + begin, row, valid, W).to(tl.float32)
        y = tl.load(y_pointer + member * y_stride + (at // N) * (N - 1) + at % N, mask=scored, other=0)
        logits = tl.where(there, product(h, w, "fp32") + b[None, :], float("-inf"))
        top = tl.max(logits, axis=1)
        weight = tl.exp(logits - top[:, None])
        total = tl.sum(weight, axis=1)
        right = y[:, None] == column[None, :]
        slope = tl.where(scored[:, None], weight / total[:, None] - tl.where(right, 1.0, 0.0), 0.0)
        dz = tl.where(h > 0, product(slope, tl.trans(w), "fp32") / 2, 0.0)
        if MEASURE:
            of_right = tl.sum(tl.where(right, logits, 0.0), axis=1)
            loss += tl.where(scored, tl.log(total) + top - of_right, 0.0)
            squares += tl.sum(dz * dz, axis=1)
            dw += product(tl.trans(h), slope, "fp32")
            db += tl.sum(slope, axis=0)
        else:
            dz = rounded_gradient(dz / unit_of(squares_pointer, member), PRECISION)
            store_tile(dz_pointer, dz, start + begin, row, valid, W)
    if MEASURE:
        out = member * tl.num_programs(0) + part
        tl.store(loss_pointer + out, tl.sum(loss, axis=0))
        tl.store(squares_pointer + out, tl.sum(squares, axis=0))
        tl.store(dw_pointer + out * W * V + wide[:, None] * V + column[None, :], dw, mask=there)
        tl.store(db_pointer + out * V + column, db, mask=column < V)
