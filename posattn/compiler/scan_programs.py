"""k-hop induction heads by scans, with communication that is fixed beforehand: the program ``khop-scan``.

With h_0(i) = s_i, the letter at i, and f(i) = 1 + the largest q < i with s_q = s_i, the answer after m hops is

    h_m(i) = h_{m-1}(f(i)),

and one scan computes h_m from h_{m-1}. Machine j writes h_{m-1}(j) under the key s_{j-1} into a table. Tables join: of two
entries under one key the later one stays. Machine i reads what its prefix has under the key s_i.

A table is one whole number per key: 0 for no entry, 1 for the entry 'none', and 2 + a for the letter a. So an entry joins the
earlier one by a single ReLU.
"""

from typing import Any

import numpy as np

from posattn.compiler.expressions import Array
from posattn.compiler.front_end import Tracing
from posattn.compiler.front_end_to_pcoc import WrittenPCOC, as_pcoc
from posattn.compiler.program_messages import send
from posattn.compiler.program_numbers import Whole, lookup, maximum, relu, select
from posattn.tokens.vocabulary import ALPHABETS, HOPS

LETTERS = sum(map(len, ALPHABETS.values()))
_MOST = len(HOPS) - 1
_EMPTY, _NONE, _FIRST = 0, 1, 2  # an entry


def _khop_scan(me: Any, n: int, letter: Any, k: Any) -> Any:
    """One machine, in the compiler's front end."""
    before = (yield send(me + 1, letter, when=me < n - 1))[0]
    key = select(before.present, before[0], LETTERS)
    value = answer = letter + _FIRST
    for hop in range(_MOST):
        table = [select(key == each, value, _EMPTY) for each in range(LETTERS)]
        for reach in (1 << step for step in range((n - 1).bit_length())):
            earlier = (yield send(me + reach, *table, when=me < n - reach))[0]
            # An own entry is 1 or more, which outweighs any earlier one.
            largest = _FIRST + LETTERS - 1
            table = [own + relu(other - largest * own) for own, other in zip(table, earlier, strict=True)]
        value = maximum(lookup(table, letter), _NONE)
        answer = select(k > hop, value, answer)
    return answer - _FIRST


def khop_scan(machines: int, bound: float) -> WrittenPCOC:
    """The program for letters 0 to 9 and hop counts up to 3; 'none' is the answer -1."""
    inputs = {"letter": Whole(0, LETTERS - 1), "k": Whole(0, _MOST)}
    return as_pcoc(Tracing("khop-scan", _khop_scan, inputs, machines, bound))


def sequences(random: np.random.Generator, count: int, machines: int, bound: float) -> Array:
    """Letters of the whole alphabet, no two alike side by side, and a hop count for all machines."""
    steps = random.integers(1, LETTERS, (count, machines))
    hops = np.broadcast_to(random.integers(0, _MOST + 1, (count, 1)), (count, machines))
    return np.stack([steps.cumsum(axis=1) % LETTERS, hops], axis=-1).astype(float)
