"""A self-attention layer of a standard Transformer as a program of fixed communication (Remark 5.1).

There are N tokens x_i of d numbers, and N² machines: machine i + N j stands for the pair (i, j). Token i is sent to all (i, ·)
and token j to all (·, j), by doubling. Every pair computes e^(q_i · k_j) and its product with v_j. Trees add these up over j,
and machine (i, 0) divides. That takes 2⌈log2 N⌉ + 1 rounds. Products, exponentials and quotients are fitted ReLU layers whose
error is measured. Since a b = ((a + b)² - (a - b)²) / 4, functions of one variable suffice.
"""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from posattn.compiler.analysis import Known
from posattn.compiler.expressions import (
    Array,
    Assume,
    Expression,
    Memory,
    as_expression,
    by_machine,
    fitted,
    linear,
    select,
)
from posattn.compiler.pcoc import PCOC, Round
from posattn.compiler.programs import doublings
from posattn.errors import whole

Sources = list[tuple[int, Sequence[int]]]


def product(a: Expression, largest_a: float, b: Expression, largest_b: float, units: int) -> Expression:
    """a b from squares of numbers scaled to size one, given the largest absolute values of a and b."""
    one, other = a * (1 / largest_a), b * (1 / largest_b)
    squares = fitted(np.square, one + other, units=units) - fitted(np.square, one - other, units=units)
    limit = 1.01 * largest_a * largest_b  # with room for the error of the fit
    return Assume(squares * (0.25 * largest_a * largest_b), -limit, limit, False)


def transformed(words: Sequence[Expression], matrix: Array) -> list[Expression]:
    """x W."""
    return [linear(*zip(words, column, strict=True)) for column in matrix.T.tolist()]


