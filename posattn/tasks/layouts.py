"""Layouts of prompts: which position of a network reads what. The paper's words leave several open, so it is a choice.

A prompt is sampled, parsed and answered as *elements*, 23 numbers (``posattn/tasks/prompts.py``). A layout turns these into
what a network reads, and back. All prompts of a layout have the same length, which tells the layout of a tensor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from posattn.errors import UsageError, choice, counted
from posattn.tasks.prompts import CATEGORIES, ELEMENTS, IRRELEVANT, POSITIONS, QUERIED, WORDS, check_layout, check_words
from posattn.tokens.vocabulary import FIRST_TYPE, IDENTIFIERS, PAD, SIGNS, TYPES, VOCABULARIES, word_code, word_index

_CHARACTERS = VOCABULARIES["characters"]
_BEFORE = {ELEMENTS: "Find ", ELEMENTS + 1: " of "}  # the text of the query before an element
_BEFORE |= {place: ", " for place in range(ELEMENTS + 2, POSITIONS - 1)} | {POSITIONS - 1: " and "}
_STARTS = ELEMENTS + QUERIED  # numbers and categories of a prompt
_LETTER = len(TYPES[0]) // 2  # the letter that tells min, max and sum apart
# The length of the longest prompt: two digits in every identifier.
_LONGEST = len("Cat21") * (CATEGORIES + QUERIED) + len("Cat+21") * IRRELEVANT + CATEGORIES  # with the values
_LONGEST += len("".join(_BEFORE.values())) + len(TYPES[0])


@dataclass(frozen=True)
class Layout:
    """``lay_out`` takes elements to what a network with this vocabulary reads; ``elements`` takes it back."""

    tokens: str
    positions: int
    lay_out: Callable[[Tensor], Tensor]
    elements: Callable[[Tensor], Tensor]


def _characters(x: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch n"]:
    """Elements spelled: every character of text a position, a number one position, and padding at the end."""
    out = x.new_full((*x.shape[:-1], _LONGEST + 1), _CHARACTERS.code(PAD))  # a column more for what is not there
    at = torch.zeros_like(x[..., :1], dtype=torch.int64)
    spelled = _spelled(x.device)

    def put(value: Tensor, there: Tensor) -> None:
        out.scatter_(-1, torch.where(there, at.clamp(max=_LONGEST), _LONGEST), value)
        at.add_(there)

    for place in range(POSITIONS):
        element = x[..., place, None]
        word, number = word_index(element), element >= 0
        for character in _BEFORE.get(place, ""):
            put(torch.full_like(element, _CHARACTERS.code(character)), torch.ones_like(number))
        put(element, number)
        for column in spelled.unbind(dim=-1):
            index = column[word]
            put(word_code(index).to(x.dtype), ~number & (index >= 0))
    return out[..., :-1]


def _elements_of_characters(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch e"]:
    """Elements from their characters; raises if these are no prompt, with the position at which they cease to be one."""
    check_words(x, _CHARACTERS, _LONGEST)
    index, number = word_index(x), x >= 0
    starts = number | (index == _CHARACTERS.index["C"])
    order = torch.where(starts, (starts.cumsum(dim=-1) - 1).clamp(max=_STARTS), _STARTS)
    where = torch.zeros((*x.shape[:-1], _STARTS + 1), dtype=torch.int64, device=x.device)
    where.scatter_(-1, order, torch.arange(_LONGEST, device=x.device).expand(x.shape))
    where = where[..., :-1]
    # After 'Cat' a sign or none, and one digit or two.
    after = [index.gather(-1, (where + step).clamp(max=_LONGEST - 1)) for step in (3, 4, 5)]
    signs = [_CHARACTERS.index[sign] for kind in SIGNS.values() for sign in kind]
    sign = torch.zeros_like(where)
    for row, own in enumerate(signs, start=1):
        sign += row * (after[0] == own)
    first, second = (torch.where(sign > 0, after[k + 1], after[k]) - _CHARACTERS.index["0"] for k in (0, 1))
    two = (second >= 0) & (second < 10)
    identifier = torch.where(two, 10 * first + second, first).clamp(IDENTIFIERS[0], IDENTIFIERS[-1])
    words = word_code(sign * len(IDENTIFIERS) + identifier - IDENTIFIERS[0]).to(x.dtype)
    found = torch.where(number.gather(-1, where), x.gather(-1, where), words)
    query = (index == _CHARACTERS.index["F"]).int().argmax(dim=-1, keepdim=True)
    letter = index.gather(-1, (query + len("Find ") + _LETTER).clamp(max=_LONGEST - 1))
    kind = torch.full_like(letter, FIRST_TYPE)
    for row, name in enumerate(TYPES):
        kind += row * (letter == _CHARACTERS.index[name[_LETTER]])
    elements = torch.cat([found[..., :ELEMENTS], word_code(kind).to(x.dtype), found[..., ELEMENTS:]], dim=-1)
    if not x.is_meta and bool((wrong := _characters(elements) != x).any()):
        position, value = int(wrong.nonzero()[0, -1]), float(x[wrong][0])
        said = f"{value:g}" if value >= 0 else repr(_CHARACTERS.words[int(-1 - value)])
        raise UsageError(f"position {position + 1} of the prompt is {said}; there is no prompt that has it there.")
    return check_layout(elements)


@cache
def _spelled(device: torch.device) -> Int64[Tensor, "V c"]:
    """The characters of every word, and -1 after its last."""
    words = [word.replace(" ", "") for word in WORDS.words]
    rows = [[_CHARACTERS.index[character] for character in word] for word in words]
    return torch.tensor([row + [-1] * (max(map(len, words)) - len(row)) for row in rows], device=device)


LAYOUTS = {
    "elements": Layout("prompts", POSITIONS, check_layout, check_layout),
    "elements-shared": Layout("elements-shared", POSITIONS, check_layout, check_layout),
    "characters": Layout("characters", _LONGEST, lambda x: _characters(check_layout(x)), _elements_of_characters),
}


def layout_named(name: str) -> Layout:
    """The layout of that name; raises if there is none."""
    return LAYOUTS[choice("layout", name, LAYOUTS)]


def layout_of(positions: int) -> Layout | None:
    """The layout of prompts on so many positions, if there is one."""
    return next((layout for layout in LAYOUTS.values() if layout.positions == positions), None)


def layout_for(tokens: str) -> tuple[str, Layout]:
    """The layout whose prompts are written in this vocabulary, and its name."""
    return next((name, layout) for name, layout in LAYOUTS.items() if layout.tokens == tokens)


def positions_in_words() -> str:
    """How many positions prompts have: ``23 positions in the layout elements, 23 in elements-shared and 101 in characters``."""
    (first, own), *others = LAYOUTS.items()
    *more, last = (f"{layout.positions} in {name}" for name, layout in others)
    return f"{', '.join((f'{own.positions} positions in the layout {first}', *more))} and {last}"


def laid_out(x: Float[Tensor, "*batch e"], n: int) -> Float[Tensor, "*batch n"]:
    """Elements as networks of n positions read them."""
    layout = layout_of(n)
    return x if layout is None else layout.lay_out(x)


def elements_of(x: Tensor) -> Float[Tensor, "*batch e"]:
    """The elements of prompts in any layout; raises if some are missing, and says of which part."""
    if not isinstance(x, Tensor) or not x.ndim or not x.is_floating_point():
        return check_layout(x)  # which refuses it
    layout = layout_of(x.shape[-1])
    if layout is None:
        operations = (word_index(x) >= FIRST_TYPE).nonzero()
        listed = int(operations[0, -1]) if len(operations) else x.shape[-1]  # the query begins with the operation
        raise UsageError(
            f"the prompt has {counted(listed, 'element')} of the list and {x.shape[-1] - listed} of the query; it must have "
            f"{ELEMENTS} ({CATEGORIES} categories, their values and {IRRELEVANT} irrelevant ones) and {1 + QUERIED} (min, max "
            f"or sum, and {QUERIED} categories), or {_LONGEST} characters."
        )
    return layout.elements(x)
