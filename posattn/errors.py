"""The one exception that a user can cause: its message is a sentence that names the field, the value and what is accepted."""

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, TypeVar

T = TypeVar("T")


class UsageError(ValueError):
    """Bad input. Commands print the message and exit with code 2; a traceback would be a bug."""


def choice(field: str, value: object, accepted: Iterable[str]) -> str:
    """``value`` if it is one of ``accepted``; the error lists them."""
    names = list(accepted)
    if value not in names:
        raise UsageError(f"{field} is {value!r}; it must be one of {', '.join(names)}.")
    return str(value)


def whole(field: str, value: object, least: int = 1) -> int:
    """``value`` if it is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise UsageError(f"{field} is {value!r}; it must be a whole number of at least {least}.")
    return int(value)


def several(field: str, values: Iterable[T]) -> list[T]:
    """``values`` as a list; raises if it is a string or a single value."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UsageError(f"{field} is {values!r}; it must be a list, such as [{values}].")
    return list(values)


def positive(field: str, value: object) -> float:
    """``value`` as a float if it is a finite number above zero."""
    try:
        if not isinstance(value, bool) and isinstance(value, Real) and 0 < float(value) < float("inf"):
            return float(value)
    except OverflowError:  # a whole number that no float holds
        raise UsageError(f"{field} is a number of {len(str(value))} digits; it must be at most 1e308.") from None
    raise UsageError(f"{field} is {value!r}; it must be a finite number above 0.")


def within(field: str, value: object, least: float, most: float) -> float:
    """``value`` as a float if it is a number from ``least`` to ``most``, both above zero."""
    number = positive(field, value)
    if not least <= number <= most:
        raise UsageError(f"{field} is {number:g}; it must be from {least:g} to {most:g}.")
    return number


def flag(field: str, value: object) -> bool:
    """``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise UsageError(f"{field} is {value!r}; it must be True or False.")
    return value


def without(given: dict[str, Any], fixed: dict[str, object], what: str) -> dict[str, Any]:
    """``given`` without the fields in ``fixed``, which all networks of a kind share.

    Raises if one has another value; None counts as not given.
    """
    for name, value in fixed.items():
        if given.get(name) not in (None, value):
            raise UsageError(f"{name} is {given[name]!r}; for {what} it must be {value!r}.")
    return {name: value for name, value in given.items() if name not in fixed}
