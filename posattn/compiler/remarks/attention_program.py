"""A self-attention layer of a standard Transformer as a program of fixed communication (Remark 5.1).

There are N tokens x_i of d numbers, and N² machines: machine i + N j stands for the pair (i, j). Token i is sent to all (i, ·)
and token j to all (·, j), by doubling. Every pair computes e^(q_i · k_j) and its product with v_j. Trees add these up over j,
and machine (i, 0) divides. That takes 2⌈log2 N⌉ + 1 rounds. Products, exponentials and quotients are fitted ReLU layers whose
error is measured. Since a b = ((a + b)² - (a - b)²) / 4, functions of one variable suffice.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from posattn.compiler.expressions import Array, Expression, linear
from posattn.compiler.function_programs import program
from posattn.compiler.program_messages import send
from posattn.compiler.program_numbers import Real, by_machine, fitted, select, within
from posattn.compiler.programs import doublings

UNITS = 256  # hidden units of every fitted function
W_Q, W_K, W_V = np.random.default_rng(0).uniform(-0.5, 0.5, (3, 2, 2))


def product(a: Expression, largest_a: float, b: Expression, largest_b: float) -> Expression:
    """a b from squares of numbers scaled to size one, given the largest absolute values of a and b."""
    one, other = a * (1 / largest_a), b * (1 / largest_b)
    squares = fitted(np.square, one + other, units=UNITS) - fitted(np.square, one - other, units=UNITS)
    limit = 1.01 * largest_a * largest_b  # with room for the error of the fit
    return within(squares * (0.25 * largest_a * largest_b), -limit, limit)


def transformed(words: Sequence[Expression], matrix: Array) -> list[Expression]:
    """x W."""
    return [linear(*zip(words, column, strict=True)) for column in matrix.T.tolist()]


def largest_entry(matrix: Array) -> float:
    """The largest entry of |x W| for numbers up to 1."""
    return float(np.abs(matrix).sum(axis=0).max())


LARGEST = math.exp(len(W_Q) * largest_entry(W_Q) * largest_entry(W_K))  # of e^(q · k), and of its inverse


def both_tokens(me: Any, n: int, x: Any) -> Any:
    """Tokens i and j at machine (i, j). Token j, at (j, 0), goes to (0, j); then both spread by doubling."""
    side = math.isqrt(n)
    arrived = (yield send(me * side, *x, when=me < side))[0]
    row, column = list(x), list(arrived)
    for reach in doublings(side):
        tell = min(reach, side - reach)
        along, across = [m // side < tell for m in range(n)], [m % side < tell for m in range(n)]
        rows, columns = yield (
            send(me + reach * side, *row, when=by_machine(along)),
            send(me + reach, *column, when=by_machine(across)),
        )
        row = [select(rows[0].present, new, old) for new, old in zip(rows[0], row, strict=True)]
        column = [select(columns[0].present, new, old) for new, old in zip(columns[0], column, strict=True)]
    return row, column


def weighed(row: Sequence[Expression], column: Sequence[Expression]) -> list[Expression]:
    """e^(q_i · k_j), and its product with every number of v_j."""
    pairs = zip(transformed(row, W_Q), transformed(column, W_K), strict=True)
    products = (product(q, largest_entry(W_Q), k, largest_entry(W_K)) for q, k in pairs)
    weight = fitted(np.exp, linear(*((each, 1.0) for each in products)), units=UNITS)
    return [weight, *(product(weight, LARGEST, v, largest_entry(W_V)) for v in transformed(column, W_V))]


def divided(me: Any, side: int, sums: Sequence[Expression]) -> list[Expression]:
    """The quotients at (i, 0), which has the whole sum; other machines divide by 1."""
    most, least = 1.01 * side * LARGEST, side / LARGEST / 1.01
    total = within(select(me < side, sums[0], 1), min(least, 1.0), max(most, 1.0))
    inverse = fitted(np.reciprocal, total, units=UNITS)
    return [product(part, 1.01 * most * largest_entry(W_V), inverse, max(1.0, 1 / least)) for part in sums[1:]]


@program(x=[Real(-1, 1)] * len(W_Q))
def self_attention(me: Any, n: int, x: Any) -> Any:
    """A self-attention layer, on N² machines."""
    side = math.isqrt(n)
    sums = weighed(*(yield from both_tokens(me, n, x)))
    for reach in doublings(side):
        sends = [m // side % (2 * reach) == reach for m in range(n)]
        others = (yield send(me - reach * side, *sums, when=by_machine(sends)))[0]
        sums = [own + other for own, other in zip(sums, others, strict=True)]
    return divided(me, side, sums)


@self_attention.truth
def _(x: list[list[float]]) -> Any:
    """The layer itself, in numpy."""
    logits = np.array(x) @ W_Q @ (np.array(x) @ W_K).T
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ (np.array(x) @ W_V)


def _remark(tokens: int) -> dict[str, str]:
    """The sizes of Remark 5.1 for L = 1 layer on N tokens: O(N²) nodes, O(L log N) layers, d_V H sublinear in N."""
    rounds = 2 * (tokens - 1).bit_length() + 1
    return {
        "nodes n": f"O(N²): N² + 1 = {tokens**2 + 1}",
        "layers": f"O(L log N): 2⌈log N⌉ + 2 = {rounds + 1}, L = 1",
        "heads": "d_V H sublinear in N: s, whatever N is",
    }


self_attention.counts, self_attention.machines = _remark, lambda tokens: tokens**2
