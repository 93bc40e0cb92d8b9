"""Checks the shapes in types while tests run: every ``Float[Tensor, "batch n d"]`` of the package, in all calls that differ."""

import functools
import inspect
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Union, get_args, get_origin
from unittest.mock import patch

import jaxtyping
import torch
from jaxtyping import _import_hook

try:
    from beartype import beartype
except ModuleNotFoundError:
    beartype = None

PACKAGE = Path(__file__).parents[1] / "posattn"
_decorate = jaxtyping.jaxtyped


def check_shapes():
    """Decorates the functions of all modules that have shapes, when they are imported; False where beartype is missing."""
    if beartype is None:
        return False
    jaxtyping.jaxtyped = _where_shapes_are  # what the hook's decorator calls
    _keep_bytecode_of_others()
    jaxtyping.install_import_hook(checked_modules(), "shapes.beartype_shapes")
    return True


def _keep_bytecode_of_others():
    """jaxtyping's bytecode has a name of its own. While a checked module is executed, it would be looked for of all that the
    module imports: PyTorch, pandas and sympy would be compiled again, for seconds. Here it is while its own code is read.
    """
    loader = getattr(_import_hook, "_JaxtypingLoader", None)
    if loader is None or not hasattr(_import_hook, "_optimized_cache_from_source"):
        return

    def get_code(self, name):
        own = functools.partial(_import_hook._optimized_cache_from_source, self._typechecker.get_hash())
        with patch("importlib._bootstrap_external.cache_from_source", own):
            return SourceFileLoader.get_code(self, name)

    loader.get_code, loader.exec_module = get_code, SourceFileLoader.exec_module


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
    kinds = function.__annotations__
    names = ("return",) if kinds.get("return", Any) is not Any else kinds
    kinds |= {name: Any for name, kind in kinds.items() if name not in names or not _has_shape(kind)}
    return beartype(function)


def _where_shapes_are(*, typechecker):
    """jaxtyping's decorator, but for functions that have no shapes: these stay as they are, and fast."""

    def decorator(decorated):
        kinds = getattr(decorated, "__annotations__", {}).values()
        if not isinstance(decorated, type) and not any(isinstance(kind, str) or _has_shape(kind) for kind in kinds):
            return decorated
        known_by_shapes = inspect.isfunction(decorated) and all(map(_told_by_shapes, kinds))
        decorate = functools.partial(_decorate, typechecker=typechecker)
        return _once_per_shapes(decorated, decorate) if known_by_shapes else decorate(decorated)

    return decorator


def _once_per_shapes(function, decorate):
    """The decorated function; for arguments and answers of shapes that passed before, the function itself, which is fast."""
    checked, passed = decorate(function), set()
    names = enumerate(inspect.signature(function).parameters)
    places = [(place, name) for place, name in names if _has_shape(function.__annotations__.get(name))]

    @functools.wraps(checked)
    def call(*args, **kwargs):
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        given = tuple(_shapes(args[place] if place < len(args) else kwargs.get(name)) for place, name in places)
        try:
            new = given not in passed
        except TypeError:  # sizes that torch.export leaves open have no hash
            return checked(*args, **kwargs)
        answer = (checked if new else function)(*args, **kwargs)
        both = given, _shapes(answer)
        if not new and both not in passed:
            decorate(functools.wraps(function)(lambda *_, **__: answer))(*args, **kwargs)
        passed.update((given, both))
        return answer

    return call


def _shapes(value):
    """All that a check of ``value`` depends on."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    return tuple(map(_shapes, value)) if type(value) is tuple else type(value)


def _told_by_shapes(kind):
    """Whether a check depends on shapes alone, and neither on what a container holds nor on numbers, as for ``{heads}``."""
    if get_origin(kind) in (tuple, Union, types.UnionType):
        return all(map(_told_by_shapes, get_args(kind)))
    array = isinstance(kind, type) and issubclass(kind, jaxtyping.AbstractArray)
    return "{" not in kind.dim_str if array else not (isinstance(kind, str) or _has_shape(kind))


def _has_shape(kind):
    return any(map(_has_shape, get_args(kind))) or (
        isinstance(kind, type) and issubclass(kind, jaxtyping.AbstractArray)
    )