class SelfAttention:
    """softmax(X W_Q (X W_K)ᵀ) X W_V for N tokens whose d numbers are at most ``bound`` in absolute value."""

    def __init__(self, tokens: int, w_q: Array, w_k: Array, w_v: Array, bound: float = 1.0, units: int = 256):
        self.n, self.d, self.units, self.bound = whole("tokens", tokens, least=2), len(w_q), units, bound
        self.w_q, self.w_k, self.w_v = w_q, w_k, w_v
        self.pair = [(machine % self.n, machine // self.n) for machine in range(self.n**2)]
        self.memory = max(4 * self.d, 2 * self.d + 2)
        # Token i to keep and to send, then token j to keep and to send.
        self.row, self.row_sent, self.column, self.column_sent = (range(k * self.d, (k + 1) * self.d) for k in range(4))

    def program(self) -> PCOC:
        reaches = doublings(self.n)
        rounds = [Round(self._to_its_column, self._arrived)]
        rounds += [Round(self._spread(reach), self._heard(reach)) for reach in reaches]
        rounds += [Round(self._gathered(reach), self._added(reach)) for reach in reaches]
        inputs, outputs, size = (Known(-self.bound, self.bound),) * self.d, tuple(range(self.d)), self.n**2
        return PCOC(
            size, self.memory, inputs, tuple(rounds), outputs, self._start, name="self-attention", spare=size - self.n
        )

    def answer(self, x: Array) -> Array:
        """The layer itself, in numpy."""
        logits = x @ self.w_q @ (x @ self.w_k).T
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        found: Array = weights / weights.sum(axis=-1, keepdims=True) @ (x @ self.w_v)
        return found

    # --- both tokens of a pair come to it ---------------------------------------------------------------------------

    def _start(self, memory: Memory) -> list[Expression]:
        token, nothing = memory[: self.d], [as_expression(0.0)] * self.d
        return self._filled([*token, *nothing, *nothing, *token])

    def _to_its_column(self, machine: int) -> Sources:
        """Token j, at (j, 0), goes to (0, j); token i is at (i, 0) already."""
        i, j = self.pair[machine]
        return [*([(machine, self.row)] if j == 0 else []), *([(j, self.column_sent)] if i == 0 else [])]

    def _arrived(self, memory: Memory) -> list[Expression]:
        return self._four([memory[p] for p in self.row], [memory[p] for p in self.column_sent])

    def _spread(self, reach: int) -> Callable[[int], Sources]:
        """(i, j) hears of token i from (i, j - reach), and of token j from (i - reach, j)."""

        def receive(machine: int) -> Sources:
            i, j = self.pair[machine]
            found: Sources = [(machine, self.row), (machine, self.column)]
            if reach <= j < 2 * reach:
                found.append((machine - reach * self.n, self.row_sent))
            if reach <= i < 2 * reach:
                found.append((machine - reach, self.column_sent))
            return found

        return receive

    def _heard(self, reach: int) -> Callable[[Memory], list[Expression]]:
        def compute(memory: Memory) -> list[Expression]:
            new_row = by_machine(reach <= j < 2 * reach for _, j in self.pair)
            new_column = by_machine(reach <= i < 2 * reach for i, _ in self.pair)
            row = [select(new_row, memory[p], memory[q]) for p, q in zip(self.row_sent, self.row, strict=True)]
            column = [
                select(new_column, memory[p], memory[q]) for p, q in zip(self.column_sent, self.column, strict=True)
            ]
            return self._weighed(row, column) if 2 * reach >= self.n else self._four(row, column)

        return compute

    # --- every pair weighs, and the weights are added up --------------------------------------------------------------

    def _largest(self, matrix: Array) -> float:
        """The largest entry of |x W|."""
        return float(np.abs(matrix).sum(axis=0).max() * self.bound)

    @property
    def _largest_weight(self) -> float:
        """The largest value of e^(q · k), and of its inverse."""
        return float(np.exp(self.d * self._largest(self.w_q) * self._largest(self.w_k)))

    def _weighed(self, row: Sequence[Expression], column: Sequence[Expression]) -> list[Expression]:
        """e^(q_i · k_j), and its product with every number of v_j."""
        q, k, v = transformed(row, self.w_q), transformed(column, self.w_k), transformed(column, self.w_v)
        sizes = self._largest(self.w_q), self._largest(self.w_k)
        logit = linear(*((product(a, sizes[0], b, sizes[1], self.units), 1.0) for a, b in zip(q, k, strict=True)))
        weight = fitted(np.exp, logit, units=self.units)
        values = [product(weight, self._largest_weight, each, self._largest(self.w_v), self.units) for each in v]
        return self._twice([weight, *values])

    def _listens(self, machine: int, reach: int) -> bool:
        _, j = self.pair[machine]
        return j % (2 * reach) == 0 and j + reach < self.n

    def _gathered(self, reach: int) -> Callable[[int], Sources]:
        """A tree over j with its root at (i, 0)."""
        own, theirs = range(self.d + 1), range(self.d + 1, 2 * self.d + 2)

        def receive(machine: int) -> Sources:
            more: Sources = [(machine + reach * self.n, theirs)] if self._listens(machine, reach) else []
            return [(machine, own), *more]

        return receive

    def _added(self, reach: int) -> Callable[[Memory], list[Expression]]:
        def compute(memory: Memory) -> list[Expression]:
            sums = [memory[p] + memory[self.d + 1 + p] for p in range(self.d + 1)]
            return self._divided(sums) if 2 * reach >= self.n else self._twice(sums)

        return compute

    def _divided(self, sums: Sequence[Expression]) -> list[Expression]:
        """The quotients at (i, 0), which has the whole sum; other machines divide by 1."""
        most = 1.01 * self.n * self._largest_weight
        least = self.n / self._largest_weight / 1.01
        total = select(by_machine(j == 0 for _, j in self.pair), sums[0], 1.0)
        inverse = fitted(np.reciprocal, Assume(total, min(least, 1.0), max(most, 1.0), False), units=self.units)
        largest = 1.01 * most * self._largest(self.w_v)
        return self._filled([product(part, largest, inverse, max(1.0, 1 / least), self.units) for part in sums[1:]])

    # --- memory ---------------------------------------------------------------------------------------------------------

    def _four(self, row: Sequence[Expression], column: Sequence[Expression]) -> list[Expression]:
        return self._filled(list(chain(row, row, column, column)))

    def _twice(self, sums: Sequence[Expression]) -> list[Expression]:
        return self._filled([*sums, *sums])

    def _filled(self, words: list[Expression]) -> list[Expression]:
        return [*words, *[as_expression(0.0)] * (self.memory - len(words))]
