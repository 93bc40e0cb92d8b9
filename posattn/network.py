"""What a network is to everybody else: what its configuration tells, what it can do, and how a folder names it.

A kind of network is a class of configurations with a ``build``. Each kind lives with what it needs: ``posattn.model`` (lists of
numbers, the paper's architectures), ``posattn.tokens``, ``posattn.looped``, ``posattn.compiler``, ``posattn.baselines``.
Whether a network can be folded, frozen, exported and so on is decided by the table ``ABILITIES`` here, and nowhere else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import nn

from posattn.compiler.compiled_model import CompiledConfig
from posattn.errors import UsageError
from posattn.looped.any_length import AnyLengthConfig
from posattn.looped.looped_model import LoopedConfig
from posattn.model import ModelConfig
from posattn.tokens.token_model import TokenConfig


class NetworkConfig(Protocol):
    """A frozen dataclass that determines a network up to its weights: lists (..., k) to (..., k) for k up to ``n``.

    ``to_dict`` gives its fields and a ``kind`` that :func:`register` knows, so that a run's folder can be read back; the
    kinds of ``posattn`` itself are told from their fields.
    """

    @property
    def n(self) -> int: ...

    @property
    def arch(self) -> str:
        """What results call it."""

    @property
    def kind(self) -> str: ...

    @property
    def reads(self) -> str:
        """The vocabulary of the tokens that it reads; ``none`` if it reads numbers."""

    @property
    def any_length(self) -> bool:
        """Whether it takes lists longer than ``n``."""

    @property
    def attends(self) -> str:
        """What its attention depends on: position, input, both or offset; nothing where there is none."""

    @property
    def recipe(self) -> str:
        """What it trains by, unless told otherwise."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields that result rows have beside the usual ones."""

    def build(self) -> nn.Module: ...

    def to_dict(self) -> dict[str, object]: ...

    def __hash__(self) -> int: ...


class OtherNetwork:
    """What a configuration of another kind tells unless it says otherwise: it reads lists of up to n numbers."""

    kind: ClassVar[str]
    reads: ClassVar[str] = "none"
    any_length: ClassVar[bool] = False
    attends: ClassVar[str] = ""
    recipe: ClassVar[str] = "paper"
    columns: ClassVar[tuple[str, ...]] = ()


# --- to and from a dictionary ---------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[dict[str, Any]], NetworkConfig]] = {
    ModelConfig.kind: lambda fields: ModelConfig(**fields),
    TokenConfig.kind: lambda fields: TokenConfig(**fields),
    AnyLengthConfig.kind: AnyLengthConfig.from_dict,
    LoopedConfig.kind: LoopedConfig.from_dict,
    CompiledConfig.kind: CompiledConfig.from_dict,
}


def register(kind: str, make: Callable[..., NetworkConfig]) -> None:
    """Lets run folders whose model has this ``kind`` be read: ``make`` takes the fields of ``to_dict`` but ``kind``."""
    KINDS[kind] = lambda fields: make(**fields)


def from_dict(fields: dict[str, Any]) -> NetworkConfig:
    """The configuration that ``to_dict`` described."""
    own = {name: _tuples(value) for name, value in dict(fields).items()}
    kind = own.pop("kind", None) or _kind_of(own)
    if kind not in KINDS:
        raise UsageError(f"the model's kind is {kind!r}; import the module that registers it first.")
    return KINDS[kind](own)


