"""Messages of a program that is written as a function (``front_end``): ``send``, and the inbox that a round begins with."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

from posattn.compiler.analysis import Known
from posattn.compiler.expressions import Expression, as_expression
from posattn.compiler.program_numbers import (
    both,
    either,
    equal,
    known_of,
    maximum,
    minimum,
    one_of,
    select,
    total,
    traced,
    within,
)
from posattn.errors import UsageError, shown, whole


@dataclass(frozen=True)
class Send:
    """Messages to the machines ``to``, each of the same ``words``, and to each where its bit in ``when`` is 1."""

    to: tuple[Any, ...]
    words: tuple[Any, ...]
    when: tuple[Any, ...]
    most: int | None


def send(to: Any, *words: Any, when: Any = 1, most: int | None = None) -> Send:
    """A message of ``words`` for the machine ``to``, or for each of a list, sent where the bit ``when`` is 1.

    ``most`` states how many of these messages arrive at a machine at most; every level checks it.
    """
    addresses = tuple(to) if isinstance(to, (list, tuple, range)) else (to,)
    bits = tuple(when) if isinstance(when, (list, tuple)) else (when,) * len(addresses)
    if len(bits) != len(addresses):
        raise UsageError(f"a message has {len(addresses)} addresses and {len(bits)} bits of when; give one for each.")
    if not words:
        raise UsageError("a message has no words; it must have at least one.")
    return Send(addresses, words, bits, None if most is None else whole("most", most))


class _NoNumber:
    """What arithmetic refuses with the sentence ``NO_NUMBER``."""

    NO_NUMBER: ClassVar[str]

    def __float__(self) -> float:
        raise UsageError(self.NO_NUMBER)


@dataclass(frozen=True)
class Place(_NoNumber):
    """A place of an inbox, for a message: the bit ``present``, and the words, which are 0 if there is none."""

    NO_NUMBER = "a message is used as a number; take a word of it, such as message[0]."
    present: Expression
    words: tuple[Expression, ...]

    def __getitem__(self, word: int) -> Expression:
        return self.words[word]

    def __iter__(self) -> Any:
        return iter(self.words)


class Inbox(_NoNumber, Sequence[Place]):
    """The messages of one ``send``, ordered by sender; of a send to several addresses, address by address.

    ``inbox[q]`` is the q-th message that there is; after the last one messages are empty.
    """

    NO_NUMBER = "an inbox is used as a number; take one from it, with get(), sum(), count(), min(empty) or max(empty)."

    def __init__(self, places: Sequence[Place], words: int, most: int | None = None):
        zero = traced(as_expression)(0.0)
        self.places, self.empty = list(places), Place(zero, (zero,) * words)
        if most is not None and most < len(self):
            there = within(self.count(), 0, most)
            if most == 1:  # all others are empty, and their words 0
                words_of = zip(*(place.words for place in self.places), strict=True)
                self.places = [Place(there, tuple(one_of(total(column), column) for column in words_of))]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, q: Any) -> Any:
        if not isinstance(q, int) or q < 0:
            raise UsageError(f"message {shown(q)} of an inbox is read; the first is 0.")
        if q >= len(self):
            return self.empty
        if all(known_of(place.present).lo == 1 for place in self.places[: q + 1]) or len(self) == 1:
            return self.places[q]
        before, hits = as_expression(0.0), list[Expression]()
        for place in self.places:
            hits.append(both(place.present, equal(before, q)) if q or hits else place.present)
            before = before + place.present
        words = zip(*(place.words for place in self.places), strict=True)
        chosen = [
            one_of(total(select(hit, word, 0) for hit, word in zip(hits, column, strict=True)), column)
            for column in words
        ]
        return Place(before > q, tuple(chosen))

    def __iter__(self) -> Iterator[Place]:
        """The places in order; some may be empty."""
        return iter(self.places)

    def count(self) -> Expression:  # type: ignore[override]
        """How many messages arrived."""
        return total(place.present for place in self.places)

    def sum(self, word: int = 0) -> Expression:
        """The sum of a word of all messages; 0 if none arrived."""
        return total(place.words[word] for place in self.places)

    def get(self, word: int = 0, empty: Expression | float = 0) -> Expression:
        """A word of the first message; ``empty`` if none arrived."""
        first = self[0]
        if isinstance(empty, (int, float)) and empty == 0:  # what an empty message has
            return first[word]
        return select(first.present, first[word], empty)

    def min(self, empty: Expression | float, word: int = 0) -> Expression:
        """The smallest word of all messages; ``empty`` if none arrived."""
        return self._best(minimum, empty, word)

    def max(self, empty: Expression | float, word: int = 0) -> Expression:
        """The largest word of all messages; ``empty`` if none arrived."""
        return self._best(maximum, empty, word)

    def _best(self, better: Callable[..., Expression], empty: Any, word: int) -> Expression:
        pairs: list[tuple[Any, Any]] = [(place.present, place.words[word]) for place in self.places]
        if not pairs:
            return traced(as_expression)(empty)
        known = reduce(Known.join, (known_of(x) for _, x in pairs))
        if known.integer:
            # Absent words, which are 0, become the worst number. Of real numbers the sum would lose digits.
            worst = known.hi if better is minimum else known.lo
            found = _folded(better, [one_of(x + worst * (1 - present), [x, worst]) for present, x in pairs])
            if isinstance(empty, (int, float)) and empty == worst:
                return found
            there = either(*(present for present, _ in pairs))
        else:
            there, found = _folded(lambda one, other: _better(better, one, other), pairs)
        return found if known_of(there).lo == 1 else select(there, found, empty)


def _folded(join: Callable[[Any, Any], Any], found: list[Any]) -> Any:
    """All of a list joined, as a tree of few levels."""
    while len(found) > 1:
        joined = [join(*pair) for pair in zip(found[::2], found[1::2], strict=False)]
        found = joined + found[2 * len(joined) :]
    return found[0]


def _better(better: Callable[..., Expression], one: Any, other: Any) -> tuple[Any, Any]:
    """The better of two numbers, each of which is there where its bit is 1."""
    (has, a), (too, b) = one, other
    if known_of(has).lo == 1 and known_of(too).lo == 1:
        return has, better(a, b)
    # Where one is absent it takes the other's place, so that nothing foreign is compared.
    return either(has, too), better(select(has, a, b), select(too, b, a))
