"""The Transformer of posattn.model on tokens: sequences of letters (k-hop induction heads) and prompts of words and numbers.

It differs at its two ends. An entry is a word, described by its characters (``Vocabulary.table``), or a number. The answer to
letters is one logit per word at every position, the answer to a prompt is one number, read at the scratchpad.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from posattn.errors import UsageError, choice, flag
from posattn.model import ModelConfig, Transformer
from posattn.tokens.vocabulary import VOCABULARIES, Vocabulary, relative_numbers, token_features


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
            reads = f"a network whose tokens are {self.tokens!r} reads no numbers among words"
            raise UsageError(f"relative is True; {reads}.")

    @property
    def reads(self) -> str:
        return self.vocabulary.text

    @property
    def vocabulary(self) -> Vocabulary:
        return VOCABULARIES[self.tokens]

    @property
    def input_dim(self) -> int:
        """A feature per (place, character) pair, the number where numbers may stand, and the encoding if it is input."""
        features = len(self.vocabulary.characters) + self.vocabulary.numbers
        return features + self.encoding_dim * self.design.encoded_input

    @property
    def output_dim(self) -> int:  # type: ignore[override]
        return 1 if self.vocabulary.numbers else 0 if self.tied else len(self.vocabulary.words)

    def answers(self, out: Float[Tensor, "*batch N V"]) -> Float[Tensor, "*out"]:
        """What is at the scratchpad where numbers stand among the words, or else at every other position."""
        return out[..., -1, :] if self.vocabulary.numbers else out[..., :-1, :]


class SharedEncoder(nn.Module):
    """An encoder whose columns for the characters at shared places are M_p e_c: a vector per character, a matrix per place."""

    place: Tensor
    character: Tensor

    def __init__(self, encoder: nn.Linear, words: Vocabulary):
        super().__init__()
        d, pairs = encoder.out_features, words.characters
        self.first = first = next(index for index, (place, _) in enumerate(pairs) if place in words.shared)
        own = [(words.shared.index(place), character) for place, character in pairs[first:]]
        known = sorted({character for _, character in own})
        self.register_buffer("place", torch.tensor([place for place, _ in own]), persistent=False)
        self.register_buffer("character", torch.tensor([known.index(each) for _, each in own]), persistent=False)
        self.others = nn.Parameter(torch.cat([encoder.weight[:, :first], encoder.weight[:, first + len(own) :]], dim=1))
        self.vectors = nn.Parameter(torch.randn(len(known), d))
        self.places = nn.Parameter(torch.randn(len(words.shared), d, d) / d**0.5)
        self.bias = encoder.bias

    @property
    def weight(self) -> Float[Tensor, "d F"]:
        return self.columns(self.others, self.vectors, self.places)

    def columns(
        self,
        others: Float[Tensor, "*members d rest"],
        vectors: Float[Tensor, "*members characters d"],
        places: Float[Tensor, "*members places d d"],
    ) -> Float[Tensor, "*members d F"]:
        """All columns, as a linear layer has them, from the parameters of one network or several."""
        pairs = places[..., self.place, :, :], vectors[..., self.character, :]
        shared = torch.einsum("...sij,...sj->...is", *pairs)
        return torch.cat([others[..., : self.first], shared, others[..., self.first :]], dim=-1)

    def forward(self, features: Float[Tensor, "*batch F"]) -> Float[Tensor, "*batch d"]:
        return F.linear(features, self.weight, self.bias)


class TokenTransformer(Transformer):
    """Tokens (..., k) in; out a logit for each word, (..., k, V), or for numbers among tokens one number, (..., 1)."""

    table: Tensor
    config: TokenConfig

    def __init__(self, config: TokenConfig):
        super().__init__(config)
        words, encoder = config.vocabulary, self.encoder
        self.register_buffer("table", words.table(), persistent=False)
        # Characters and encodings begin as in an embedding layer (standard normal), numbers as in a linear layer.
        nn.init.normal_(encoder.weight)
        if words.numbers:
            nn.init.uniform_(encoder.weight[:, len(words.characters)], -1, 1)
        if encoder.bias is not None:
            nn.init.uniform_(encoder.bias, -1, 1) if words.numbers else nn.init.zeros_(encoder.bias)
        if words.shared:
            self.encoder: Any = SharedEncoder(encoder, words)

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
        read = self.config.answers(z)
        if not self.config.tied:
            return self.decoder(read)
        return read @ (self.encoder.weight[:, : len(self.config.vocabulary.characters)] @ self.table.mT)


TokenConfig.network = TokenTransformer
