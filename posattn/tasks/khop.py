"""k-hop induction heads (Section 7.1, Appendix D.2): find the letter after the latest earlier occurrence of a letter, k times.

A sequence is a hop count k, uniform on 0..3, and then letters s_1, s_2, ...: the first uniform over the alphabet, each next
uniform over the letters other than its predecessor. With f_0(i) = i and j = f_{m-1}(i),

    f_m(i) = 1 + the largest q < j with s_q = s_j,      'none' if j is, or if there is no such q,

the target at letter i is s_{f_k(i)}, or '~' where f_k(i) is 'none'. The hop count's own target is a blank. A sequence of n
tokens, 30 in the paper, is read as the hop count and n - 1 letters.

Letters are a-e in distribution and f-j out of it (``scale`` above 1). A sequence depends on (seed, split, n, domain) and its
index.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from posattn.errors import UsageError, instance
from posattn.tasks.token_task import TokenTask
from posattn.tokens.vocabulary import ALPHABETS, BLANK, HOPS, NONE, VOCABULARIES, words_given

_WORDS = VOCABULARIES["letters"]


def answers(x: Int64[Tensor, "*batch n"]) -> Int64[Tensor, "*batch n"]:
    """The targets of sequences of tokens."""
    x = words_given(instance("x", x, Tensor, "a tensor of tokens"), _WORDS)
    if not (x.ndim and x.shape[-1]):
        raise UsageError("the sequence is empty; it must be a hop count and letters.")
    hops, s = x[..., :1], x[..., 1:]
    none = s.shape[-1]  # the place after the last letter stands for 'none'
    follower = torch.cat([_followers(s), torch.full_like(hops, none)], dim=-1)
    f = torch.arange(none, device=x.device).expand_as(s)
    for m in range(1, len(HOPS)):
        f = torch.where(hops >= m, follower.gather(-1, f), f)
    letters = torch.cat([s, torch.full_like(hops, _WORDS.index[NONE])], dim=-1)
    return torch.cat([torch.full_like(hops, _WORDS.index[BLANK]), letters.gather(-1, f)], dim=-1)


def _followers(s: Int64[Tensor, "*batch L"]) -> Int64[Tensor, "*batch L"]:
    """1 + the largest q < j with s_q = s_j, for every j; L if there is none."""
    columns = s.movedim(-1, 0).contiguous()
    follower = torch.empty_like(columns)
    after_last = columns.new_full((len(_WORDS.words), *columns.shape[1:]), len(columns))  # per letter
    for j, letter in enumerate(columns):
        follower[j] = after_last.gather(0, letter[None])[0]
        after_last.scatter_(0, letter[None], j + 1)
    return follower.movedim(0, -1).contiguous()


@dataclass(frozen=True)
class HopTask(TokenTask):
    """The task of this module: x and y are tokens, indices into the vocabulary ``letters``."""

    LOSS: ClassVar[str] = "cross-entropy"
    TOKENS: ClassVar[str] = "letters"
    SCALES: ClassVar[tuple[float, ...]] = (1, 2)
    NETWORK: ClassVar[dict[str, Any]] = {"n": 30, "tokens": "letters", "causal": True, "embed": 60, "layers": 8}
    INPUTS: ClassVar[str] = "sequences"

    def _purpose(self, split: str, n: int, where: str, c: float) -> tuple[str | int, ...]:
        return "khop", split, n, where

    def _sequences(
        self, u: Float[Tensor, "*members count n"], where: str, c: float
    ) -> Int64[Tensor, "*members count n"]:
        alphabet = ALPHABETS[where]
        steps = (u * (len(alphabet) - 1)).long() + 1  # to any other letter
        steps[..., 1] = (u[..., 1] * len(alphabet)).long()
        letters = steps[..., 1:].cumsum(dim=-1) % len(alphabet) + _WORDS.index[alphabet[0]]
        hops = (u[..., :1] * len(HOPS)).long() + _WORDS.index[HOPS[0]]
        return torch.cat([hops, letters], dim=-1)

    def spell(self, tokens: Int64[Tensor, " n"]) -> str:
        return "".join(_WORDS.words[token] for token in words_given(tokens, _WORDS).tolist())

    def encode(self, text: str) -> Int64[Tensor, " n"]:
        """The tokens of a sequence such as ``2abcabd``: a hop count, then letters, no two neighbours alike."""
        letters = "".join(ALPHABETS.values())
        if len(instance("the sequence", text, str, "a text such as 2abcabd")) < 2:
            raise UsageError(f"the sequence is {text!r}; it must be a hop count and at least one letter.")
        for place, character in enumerate(text, start=1):
            allowed = HOPS if place == 1 else letters
            if character not in allowed:
                raise UsageError(
                    f"character {place} of the sequence is {character!r}; it must be one of {', '.join(allowed)}."
                )
            if place > 2 and character == text[place - 2]:
                raise UsageError(f"character {place} of the sequence is {character!r} again; neighbours must differ.")
        return torch.tensor([_WORDS.index[character] for character in text])


KHOP = HopTask("khop", "k-hop induction heads", answers)
