"""Prompts of mixed type in the paper's notation, ``['Cat2', 3.45, 'Cat+7', ..., 'Find min of Cat5, Cat8, Cat11 and Cat20']``.

Here every element of the list is one position. The query at its end has one position for the operation and one per category;
'Find', 'of' and 'and', which never change, are left out. So n = 2 · 8 + 2 + 1 + 4 = 23 for all identifiers. Each character of
an element has its own place in the embedding (``posattn/tokens/vocabulary.py``). This is the layout ``elements``, one of those
in ``posattn/tasks/layouts.py``.

``parse`` is strict: for any other text it raises an error that names the place.
"""

import math
import re
from typing import NamedTuple, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from posattn.errors import UsageError, shown
from posattn.tokens.vocabulary import FIRST_TYPE, IDENTIFIERS, TYPES, VOCABULARIES, Vocabulary, category, word_index

CATEGORIES, QUERIED, IRRELEVANT = 8, 4, 2  # n, k and m of Appendix D.3
ELEMENTS = 2 * CATEGORIES + IRRELEVANT  # before the query
POSITIONS = ELEMENTS + 1 + QUERIED
WORDS = VOCABULARIES["prompts"]

_NUMBER = re.compile(r"\d+(\.\d+)?")
_ELEMENT = re.compile(rf"'[^']*'|{_NUMBER.pattern}")  # text in quotes, or a number
_LIST = re.compile(rf"\[( *({_ELEMENT.pattern}),)*( *({_ELEMENT.pattern})\]?)?\s*")  # a prompt, as far as it is one
_CATEGORY = re.compile(r"'Cat([+\-_*]?)([1-9]\d*)'")
_ASKED = [r"Cat([1-9]\d*)"] * QUERIED
_QUERY = re.compile(f"'Find ({'|'.join(TYPES)}) of {', '.join(_ASKED[:-1])} and {_ASKED[-1]}'")


def check_layout(x: object) -> Float[Tensor, "*batch e"]:
    """``x`` if it holds prompts as elements: numbers and words, and a query at the end."""
    x = check_words(x, WORDS, POSITIONS)
    words = word_index(x)
    for place in range(ELEMENTS, POSITIONS) if x.numel() and not x.is_meta else ():
        own = words[..., place]
        right = own >= FIRST_TYPE if place == ELEMENTS else own < len(IDENTIFIERS)
        if not bool((right & (x[..., place] < 0)).all()):
            what = "ask for min, max or sum" if place == ELEMENTS else "name a category such as Cat5"
            raise UsageError(f"position {place + 1} of the prompt is in the query; it must {what}.")
    return x


