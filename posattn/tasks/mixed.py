"""Mixed-type inputs (Section 7.3, Appendix D.3): categories with values, and a query about some of them, as one list.

A prompt has n = 8 categories with distinct identifiers and a value each, m = 2 irrelevant elements at random places before the
query, also between a category and its value, and a query for the min, max or sum of the values of k = 4 categories:

    ['Cat2', 3.45, 'Cat+7', 'Cat5', 1.23, ..., 'Find min of Cat5, Cat8, Cat11 and Cat20']

In distribution identifiers are 1..20, irrelevant elements have + or -, and values lie in [0, 5]. Out of it (``scale`` c > 1)
all three differ: 21..40, _ or *, and values in [0, 5c], with the rejection step of Section 7.2. Categories, and those asked
for, are in ascending order, as in the paper's two examples. Values are multiples of 0.01: a prompt's text says all of it.

``posattn/tasks/prompts.py`` has the layout of a prompt as numbers, prints and reads it.
Letters: c scale, u, v, w uniform on [0, 1).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from posattn.errors import UsageError
from posattn.tasks import prompts
from posattn.tasks.prompts import CATEGORIES, ELEMENTS, IRRELEVANT, POSITIONS, QUERIED, WORDS
from posattn.tasks.sampling import not_both_inside
from posattn.tasks.token_task import TokenTask
from posattn.tokens.vocabulary import IDENTIFIERS, SIGNS, TYPES, category, word_code, word_index

LIMIT = 5.0  # of the training range
_HALF = len(IDENTIFIERS) // 2  # identifiers in distribution, and out of it
_FIRST = {"id": 0, "ood": _HALF}
# How many uniform numbers each part of a prompt takes.
_PARTS = {
    "identifiers": _HALF,
    "asked": CATEGORIES,
    "repeated": IRRELEVANT,
    "signs": IRRELEVANT,
    "places": ELEMENTS,
    "kind": 1,
    "bounds": 3,
    "values": CATEGORIES,
}


def answers(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch 1"]:
    """The answer to each prompt: every number is the value of the last category before it."""
    columns, index = x.movedim(-1, 0), word_index(x).movedim(-1, 0)
    values = x.new_zeros((len(IDENTIFIERS), *x.shape[:-1]))
    current = torch.zeros_like(index[0])
    for element, word in zip(columns[:ELEMENTS], index[:ELEMENTS], strict=True):
        plain = (element < 0) & (word < len(IDENTIFIERS))
        current = torch.where(plain, word, current)
        known = values.gather(0, current[None])
        values.scatter_(0, current[None], torch.where(element >= 0, element, known[0])[None])
    asked = values.gather(0, index[ELEMENTS + 1 :])
    found = torch.stack([asked.amin(dim=0), asked.amax(dim=0), asked.double().sum(dim=0).to(x.dtype)])
    kind = index[ELEMENTS] - WORDS.index[TYPES[0].ljust(6)]
    return found.gather(0, kind[None]).movedim(0, -1)


@dataclass(frozen=True)
class MixedTask(TokenTask):
    """A row of the table: ``kinds`` are the queries that its prompts may have."""

    kinds: tuple[str, ...] = TYPES

    TOKENS: ClassVar[str] = "prompts"
    NETWORK: ClassVar[dict[str, Any]] = {"n": POSITIONS, "tokens": "prompts", "layers": 3, "embed": 32, "width": 32}
    INPUTS: ClassVar[str] = "prompts"

    def _purpose(self, split: str, n: int, where: str, c: float) -> tuple[str | int, ...]:
        """Not the task, so that tasks differ in what they ask for alone."""
        if n != POSITIONS:
            raise UsageError(f"n is {n!r}; a prompt of {self.name} has {POSITIONS} positions.")
        return "mixed", split, where, repr(c)

    def _uniforms(self, n: int) -> int:
        return sum(_PARTS.values())

    def _sequences(
        self, u: Float[Tensor, "*members count all"], where: str, c: float
    ) -> Float[Tensor, "*members count n"]:
        parts = dict(zip(_PARTS, u.split(list(_PARTS.values()), dim=-1), strict=True))
        return torch.cat([_list(parts, where, c), self._query(parts, where)], dim=-1)

    def _query(self, parts: dict[str, Tensor], where: str) -> Float[Tensor, "*members count q"]:
        words = torch.tensor([WORDS.index[kind.ljust(6)] for kind in self.kinds], device=parts["kind"].device)
        kind = words[(parts["kind"] * len(self.kinds)).long()]
        asked = _identifiers(parts, where).gather(-1, _some(parts["asked"], QUERIED))
        return word_code(torch.cat([kind, asked], dim=-1))

    def spell(self, tokens: Float[Tensor, " n"]) -> str:
        """The prompt in the paper's notation."""
        return prompts.write(tokens)

    def encode(self, text: str) -> Float[Tensor, " n"]:
        """A prompt in the paper's notation as a network reads it."""
        x = prompts.parse(text.strip())
        kind = WORDS.words[int(word_index(x)[ELEMENTS])].strip()
        if kind not in self.kinds:
            raise UsageError(
                f"the prompt's query asks for {kind!r}; the task {self.name} answers {' and '.join(self.kinds)}."
            )
        return x