def _tuples(value: Any) -> Any:
    """JSON has lists for tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def configuration(**fields: Any) -> NetworkConfig:
    """The configuration of the kind that has these fields."""
    return from_dict(fields)


def _kind_of(fields: dict[str, Any]) -> str:
    """The kind of a network whose dictionary does not name it."""
    if "tokens" in fields:
        return TokenConfig.kind
    if fields.get("arch") == "looped":
        return LoopedConfig.kind
    if "any_length" in fields or "looped" in fields:
        return AnyLengthConfig.kind
    return CompiledConfig.kind if "bounds" in fields else ModelConfig.kind


# --- what a network can do ------------------------------------------------------------------------------------------------

Question = tuple[Callable[[Any], bool], str]  # of a configuration, and what is said of one that answers no

_IS_OURS: Question = (lambda c: c.attends != "", "is no Transformer of posattn")
_READS_NUMBERS: Question = (lambda c: c.reads == "none", "reads {0.reads}")
_IS_TRAINED: Question = (lambda c: c.kind != CompiledConfig.kind, "is a compiled program")
_HAS_LENGTH: Question = (lambda c: not c.any_length, "is for lists of every length")
_TAKES_EVERY: Question = (lambda c: c.any_length, "is for lists of up to {0.n} numbers only")
_LOOPS: Question = (lambda c: c.kind == LoopedConfig.kind, "has no loops")
_IS_STATIC: Question = (lambda c: c.attends in ("position", "offset"), "has attention that depends on the input")
_IS_POSITIONAL: Question = (lambda c: c.attends == "position", "has attention that depends on the input")
_MULTIPLIES: Question = (
    lambda c: not (c.design.rotary and c.attends == "position"),
    "rotates queries and keys of positions alone",
)
_IS_COVERED: Question = (
    lambda c: c.attends in ("position", "input") and not c.design.rotary,
    "has queries and keys of a form that the proof does not cover",
)
_IS_HOMOGENEOUS: Question = (
    lambda c: c.attends == "position" and not c.bias and not c.design.encoded_input,
    "is not positional, or has biases",
)
_NAMES_PLACES: Question = (lambda c: c.arch != "randomized", "has encodings of random places")

# What an ability asks of a network, one question after the other, and which networks have it: the end of a refusal.
ABILITIES: dict[str, tuple[str, tuple[Question, ...]]] = {
    "fold": (
        "Transformers fold that are trained on lists or sequences of up to n",
        (_IS_OURS, _IS_TRAINED, _HAS_LENGTH, _MULTIPLIES),
    ),
    "freeze": (
        "only networks trained on lists of up to n numbers can be frozen",
        (_IS_OURS, _READS_NUMBERS, _IS_TRAINED, _HAS_LENGTH, _MULTIPLIES),
    ),
    "export": ("only Transformers of lists of numbers can be exported", (_IS_OURS, _READS_NUMBERS)),
    "show": ("the explorer shows Transformers of lists of numbers", (_IS_OURS, _READS_NUMBERS, _NAMES_PLACES)),
    "bound": (
        "the bound is for networks that are trained on lists of up to n numbers",
        (_IS_OURS, _READS_NUMBERS, _IS_TRAINED, _HAS_LENGTH, _IS_COVERED),
    ),
    "certify": (
        "the certificate is for bias-free positional networks (--arch scale-exact) that are trained on lists of numbers",
        (_IS_OURS, _READS_NUMBERS, _IS_TRAINED, _HAS_LENGTH, _IS_HOMOGENEOUS),
    ),
    "graph": ("only networks whose attention needs no input have a graph", (_IS_OURS, _IS_STATIC)),
    "communicate": (
        "what edges do is measured in positional networks for inputs of up to n",
        (_IS_OURS, _HAS_LENGTH, _IS_POSITIONAL),
    ),
    "every length": ("other lengths are for networks that take every length", (_TAKES_EVERY,)),
    "last steps": ("only looped networks have last steps (polish)", (_LOOPS,)),
}


def missing(config: NetworkConfig, ability: str) -> str | None:
    """Why networks of a configuration lack an ability of the table, in a sentence; None if they have it."""
    end, questions = ABILITIES[ability]
    for has, otherwise in questions:
        if not has(config):
            return f"the {config.arch} network {otherwise.format(config)}; {end}."
    return None


def can(config: NetworkConfig, ability: str) -> bool:
    """Whether networks of a configuration have an ability of the table."""
    return missing(config, ability) is None


def require(config: NetworkConfig, ability: str) -> None:
    """Raises with the reason if networks of a configuration lack an ability."""
    if reason := missing(config, ability):
        raise UsageError(reason)


# --- anyone's network -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnNetwork(OtherNetwork):
    """Anyone's ``nn.Module`` as an architecture; made by what :func:`own_network` returns."""

    n: int
    arch: str
    settings: tuple[tuple[str, Any], ...] = ()

    kind: ClassVar[str] = "own"

    def build(self) -> nn.Module:
        return MAKERS[self.arch](self.n, **dict(self.settings))

    def to_dict(self) -> dict[str, object]:
        return {"kind": self.kind, "n": self.n, "arch": self.arch, "settings": dict(self.settings)}


MAKERS: dict[str, Callable[..., nn.Module]] = {}


def own_network(arch: str, make: Callable[..., nn.Module]) -> Callable[..., NetworkConfig]:
    """Configurations of a network of your own: ``own_network("mean", Mean)(n=8, width=32)`` trains ``Mean(8, width=32)``.

    The module maps lists (..., k) to (..., k). Its name and settings are its identity in results: a module that computes
    something else needs another name.
    """
    MAKERS[arch] = make

    def config(n: int, **settings: Any) -> NetworkConfig:
        return OwnNetwork(n, arch, tuple(sorted(settings.items())))

    return config


def _own_from_dict(n: int, arch: str, settings: dict[str, Any]) -> OwnNetwork:
    if arch not in MAKERS:
        raise UsageError(f"the model's arch is {arch!r}, a network of someone's own; run the file that defines it.")
    return OwnNetwork(n, arch, tuple(sorted(settings.items())))


register("own", _own_from_dict)
