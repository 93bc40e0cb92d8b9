"""What the package knows of any network: the base of all configurations, what a network can do, and how folders store it.

A kind of network is a class of configurations with a ``build``. Each kind lives with what it needs: ``posattn.model`` (lists of
numbers, the paper's architectures), ``posattn.tokens``, ``posattn.looped``, ``posattn.compiler``, ``posattn.baselines``.
The table ``ABILITIES`` alone decides whether a network can be folded, frozen, exported and so on.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

import posattn
from posattn.devices import check_fits, require_room
from posattn.errors import UsageError, choice, function, instance, shown, whole

OBJECTS = 10_000  # bytes that the Python objects of a layer take at least
KINDS: "dict[str, type[NetworkConfig]]" = {}  # the classes of configurations by their kind
KINDS_BY_ARCH: "dict[str, Callable[..., NetworkConfig]]" = {}  # other kinds that ModelConfig(n, arch) makes


class NetworkConfig:
    """The base of a frozen dataclass that determines a network up to its weights.

    The network maps lists (..., k) to (..., k) for k up to ``n``; the class says where it differs. An unknown
    or missing field raises a UsageError. :func:`from_dict` finds a class by the ``kind`` that it defines.
    """

    kind: ClassVar[str]  # what a run's folder calls it
    later: ClassVar[tuple[str, ...] | None] = None  # fields newer than stored runs: to_dict omits their defaults, and the kind
    architectures: ClassVar[dict[str, Any]] = {}  # those that it can have, of kinds that have several
    any_length: ClassVar[bool] = False  # whether it takes lists longer than n
    trainable: ClassVar[bool] = True  # False where a compiler makes the weights
    sharpened: ClassVar[str | None] = None  # the attention logits that a factor multiplies, which training may let grow
    network: ClassVar[type[nn.Module]]  # what it builds, of kinds that are Transformers
    columns: ClassVar[tuple[str, ...]] = ()  # fields that result rows have beside the usual ones

    if TYPE_CHECKING:  # fields, or class variables where a kind has one value only

        @property
        def n(self) -> int: ...

        @property
        def arch(self) -> str:
            """What results call it."""

    @property
    def reads(self) -> str:
        """The vocabulary of the tokens that it reads; ``none`` if it reads numbers."""
        return "none"

    @property
    def attends(self) -> str:
        """What its attention depends on: position, input, both or offset; empty if it is no Transformer of posattn."""
        return ""

    @property
    def lengths(self) -> bool:
        """Whether it is a compiled program that is told how long its list is."""
        return False

    @property
    def recipe(self) -> str:
        """The name of the recipe that it trains by, unless another is given."""
        return "paper"

    def build(self) -> nn.Module:
        return self.network(self)

    def sharpening(self, done: Tensor, start: float, stop: float) -> Tensor:
        """The factor on ``sharpened`` logits after a share ``done`` of training: geometric, 1/S at ``start``, 1 at ``stop``."""
        grown = ((done - start) / max(stop - start, 1e-9)).clamp(0, 1)
        return torch.exp((grown - 1) * math.log(self.sharpness))  # type: ignore[attr-defined]

    @property
    def least_numbers(self) -> int:
        """How many weights a network has at least; 0 where only building it tells."""
        return 0

    @property
    def least_beside(self) -> int:
        """How many bytes a network takes beside its weights at least: for P, and for the Python objects of its layers."""
        return 0

    def require_room(self) -> None:
        """Raises if a network does not fit into memory; to be called before any of it is built."""
        need = 4 * self.least_numbers + self.least_beside  # weights are built in float32
        require_room(f"the weights of a network for {shown(self)}", need, torch.get_default_device())

    def to_dict(self) -> dict[str, object]:
        """Kind and fields, as JSON can hold them; ``from_dict`` reads them back."""
        if self.later is not None:
            return stored_fields(self, self.later)
        return {"kind": self.kind} | asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "NetworkConfig":
        """The configuration that ``to_dict`` described, without its ``kind``."""
        return cls(**given)

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            KINDS[cls.kind] = cls

    def __new__(cls, *values: Any, **named: Any) -> Any:
        own = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
        given = dict(zip(own, values, strict=False)) | named
        arch = given.get("arch")
        if cls is KINDS.get("model") and isinstance(arch, str) and arch not in cls.architectures:
            posattn.import_all()  # other kinds add themselves to KINDS_BY_ARCH
            if arch in KINDS_BY_ARCH:
                return KINDS_BY_ARCH[arch](**given)
        for name, value in given.items():
            if name not in own:
                raise UsageError(f"{name} is {value!r}, {_whose(name)}; {cls.__name__} has {', '.join(own)}.")
        for name, field in own.items():
            if name not in given and field.default is field.default_factory is MISSING:
                raise UsageError(f"{name} is missing; {cls.__name__} has no default for it.")
        return super().__new__(cls)

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        """The fields, with which copies and pickles call ``__new__``."""
        return (), {name: getattr(self, name) for name in _names(type(self))}

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _count(self, *names: str) -> None:
        """Raises unless these fields are whole numbers of at least 1, which they are as ``int`` from here on."""
        for name in names:
            self._set(name, whole(name, getattr(self, name)))

    def _fill(self, field: str, value: object) -> Any:
        """Sets a field that was left out to ``value``; returns the field's value."""
        if getattr(self, field) is None:
            self._set(field, value)
        return getattr(self, field)


