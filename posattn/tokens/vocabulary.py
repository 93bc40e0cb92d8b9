"""Tokens: the words that a network reads instead of numbers or among them, and the characters they are spelled with.

The embedding of a word is the sum of one vector for each of its characters at its place, so a word of one character has a
vector of its own. As numbers a word is a row of ``Vocabulary.table``, ones at its (place, character) pairs, and an embedding
layer is a linear map of such rows: no lookup has to be differentiated.

A sequence of tokens is a tensor of indices into ``words``. Where numbers stand among the tokens, the tensor is one of floats:
a number v ≥ 0 is v, and the word with index t is -1 - t.

Letters: V words, C (place, character) pairs, k positions of a sequence.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from posattn.errors import UsageError, shown


@dataclass(frozen=True)
class Vocabulary:
    """The words of texts of one kind, which have equally many characters each, padded with spaces."""

    words: tuple[str, ...]  # each is read by its index
    text: str = "letters"  # what they spell; or prompts, with numbers among the words
    shared: tuple[int, ...] = ()  # its last places, if their characters have one embedding, and a matrix per place

    @property
    def numbers(self) -> bool:
        """Whether numbers stand among the words."""
        return self.text == "prompts"

    @cached_property
    def index(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}

    @cached_property
    def characters(self) -> tuple[tuple[int, str], ...]:
        """The (place, character) pairs that occur, place by place, in the order of the words."""
        places = range(len(self.words[0]) if self.words else 0)
        return tuple(dict.fromkeys((place, word[place]) for place in places for word in self.words))

    def table(self) -> Float[Tensor, "V C"]:
        pairs = [float(word[place] == character) for word in self.words for place, character in self.characters]
        return torch.tensor(pairs).view(len(self.words), len(self.characters))

    def code(self, word: str) -> float:
        """The number that stands for a word among numbers."""
        return -1.0 - self.index[word]


def token_features(
    x: Float[Tensor, "*batch k"] | Int64[Tensor, "*batch k"], table: Float[Tensor, "V C"], numbers: bool
) -> Float[Tensor, "*batch k F"]:
    """What an encoder reads of a sequence: the pairs of each word and, with ``numbers``, the number, 0 for a word."""
    try:
        spelled = F.embedding(word_index(x) if numbers else x, table)
    except IndexError:
        raise UsageError(f"x has a word that is not there; the vocabulary has {len(table)} words.") from None
    if not numbers:
        return spelled
    spelled = spelled * (x < 0)[..., None]
    return torch.cat([spelled, x.clamp_min(0)[..., None]], dim=-1)


def relative_numbers(x: Float[Tensor, "*batch k"]) -> tuple[Float[Tensor, "*batch k"], Float[Tensor, "*batch 1"]]:
    """A sequence with its numbers divided by their mean, and the mean; words stay. Where all are 0, the mean counts as 1."""
    number = x >= 0
    mean = x.where(number, 0).sum(dim=-1, keepdim=True) / number.sum(dim=-1, keepdim=True).clamp_min(1)
    mean = mean.where(mean > 0, 1)
    return torch.where(number, x / mean, x), mean


def words_given(x: object, words: Vocabulary) -> Int64[Tensor, "*shape"]:
    """``x``, a tensor or lists, as indices of words; raises unless all are whole numbers that count words."""
    try:
        found = torch.as_tensor(x)
        index = found.long()
        if found.is_complex() or found.dtype == torch.bool or bool((index != found).any()):
            raise TypeError
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise UsageError(f"x is {shown(x)}; it must be whole numbers, in a tensor or in lists of one length.") from error
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < len(words.words):
        wrong = index[(index < 0) | (index >= len(words.words))][0].item()
        raise UsageError(f"x has the token {wrong}; there are {len(words.words)} words, from 0 to {len(words.words) - 1}.")
    return index


def word_code(index: Tensor) -> Tensor:
    """The numbers that stand for words among numbers."""
    return -1.0 - index


def word_index(x: Float[Tensor, "*batch k"]) -> Int64[Tensor, "*batch k"]:
    """The indices of the words among numbers; 0 at a number."""
    return (-1 - x).clamp_min(0).long()


# k-hop induction heads (Appendix D.2): a hop count, letters in distribution and out of it, 'none', and the blank.
HOPS = "0123"
ALPHABETS = {"id": "abcde", "ood": "fghij"}
NONE, BLANK = "~", " "

# Mixed-type inputs (Appendix D.3): categories, irrelevant structure, and what may be asked for. Identifiers end at the right
# edge, so that each digit, and the sign before them, has a place of its own.
IDENTIFIERS = range(1, 41)
SIGNS = {"id": "+-", "ood": "_*"}
TYPES = ("min", "max", "sum")
PAD = "#"  # after the last character of a prompt


def category(identifier: int, sign: str = " ") -> str:
    """A word such as ``'Cat  5'``, ``'Cat+ 7'`` or ``'Cat*24'``; read without its spaces."""
    return f"Cat{sign}{identifier:>2}"


_SIGNED = [category(identifier, sign) for sign in (" ", *SIGNS["id"], *SIGNS["ood"]) for identifier in IDENTIFIERS]
_ELEMENTS = (*_SIGNED, *(name.ljust(6) for name in TYPES))
FIRST_TYPE = len(_SIGNED)  # the index of the first operation; words before it are categories, with and without signs
_SPELLED = PAD + "0123456789" + "".join(SIGNS.values()) + "".join(sorted(set("Cat, Find of and" + "".join(TYPES))))

VOCABULARIES: dict[str, Vocabulary] = {
    "letters": Vocabulary((*HOPS, *ALPHABETS["id"], *ALPHABETS["ood"], NONE, BLANK)),
    "prompts": Vocabulary(_ELEMENTS, "prompts"),
    "elements-shared": Vocabulary(_ELEMENTS, "prompts", shared=(4, 5)),  # tens and units
    "characters": Vocabulary(tuple(_SPELLED), "prompts"),
}
