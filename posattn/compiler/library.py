"""The programs by name: how each is built, its answer in plain Python, and random inputs to try it on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median as middle

import numpy as np

from posattn import files
from posattn.compiler import message_programs, programs
from posattn.compiler.expressions import Array
from posattn.compiler.mpc import MPC
from posattn.compiler.pcoc import PCOC
from posattn.compiler.remarks.attention_program import SelfAttention
from posattn.errors import UsageError, choice

Rows = list[list[float]]  # one row per machine


@dataclass(frozen=True)
class Program:
    """One row of the library.

    build: makes the program, given the number of machines and a bound on real numbers.
    answer: computes the answers in plain Python, from rows of inputs to rows of answers.
    sample: draws inputs (count, N, c), given a generator, the count, the number of machines and the bound.
    task: the task of :mod:`posattn.tasks` that the program solves, if any.
    least: a lower bound on the machines and heads that N inputs need.
    counts: the paper's sizes for N inputs where they are not those of Theorem 5.1.
    any_scale: whether samples stay legal if real numbers shrink.
    also: further tasks that it solves.
    """

    name: str
    title: str
    build: Callable[[int, float], PCOC | MPC]
    answer: Callable[[Rows], Rows]
    sample: Callable[[np.random.Generator, int, int, float], Array]
    task: str | None = None
    least: Callable[[int], tuple[int, int]] = lambda machines: (machines, 1)
    counts: Callable[[int], dict[str, str]] = lambda machines: {}
    any_scale: bool = True
    also: tuple[str, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that the program solves."""
        return () if self.task is None else (self.task, *self.also)

    def answers(self, x: Array) -> Array:
        """The answers (..., N, outputs) to inputs (..., N, c)."""
        found = [self.answer(rows) for rows in x.reshape(-1, *x.shape[-2:]).tolist()]
        return np.array(found, dtype=float).reshape(*x.shape[:-1], -1)


def _column(values: Iterable[float]) -> Rows:
    return [[float(value)] for value in values]


def _last_only(function: Callable[[list[float]], float]) -> Callable[[list[float]], list[float]]:
    """0 at every machine but the last, which has the answer for the whole list."""
    return lambda x: [0.0] * (len(x) - 1) + [function(x)]


def _best_stretches(x: list[float]) -> list[float]:
    """For every i the largest x_j + ... + x_k with j ≤ k ≤ i."""
    return [max(sum(x[j : k + 1]) for k in range(i + 1) for j in range(k + 1)) for i in range(len(x))]


def _grouped_sums(rows: Rows) -> Rows:
    return _column(sum(value for key, value in rows if key == j) for j in range(len(rows)))


def _distances(rows: Rows) -> Rows:
    """For every node, how many nodes follow it in its list."""

    def distance(i: int) -> int:
        node, count = i, 0
        while (node := int(rows[node][0])) != len(rows):
            count += 1
            if count > len(rows):
                raise UsageError(f"the list of node {i} never ends.")
        return count

    return _column(distance(i) for i in range(len(rows)))


def _hops(rows: Rows) -> Rows:
    """The letter k hops away, or -1: a hop goes to the place after the latest earlier occurrence of the letter."""
    letters = [row[0] for row in rows]

    def hop(j: int | None) -> int | None:
        places = [] if j is None else [q for q in range(j) if letters[q] == letters[j]]
        return places[-1] + 1 if places else None

    answers = []
    for i in range(len(rows)):
        at: int | None = i
        for _ in range(int(rows[i][1])):
            at = hop(at)
        answers.append(-1.0 if at is None else letters[at])
    return _column(answers)


def _reals(random: np.random.Generator, count: int, machines: int, bound: float) -> Array:
    return random.uniform(-bound, bound, (count, machines, 1))


def _keys_and_values(random: np.random.Generator, count: int, machines: int, bound: float) -> Array:
    """Keys and values; a random limit per sample makes many keys equal."""
    few = random.integers(1, machines + 1, (count, 1))
    keys = random.integers(0, machines, (count, machines)) % few
    return np.stack([keys, random.uniform(-bound, bound, (count, machines))], axis=-1)


def _lists(random: np.random.Generator, count: int, machines: int, bound: float) -> Array:
    """Random linked lists: a random order of the nodes, which may be cut into two."""
    x = np.full((count, machines, 1), float(machines))
    for sample in x:
        order, cut = random.permutation(machines), random.integers(0, machines)
        for place, (here, following) in enumerate(pairwise(order)):
            if place != cut:
                sample[here, 0] = following
    return x