def _list(parts: dict[str, Tensor], where: str, c: float) -> Float[Tensor, "*members count e"]:
    """Categories and values in turn, irrelevant elements at their places among them."""
    identifiers, values = _identifiers(parts, where), _values(parts, c)
    pairs = torch.stack([word_code(identifiers).to(values.dtype), values], dim=-1).flatten(-2)
    repeated = identifiers.gather(-1, (parts["repeated"] * CATEGORIES).long())
    first_signed = torch.tensor([WORDS.index[category(1, sign)] for sign in SIGNS[where]], device=repeated.device)
    noise = word_code(first_signed[(parts["signs"] * len(SIGNS[where])).long()] + repeated)
    order = torch.zeros_like(parts["places"], dtype=torch.int64)
    order.scatter_(-1, _some(parts["places"], IRRELEVANT), 1)  # 1 where an irrelevant element stands
    taken = torch.where(order == 1, 2 * CATEGORIES + order.cumsum(dim=-1) - 1, (1 - order).cumsum(dim=-1) - 1)
    return torch.cat([pairs, noise.to(pairs.dtype)], dim=-1).gather(-1, taken)


def _identifiers(parts: dict[str, Tensor], where: str) -> Tensor:
    """Of the categories, ascending, as indices of words."""
    return _some(parts["identifiers"], CATEGORIES) + _FIRST[where]


def _some(u: Float[Tensor, "*members count all"], wanted: int) -> Tensor:
    """A random choice without replacement, ascending."""
    return u.argsort(dim=-1, stable=True)[..., :wanted].sort(dim=-1).values


def _values(parts: dict[str, Tensor], c: float) -> Float[Tensor, "*members count n"]:
    """Uniform between two bounds, which are uniform on [0, 5c] and, for c > 1, not both in [0, 5]; to two decimals."""
    u, v, w = parts["bounds"].double().unbind(dim=-1)
    first, second = (_within(v, c), _within(w, c)) if c <= 1 else not_both_inside(u, v, w, c, _within, _outside)
    low, high = torch.minimum(first, second)[..., None], torch.maximum(first, second)[..., None]
    values = low + (high - low) * parts["values"]
    return ((100 * values).round() / 100).clamp(max=LIMIT * c).float()


def _within(u: Tensor, c: float) -> Tensor:
    """Uniform on [0, 5c)."""
    return LIMIT * c * u


def _outside(u: Tensor, c: float) -> Tensor:
    """Uniform on (5, 5c]."""
    return LIMIT * c - LIMIT * (c - 1) * u


MIXED = tuple(
    MixedTask(f"mixed-{name}", f"mixed type, {title}", answers, kinds=kinds)
    for name, title, kinds in (
        ("min", "min", ("min",)),
        ("max", "max", ("max",)),
        ("sum", "sum", ("sum",)),
        ("multitask", "min or max", ("min", "max")),
    )
)
