"""A looped network with a table as its state, for k-hop induction heads: k scans with communication fixed beforehand.

docs/tokens.md has the argument, what is learned and what is built in. In each scan position j *writes* its value under
the key s_{j-1}, tables *join*, and position i *reads* what the position before it holds under the key s_i, or finds
nothing. A row of a table has an entry per value and one more, the *mark*, which is written whatever the value is. Keys
are the same in all hops, so marks and gates are computed once. Three small MLPs, each the same for all entries:

    write   an entry, from whether its key and its value are there
    join    the share g of the earlier row that stays, from the marks of both rows: T ← T + g (T_earlier - T), 0 ≤ g ≤ 1
    read    the logit of a value, from its entry and the mark of the row s_i

Letters: n positions, B sequences, A letters of the alphabet, w words per entry, T (n, B, A, A w) the tables
and (n, B, A, w) their marks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from posattn.errors import UsageError, choice, flag, positive
from posattn.looped.families import FAMILIES, Loop
from posattn.looped.offsets import rows, split_weights
from posattn.network import KINDS_BY_ARCH, NetworkConfig, check_input, check_memory
from posattn.tokens.vocabulary import ALPHABETS, BLANK, HOPS, NONE, VOCABULARIES

_WORDS = VOCABULARIES["letters"]
_LETTERS = "".join(ALPHABETS.values())
_FIRST = _WORDS.index[_LETTERS[0]]  # of the letters, which follow one another in the vocabulary
_FAMILY = FAMILIES["dilated"]
_NEVER = -1e4  # the logit of words that are no answer
_GIVEN = 30.0  # that of the letter itself, where no hop is asked for; half of it is that of none
_SHORT = 64  # positions: up to so many, attention is a product with a matrix, which a CPU does fastest

Attend = Callable[[Tensor], Tensor]
Joins = list[tuple[Attend, Tensor]]  # per loop, and the share of attention that stays in the sequence


@dataclass(frozen=True)
class TableConfig(NetworkConfig):
    """What determines a table network up to its weights.

    Args:
        n: the longest sequence trained on, the hop count included; the network takes every length.
        words: w, the words of an entry.
        width: hidden width of the MLPs.
        sharpness: S, the factor on the attention logits; a recipe may let it grow to this value.
        fixed: attention is that of a scan, to i - 2^l in loop l and to i - 1 for keys and reads; else it is learned.
    """

    n: int
    arch: str = "table"
    words: int = 2
    width: int = 16
    sharpness: float = 100.0
    fixed: bool = False

    kind: ClassVar[str] = "table"
    any_length: ClassVar[bool] = True
    tokens: ClassVar[str] = "letters"
    reads: ClassVar[str] = "letters"
    recipe: ClassVar[str] = "table"
    sharpened: ClassVar[str] = "logits"
    layers: ClassVar[int] = 1
    encoding: ClassVar[str] = "one-hot"  # what result rows say

    def __post_init__(self) -> None:
        choice("arch", self.arch, ["table"])
        self._count("n", "words", "width")
        self._set("sharpness", positive("sharpness", self.sharpness))
        flag("fixed", self.fixed)

    @property
    def least_numbers(self) -> int:
        """The weights of the three MLPs, without biases."""
        return self.width * (5 * self.words + 4)

    def numbers_per_position(self, n: int, gradients: bool) -> int:
        """How many numbers a position of a sequence of n takes in memory, about."""
        letters = len(_LETTERS)
        table, hidden = letters * (letters + 1) * self.words, letters * (letters + 1) * self.width
        kept = 3 * table * (len(_FAMILY.loops(n)) + 2) + 2 * hidden if gradients else 0
        return 4 * table + 2 * hidden + kept * (len(HOPS) - 1)

    def build(self) -> "TableNetwork":
        return TableNetwork(self)


KINDS_BY_ARCH["table"] = TableConfig


class TableNetwork(nn.Module):
    """Sequences of a hop count and letters (..., k) in, a logit per word (..., k, V) out, for every k."""

    def __init__(self, config: TableConfig):
        super().__init__()
        config.require_room()
        self.config = config
        w, hidden = config.words, config.width
        self.logits = nn.Parameter(torch.zeros(2, len(_FAMILY.candidates) + 1))  # for keys and reads, and for joins
        self.write = two_layers(2, hidden, w)
        self.join = _gate(w, hidden)
        self.read = two_layers(2 * w, hidden, 1)
        self.decoder = nn.Parameter(torch.tensor([5.0, 0.5]))  # a factor on all logits, and the logit of none

    @property
    def input_dtype(self) -> torch.dtype:
        return torch.int64

    def forward(self, x: Int64[Tensor, "*batch k"]) -> Float[Tensor, "*batch k V"]:
        check_input(x, self.input_dtype)
        if x.shape[-1] < 2:
            raise UsageError("the sequence is a hop count alone; this network takes a hop count and letters.")
        check_memory(self, x)
        tokens = x.reshape(-1, x.shape[-1])
        hops, letters = tokens[:, 0], tokens[:, 1:].mT - _FIRST
        slots, count = self._slots(hops, letters)
        index = torch.arange(count, device=x.device)
        one_hot = (slots[letters][..., None] == index).to(self.decoder.dtype)
        said = torch.stack(list(self.hops(one_hot, len(HOPS) - 1, others=count < len(_LETTERS))))
        asked = hops == torch.arange(len(HOPS), device=x.device)[:, None]
        found = (said * asked[:, None, :, None]).sum(dim=0)
        logits = self._words(found[..., slots], found[..., -1:])
        return logits.transpose(0, 1).reshape(*x.shape, len(_WORDS.words))

    def _slots(self, hops: Int64[Tensor, " B"], letters: Int64[Tensor, "n B"]) -> tuple[Int64[Tensor, " A"], int]:
        """The row of each letter, and how many rows there are.

        On a CPU, which tells, only letters that occur have one. All others are alike to the network; their slot is the last.
        Only there other words than a hop count and letters are refused. On a GPU that check would wait for the device, so the
        caller answers for the words: others are an index error of CUDA, or count as a letter from the end of the alphabet.
        """
        every = torch.arange(len(_LETTERS), device=letters.device)
        if letters.device.type != "cpu" or torch.compiler.is_compiling():
            return every, len(every)
        known = bool(((hops >= 0) & (hops < len(HOPS))).all()) and bool(((letters >= 0) & (letters < len(every))).all())
        if not known:
            allowed = f"a hop count, {HOPS[0]} to {HOPS[-1]}, and then letters, {_LETTERS[0]} to {_LETTERS[-1]}"
            raise UsageError(f"the sequence has other words; it must be {allowed}.")
        there = (letters.flatten() == every[:, None]).any(dim=1)
        count = max(int(there.sum()), 1)  # none occurs in an empty batch
        return torch.where(there, there.cumsum(dim=0) - 1, count), count

    def hops(
        self, letters: Float[Tensor, "n B A"], count: int, others: bool = False
    ) -> Iterator[Float[Tensor, "n B said"]]:
        """The answers after 0 to ``count`` hops: a logit per letter and, last, that of none. Any alphabet will do.

        ``others`` adds, before the last, the logit of any letter that does not occur.
        """
        before, joins = self._attention(len(letters))
        keys, h = before(letters), nn.functional.pad(letters, (0, int(others)))
        yield _GIVEN * nn.functional.pad(h, (0, 1), value=0.5)
        marks, gates = self._marked(keys, joins)
        mark = self._row(self._heard(before, marks), letters)
        for _ in range(count):
            t = self._written(keys, h)
            for (hear, _), gate in zip(joins, gates, strict=True):
                t = torch.lerp(t, hear(t), gate)
            said = self._read(self._row(self._heard(before, t), letters), mark)
            h = torch.sigmoid(said[..., :-1] - said[..., -1:])
            yield said

    def _words(self, letters: Float[Tensor, "n B A"], none: Float[Tensor, "n B 1"]) -> Float[Tensor, "k B V"]:
        """Logits of the vocabulary, with a blank before the letters."""
        never = torch.full_like(none, _NEVER)
        columns = {_WORDS.index[NONE]: none}
        columns |= {_FIRST + letter: letters[..., letter, None] for letter in range(len(_LETTERS))}
        logits = torch.cat([columns.get(word, never) for word in range(len(_WORDS.words))], dim=-1)
        blank = torch.full_like(logits[:1], _NEVER)
        blank[..., _WORDS.index[BLANK]] = 0
        return torch.cat([blank, logits])

    def weights(self) -> Float[Tensor, "uses C1"]:
        """softmax(S T): what keys and reads, and what joins give to the candidates and, last, to the sink."""
        if not self.config.fixed:
            return (self.config.sharpness * self.logits).softmax(dim=-1)
        there = torch.arange(self.logits.shape[-1], device=self.logits.device) == _FAMILY.candidates.index(-1)
        return there.to(self.logits.dtype).expand_as(self.logits)

    def _attention(self, n: int) -> tuple[Attend, Joins]:
        """What keys and reads go through and, per loop of a scan, what joins do and the share that stays in the sequence."""
        keys, joins = self.weights().unbind()
        return attend(keys, n, Loop(1))[0], [attend(joins, n, loop) for loop in _FAMILY.loops(n)]

    def _written(self, keys: Float[Tensor, "n B A"], h: Float[Tensor, "n B values"]) -> Float[Tensor, "n B A row"]:
        """Tables of one row: the values ``h`` under the key."""
        pairs = torch.broadcast_tensors(keys[..., :, None], h[..., None, :])
        return self.write(torch.stack(pairs, dim=-1)).flatten(-2)

    def _marked(self, keys: Float[Tensor, "n B A"], joins: Joins) -> tuple[Float[Tensor, "n B A w"], list[Tensor]]:
        """The marks of all prefixes, and the gates of every join, which are the same for all hops."""
        marks, gates = self._written(keys, torch.ones_like(keys[..., :1])), []
        for hear, m in joins:
            earlier = hear(marks)
            gates.append(m[:, None, None, None] * self.join(torch.cat([marks, earlier], dim=-1)).clamp(0, 1))
            marks = torch.lerp(marks, earlier, gates[-1])
        return marks, gates

    def _heard(self, before: Attend, t: Float[Tensor, "n B A row"]) -> Float[Tensor, "n B A row"]:
        """The tables that positions read: by the attention that finds keys, so that of the position before."""
        return before(t)

    def _row(self, t: Float[Tensor, "n B A row"], letters: Float[Tensor, "n B A"]) -> Float[Tensor, "n B values w"]:
        """The row under the key of each position's own letter."""
        return (letters[..., None, :] @ t)[..., 0, :].unflatten(-1, (-1, self.config.words))

    def _read(
        self, entries: Float[Tensor, "n B values w"], mark: Float[Tensor, "n B 1 w"]
    ) -> Float[Tensor, "n B said"]:
        """A logit per value, and that of none."""
        found = self.read(torch.cat([entries, mark.expand_as(entries)], dim=-1))[..., 0]
        factor, none = self.decoder
        return factor * torch.cat([found, none.expand(*found.shape[:-1], 1)], dim=-1)