def _letters(random: np.random.Generator, count: int, machines: int, bound: float) -> Array:
    """Letters from five neighbours in the alphabet, no two alike side by side; and one hop count for all machines."""
    first = random.integers(0, message_programs.LETTERS - 4, (count, 1))
    steps = random.integers(1, 5, (count, machines))
    steps[:, 0] = random.integers(0, 5, count)
    hops = np.broadcast_to(random.integers(0, message_programs.HOPS + 1, (count, 1)), (count, machines))
    return np.stack([first + steps.cumsum(axis=1) % 5, hops], axis=-1).astype(float)


def _layer(tokens: int) -> SelfAttention:
    """A self-attention layer of width 2 with fixed random weights, for tokens in [-1, 1]²."""
    w_q, w_k, w_v = np.random.default_rng(0).uniform(-0.5, 0.5, (3, 2, 2))
    return SelfAttention(tokens, w_q, w_k, w_v)


def _routed(machines: int) -> tuple[int, int]:
    """``least`` of routed programs: a message fills 2^(k-1) tuples of two numbers, a machine holds two messages or more."""
    return machines, 2 * machines


def _remark(tokens: int) -> dict[str, str]:
    """The sizes of Remark 5.1 for L = 1 layer on N tokens: O(N²) nodes, O(L log N) layers, d_V H sublinear in N."""
    rounds = 2 * (tokens - 1).bit_length() + 1
    return {
        "nodes n": f"O(N²): N² + 1 = {tokens**2 + 1}",
        "layers": f"O(L log N): 2⌈log N⌉ + 2 = {rounds + 1}, L = 1",
        "heads": "d_V H sublinear in N: s, whatever N is",
    }


def _list_program(
    name: str,
    title: str,
    build: Callable[[int, float], PCOC],
    answer: Callable[[list[float]], Iterable[float]],
    task: str | None = None,
) -> Program:
    """A program with one number per machine, whose answer is a function of the list."""
    return Program(name, title, build, lambda rows: _column(answer([row[0] for row in rows])), _reals, task)


_LIST = (
    _list_program("prefix-sum", "x_1 + ... + x_i", programs.prefix_sum, accumulate, "sum"),
    _list_program("prefix-min", "min(x_1..x_i)", programs.prefix_min, lambda x: accumulate(x, min), "min"),
    _list_program("tree-sum", "the sum, at the last machine", programs.tree_sum, _last_only(sum)),
    _list_program("tree-min", "the minimum, at the last machine", programs.tree_min, _last_only(min)),
    _list_program(
        "max-subarray", "the largest sum of neighbours so far", programs.max_subarray, _best_stretches, "maxsub"
    ),
    _list_program("odd-even-sort", "sorting, neighbours exchange", programs.odd_even_sort, sorted, "sort"),
    _list_program("bitonic-sort", "sorting, log² N rounds", programs.bitonic_sort, sorted, "sort"),
    _list_program(
        "median",
        "the median of x_1..x_i, by sorting",
        programs.median,
        lambda x: (middle(x[: i + 1]) for i in range(len(x))),
        "median",
    ),
    Program(
        "word-count",
        "sums of values by key",
        message_programs.word_count,
        _grouped_sums,
        _keys_and_values,
        least=_routed,
    ),
    Program(
        "list-ranking",
        "distance from the end of a list",
        message_programs.list_ranking,
        _distances,
        _lists,
        least=_routed,
    ),
    Program(
        "self-attention",
        "a self-attention layer, on N² machines",
        lambda tokens, bound: _layer(tokens).program(),
        lambda rows: _layer(len(rows)).answer(np.array(rows)).tolist(),
        lambda random, count, tokens, bound: random.uniform(-1, 1, (count, tokens, 2)),
        least=lambda tokens: (tokens**2, 1),
        counts=_remark,
    ),
    Program("khop", "k-hop induction heads", message_programs.khop, _hops, _letters, "khop", _routed),
)

PROGRAMS: dict[str, Program] = {row.name: row for row in _LIST}


def program(name: str) -> Program:
    """The program of that name in the library, or one of your own: ``my.py:bfs`` is ``bfs`` in the file my.py, which is run."""
    path, colon, own = name.rpartition(".py:") if isinstance(name, str) else ("", "", "")
    if not colon:
        return PROGRAMS[choice("program", name, PROGRAMS)]
    found = {key: value for key, value in files.execute(Path(f"{path}.py"), "program").items() if isinstance(value, Program)}
    return found[choice(f"program of {path}.py", own, found)]
