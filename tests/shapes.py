"""Checks the shapes in types while tests run: every ``Float[Tensor, "batch n d"]`` of the package, at each call."""

from pathlib import Path
from typing import Any, get_args

import jaxtyping
from beartype import beartype

PACKAGE = Path(__file__).parents[1] / "posattn"
_decorate = jaxtyping.jaxtyped


def check_shapes():
    """Decorates the functions of all modules that have shapes, when they are imported."""
    jaxtyping.jaxtyped = _where_shapes_are  # what the hook's decorator calls
    jaxtyping.install_import_hook(checked_modules(), "shapes.beartype_shapes")


def checked_modules():
    """All modules that have shapes but those of kernels: Triton reads their source, which has no decorators."""
    sources = {path.relative_to(PACKAGE.parent): path.read_text() for path in PACKAGE.rglob("*.py")}
    having = [path for path, text in sources.items() if "from jaxtyping import" in text and "@triton.jit" not in text]
    return [".".join(path.with_suffix("").parts) for path in having]


def beartype_shapes(function):
    """``function`` with those of its annotations checked that have a shape; mypy checks the others.

    Wrong arguments of other kinds reach the package, whose own sentences about them are tested. jaxtyping asks twice, for the
    arguments (to return Any) and then for the answer too: by then the arguments are known, and they are not checked again.
    """
    types = function.__annotations__
    names = ("return",) if types.get("return", Any) is not Any else types
    types |= {name: Any for name, kind in types.items() if name not in names or not _has_shape(kind)}
    return beartype(function)


def _where_shapes_are(*, typechecker):
    """jaxtyping's decorator, but for functions that have no shapes: these stay as they are, and fast."""

    def decorator(decorated):
        types = getattr(decorated, "__annotations__", {}).values()
        shapes = isinstance(decorated, type) or any(isinstance(kind, str) or _has_shape(kind) for kind in types)
        return _decorate(decorated, typechecker=typechecker) if shapes else decorated

    return decorator


def _has_shape(kind):
    return any(map(_has_shape, get_args(kind))) or (
        isinstance(kind, type) and issubclass(kind, jaxtyping.AbstractArray)
    )