def _whose(field: str) -> str:
    """The configurations that define a field, without those that inherit it, for an error."""
    posattn.import_all()
    kinds = [kind for kind in KINDS.values() if field in _names(kind) and field not in _names(kind.__base__)]
    return f"a field of {', '.join(sorted(kind.__name__ for kind in kinds))}" if kinds else "which is no field"


def _names(kind: type | None) -> list[str]:
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []


def stored_fields(described: Any, later: Iterable[str]) -> dict[str, Any]:
    """The fields of a dataclass as folders store them, without defaults of those in ``later``, which older digests lack."""
    unset = {field.name: field.default for field in fields(described) if field.name in later}
    return {name: value for name, value in asdict(described).items() if name not in unset or value != unset[name]}


def from_dict(given: dict[str, Any]) -> NetworkConfig:
    """The configuration that ``to_dict`` described; JSON has lists for its tuples."""
    own = {name: _tuples(value) for name, value in instance("the model", given, dict, "a dictionary").items()}
    kind = own.pop("kind", None) or _kind_of(own)
    if kind not in tuple(KINDS):
        posattn.import_all()
    if kind not in tuple(KINDS):
        raise UsageError(f"the model's kind is {shown(kind)}; import the module that defines it first.")
    return KINDS[kind].from_dict(own)


def configuration(**fields: Any) -> NetworkConfig:
    """The configuration of the kind that has these fields."""
    return from_dict(fields)


def _kind_of(given: dict[str, Any]) -> str:
    """The kind of a network whose dictionary does not name it: the kinds of ``posattn`` are told from their fields."""
    if "tokens" in given:
        return "tokens"
    if given.get("arch") in ("looped", "table"):
        return str(given["arch"])
    if "any_length" in given or "looped" in given:
        return "any-length"
    return "compiled" if "bounds" in given else "model"


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(own) for name, own in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def network_class(asked: type[nn.Module], config: object) -> type[nn.Module]:
    """The class of the network when ``asked(config)`` is called: that of the configuration's kind, if it is an ``asked``."""
    own = asked if config is None else getattr(config, "network", None)  # None where a copy is made
    if own is None:
        raise UsageError(
            f"config is a {type(config).__name__}, whose network is no Transformer: config.build() makes it."
        )
    return own if issubclass(own, asked) else asked


def check_input(x: object, wanted: torch.dtype) -> None:
    """Raises unless ``x`` is a tensor of the dtype that a network reads, or of one that autocast converts."""
    if not isinstance(x, Tensor):
        raise UsageError(f"the input is a {type(x).__name__}; it must be a tensor, such as torch.tensor([3.0, 1.0]).")
    if not x.ndim:
        raise UsageError("the input is a single number; it must be a list of them, (..., n).")
    if x.dtype == wanted:
        return
    # Autocast leaves float64 as it is.
    cast = torch.is_autocast_enabled(x.device.type) and torch.float64 not in (x.dtype, wanted)
    if not x.is_floating_point() or not cast:
        raise UsageError(f"the input is of {x.dtype}; this network reads {wanted}, which x.to({wanted}) gives.")