def check_words(x: object, words: Vocabulary, positions: int) -> Float[Tensor, "*batch n"]:
    """``x`` if it holds numbers and words on so many positions."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.shape[-1:] != (positions,):
        found = f"a tensor of {x.dtype}, {tuple(x.shape)}" if isinstance(x, Tensor) else shown(x)
        raise UsageError(f"the prompt is {found}; it must be a tensor of floats, (..., {positions}).")
    known = x.isfinite() & ((x >= 0) | (x == x.round()) & (-1 - x < len(words.words)))
    if not x.is_meta and not bool(known.all()):
        position, value = int((~known).nonzero()[0, -1]), x[~known][0].item()
        raise UsageError(f"position {position + 1} of the prompt is {value:g}, which is no word and no finite number.")
    return x


def write(x: Float[Tensor, " n"], digits: int = 1) -> str:
    """The prompt that ``x`` encodes; numbers have two decimals and at least ``digits`` digits before the point."""
    check_layout(x)
    values, words = x.tolist(), [WORDS.words[index].replace(" ", "") for index in word_index(x).tolist()]
    elements = [
        f"{value:0{digits + 3}.2f}" if value >= 0 else f"'{word}'" for value, word in zip(values, words, strict=True)
    ]
    kind, *asked = words[ELEMENTS:]
    return f"[{', '.join(elements[:ELEMENTS])}, 'Find {kind} of {', '.join(asked[:-1])} and {asked[-1]}']"


class _Element(NamedTuple):
    """An element of a prompt: its number, the character at which it begins, and its text."""

    number: int
    place: int
    source: str

    def refuse(self, wanted: str) -> NoReturn:
        raise UsageError(f"element {self.number} of the prompt (character {self.place}) is {self.source}; {wanted}.")


def parse(prompt: str) -> Float[Tensor, " n"]:
    """The numbers that a network reads for a prompt."""
    *listed, query = _elements(prompt)
    match = _QUERY.fullmatch(query.source)
    if match is None:
        query.refuse(
            f"the last must be a query such as 'Find min of Cat5, Cat8, Cat11 and Cat20', of min, max or sum and of {QUERIED} "
            "categories"
        )
    kind, *asked = match.groups()
    codes, known = _read_list(listed)
    for index, identifier in enumerate(asked):
        if identifier in asked[:index]:
            query.refuse(f"it must not ask for Cat{identifier} twice")
        if identifier not in known:
            query.refuse(f"Cat{identifier} must be among the categories of the list")
    words = [WORDS.words[FIRST_TYPE + TYPES.index(kind)], *(category(int(identifier)) for identifier in asked)]
    return torch.tensor([*codes, *map(WORDS.code, words)], dtype=torch.float32)


def _elements(prompt: str) -> list[_Element]:
    """The elements of the list; each is text in quotes or a number."""
    listed = _LIST.match(prompt)
    end = listed.end() if listed else 0
    if end < len(prompt) or not prompt.rstrip().endswith("]"):
        found = repr(prompt[end : end + 8]) if end < len(prompt) else "nothing"
        what = "a list of texts in single quotes and numbers, such as ['Cat2', 3.45, ...]"
        raise UsageError(f"the prompt has {found} at character {end + 1}; it must be {what}.")
    each = enumerate(_ELEMENT.finditer(prompt), start=1)
    return [_Element(number, match.start() + 1, match.group()) for number, match in each]


def _read_list(listed: list[_Element]) -> tuple[list[float], set[str]]:
    """The codes of the elements before the query, and the identifiers of the categories."""
    codes: list[float] = []
    known: set[str] = set()
    waiting: _Element | None = None  # the category whose value comes next
    irrelevant: list[tuple[_Element, str]] = []
    for element in listed:
        if not element.source.startswith("'"):
            if waiting is None:
                element.refuse("there must be a category before it whose value it is")
            if not float(element.source) <= torch.finfo(torch.float32).max:
                element.refuse("it must be a number that float32 can hold")
            codes.append(float(element.source))
            waiting = None
            continue
        sign, identifier = _read_category(element)
        if sign:
            irrelevant.append((element, identifier))
        else:
            if waiting is not None:
                element.refuse(f"the value of {waiting.source} must come before it")
            if identifier in known:
                element.refuse("no category may come twice")
            known.add(identifier)
            waiting = element
        codes.append(WORDS.code(category(int(identifier), sign or " ")))
    if waiting is not None:
        waiting.refuse("its value must come after it")
    counts = {"categories with a value": (len(known), CATEGORIES)}
    counts["irrelevant elements such as 'Cat+7'"] = len(irrelevant), IRRELEVANT
    for what, (count, wanted) in counts.items():
        if count != wanted:
            raise UsageError(f"the prompt has {count} {what}; it must have {wanted}.")
    for element, identifier in irrelevant:
        if identifier not in known:
            element.refuse("its identifier must be that of a category in the list")
    return codes, known


def _read_category(element: _Element) -> tuple[str, str]:
    """Sign and identifier of an element of text."""
    match = _CATEGORY.fullmatch(element.source)
    if match is None:
        element.refuse(
            "it must be a category such as 'Cat5', or irrelevant structure such as 'Cat+7', 'Cat-7', 'Cat_7' or 'Cat*7'"
        )
    sign, identifier = match.groups()
    if len(identifier) > 2 or int(identifier) not in IDENTIFIERS:
        element.refuse(f"identifiers must be {IDENTIFIERS[0]} to {IDENTIFIERS[-1]}")
    return sign, identifier


def number_in(text: str) -> float:
    """The first number in a text; NaN if there is none."""
    match = _NUMBER.search(text)
    return float(match.group()) if match else math.nan
