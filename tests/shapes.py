"""Checks the shapes in types while tests run: what :mod:`conftest` lets jaxtyping's import hook decorate functions with."""

from typing import Any, get_args

import jaxtyping
from beartype import beartype


def checked(function):
    """``function`` with those of its annotations checked that have a shape; mypy checks the others.

    Wrong arguments of other kinds reach the package, whose own sentences about them are tested.
    """
    types = function.__annotations__
    for name, kind in types.items():
        if not _has_shape(kind):
            types[name] = Any
    return beartype(function) if any(kind is not Any for kind in types.values()) else function


def _has_shape(kind):
    return any(map(_has_shape, get_args(kind))) or (
        isinstance(kind, type) and issubclass(kind, jaxtyping.AbstractArray)
    )