def attend(given: Float[Tensor, " C1"], n: int, loop: Loop) -> tuple[Attend, Float[Tensor, " n"]]:
    """The function from x to Σ_r A_r x(i + r s), and the share of attention that stays in the sequence."""
    a, m = split_weights(given.expand(1, n, -1), _FAMILY.inside(n, loop, given.device))
    if n <= _SHORT:
        places = _FAMILY.places(n, loop, given.device).mT[..., None]
        shifts = (torch.arange(n, device=given.device) == places).to(given.dtype)  # a matrix (n, n) for each candidate
        matrix = (given[:-1] @ shifts.flatten(1)).view(n, n)
        return lambda x: (matrix @ x.flatten(1)).view(x.shape), m

    def by_shifts(x: Float[Tensor, "n *more"]) -> Float[Tensor, "n *more"]:
        parts = [
            a[0, :, place, None] * rows(x.flatten(1), r * loop.stride, n + r * loop.stride)
            for place, r in enumerate(_FAMILY.candidates)
            if abs(r) * loop.stride < n
        ]
        return sum(parts[1:], parts[0]).view(x.shape)

    return by_shifts, m


def two_layers(d_in: int, hidden: int, d_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(d_in, hidden), nn.ReLU(), nn.Linear(hidden, d_out))


def _gate(words: int, hidden: int) -> nn.Sequential:
    """A gate from two marks that is open both ways at first."""
    first, last = nn.Linear(2 * words, hidden), nn.Linear(hidden, 1)
    nn.init.constant_(last.bias, 0.5)
    return nn.Sequential(first, nn.ReLU(), last)
