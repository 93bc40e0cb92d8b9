"""k-hop induction heads by scans, with communication that is fixed beforehand: the program ``khop-scan``.

With h_0(i) = s_i, the letter at i, and f(i) = 1 + the largest q < i with s_q = s_i, the answer after m hops is

    h_m(i) = h_{m-1}(f(i)),

and one scan computes h_m from h_{m-1}. Machine j writes h_{m-1}(j) under the key s_{j-1} into a table. Tables join: of two
entries under one key the later one stays. Machine i reads what its prefix has under the key s_i.

A table is one whole number per key: 0 for no entry, 1 for the entry 'none', and 2 + a for the letter a. So an entry joins the
earlier one by a single ReLU.
"""

from typing import Any

from posattn.compiler.function_programs import program
from posattn.compiler.program_messages import send
from posattn.compiler.program_numbers import Whole, lookup, maximum, relu, select
from posattn.compiler.programs import doublings
from posattn.tokens.vocabulary import ALPHABETS, HOPS

LETTERS = sum(map(len, ALPHABETS.values()))
_MOST = len(HOPS) - 1
_EMPTY, _NONE, _FIRST = 0, 1, 2  # an entry
_LARGEST = _FIRST + LETTERS - 1


@program(letter=Whole(0, LETTERS - 1), k=Whole(0, _MOST))
def khop_scan(me: Any, n: int, letter: Any, k: Any) -> Any:
    """k-hop induction heads, by scans."""
    before = (yield send(me + 1, letter, when=me < n - 1))[0]
    key = select(before.present, before[0], LETTERS)
    value = answer = letter + _FIRST
    for hop in range(_MOST):
        table = [select(key == each, value, _EMPTY) for each in range(LETTERS)]
        for reach in doublings(n):
            earlier = (yield send(me + reach, *table, when=me < n - reach))[0]
            # An own entry is 1 or more, which outweighs any earlier one.
            table = [own + relu(other - _LARGEST * own) for own, other in zip(table, earlier, strict=True)]
        value = maximum(lookup(table, letter), _NONE)
        answer = select(k > hop, value, answer)
    return answer - _FIRST


@khop_scan.truth
def _(letter: list[int], k: list[int]) -> Any:
    """By following the hops: each goes to the place after the latest earlier occurrence of the letter."""
    after: dict[int, int] = {}  # the latest place after each letter
    hop: dict[int | None, int | None] = {None: None}
    for place, each in enumerate(letter):
        hop[place], after[each] = after.get(each), place + 1

    def answer(at: int | None, hops: int) -> int:
        for _ in range(hops):
            at = hop[at]
        return -1 if at is None else letter[at]

    return [answer(place, hops) for place, hops in enumerate(k)]


khop_scan.task = "khop"


@khop_scan.samples
def _(random: Any, n: int) -> Any:
    """Letters of the whole alphabet, no two alike side by side, and one hop count for all machines."""
    letters, hops = random.integers(1, LETTERS, n).cumsum() % LETTERS, random.integers(0, _MOST + 1)
    return [(each, hops) for each in letters]
