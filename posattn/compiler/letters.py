"""The compiled ``khop`` as a network of the task khop: tokens in, a logit for every word out, as trained networks have it.

A sequence is the hop count and then letters; every machine has one letter, in their order, and the hop count. Its answer is a
letter, or -1 for '~'. The program compares letters and knows none of them, so that any alphabet will do.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from posattn.errors import UsageError
from posattn.tokens.vocabulary import ALPHABETS, BLANK, HOPS, NONE, VOCABULARIES

_WORDS = VOCABULARIES["letters"]
_FIRST, _LETTERS = _WORDS.index[ALPHABETS["id"][0]], sum(map(len, ALPHABETS.values()))
_CERTAIN = 100.0  # the logit of the answer; others have 0, so that the cross-entropy of a right answer is 0 in float64


def machine_inputs(tokens: Int64[Tensor, "*batch n"]) -> Float[Tensor, "*batch machines 2"]:
    """(letter, k) of every machine."""
    hops, letters = tokens[..., :1], tokens[..., 1:] - _FIRST
    if not bool(((hops >= 0) & (hops < len(HOPS))).all() and ((letters >= 0) & (letters < _LETTERS)).all()):
        raise UsageError(f"the sequence must be a hop count, 0 to {len(HOPS) - 1}, and then letters, a to j.")
    return torch.stack([letters, hops.expand_as(letters)], dim=-1).double()


def as_logits(answers: Float[Tensor, "*batch machines"]) -> Float[Tensor, "*batch n V"]:
    """The hop count's own answer is a blank."""
    letters = answers.round().long()
    words = torch.where(letters < 0, _WORDS.index[NONE], letters + _FIRST)
    words = torch.nn.functional.pad(words, (1, 0), value=_WORDS.index[BLANK])
    return _CERTAIN * torch.nn.functional.one_hot(words, len(_WORDS.words)).double()


def answer_letters(
    network: Callable[[Tensor], Tensor], tokens: Int64[Tensor, "*batch n"]
) -> Float[Tensor, "*batch n V"]:
    return as_logits(network(machine_inputs(tokens)))
