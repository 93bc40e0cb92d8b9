"""The Transformer of posattn.model on tokens: sequences of letters (k-hop induction heads) and prompts of words and numbers.

It differs at its two ends. An entry is a word, described by its characters (``Vocabulary.table``), or a number. The answer to
letters is one logit per word at every position, the answer to a prompt is one number, read at the scratchpad.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from posattn.errors import UsageError, choice, flag
from posattn.model import ModelConfig, Transformer
from posattn.tokens.vocabulary import VOCABULARIES, Vocabulary, relative_numbers, reset_embedding, token_features


@dataclass(frozen=True)
class TokenConfig(ModelConfig):
    """A :class:`ModelConfig` for sequences of up to n tokens.

    Args:
        tokens: a row of :data:`posattn.tokens.VOCABULARIES`.
        tied: words are decoded by the vectors that embed them, without a bias; else by a linear map of their own.
        relative: numbers are read relative to their mean, which the answer is multiplied by: f(c x) = c f(x).
    """

    tokens: str = "letters"
    tied: bool = False
    relative: bool = False

    kind: ClassVar[str] = "tokens"
    columns: ClassVar[tuple[str, ...]] = ("tied", "relative")
    later: ClassVar[tuple[str, ...]] = (*ModelConfig.later, *columns)

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("tokens", self.tokens, VOCABULARIES)
        if self.design.diagonal_input:
            raise UsageError(f"tokens is {self.tokens!r}; the {self.arch} architecture reads numbers only.")
        if flag("tied", self.tied) and self.vocabulary.numbers:  # a vocabulary of words alone has single characters
            raise UsageError(f"tied is True; a network whose tokens are {self.tokens!r} answers no words.")
        if flag("relative", self.relative) and not self.vocabulary.numbers:
            raise UsageError(
                f"relative is True; a network whose tokens are {self.tokens!r} reads no numbers among words."
            )

    @property
    def reads(self) -> str:
        return self.tokens

    @property
    def vocabulary(self) -> Vocabulary:
        return VOCABULARIES[self.tokens]

    @property
    def entry_dim(self) -> int:
        return self.vocabulary.features

    @property
    def output_dim(self) -> int:
        return 1 if self.vocabulary.numbers else 0 if self.tied else len(self.vocabulary.words)

    def answers(self, out: Float[Tensor, "*batch N V"]) -> Float[Tensor, "*out"]:
        """The number at the scratchpad, or one logit per word at every other position."""
        return out[..., -1, :] if self.vocabulary.numbers else out[..., :-1, :]

    @property
    def network(self) -> "type[TokenTransformer]":
        return TokenTransformer


class TokenTransformer(Transformer):
    """Tokens (..., k) in; out a logit for each word, (..., k, V), or for numbers among tokens one number, (..., 1)."""

    table: Tensor
    config: TokenConfig

    def __init__(self, config: TokenConfig):
        super().__init__(config)
        self.register_buffer("table", config.vocabulary.table(), persistent=False)
        reset_embedding(self.encoder, config.vocabulary)

    def forward(self, x: Shaped[Tensor, "*batch k"]) -> Float[Tensor, "*out"]:
        if not self.config.relative:
            return super().forward(x)
        x, mean = relative_numbers(x)
        return super().forward(x) * mean

    @property
    def input_dtype(self) -> torch.dtype:
        """The dtype of numbers, or of word indices."""
        return self.encoder.weight.dtype if self.config.vocabulary.numbers else torch.int64

    def entries(self, x: Shaped[Tensor, "*batch k"]) -> Float[Tensor, "*batch k F"]:
        return token_features(x, self.table, self.config.vocabulary.numbers)

    def decode(self, z: Float[Tensor, "*batch N d"]) -> Float[Tensor, "*out"]:
        if self.config.vocabulary.numbers:
            return self.decoder(z[..., -1, :])
        letters = z[..., :-1, :]
        if self.config.tied:
            characters = len(self.config.vocabulary.characters)
            return letters @ (self.encoder.weight[:, :characters] @ self.table.mT)
        return self.decoder(letters)
