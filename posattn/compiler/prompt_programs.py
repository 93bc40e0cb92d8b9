"""``mixed``: the program that answers every prompt of mixed type (Appendix D.3), in each layout of ``posattn.tasks.layouts``.

A machine is a position of the layout. It is given a word, counted from 1, and 0 and a number where the prompt has a number. All
that differs between layouts is how a machine learns three things, with whole numbers alone:

    owner    the last category before it without a sign, whose value a number is
    asked    the four categories of the query
    kind     what the query asks for

Then a scan joins the numbers whose owners are asked for, and the first machine has the answer. No number is compared with
anything but another such number.
"""

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from posattn.compiler.function_programs import program
from posattn.compiler.program_messages import send
from posattn.compiler.program_numbers import Real, Whole, both, either, maximum, minimum, select
from posattn.compiler.programs import doublings
from posattn.errors import UsageError
from posattn.tasks.layouts import LAYOUTS, elements_of, layout_of
from posattn.tasks.mixed import ANY_QUERY, MIXED, answers
from posattn.tasks.prompts import CATEGORIES, ELEMENTS, IRRELEVANT
from posattn.tokens.vocabulary import FIRST_TYPE, IDENTIFIERS, TYPES, VOCABULARIES

_ABOVE = 100  # above every identifier of two digits
_CODES = {character: index + 1 for character, index in VOCABULARIES["characters"].index.items()}
_ZERO = _CODES["0"]
_OWNED = len("Cat12") + IRRELEVANT * len("Cat+12")  # characters from the beginning of a category to its value, at most
_MOST_WORDS = max(len(VOCABULARIES[layout.tokens].words) for layout in LAYOUTS.values())
Steps = Generator[Any, Any, tuple[Any, list[Any], Any]]


@program(word=Whole(0, _MOST_WORDS), number=Real(0))
def mixed(me: Any, n: int, word: Any, number: Any) -> Any:
    """The answer to a prompt of mixed type, at the first machine."""
    numeric = word == 0
    read = _of_elements if n == LAYOUTS["elements"].positions else _of_characters
    owner, asked, kind = yield from read(me, n, word)
    there = both(numeric, either(*(owner == each for each in asked)))
    largest, summed = kind == TYPES.index("max"), kind == TYPES.index("sum")
    found = select(there, select(largest, -number, number), 0)  # the largest number is the least of the negative ones
    for reach in doublings(_listed(n)):
        heard = yield send(me - reach, there, found, when=me >= reach)
        found, there = _joined(heard, there, found, summed)
    return select(me == 0, select(largest, -found, found), 0)


def _joined(heard: Any, there: Any, found: Any, summed: Any) -> tuple[Any, Any]:
    """Two stretches of the list as one; what is not there is 0."""
    too, other = heard.get(0), heard.get(1)
    return select(both(there, too, ~summed), minimum(found, other), found + other), either(there, too)


def _listed(n: int) -> int:
    """On how many machines the list before the query lies, at most."""
    return ELEMENTS if n == LAYOUTS["elements"].positions else CATEGORIES * len("Cat12_") + IRRELEVANT * len("Cat+12")


def _of_elements(me: Any, n: int, word: Any) -> Steps:
    """The operation and the categories of the query have machines of their own; an owner is at most three machines away."""
    category = select((word >= 1) & (word <= len(IDENTIFIERS)), word, 0)
    *near, kinds, asked = yield [
        *(send(me + step, category, when=me + step < n) for step in range(1, IRRELEVANT + 2)),
        send(range(ELEMENTS), word - (1 + FIRST_TYPE), when=me == ELEMENTS),
        send(range(ELEMENTS), category, when=me > ELEMENTS),
    ]
    return _nearest([inbox.get() for inbox in near]), [place[0] for place in asked], kinds.get()


def _nearest(categories: Sequence[Any]) -> Any:
    """The first that is not 0."""
    first, *others = categories
    return select(first > 0, first, _nearest(others)) if others else first


def _of_characters(me: Any, n: int, word: Any) -> Steps:
    """A category is read at its C. Of the query, the text before it tells the first and the last; of the two between them
    the larger identifier travels as it is, and the smaller one as its difference from 100: both are then maxima.
    """
    heard = yield [
        *(send(me - step, word, when=me >= step) for step in (3, 4)),
        send(me + 2, word, when=me + 2 < n),
    ]
    owner, first, last, larger, rest, kind = _spelled(word, *(inbox.get() for inbox in heard))
    for reach in doublings(n):
        sends = [send(me - reach, first, last, larger, rest, kind, when=me >= reach)]
        if reach <= _OWNED:
            sends.append(send(me + reach, owner, when=me + reach < n))
        query, *before = yield sends
        first, last, kind = (own + query.get(place) for own, place in ((first, 0), (last, 1), (kind, 4)))
        larger, rest = (maximum(own, query.get(place)) for own, place in ((larger, 2), (rest, 3)))
        owner = _nearest([owner, *(inbox.get() for inbox in before)])
    return owner, [first, last, larger, _ABOVE - rest], kind


def _spelled(word: Any, third: Any, fourth: Any, before: Any) -> tuple[Any, ...]:
    """What a machine knows of categories and query from its character and those near it."""
    one, two = (_is_digit(character) for character in (third, fourth))
    identifier = select(two, 10 * third + fourth - 11 * _ZERO, third - _ZERO)
    category = select(both(word == _CODES["C"], one), identifier, 0)
    first, last, between = (select(before == _CODES[character], category, 0) for character in "fd,")
    rest = select(between > 0, _ABOVE - between, 0)
    kind = (word == _CODES["x"]) + 2 * (word == _CODES["u"])
    return category, first, last, between, rest, kind


def _is_digit(character: Any) -> Any:
    return (character >= _ZERO) & (character <= _ZERO + 9)


def machine_inputs(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n 2"]:
    """The word and the number of every machine, from prompts in a layout; raises if they are none."""
    elements_of(x)
    return torch.stack([(-x).clamp_min(0), x.clamp_min(0)], dim=-1)


@mixed.truth
def _truth(word: list[int], number: list[float]) -> list[float]:
    prompt = torch.tensor(number, dtype=torch.float64) - torch.tensor(word)
    return [answers(prompt).item()] + [0.0] * (len(word) - 1)


@mixed.samples
def _prompts(random: np.random.Generator, n: int) -> list[list[float]]:
    """A prompt of scale 1 to 10."""
    x, _ = ANY_QUERY.sample(1, n=n, scale=float(random.integers(1, 11)), seed=int(random.integers(1 << 31)))
    return machine_inputs(x[0].double()).tolist()


def _machines(n: int) -> int:
    if layout_of(n) is None:
        known = " or ".join(str(own) for own in dict.fromkeys(layout.positions for layout in LAYOUTS.values()))
        raise UsageError(f"machines is {n}; mixed takes {known}, one for each position of a layout of prompts.")
    return n


mixed.task, *_others = (task.name for task in MIXED)
mixed.also, mixed.machines = tuple(_others), _machines
