"""What the trainer asks of a network's configuration: that it builds the network and describes itself."""

import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import nn

from posattn.errors import UsageError
from posattn.model import ModelConfig
from posattn.offsets import FAMILIES
from posattn.tasks import task


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


def reading(model: NetworkConfig, name: str) -> NetworkConfig:
    """``model`` for the task of that name: a Transformer that says nothing of tokens reads those of the task."""
    needed = {field: value for field, value in task(name).NETWORK.items() if field in ("tokens", "causal")}
    return replace(model, **needed) if isinstance(model, ModelConfig) and model.tokens == "none" else model


def network_for(name: str, begin: NetworkConfig | None = None, **settings: Any) -> NetworkConfig:
    """The network for the task of that name, by what ``posattn train`` takes: ``network_for("sort", arch="looped", n=4)``.

    What is not given, or None, is the task's own, and in a looped network the family is the one that solves the task. To begin
    with a run, give its network as ``begin``: what is not given is then that network's.
    """
    given = {field: value for field, value in settings.items() if value is not None}
    if begin is not None:
        return _like(begin, given)
    arch, row = given.get("arch"), task(name)
    if row.TOKENS != "none" and arch == "looped":
        raise UsageError(f"arch is 'looped'; {name} reads words, and looped networks read lists of numbers.")
    if row.TOKENS != "none" and arch == "scale-exact":
        raise UsageError(
            f"arch is 'scale-exact'; {name} reads words, which do not grow with the numbers, so it has no such network; "
            "bias=False (--no-bias) leaves out the biases of a positional one."
        )
    if arch == "looped" and (family := family_of(name)) is not None:
        given = {"family": family} | given
    return ModelConfig(**row.NETWORK | given)


def _like(model: NetworkConfig, given: dict[str, Any]) -> NetworkConfig:
    """A run's network with other settings."""
    if given.get("arch", model.arch) != model.arch:
        raise UsageError(f"arch is {given['arch']!r}; that of the run to begin with is {model.arch!r}.")
    if not isinstance(model, ModelConfig):  # of another kind, whose settings are not those of options
        return model
    of_length = {"encoding_dim": None} if model.encoding == "one-hot" and "n" in given else {}
    return replace(model, **of_length | given)


def family_of(name: str) -> str | None:
    """The family of the looped networks that solve a task, if there are any."""
    return next((family for family, row in FAMILIES.items() if name in row.solves), None)


def doubt_family(model: NetworkConfig, tasks: Iterable[str], lengths: Collection[int]) -> None:
    """Warns of tasks that no looped network of the model's family is known to solve, or learns from lists of one length."""
    own: Any = getattr(model, "family", None)
    for name in dict.fromkeys(tasks) if own is not None else ():
        known = family_of(name)
        if known is None:
            solved = ", ".join(other for row in FAMILIES.values() for other in row.solves)
            doubt = f"no looped network is known to solve {name}; there are some for {solved}"
        else:
            doubt = f"family is {own!r}; the looped networks that solve {name} are of family {known!r}"
        if own != known:
            warnings.warn(f"{doubt}. It is learned roughly at best.", stacklevel=3)  # the line that calls train
        elif FAMILIES[own].classes > 1 and len(lengths) == 1:  # short lists show exchanges one by one
            few = f"all training lists have {model.n} numbers, from which {name} is hardly learned for other lengths"
            warnings.warn(f"{few}; lists of 1 to n serve (variable length), and n = 4 is enough.", stacklevel=3)


@dataclass(frozen=True)
class OwnNetwork:
    """Anyone's ``nn.Module`` as an architecture; made by what :func:`own_network` returns."""

    n: int
    arch: str
    settings: tuple[tuple[str, Any], ...] = ()

    def build(self) -> nn.Module:
        return _MAKERS[self.arch](self.n, **dict(self.settings))

    def to_dict(self) -> dict[str, object]:
        return {"kind": "own", "n": self.n, "arch": self.arch, "settings": dict(self.settings)}


_MAKERS: dict[str, Callable[..., nn.Module]] = {}


def own_network(arch: str, make: Callable[..., nn.Module]) -> Callable[..., NetworkConfig]:
    """Configurations of a network of your own: ``own_network("mean", Mean)(n=8, width=32)`` trains ``Mean(8, width=32)``.

    The module maps lists (..., k) to (..., k). Its name and settings are its identity in results: a module that computes
    something else needs another name.
    """
    _MAKERS[arch] = make

    def config(n: int, **settings: Any) -> NetworkConfig:
        return OwnNetwork(n, arch, tuple(sorted(settings.items())))

    return config


def _own_from_dict(n: int, arch: str, settings: dict[str, Any]) -> OwnNetwork:
    if arch not in _MAKERS:
        raise UsageError(f"the model's arch is {arch!r}, a network of someone's own; run the file that defines it.")
    return OwnNetwork(n, arch, tuple(sorted(settings.items())))


register("own", _own_from_dict)

TABLES = (_KINDS, _MAKERS)
