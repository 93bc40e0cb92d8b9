"""What the trainer asks of a network's configuration: that it builds the network and describes itself."""

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

from posattn.errors import UsageError
from posattn.model import ModelConfig


class NetworkConfig(Protocol):
    """A frozen dataclass that determines a network up to its weights: lists (..., k) to (..., k) for k up to ``n``.

    ``arch`` is what results call it. ``to_dict`` gives its fields and, but for :class:`ModelConfig`, a ``kind`` that
    :func:`register` knows, so that a run's folder can be read back.
    """

    @property
    def n(self) -> int: ...

    @property
    def arch(self) -> str: ...

    def build(self) -> nn.Module: ...

    def to_dict(self) -> dict[str, object]: ...

    def __hash__(self) -> int: ...


_KINDS: dict[str, Callable[..., NetworkConfig]] = {}


def register(kind: str, make: Callable[..., NetworkConfig]) -> None:
    """Lets run folders whose model has this ``kind`` be read: ``make`` takes the fields of ``to_dict`` but ``kind``."""
    _KINDS[kind] = make


def network_from_dict(fields: dict[str, Any]) -> NetworkConfig:
    own = dict(fields)
    kind = own.pop("kind", None)
    if kind is None:
        return ModelConfig(**own)
    if kind not in _KINDS:
        raise UsageError(f"the model's kind is {kind!r}; import the module that registers it first.")
    return _KINDS[kind](**own)
