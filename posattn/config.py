"""What determines a network up to its weights: the architectures of the paper as data, and the configuration of one network."""

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from posattn.encodings import ENCODINGS
from posattn.errors import UsageError, choice, positive, whole
from posattn.offsets import FAMILIES
from posattn.tokens import VOCABULARIES, Vocabulary

if TYPE_CHECKING:
    from posattn.model import Transformer


@dataclass(frozen=True)
class Architecture:
    """The design choices of the paper's ablation (Appendix D.1), as data."""

    attends: str  # what feeds queries and keys: "position" (Eq. 3), "input" (Eq. 2) or "both"; or a table, "offset"
    encoded_input: bool = False  # positional encodings are appended to the input, so values and MLP see them too
    diagonal_input: bool = False  # the input is Diag(X): each number in a coordinate of its own
    rotary: bool = False  # queries and keys are turned by their position
    alibi: bool = False  # logits fall with the distance (Press et al., 2022)
    randomized: bool = False  # encodings are those of random places in a long range (Ruoss et al., 2023)
    biases: bool = True  # False: the network is homogeneous, f(c x) = c f(x) for c > 0, if A is positional

    @property
    def reads_encodings(self) -> bool:
        """Whether P is anywhere in the network."""
        return self.attends in ("position", "both") or self.encoded_input


ARCHITECTURES: dict[str, Architecture] = {
    "positional": Architecture("position"),
    "scale-exact": Architecture("position", biases=False),
    "standard": Architecture("input", encoded_input=True),
    "positional-input": Architecture("input", diagonal_input=True),
    "misaligned": Architecture("position", encoded_input=True),
    "input-regularized": Architecture("both"),
    "no-encoding": Architecture("input"),
    "rope-only": Architecture("input", rotary=True),
    "standard-rope": Architecture("input", encoded_input=True, rotary=True),
    "alibi": Architecture("input", alibi=True),
    "randomized": Architecture("input", encoded_input=True, randomized=True),
    "looped": Architecture("offset", biases=False),
}

RANGE = 2048  # places among which randomized encodings choose, as in Ruoss et al.


