"""The one exception that a user can cause: its message is a sentence that names the field, the value and what is accepted.

Each kind of check stands here once. A check returns the value in the type that the caller goes on with.
"""

import difflib
import importlib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_LARGEST = 2**63 - 1  # the largest whole number that tensors count with
_LONGEST = 200  # characters of a value that an error shows


class UsageError(ValueError):
    """Bad input. Commands print the message and exit with code 2; a traceback would be a bug."""


def shown(value: object) -> str:
    """``value`` as errors show it: on one line, and cut where it is long. Of long whole numbers it counts the digits."""
    if isinstance(value, int) and abs(value) >= 10**50:  # Python writes no more than 4300 digits
        return f"a number of {int(math.log10(abs(value))) + 1} digits"
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 40]}...{text[-30:]}"


def meant(value: object, names: Iterable[str]) -> str:
    """``value`` as errors show it where it is none of ``names``, with the nearest of them if one is near."""
    near = difflib.get_close_matches(value, list(names), n=1, cutoff=0.7) if isinstance(value, str) else []
    return f"{shown(value)} (did you mean {near[0]}?)" if near else shown(value)


def counted(count: float, noun: str, form: str = "") -> str:
    """``1 epoch``, ``2 epochs``; the number in a ``form`` of Python's, such as a comma for thousands."""
    return f"{count:{form}} {noun}{'' if count == 1 else 's'}"


def apiece(count: int, noun: str) -> str:
    """``, for each of 2 networks,`` after what every one of several has; nothing where there is one."""
    return "" if count == 1 else f", for each of {counted(count, noun)},"


def choice(field: str, value: object, accepted: Iterable[str]) -> str:
    """``value`` if it is one of ``accepted``; the error lists them, and suggests the nearest."""
    names = list(accepted)
    if not isinstance(value, str) or value not in names:
        raise UsageError(f"{field} is {meant(value, names)}; it must be one of {', '.join(names)}.")
    return value


def whole(field: str, value: object, least: int = 1, most: int = _LARGEST) -> int:
    """``value`` if it is an integer from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise UsageError(f"{field} is {shown(value)}; it must be a whole number of at least {least}.")
    if int(value) > most:
        raise UsageError(f"{field} is {shown(value)}; it must be at most {most:g}.")
    return int(value)


def seed_number(value: object) -> int:
    """``value`` if it is a seed, which may be longer than what tensors count with."""
    return whole("seed", value, least=0, most=10**100)


def several(field: str, values: Iterable[T]) -> list[T]:
    """``values`` as a list; raises if it is a string or a single value."""
    try:
        if isinstance(values, (str, bytes)):
            raise TypeError
        return list(values)
    except TypeError:
        raise UsageError(f"{field} is {shown(values)}; it must be a list, such as [{values}].") from None


def some(field: str, values: Iterable[T]) -> list[T]:
    """``several`` values, of which there is at least one."""
    found = several(field, values)
    if not found:
        raise UsageError(f"{field} is empty; it must have at least one value.")
    return found


def positive(field: str, value: object) -> float:
    """``value`` as a float if it is a finite number above zero."""
    try:
        if not isinstance(value, bool) and isinstance(value, Real) and 0 < float(value) < float("inf"):
            return float(value)
    except OverflowError:  # a whole number that no float holds
        raise UsageError(f"{field} is {shown(value)}; it must be at most 1e308.") from None
    raise UsageError(f"{field} is {shown(value)}; it must be a finite number above 0.")


def within(field: str, value: object, least: float, most: float) -> float:
    """``value`` as a float if it is a number from ``least`` to ``most``, both above zero."""
    number = positive(field, value)
    if not least <= number <= most:
        raise UsageError(f"{field} is {number:g}; it must be from {least:g} to {most:g}.")
    return number


def share(field: str, value: object) -> float:
    """``value`` as a float if it is a number of at least 0 and less than 1."""
    if isinstance(value, bool) or not isinstance(value, Real) or not (value >= 0 and value < 1):  # type: ignore[operator]
        raise UsageError(f"{field} is {shown(value)}; it must be a number of at least 0 and less than 1.")
    return float(value)


def flag(field: str, value: object) -> bool:
    """``value`` if it is True or False."""
    return instance(field, value, bool, "True or False")


def instance(field: str, value: object, kind: type[T], what: str) -> T:
    """``value`` if it is a ``kind``; the error says ``what`` it must be."""
    if not isinstance(value, kind):
        raise UsageError(f"{field} is {shown(value)}; it must be {what}.")
    return value


def function(field: str, value: T) -> T:
    """``value`` if it can be called."""
    if not callable(value):
        raise UsageError(f"{field} is {shown(value)}; it must be a function.")
    return value


def extra(name: str, *modules: str, kind: type[UsageError] = UsageError) -> Any:
    """The first of ``modules``, which come with the extra ``name``; raises a ``kind`` unless all of them are there."""
    try:
        first, *_ = map(importlib.import_module, modules)
        return first
    except ImportError as error:
        raise kind(f"{error.name or modules[0]} is not installed; install it with pip install 'posattn[{name}]'.") from error


def path_of(field: str, value: object) -> Path:
    """``value`` as a path if it names a file or folder."""
    if not isinstance(value, (str, PathLike)) or "\0" in str(value):
        raise UsageError(f"{field} is {shown(value)}; it must be the name of a file or folder.")
    return Path(value)


def without(given: dict[str, Any], fixed: dict[str, object], what: str) -> dict[str, Any]:
    """``given`` without the fields that are ``fixed`` for this kind of network; raises if one is given otherwise."""
    for name, value in fixed.items():
        if given.get(name) not in (None, value):
            raise UsageError(f"{name} is {shown(given[name])}; for {what} it must be {value!r}.")
    return {name: value for name, value in given.items() if name not in fixed}
