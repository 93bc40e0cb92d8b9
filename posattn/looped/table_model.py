"""A looped network with a table as its state, for k-hop induction heads: k scans with communication fixed beforehand.

With h_0(i) = s_i, the letter at i, and f(i) = 1 + the largest q < i with s_q = s_i, the answer after m hops is

    h_m(i) = h_{m-1}(f(i)).

One scan computes h_m from h_{m-1}. Position j *writes* the value h_{m-1}(j) under the key s_{j-1}. Tables *join*: of two
entries under one key the right one stays. Position i *reads* what its prefix holds under the key s_i, or finds nothing.

The state of a position is a table of keys by values, a few words per entry. Three small MLPs write, join and read. Each is the
same for all entries, so the network cannot know which letter is which: letters that training never showed cost nothing, and
neither do more letters. Joins go through attention over the offsets of a scan (posattn.looped.offsets), so it takes every
length.

Letters: n positions, A letters of the alphabet, w words per entry, T (n, A, A, w) the tables, keys before values.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from posattn.devices import check_fits
from posattn.errors import UsageError, choice, flag, positive, whole
from posattn.looped.families import FAMILIES, Loop
from posattn.looped.offsets import rows, split_weights
from posattn.network import KINDS_BY_ARCH, NetworkConfig, check_input
from posattn.tokens.vocabulary import ALPHABETS, BLANK, HOPS, NONE, VOCABULARIES

_WORDS = VOCABULARIES["letters"]
_LETTERS = "".join(ALPHABETS.values())
_FIRST = _WORDS.index[_LETTERS[0]]  # of the letters, which follow one another in the vocabulary
_FAMILY = FAMILIES["dilated"]
_NEVER = -1e4  # the logit of words that are no answer


@lru_cache(maxsize=4096)
def _inside(n: int, loop: Loop, device: torch.device) -> Bool[Tensor, "n C"]:
    """Made once: a CUDA graph can hold no copy from the host."""
    with torch.inference_mode(False), torch.no_grad():
        return _FAMILY.inside(n, loop, device)


@dataclass(frozen=True)
class TableConfig(NetworkConfig):
    """What determines a table network up to its weights.

    Args:
        n: the longest sequence trained on, the hop count included; the network takes every length.
        words: w, the words of an entry.
        width: hidden width of the MLPs.
        sharpness: S, the factor on the attention logits; a recipe may let it grow to this value.
        fixed: attention is that of a scan, to i - 2^l in loop l and to i - 1 for the key; else it is learned.
    """

    n: int
    arch: str = "table"
    words: int = 4
    width: int = 16
    sharpness: float = 100.0
    fixed: bool = False

    kind: ClassVar[str] = "table"
    any_length: ClassVar[bool] = True
    reads: ClassVar[str] = "letters"
    recipe: ClassVar[str] = "table"
    sharpened: ClassVar[str] = "logits"
    layers: ClassVar[int] = 1
    encoding: ClassVar[str] = "one-hot"  # what result rows say

    def __post_init__(self) -> None:
        choice("arch", self.arch, ["table"])
        for field in ("n", "words", "width"):
            self._set(field, whole(field, getattr(self, field)))
        self._set("sharpness", positive("sharpness", self.sharpness))
        flag("fixed", self.fixed)

    @property
    def least_numbers(self) -> int:
        """The weights of the three MLPs, without biases."""
        return self.width * (7 * self.words + 4)

    def numbers_per_position(self, n: int, gradients: bool) -> int:
        """How many numbers a position of a sequence of n takes in memory, about."""
        entries = len(_LETTERS) ** 2
        kept = (3 * self.words + 2 * self.width) * (len(_FAMILY.loops(n)) + 2) * (len(HOPS) - 1) if gradients else 0
        return entries * (4 * self.words + 2 * self.width + kept)

    def build(self) -> "TableNetwork":
        return TableNetwork(self)


KINDS_BY_ARCH["table"] = TableConfig


class TwoLayers(nn.Module):
    """An MLP with one hidden layer, applied to every entry; what its first map gives is summed part by part."""

    def __init__(self, d_in: int, hidden: int, d_out: int):
        super().__init__()
        self.first, self.last = nn.Linear(d_in, hidden), nn.Linear(hidden, d_out)

    def after(self, x: Float[Tensor, "*entries hidden"]) -> Float[Tensor, "*entries d_out"]:
        """The answer, from the first map without its bias."""
        out: Tensor = self.last(torch.relu(x + self.first.bias))
        return out


class TableNetwork(nn.Module):
    """Sequences of a hop count and letters (..., k) in, a logit per word (..., k, V) out, for every k."""

    trained_on: str | None = None

    def __init__(self, config: TableConfig):
        super().__init__()
        config.require_room()
        self.config = config
        w, hidden = config.words, config.width
        self.logits = nn.Parameter(torch.randn(2, len(_FAMILY.candidates) + 1) / (len(_FAMILY.candidates) + 1) ** 0.5)
        self.write = TwoLayers(2, hidden, w)
        self.join = TwoLayers(4 * w, hidden, w)
        self.read = TwoLayers(2 * w + 1, hidden, 1)
        self.decoder = nn.Parameter(torch.tensor([5.0, 0.5, -1.0]))  # a factor, and the affine map that says none

    @property
    def input_dtype(self) -> torch.dtype:
        return torch.int64

    def forward(self, x: Int64[Tensor, "*batch k"]) -> Float[Tensor, "*batch k V"]:
        check_input(x, self.input_dtype)
        if x.shape[-1] < 2:
            raise UsageError("the sequence is a hop count alone; this network takes a hop count and letters.")
        self._check_fits(x)
        hops, letters = x[..., :1], self.one_hot(x[..., 1:])
        found = torch.stack(list(self.hops(letters, len(HOPS) - 1)), dim=-3)  # (..., hops, n, A)
        asked = (hops == torch.arange(len(HOPS), device=x.device)).to(found.dtype)
        return self._words((found * asked[..., None, None]).sum(dim=-3))

    def one_hot(self, letters: Int64[Tensor, "*batch n"]) -> Float[Tensor, "*batch n A"]:
        index = torch.arange(_FIRST, _FIRST + len(_LETTERS), device=letters.device)
        return (letters[..., None] == index).to(self.decoder.dtype)

    def hops(self, letters: Float[Tensor, "*batch n A"], count: int) -> Iterator[Float[Tensor, "*batch n A"]]:
        """h_0 to h_count, as numbers per letter, which are all about 0 where there is none. Any alphabet will do."""
        keys = self._attended(letters, 0, Loop(1))[0]
        h = letters
        yield h
        for _ in range(count):
            h = self._read(self._scanned(self._written(keys, h)), letters)
            yield h

    def answers(self, h: Float[Tensor, "*batch n A"]) -> Float[Tensor, "*batch n A1"]:
        """A logit per letter and, last, that of none."""
        factor, base, slope = self.decoder
        return factor * torch.cat([h, base + slope * h.sum(dim=-1, keepdim=True)], dim=-1)

    def _words(self, h: Float[Tensor, "*batch n A"]) -> Float[Tensor, "*batch k V"]:
        """Logits of the vocabulary, with a blank before the letters."""
        said = self.answers(h)
        never = torch.full_like(said[..., :1], _NEVER)
        columns = {_WORDS.index[NONE]: said[..., -1:]}
        columns |= {_FIRST + letter: said[..., letter, None] for letter in range(len(_LETTERS))}
        logits = torch.cat([columns.get(word, never) for word in range(len(_WORDS.words))], dim=-1)
        blank = torch.full_like(logits[..., :1, :], _NEVER)
        blank[..., _WORDS.index[BLANK]] = 0
        return torch.cat([blank, logits], dim=-2)

    def _weights(self, row: int, n: int, loop: Loop) -> tuple[Float[Tensor, "n C"], Float[Tensor, " n"]]:
        """A for the candidates within a list of n, and the share of attention that stays in it."""
        table = (self.config.sharpness * self.logits[row]).softmax(dim=-1)
        if self.config.fixed:
            there = torch.arange(len(table), device=table.device) == _FAMILY.candidates.index(-1)
            table = there.to(table.dtype)
        a, m = split_weights(table.expand(1, n, -1), _inside(n, loop, table.device))
        return a[0], m

    def _attended(self, x: Tensor, row: int, loop: Loop) -> tuple[Tensor, Tensor]:
        """Σ_r A_r x(i + r s), and m. ``x`` has letters (row 0) or tables (row 1) at its positions."""
        axis = -2 if row == 0 else -4
        flat = x if row == 0 else x.flatten(-3)
        n = x.shape[axis]
        a, m = self._weights(row, n, loop)
        parts = [
            a[:, place, None] * rows(flat, r * loop.stride, n + r * loop.stride)
            for place, r in enumerate(_FAMILY.candidates)
            if abs(r) * loop.stride < n
        ]
        return sum(parts[1:], parts[0]).view(x.shape), m

    def _written(self, keys: Float[Tensor, "*batch n A"], h: Float[Tensor, "*batch n A"]) -> Tensor:
        """Tables of one entry: the value ``h`` under the key."""
        key, value = self.write.first.weight.unbind(dim=-1)
        return self.write.after(keys[..., :, None, None] * key + h[..., None, :, None] * value)

    def _scanned(self, t: Float[Tensor, "*batch n A A w"]) -> Float[Tensor, "*batch n A A w"]:
        """The tables of all prefixes."""
        own, left, own_row, left_row = self.join.first.weight.split(self.config.words, dim=-1)
        for loop in _FAMILY.loops(t.shape[-4]):
            other, m = self._attended(t, 1, loop)
            by_row = t.sum(dim=-2) @ own_row.mT + other.sum(dim=-2) @ left_row.mT
            joined = self.join.after(t @ own.mT + other @ left.mT + by_row[..., None, :])
            t = torch.lerp(t, joined, m[:, None, None, None].to(t.dtype))
        return t

    def _read(self, t: Float[Tensor, "*batch n A A w"], letters: Float[Tensor, "*batch n A"]) -> Float[Tensor, "*batch n A"]:
        """The values under the key of each position's own letter."""
        own, row, mine = self.read.first.weight.split((self.config.words, self.config.words, 1), dim=-1)
        by_row = t.sum(dim=-2) @ row.mT + letters[..., None] * mine[:, 0]
        return self.read.after(t @ own.mT + by_row[..., None, :])[..., 0].sum(dim=-2)

    def _check_fits(self, x: Tensor) -> None:
        """Raises if the tables do not fit in memory."""
        if not torch.compiler.is_compiling():
            gradients, n = torch.is_grad_enabled(), x.shape[-1]
            check_fits(x.numel() // n, n, self.config.numbers_per_position(n, gradients), 4, x.device, gradients)


