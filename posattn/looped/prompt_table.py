"""A looped network with a table as its state, for prompts of mixed type: four scans with communication fixed beforehand.

    ['Cat2', 3.45, 'Cat+7', 'Cat5', 1.23, ..., 'Find min of Cat5, Cat8, Cat11 and Cat20']

A position holds a *mark* between 0 and 1, and a value that counts as far as it is marked. In loop l of a scan, position i
hears i + r 2^l through attention over the offsets r = 0, -1, -2, -3 (posattn.looped.offsets); a scan needs r = -1. A join keeps
what a position has or takes what it hears, by the two marks:

    carry   each position learns the last category up to it, and in a scan of its own the last operation
    write   a number writes itself into a table, under the category that it has learned; tables join row by row
    read    a category reads the row of its own identifier, in the table that its position has; the table of a category in
            the list does not have the row yet, as its number comes later
    fold    what was read is combined, two by two: f ← (1 - r') f + (1 - r) f' + r r' Φ_q(f, f'), r ← r + r' - r r',
            with f' and r' what is heard, and Φ_q(f, f') = U_q relu(W (f, f')) for the operation q

The answer is f at the last position. docs/tokens.md says what is learned and what is built in.

Letters: n elements of a prompt, B prompts, R rows of a table, w values under a mark.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from posattn.errors import UsageError, choice, counted, positive
from posattn.looped.families import FAMILIES
from posattn.looped.table_model import Joins, attend, two_layers
from posattn.network import NetworkConfig, check_input, check_memory
from posattn.tokens.vocabulary import FIRST_TYPE, IDENTIFIERS, TYPES, VOCABULARIES, word_index

_FAMILY = FAMILIES["dilated"]
_WORDS = VOCABULARIES["prompts"]
_KINDS = 3 + len(TYPES)  # number, category, category with a sign, and the operations
_GATES = ("category", "operation", "write", "read")
_GAIN = 20.0  # on the logits of gates: they decide while the attention is still being learned


@dataclass(frozen=True)
class PromptTableConfig(NetworkConfig):
    """What determines a table network for prompts up to its weights.

    Args:
        n: the elements of a prompt, its query included.
        width: hidden width of the MLPs.
        sharpness: S, the factor on the attention logits; a recipe may let it grow to this value.
        rows: R, how many different identifiers a prompt may have.
    """

    n: int
    arch: str = "table"
    width: int = 16
    sharpness: float = 100.0
    rows: int = 8

    kind: ClassVar[str] = "prompt-table"
    tokens: ClassVar[str] = "prompts"
    reads: ClassVar[str] = "prompts"
    recipe: ClassVar[str] = "prompt-table"
    sharpened: ClassVar[str] = "logits"
    layers: ClassVar[int] = 1
    encoding: ClassVar[str] = "one-hot"  # what result rows say

    def __post_init__(self) -> None:
        choice("arch", self.arch, ["table"])
        self._count("n", "width", "rows")
        self._set("sharpness", positive("sharpness", self.sharpness))

    @property
    def least_numbers(self) -> int:
        """The weights of the MLPs, without biases."""
        return self.width * (5 + len(TYPES))

    def numbers_per_position(self, n: int, gradients: bool) -> int:
        """How many numbers a position of a prompt of n takes in memory, about."""
        row = 3 + self.width  # a mark, a value, the gate and its hidden units
        return self.rows * row * (len(_FAMILY.loops(n)) if gradients else 2)

    def build(self) -> "PromptTableNetwork":
        return PromptTableNetwork(self)


class PromptTableNetwork(nn.Module):
    """Prompts (..., n) in, one number each, (..., 1), out."""

    def __init__(self, config: PromptTableConfig):
        super().__init__()
        config.require_room()
        self.config = config
        self.logits = nn.Parameter(torch.zeros(len(_FAMILY.candidates) + 1))
        self.gates = nn.Parameter(torch.zeros(len(_GATES), _KINDS))
        self.join = two_layers(2, config.width, 1)
        self.pair = nn.Linear(2, config.width, bias=False)
        self.operation = nn.Parameter(torch.randn(len(TYPES), config.width) / config.width**0.5)

    @property
    def input_dtype(self) -> torch.dtype:
        return self.logits.dtype

    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch 1"]:
        check_input(x, self.input_dtype)
        if not 1 <= x.shape[-1] <= self.config.n:
            raise UsageError(f"the sequence has {counted(x.shape[-1], 'token')}; this model takes 1 to {self.config.n}.")
        check_memory(self, x)
        prompts = x.reshape(-1, x.shape[-1])
        kinds, keys = self._read(prompts)
        numbers, joins = prompts.clamp_min(0).mT, self._joins(x.shape[-1])
        carries, operates, writes, reads = torch.sigmoid(_GAIN * (kinds @ self.gates.mT))[..., None].unbind(dim=-2)

        _, owner = self._scan(carries, (carries * keys)[..., None, :], joins)
        _, asked = self._scan(operates, (operates * kinds[..., -len(TYPES) :])[..., None, :], joins)
        rows = writes * owner[..., 0, :]
        marks, values = self._scan(rows, (rows * numbers[..., None])[..., None], joins)
        r, f = (reads[..., 0] * (keys * found).sum(dim=-1) for found in (marks, values[..., 0]))
        return self._fold(r, f, asked[..., 0, :], joins)[-1].reshape(*x.shape[:-1], 1)

    def _read(self, x: Float[Tensor, "B n"]) -> tuple[Float[Tensor, "n B kinds"], Float[Tensor, "n B R"]]:
        """The kind of every element and, of categories, the row of the identifier: rows are in the order of first mention."""
        word, number = word_index(x), x >= 0
        category = ~number & (word < FIRST_TYPE)
        plain = category & (word < len(IDENTIFIERS))
        operations = [~number & (word == FIRST_TYPE + index) for index in range(len(TYPES))]
        kinds = torch.stack([number, plain, category & ~plain, *operations], dim=-1)
        identifier = torch.where(category, word % len(IDENTIFIERS), -1)
        first = (identifier[:, :, None] == identifier[:, None, :]).int().argmax(dim=-1)  # where it was mentioned first
        new = category & (first == torch.arange(x.shape[-1], device=x.device))
        row = (new.cumsum(dim=-1) - 1).gather(-1, first)
        self._check(kinds, row)
        keys = (row[..., None] == torch.arange(self.config.rows, device=x.device)) & category[..., None]
        return kinds.to(x.dtype).transpose(0, 1), keys.to(x.dtype).transpose(0, 1)

    def _check(self, kinds: Bool[Tensor, "B n kinds"], row: Int64[Tensor, "B n"]) -> None:
        """Raises if a prompt has other words, or more identifiers than rows. A GPU, which would wait, is not asked."""
        if row.device.type != "cpu" or not row.numel() or torch.compiler.is_compiling():
            return
        if not bool(kinds.any(dim=-1).all()):
            raise UsageError(f"a prompt has a word that is not there; the vocabulary has {len(_WORDS.words)} words.")
        if (most := int(row.max()) + 1) > self.config.rows:
            raise UsageError(f"a prompt has {most} different identifiers; this network takes {self.config.rows}.")

    def weights(self) -> Float[Tensor, " C1"]:
        """softmax(S T): what a position gives to the candidates and, last, to the sink."""
        return (self.config.sharpness * self.logits).softmax(dim=-1)

    def _joins(self, n: int) -> Joins:
        given = self.weights()
        return [attend(given, n, loop) for loop in _FAMILY.loops(n)]

    def _scan(
        self, mark: Float[Tensor, "n B R"], value: Float[Tensor, "n B R w"], joins: Joins
    ) -> tuple[Float[Tensor, "n B R"], Float[Tensor, "n B R w"]]:
        """Marks and values after all joins, each of which takes a share of what is heard that the two marks decide."""
        for hear, inside in joins:
            heard = hear(mark)
            share = torch.sigmoid(_GAIN * self.join(torch.stack([mark, heard], dim=-1))[..., 0]) * inside[:, None, None]
            value = torch.lerp(value, hear(value), share[..., None])
            mark = torch.lerp(mark, heard, share)
        return mark, value

    def _fold(
        self, r: Float[Tensor, "n B"], f: Float[Tensor, "n B"], asked: Float[Tensor, "n B types"], joins: Joins
    ) -> Float[Tensor, "n B"]:
        """f at every position, of all that was read up to it."""
        out = asked @ self.operation
        for hear, _ in joins:
            heard, other = hear(r), hear(f)
            both = (out * self.pair(torch.stack([f, other], dim=-1)).relu()).sum(dim=-1)
            f = (1 - heard) * f + (1 - r) * other + r * heard * both
            r = r + heard - r * heard
        return f