@dataclass(frozen=True)
class ModelConfig:
    """What determines a network up to its weights. A field left out has the published value, which is filled in.

    Args:
        n: the longest list.
        arch: a row of ``ARCHITECTURES``.
        layers: floor(log2 n) + 1 by default; 1 if ``looped``.
        heads: attention heads a layer; 2, or what the ``family`` has.
        embed: width d of the state; 64, or what the ``family`` has.
        width: hidden width of the MLP; 64, or 24 in the ``looped`` architecture.
        encoding: a row of :data:`posattn.encodings.ENCODINGS`, for architectures that read one.
        encoding_dim: its dimension d_P.
        d_k: query and key width of a head; d_P if attention is positional, else ``embed``.
        bias: False removes every bias; ``positional`` without biases is ``scale-exact``.
        tokens: a row of :data:`posattn.tokens.VOCABULARIES` that the network reads in place of a list of numbers.
        causal: position i attends to positions up to i; the scratchpad, which comes last, to all.
        tied: words are decoded by the vectors that embed them, without a bias; else by a linear map of their own.
        relative: numbers among tokens are read relative to their mean, which the answer is multiplied by: f(c x) = c f(x).
        any_length: lists of every length, of which n is the longest trained on; there is no scratchpad.
        looped: one layer, tied, as often as a list is long in binary digits; implies ``any_length``.

    What only the ``looped`` architecture has (docs/any-length.md), which is looped by nature:
        family: a row of :data:`posattn.offsets.FAMILIES`, which says where a position may look in each loop.
        sharpness: S, the factor on its attention logits, which a recipe may let grow to this.
        stay: a position keeps its state as far as its attention falls out of the list; else it sees a blank there.

    What looped networks and compiled programs have:
        d_v: value width of a head; embed / heads by default, ``embed`` in the ``looped`` architecture.
        mlp: hidden widths of every layer's MLP, from the first hidden layer on; one layer of ``width`` by default, or as
            many as the ``family`` has.

    What only compiled programs use (:mod:`posattn.compiler`), which are for lists of exactly n:
        inputs, outputs: numbers at each position; more than one makes them vectors, (..., n, inputs).
        numbered: the position's number is appended to its input (the node identifier of Lemma B.2).
        spare: blank positions between the list and the scratchpad.
        hardmax: hardmax (Eq. 6) in place of softmax.
        bounds: smallest and largest value of each input; others are refused.
        integers: which of the inputs are whole numbers; others are refused there.
    """

    n: int
    arch: str = "positional"
    layers: int = None  # type: ignore[assignment]  # None until filled in
    heads: int = None  # type: ignore[assignment]
    embed: int = None  # type: ignore[assignment]
    width: int = None  # type: ignore[assignment]
    encoding: str = "one-hot"
    encoding_dim: int = None  # type: ignore[assignment]
    d_k: int = None  # type: ignore[assignment]
    bias: bool = None  # type: ignore[assignment]
    tokens: str = "none"
    causal: bool = False
    tied: bool = False
    relative: bool = False
    any_length: bool = False
    looped: bool = False
    family: str | None = None
    sharpness: float | None = None
    stay: bool | None = None
    inputs: int = 1
    outputs: int = 1
    numbered: bool = False
    spare: int = 0
    d_v: int | None = None
    mlp: tuple[tuple[int, ...], ...] | None = None
    hardmax: bool = False
    bounds: tuple[tuple[float, float], ...] | None = None
    integers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole("n", self.n))
        choice("arch", self.arch, ARCHITECTURES)
        if choice("encoding", self.encoding, ENCODINGS) != "one-hot" and not self.design.reads_encodings:
            raise UsageError(f"encoding is {self.encoding!r}; the {self.arch} architecture takes none.")
        self._fill_loops()
        self._fill("layers", self.n.bit_length())  # floor(log2 n) + 1
        encoding = ENCODINGS[self.encoding]
        self._fill("encoding_dim", encoding.dim(self.n, self.positions))
        if encoding.full_rank and self.encoding_dim != self.positions:
            raise UsageError(
                f"encoding_dim is {self.encoding_dim}; {self.encoding} needs {self.positions} at n = {self.n}."
            )
        self._fill("d_k", self.encoding_dim if self.design.attends == "position" else self.embed)
        for field in ("layers", "heads", "embed", "width", "encoding_dim", "d_k", "inputs", "outputs"):
            object.__setattr__(self, field, whole(field, getattr(self, field)))
        if self.d_v is None and self.embed % self.heads:
            raise UsageError(f"embed is {self.embed}; it must be a multiple of heads, which is {self.heads}.")
        if self.mlp is not None:
            object.__setattr__(self, "mlp", _widths(self.mlp, self.layers))
        if self.d_v is not None:
            object.__setattr__(self, "d_v", whole("d_v", self.d_v))
        if self.bounds is not None and len(self.bounds) != self.inputs:
            raise UsageError(f"bounds has {len(self.bounds)} rows; it must have one for each of {self.inputs} inputs.")
        self._fill("bias", self.design.biases)
        for field in ("bias", "causal", "tied", "relative", "any_length", "looped"):
            if not isinstance(getattr(self, field), bool):
                raise UsageError(f"{field} is {getattr(self, field)!r}; it must be True or False.")
        if VOCABULARIES[choice("tokens", self.tokens, VOCABULARIES)].words and self.design.diagonal_input:
            raise UsageError(f"tokens is {self.tokens!r}; the {self.arch} architecture reads numbers only.")
        if self.tied and self.vocabulary.numbers:  # a vocabulary of words alone has single characters
            raise UsageError(f"tied is True; a network whose tokens are {self.tokens!r} answers no words.")
        if self.relative and not (self.vocabulary.words and self.vocabulary.numbers):
            raise UsageError(
                f"relative is True; a network whose tokens are {self.tokens!r} reads no numbers among words."
            )
        if self.bias and not self.design.biases:
            raise UsageError(f"bias is True; the {self.arch} architecture has no biases.")
        if self.arch == "positional" and not self.bias:
            object.__setattr__(self, "arch", "scale-exact")

    def _fill_loops(self) -> None:
        """What lists of every length need, and what they rule out."""
        design = self.design
        if design.attends == "offset":
            object.__setattr__(self, "looped", True)
            self._fill("family", "dilated")
            family = FAMILIES[choice("family", self.family, FAMILIES)]
            for field, value in (
                ("sharpness", 100.0),
                ("stay", True),
                ("embed", family.words),
                ("heads", family.heads),
            ):
                self._fill(field, value)
            for field, value in (("width", 24), ("d_v", self.embed)):
                self._fill(field, value)
            self._fill("mlp", ((self.width,) * family.hidden,))
            for field, own in (("causal", False), ("d_k", self.embed)):
                if getattr(self, field) not in (None, own):
                    raise UsageError(f"{field} is {getattr(self, field)!r}; the looped architecture takes none.")
            if not isinstance(self.stay, bool):
                raise UsageError(f"stay is {self.stay!r}; it must be True or False.")
            object.__setattr__(self, "sharpness", positive("sharpness", self.sharpness))
        for field, value in (("heads", 2), ("embed", 64), ("width", 64)):
            self._fill(field, value)
        for field in ("family", "sharpness", "stay"):
            if getattr(self, field) is not None and design.attends != "offset":
                raise UsageError(f"{field} is {getattr(self, field)!r}; the {self.arch} architecture has none.")
        if self.looped:
            self._fill("layers", 1)
            if self.layers != 1:
                raise UsageError(f"layers is {self.layers}; a looped network has 1, which is tied.")
        if self.looped or design.alibi or design.randomized:
            object.__setattr__(self, "any_length", True)
        if design.randomized:
            object.__setattr__(self, "encoding", "sinusoidal" if self.encoding == "one-hot" else self.encoding)
            self._fill("encoding_dim", self.embed)
        elif self.any_length and (design.reads_encodings or design.diagonal_input):
            raise UsageError(f"any_length is True; the {self.arch} architecture has encodings for n positions only.")
        for field, default in (_EVERY_LENGTH if self.any_length else {}).items():
            if getattr(self, field) != default:
                raise UsageError(
                    f"{field} is {getattr(self, field)!r}; for a network of lists of every length it must be {default!r}."
                )

    def _fill(self, field: str, value: object) -> None:
        if getattr(self, field) is None:
            object.__setattr__(self, field, value)

    @property
    def design(self) -> Architecture:
        return ARCHITECTURES[self.arch]

    @property
    def positions(self) -> int:
        """N: the list and the scratchpad, and between them what is spare."""
        return self.n + self.spare + (not self.any_length)

    @property
    def encoded_places(self) -> int:
        """How many positions P has rows for: none where no table fits every length."""
        return RANGE if self.design.randomized else 0 if self.any_length else self.positions

    def numbers_a_position(self, n: int, gradients: bool = False) -> int:
        """What a position of a list of n needs, about: its state four times over, and its rows of the attention.

        For ``gradients`` every layer, or loop, also keeps states, what heads bring, and hidden activations.
        """
        if self.family is None:
            times = self.layers if gradients else 1
            return times * (4 * self.embed + 2 * self.heads * n)
        family = FAMILIES[self.family]
        looks = self.heads * (1 + len(family.candidates))
        kept = 2 * self.embed + 3 * sum(sum(hidden) for hidden in self.mlp or ()) + 2 * looks * (self.d_v or self.embed)
        return 4 * self.embed + 4 * looks + (kept * len(list(family.loops(n))) if gradients else 0)

    @property
    def attended(self) -> int:
        """Width of what attention brings to Φ. W_O keeps that of the values where the state is but a few words (looped)."""
        return self.heads * self.d_v if self.design.attends == "offset" and self.d_v is not None else self.embed

    @property
    def vocabulary(self) -> Vocabulary:
        """The words that the network reads; none for lists of numbers."""
        return VOCABULARIES[self.tokens]

    @property
    def input_dim(self) -> int:
        """Width of what the encoder reads at each position."""
        if self.design.diagonal_input:
            return self.positions
        features = self.inputs + self.numbered if self.compiled else self.vocabulary.features
        return features + self.encoding_dim * self.design.encoded_input

    @property
    def compiled(self) -> bool:
        """Whether any field says what only compiled programs have. Those for every length are none of them."""
        return not self.any_length and any(getattr(self, name) != default for name, default in _COMPILED.items())

    @property
    def COLUMNS(self) -> tuple[str, ...]:
        """What result rows say beside the usual."""
        return ("tied", "relative") if self.vocabulary.words else ()

    def build(self) -> "Transformer":
        from posattn.model import Transformer

        return Transformer(self)

    def to_dict(self) -> dict[str, object]:
        """The fields. Those after ``bias`` are left out at their defaults: older runs, known by their fields, lack them."""
        return {name: value for name, value in asdict(self).items() if name not in _LATER or value != _LATER[name]}


def _widths(mlp: object, layers: int) -> tuple[tuple[int, ...], ...]:
    """Hidden widths, layer by layer; lists where they come from JSON."""
    if not isinstance(mlp, (list, tuple)) or not all(isinstance(row, (list, tuple)) for row in mlp):
        raise UsageError(f"mlp is {mlp!r}; it must have a tuple of hidden widths for each layer, such as ((24, 24),).")
    if len(mlp) != layers or not all(mlp):
        raise UsageError(f"mlp has {len(mlp)} rows; it must have hidden widths for each of {layers} layers.")
    return tuple(tuple(whole("mlp", width) for width in row) for row in mlp)


def _from(first: str) -> dict[str, object]:
    """The defaults of a field and all after it."""
    names = [field.name for field in fields(ModelConfig)]
    return {field.name: field.default for field in fields(ModelConfig)[names.index(first) :]}


_LATER, _COMPILED = _from("tokens"), _from("inputs")
# What networks for lists of every length do without: words, and of compiled programs all but the shape of their layers.
_EVERY_LENGTH = {"tokens": "none"} | {name: value for name, value in _COMPILED.items() if name not in ("d_v", "mlp")}
