"""k-hop induction heads: the programs ``khop`` and ``khop-scan``, and how the compiled ones read tokens like a trained network.

With h_0(i) = s_i, the letter at i, and f(i) = 1 + the largest q < i with s_q = s_i, the answer after m hops is

    h_m(i) = h_{m-1}(f(i)),        'none' (-1) if f(i) is.

In ``khop`` everyone hears all letters, and then all f. In ``khop-scan`` one scan computes h_m from h_{m-1}, with communication
that is fixed beforehand. Machine j writes h_{m-1}(j) under the key s_{j-1} into a table. Tables join: of two entries under one
key the later one stays. Machine i reads what its prefix has under the key s_i.

A table is one whole number per key: 0 for no entry, 1 for the entry 'none', and 2 + a for the letter a. So an entry joins the
earlier one by a single ReLU.
"""

from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import one_hot, pad

from posattn.compiler.function_programs import program
from posattn.compiler.program_messages import send
from posattn.compiler.program_numbers import Whole, lookup, maximum, relu, select
from posattn.compiler.programs import doublings
from posattn.errors import UsageError
from posattn.tokens.vocabulary import ALPHABETS, BLANK, HOPS, NONE, VOCABULARIES

MOST_HOPS = len(HOPS) - 1
LETTERS = 26  # of khop, which compares letters and does not know them
SCANNED = sum(map(len, ALPHABETS.values()))  # letters of khop-scan, which has an entry for each: those of the task
_EMPTY, _NONE, _FIRST = 0, 1, 2  # entries
_LARGEST = _FIRST + SCANNED - 1


def largest(numbers: list[Any]) -> Any:
    """The largest of a list, by a tree of few levels."""
    if len(numbers) == 1:
        return numbers[0]
    half = len(numbers) // 2
    return maximum(largest(numbers[:half]), largest(numbers[half:]))


def where_it_hops(me: Any, n: int, letter: Any, letters: list[Any]) -> Any:
    """The place after the latest earlier one of the same letter; n if there is none."""
    after = largest([((me > j) & (other == letter)) * (j + 1) for j, other in enumerate(letters)])
    return select(after > 0, after, n)


@program(letter=Whole(0, LETTERS - 1), k=Whole(0, MOST_HOPS))
def khop(me: Any, n: int, letter: Any, k: Any) -> Any:
    """k-hop induction heads."""
    letters = [place[0] for place in (yield send(range(n), letter))]
    hop = where_it_hops(me, n, letter, letters)
    hops, at = [place[0] for place in (yield send(range(n), hop))], me
    for done in range(MOST_HOPS):
        at = select(k > done, lookup([*hops, n], at), at)
    return lookup([*letters, -1], at)


@program(letter=Whole(0, SCANNED - 1), k=Whole(0, MOST_HOPS))
def khop_scan(me: Any, n: int, letter: Any, k: Any) -> Any:
    """k-hop induction heads, by scans."""
    before = (yield send(me + 1, letter, when=me < n - 1))[0]
    key = select(before.present, before[0], SCANNED)
    value = answer = letter + _FIRST
    for hop in range(MOST_HOPS):
        table = [select(key == each, value, _EMPTY) for each in range(SCANNED)]
        for reach in doublings(n):
            earlier = (yield send(me + reach, *table, when=me < n - reach))[0]
            # An own entry is 1 or more, which outweighs any earlier one.
            table = [own + relu(other - _LARGEST * own) for own, other in zip(table, earlier, strict=True)]
        value = maximum(lookup(table, letter), _NONE)
        answer = select(k > hop, value, answer)
    return answer - _FIRST


khop.task = khop_scan.task = "khop"


@khop.truth
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


@khop.samples
def _(random: Any, n: int) -> Any:
    """Letters from five neighbours in the alphabet, no two alike side by side; and one hop count for all machines."""
    steps = [random.integers(0, 5), *random.integers(1, 5, n - 1)]
    first, hops = random.integers(0, LETTERS - 4), random.integers(0, MOST_HOPS + 1)
    return [(first + each % 5, hops) for each in accumulate(steps)]


@khop_scan.samples
def _(random: Any, n: int) -> Any:
    """Letters of the whole alphabet, no two alike side by side, and one hop count for all machines."""
    letters, hops = random.integers(1, SCANNED, n).cumsum() % SCANNED, random.integers(0, MOST_HOPS + 1)
    return [(each, hops) for each in letters]


# --- sequences of tokens: the hop count, and then letters --------------------------------------------------------------

_WORDS = VOCABULARIES["letters"]
_LETTER_A = _WORDS.index[ALPHABETS["id"][0]]
_CERTAIN = 100.0  # the answer's logit. Others are 0, so the cross-entropy of a right answer is 0 in float64


def machine_inputs(tokens: Int64[Tensor, "*batch n"]) -> Float[Tensor, "*batch machines 2"]:
    """The input (letter, k) of every machine."""
    hops, letters = tokens[..., :1], tokens[..., 1:] - _LETTER_A
    if not bool(((hops >= 0) & (hops < len(HOPS))).all() and ((letters >= 0) & (letters < SCANNED)).all()):
        raise UsageError(f"the sequence must be a hop count, 0 to {MOST_HOPS}, and then letters, a to j.")
    return torch.stack([letters, hops.expand_as(letters)], dim=-1).double()


def as_logits(answers: Float[Tensor, "*batch machines"]) -> Float[Tensor, "*batch n V"]:
    """The machines' answers as logits; at the hop count the answer is a blank."""
    letters = answers.round().long()
    words = pad(torch.where(letters < 0, _WORDS.index[NONE], letters + _LETTER_A), (1, 0), value=_WORDS.index[BLANK])
    return _CERTAIN * one_hot(words, len(_WORDS.words)).double()
