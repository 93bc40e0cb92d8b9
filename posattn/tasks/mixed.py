"""Mixed-type inputs (Section 7.3, Appendix D.3): categories with values, and a query about some of them, as one list.

A prompt has n = 8 categories with distinct identifiers and one value per category, m = 2 irrelevant elements at random places
before the query (also between a category and its value), and a query for the min, max or sum of the values of k = 4 categories:

    ['Cat2', 3.45, 'Cat+7', 'Cat5', 1.23, ..., 'Find min of Cat5, Cat8, Cat11 and Cat20']

In distribution identifiers are 1..20, irrelevant elements have + or -, and values lie in [0, 5]. Out of distribution (``scale``
c > 1) all three differ: identifiers are 21..40, signs _ or *, and values lie in [0, 5c], with the rejection step of
Section 7.2. Categories, in the list and in the query, are in ascending order, as in the paper's two examples. Values are
multiples of 0.01, so that a prompt's text is exact.

``posattn/tasks/prompts.py`` prints and parses prompts, and ``posattn/tasks/layouts.py`` says which position reads what.
Letters: c scale, u, v, w uniform on [0, 1).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from posattn.errors import UsageError, instance
from posattn.tasks import prompts
from posattn.tasks.layouts import elements_of, laid_out, layout_named, layout_of, positions_in_words
from posattn.tasks.prompts import CATEGORIES, ELEMENTS, IRRELEVANT, POSITIONS, QUERIED, WORDS
from posattn.tasks.sampling import two_bounds
from posattn.tasks.token_task import TokenTask
from posattn.tokens.vocabulary import FIRST_TYPE, IDENTIFIERS, SIGNS, TYPES, category, word_code, word_index

LIMIT = 5.0  # the largest training value
_HALF = len(IDENTIFIERS) // 2  # identifiers in distribution, and as many out of it
_FIRST = {"id": 0, "ood": _HALF}
# How many uniform numbers each part of a prompt takes.
_PARTS = {"identifiers": _HALF, "asked": CATEGORIES, "repeated": IRRELEVANT, "signs": IRRELEVANT}
_PARTS |= {"places": ELEMENTS, "kind": 1, "bounds": 3, "values": CATEGORIES}


def answers(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch 1"]:
    """The answer to each prompt; every number is the value of the last category before it."""
    x = elements_of(x)
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
    kind = index[ELEMENTS] - FIRST_TYPE
    return found.gather(0, kind[None]).movedim(0, -1)


@dataclass(frozen=True)
class MixedTask(TokenTask):
    """A task on prompts; ``kinds`` are the queries that they may have."""

    kinds: tuple[str, ...] = TYPES

    TOKENS: ClassVar[str] = "prompts"
    NETWORK: ClassVar[dict[str, Any]] = {"n": POSITIONS, "tokens": "prompts", "layers": 3, "embed": 32, "width": 32}
    INPUTS: ClassVar[str] = "prompts"
    UNIFORMS: ClassVar[int | None] = sum(_PARTS.values())

    def _purpose(self, split: str, n: int, where: str, c: float) -> tuple[str | int, ...]:
        """What names the stream; the task is no part of it, so the prompts of two tasks differ only in their queries."""
        if layout_of(n) is None:
            raise UsageError(f"n is {n!r}; a prompt of {self.name} has {positions_in_words()}.")
        return "mixed", split, where, repr(c)

    def _sequences(
        self, u: Float[Tensor, "*members count all"], where: str, c: float
    ) -> Float[Tensor, "*members count n"]:
        parts = dict(zip(_PARTS, u.split(list(_PARTS.values()), dim=-1), strict=True))
        identifiers = _some(parts["identifiers"], CATEGORIES) + _FIRST[where]  # ascending, as indices of words
        words = torch.tensor([FIRST_TYPE + TYPES.index(kind) for kind in self.kinds], device=u.device)
        kind = words[(parts["kind"] * len(self.kinds)).long()]
        asked = identifiers.gather(-1, _some(parts["asked"], QUERIED))
        return torch.cat([_list(parts, identifiers, where, c), word_code(torch.cat([kind, asked], dim=-1))], dim=-1)

    def laid_out(self, x: Float[Tensor, "*batch e"], n: int) -> Float[Tensor, "*batch n"]:
        return laid_out(x, n)

    def spell(self, tokens: Float[Tensor, " n"]) -> str:
        """The prompt in the paper's notation."""
        return prompts.write(elements_of(tokens))

    def encode(self, text: str, layout: str = "elements") -> Float[Tensor, " n"]:
        """The numbers that a network of a layout reads for a prompt in the paper's notation."""
        laid_out = layout_named(layout).lay_out
        x = prompts.parse(instance("the prompt", text, str, "a text such as ['Cat2', 3.45, ...]").strip())
        kind = WORDS.words[int(word_index(x)[ELEMENTS])].strip()
        if kind not in self.kinds:
            raise UsageError(
                f"the prompt's query asks for {kind!r}; the task {self.name} answers {' and '.join(self.kinds)}."
            )
        return laid_out(x)


def _list(parts: dict[str, Tensor], identifiers: Tensor, where: str, c: float) -> Float[Tensor, "*members count e"]:
    """The part before the query: categories and values in turn, with irrelevant elements at their places among them."""
    values = _values(parts, c)
    pairs = torch.stack([word_code(identifiers).to(values.dtype), values], dim=-1).flatten(-2)
    repeated = identifiers.gather(-1, (parts["repeated"] * CATEGORIES).long())
    first_signed = torch.tensor([WORDS.index[category(1, sign)] for sign in SIGNS[where]], device=repeated.device)
    noise = word_code(first_signed[(parts["signs"] * len(SIGNS[where])).long()] + repeated)
    order = torch.zeros_like(parts["places"], dtype=torch.int64)
    order.scatter_(-1, _some(parts["places"], IRRELEVANT), 1)  # 1 where an irrelevant element stands
    taken = torch.where(order == 1, 2 * CATEGORIES + order.cumsum(dim=-1) - 1, (1 - order).cumsum(dim=-1) - 1)
    return torch.cat([pairs, noise.to(pairs.dtype)], dim=-1).gather(-1, taken)


def _some(u: Float[Tensor, "*members count all"], wanted: int) -> Tensor:
    """``wanted`` random indices without replacement, ascending."""
    return u.argsort(dim=-1, stable=True)[..., :wanted].sort(dim=-1).values


def _values(parts: dict[str, Tensor], c: float) -> Float[Tensor, "*members count n"]:
    """Uniform between two bounds, which are uniform on [0, 5c] and, for c > 1, not both in [0, 5]; to two decimals."""
    # Uniform on [0, 5c), and on (5, 5c].
    within, outside = (lambda u, c: LIMIT * c * u), (lambda u, c: LIMIT * c - LIMIT * (c - 1) * u)
    low, high = (bound[..., None] for bound in two_bounds(parts["bounds"].double(), c, within, outside))
    values = low + (high - low) * parts["values"]
    return ((100 * values).round() / 100).clamp(max=LIMIT * c).float()


MIXED = tuple(
    MixedTask(f"mixed-{name}", f"mixed type, {' or '.join(kinds)}", answers, kinds=kinds)
    for name, kinds in {**{kind: (kind,) for kind in TYPES}, "multitask": ("min", "max")}.items()
)
ANY_QUERY = MixedTask("mixed", "mixed type, min, max or sum", answers)  # reads all prompts; nothing is trained on it
