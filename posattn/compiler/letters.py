"""The compiled ``khop`` as a network of the task khop: like a trained one, it reads tokens and gives a logit per word.

A sequence is the hop count and then letters. Machine i is given the i-th letter and the hop count, and answers with a letter,
or with -1 for '~'. The program only compares letters, so it works for any alphabet.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from posattn.errors import UsageError
from posattn.tokens.vocabulary import ALPHABETS, BLANK, HOPS, NONE, VOCABULARIES

_WORDS = VOCABULARIES["letters"]
_FIRST, _LETTERS = _WORDS.index[ALPHABETS["id"][0]], sum(map(len, ALPHABETS.values()))
_CERTAIN = 100.0  # the answer's logit. Others are 0, so the cross-entropy of a right answer is 0 in float64


def machine_inputs(tokens: Int64[Tensor, "*batch n"]) -> Float[Tensor, "*batch machines 2"]:
    """The input (letter, k) of every machine."""
    hops, letters = tokens[..., :1], tokens[..., 1:] - _FIRST
    if not bool(((hops >= 0) & (hops < len(HOPS))).all() and ((letters >= 0) & (letters < _LETTERS)).all()):
        raise UsageError(f"the sequence must be a hop count, 0 to {len(HOPS) - 1}, and then letters, a to j.")
    return torch.stack([letters, hops.expand_as(letters)], dim=-1).double()


def as_logits(answers: Float[Tensor, "*batch machines"]) -> Float[Tensor, "*batch n V"]:
    """The machines' answers as logits; at the hop count the answer is a blank."""
    letters = answers.round().long()
    words = torch.where(letters < 0, _WORDS.index[NONE], letters + _FIRST)
    words = torch.nn.functional.pad(words, (1, 0), value=_WORDS.index[BLANK])
    return _CERTAIN * torch.nn.functional.one_hot(words, len(_WORDS.words)).double()


def answer_letters(
    network: Callable[[Tensor], Tensor], tokens: Int64[Tensor, "*batch n"]
) -> Float[Tensor, "*batch n V"]:
    """The logits that the compiled ``network`` gives for sequences of tokens."""
    return as_logits(network(machine_inputs(tokens)))