def check_memory(model: Any, x: Tensor) -> None:
    """Raises if a network has no room for what it computes of ``x``, whose lists are not empty."""
    if torch.compiler.is_compiling():
        return
    n, size = x.shape[-1], x.element_size() if x.is_floating_point() else 4  # of what words become
    gradients = torch.is_grad_enabled() and any(weight.requires_grad for weight in model.parameters())
    check_fits(x.numel() // n, n, model.config.numbers_per_position(n, gradients), size, x.device, gradients)


def check_encoding(p: object, config: Any) -> Tensor:
    """The matrix P of a configuration's encoding in the default dtype; raises unless it is finite and of the right shape."""
    what, size = f"the matrix of the encoding {config.encoding!r}", (config.encoded_positions, config.encoding_dim)
    if not isinstance(p, Tensor) or p.is_complex() or p.shape != size:
        found = f"a tensor of {p.dtype}, {tuple(p.shape)}" if isinstance(p, Tensor) else f"a {type(p).__name__}"
        raise UsageError(f"{what} is {found}; it must be a tensor of real numbers, {size}: positions and encoding_dim.")
    p = p.to(torch.get_default_dtype())
    if not p.is_meta and not bool(p.isfinite().all()):
        raise UsageError(f"{what} has a number that is not finite in {p.dtype}; all must be.")
    return p


# --- what a network can do ------------------------------------------------------------------------------------------------

Question = tuple[Callable[[Any], bool], str]  # a test of a configuration, and what an error says of one that fails it

_IS_OURS: Question = (lambda c: c.attends != "", "is no Transformer of posattn")
_IS_OURS_OR_A_TABLE: Question = (
    lambda c: c.attends != "" or c.kind in ("table", "prompt-table"),
    "is no Transformer of posattn",
)
_READS_NUMBERS: Question = (lambda c: c.reads == "none", "reads {0.reads}")
_IS_TRAINED: Question = (lambda c: c.trainable and c.kind != "program", "is a compiled program")
_HAS_MATRICES: Question = (lambda c: c.kind != "selection", "has indices in place of queries and keys (sparse)")
_ASKS_NO_LENGTH: Question = (lambda c: not c.lengths, "is told the length of its list (lengths)")
_HAS_A_PAGE: Question = (lambda c: c.kind != "program", "is a compiled program that was trained on")
_HAS_LENGTH: Question = (lambda c: not c.any_length, "is for lists of every length")
_TAKES_EVERY: Question = (lambda c: c.any_length, "is for lists of up to {0.n} numbers only")
_LOOPS: Question = (lambda c: c.kind == "looped", "has no loops")
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
_IS_BIAS_FREE: Question = (lambda c: not c.bias, "has biases")
_READS_PLAIN: Question = (
    lambda c: not (c.design.encoded_input or c.design.diagonal_input),
    "reads more than the numbers at each position",
)
_NAMES_PLACES: Question = (lambda c: c.arch != "randomized", "has encodings of random places")

# Per ability the end of the error, which says who has it, and the questions that a network must pass, in order.
ABILITIES: dict[str, tuple[str, tuple[Question, ...]]] = {
    "fold": (
        "only Transformers trained on lists or sequences of up to n can be folded",
        (_IS_OURS, _IS_TRAINED, _HAS_LENGTH, _MULTIPLIES),
    ),
    "freeze": (
        "only networks trained on lists of up to n numbers can be frozen",
        (_IS_OURS, _READS_NUMBERS, _IS_TRAINED, _HAS_LENGTH, _MULTIPLIES),
    ),
    "export": ("only Transformers and table networks can be exported", (_IS_OURS_OR_A_TABLE,)),
    "show": (
        "the explorer shows Transformers of lists of numbers with fixed encodings",
        (_IS_OURS, _READS_NUMBERS, _NAMES_PLACES, _HAS_MATRICES, _ASKS_NO_LENGTH, _HAS_A_PAGE),
    ),
    "bound": (
        "the bound is for networks that are trained on lists of up to n numbers",
        (_IS_OURS, _READS_NUMBERS, _IS_TRAINED, _HAS_LENGTH, _IS_COVERED),
    ),
    "certify": (
        "the certificate is for bias-free positional networks (--arch scale-exact) that are trained on lists of numbers",
        (_IS_OURS, _READS_NUMBERS, _IS_TRAINED, _HAS_LENGTH, _IS_POSITIONAL, _IS_BIAS_FREE, _READS_PLAIN, _MULTIPLIES),
    ),
    "graph": ("only networks whose attention needs no input have a graph", (_IS_OURS, _IS_STATIC)),
    "communicate": (
        "the effect of edges is measured in positional networks for inputs of up to n",
        (_IS_OURS, _HAS_LENGTH, _IS_POSITIONAL, _HAS_MATRICES),
    ),
    "every length": ("tests by length are for networks of every length and compiled programs", (_TAKES_EVERY,)),
    "last steps": ("only looped networks have last steps (polish)", (_LOOPS,)),
}


def missing(config: NetworkConfig, ability: str) -> str | None:
    """Why networks of a configuration lack an ability of the table, in a sentence; None if they have it."""
    instance("config", config, NetworkConfig, "a ModelConfig")
    end, questions = ABILITIES[choice("ability", ability, ABILITIES)]
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
class OwnNetwork(NetworkConfig):
    """Anyone's ``nn.Module`` as an architecture; made by what :func:`own_network` returns."""

    n: int
    arch: str
    settings: tuple[tuple[str, Any], ...] = ()

    kind: ClassVar[str] = "own"

    def build(self) -> nn.Module:
        return MAKERS[self.arch](self.n, **dict(self.settings))

    def to_dict(self) -> dict[str, object]:
        return {"kind": self.kind, "n": self.n, "arch": self.arch, "settings": dict(self.settings)}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "OwnNetwork":
        if given["arch"] not in MAKERS:
            arch = f"{given['arch']!r}, a network of someone's own"
            raise UsageError(f"the model's arch is {arch}; run the file that defines it.")
        return cls(given["n"], given["arch"], tuple(sorted(given["settings"].items())))


MAKERS: dict[str, Callable[..., nn.Module]] = {}


def own_network(arch: str, make: Callable[..., nn.Module]) -> Callable[..., NetworkConfig]:
    """Configurations of a network of your own: ``own_network("mean", Mean)(n=8, width=32)`` trains ``Mean(8, width=32)``.

    The module maps lists (..., k) to (..., k). Its name and settings are its identity in results: a module that computes
    something else needs another name.
    """
    MAKERS[instance("arch", arch, str, "a name")] = function("make", make)
    return lambda n, **settings: OwnNetwork(n, arch, tuple(sorted(settings.items())))
