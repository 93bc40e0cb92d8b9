"""The positional Transformer (Section 4), the standard one, and everything between them: Eq. 1 with any attention.

A list of n numbers and one empty scratchpad entry are encoded linearly, pass through L layers

    F(X) = Φ( (⊕_h A_h X W_V,h) W_O  ⊕  X ),        Φ a two-layer ReLU MLP,                                    (Eq. 1)

and are decoded linearly; the scratchpad's output is dropped. ⊕ joins along the feature axis. A row of ``ARCHITECTURES``
defines an architecture: what feeds A, what feeds X, and in which form.

Other kinds of network share ``Layer`` and have a configuration and a class of their own: ``posattn/tokens`` reads words,
``posattn/looped`` lists of every length, and ``posattn/compiler`` makes the weights from a program.

Letters: n list length, N = n + 1 positions with the scratchpad, d embedding width, H heads, L layers,
X (..., N, d) the state, P (N, d_P) the positional encodings, A (..., H, N, N) the attention weights.
Defaults are those of the published runs: 84,577 parameters positional and 150,273 standard at n = 8.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor, nn

import posattn
from posattn.attention import Attention, causal_mask
from posattn.encodings import ENCODINGS
from posattn.errors import UsageError, choice, flag, instance, whole
from posattn.network import OBJECTS, NetworkConfig, check_input, stored_fields


@dataclass(frozen=True)
class Architecture:
    """The design choices of the paper's ablation (Appendix D.1), as data."""

    attends: str  # what feeds queries and keys: "position" (Eq. 3), "input" (Eq. 2) or "both"
    encoded_input: bool = False  # positional encodings are appended to the input, so values and MLP see them too
    diagonal_input: bool = False  # the input is Diag(X): each number in a coordinate of its own
    rotary: bool = False  # queries and keys are rotated by their position
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
}

KINDS_BY_ARCH: dict[str, Callable[..., Any]] = {}  # architectures whose configuration is another class (posattn.looped)


@dataclass(frozen=True)
class ModelConfig(NetworkConfig):
    """What determines a network up to its weights. A field left out has the published value, which is filled in.

    Args:
        n: the longest list.
        arch: a row of ``ARCHITECTURES``; one of ``KINDS_BY_ARCH`` makes that kind's configuration instead.
        layers: floor(log2 n) + 1 by default.
        heads: attention heads per layer.
        embed: width d of the state, a multiple of ``heads``.
        width: hidden width of the MLP.
        encoding: a row of :data:`posattn.encodings.ENCODINGS`, for architectures that read one.
        encoding_dim: its dimension d_P.
        d_k: query and key width of a head; d_P if attention is positional, else ``embed``.
        bias: False removes every bias; ``positional`` without biases is ``scale-exact``.
        causal: position i attends to positions up to i; the scratchpad, which comes last, to all.
    """

    n: int
    arch: str = "positional"
    layers: int = None  # type: ignore[assignment]  # None until filled in
    heads: int = 2
    embed: int = 64
    width: int = 64
    encoding: str = "one-hot"
    encoding_dim: int = None  # type: ignore[assignment]
    d_k: int = None  # type: ignore[assignment]
    bias: bool = None  # type: ignore[assignment]
    causal: bool = False

    kind: ClassVar[str] = "model"
    architectures: ClassVar[dict[str, Architecture]] = ARCHITECTURES  # those that this kind of network can have
    later: ClassVar[tuple[str, ...]] = ("causal",)  # fields that older runs lack; see ``stored_fields``

    def __new__(cls, *values: Any, **named: Any) -> Any:
        given = dict(zip((field.name for field in fields(cls)), values, strict=False)) | named
        arch = given.get("arch")
        if cls is ModelConfig and isinstance(arch, str) and arch not in ARCHITECTURES:
            posattn.import_all()  # other kinds of network add themselves to KINDS_BY_ARCH
        if cls is ModelConfig and isinstance(arch, str) and arch in KINDS_BY_ARCH:
            return KINDS_BY_ARCH[arch](**given)
        return super().__new__(cls, **given)

    def __post_init__(self) -> None:
        self._set("n", whole("n", self.n))
        choice("arch", self.arch, (*self.architectures, *(KINDS_BY_ARCH if type(self) is ModelConfig else ())))
        if choice("encoding", self.encoding, ENCODINGS) != "one-hot" and not self.design.reads_encodings:
            raise UsageError(f"encoding is {self.encoding!r}; the {self.arch} architecture takes none.")
        encoding = ENCODINGS[self.encoding]
        self._fill("layers", self.n.bit_length())  # floor(log2 n) + 1
        self._fill("encoding_dim", encoding.dim(self.n, self.positions))
        self._fill("d_k", self.encoding_dim if self.design.attends == "position" else self.embed)
        self._fill("bias", self.design.biases)
        for field in ("layers", "heads", "embed", "width", "encoding_dim", "d_k"):
            self._set(field, whole(field, getattr(self, field)))
        if encoding.full_rank and self.encoding_dim != self.positions:
            raise UsageError(
                f"encoding_dim is {self.encoding_dim}; {self.encoding} needs {self.positions} at n = {self.n}."
            )
        if self.embed % self.heads:
            raise UsageError(f"embed is {self.embed}; it must be a multiple of heads, which is {self.heads}.")
        flag("causal", self.causal)
        if flag("bias", self.bias) and not self.design.biases:
            raise UsageError(f"bias is True; the {self.arch} architecture has no biases.")
        if self.arch == "positional" and not self.bias:
            self._set("arch", "scale-exact")

    @property
    def design(self) -> Architecture:
        return self.architectures[self.arch]

    @property
    def attends(self) -> str:
        return self.design.attends

    @property
    def positions(self) -> int:
        """N: the list and the scratchpad."""
        return self.n + 1

    @property
    def encoded_positions(self) -> int:
        """How many rows P has."""
        return self.positions

    @property
    def entry_dim(self) -> int:
        """How many features describe an entry of the input: a number is one."""
        return 1

    @property
    def input_dim(self) -> int:
        """Width of what the encoder reads at each position."""
        if self.design.diagonal_input:
            return self.positions
        return self.entry_dim + self.encoding_dim * self.design.encoded_input

    @property
    def feature_dim(self) -> int:
        """Width of what queries and keys are made from."""
        d, d_P = self.embed, self.encoding_dim
        return {"input": d, "position": d_P, "both": d + d_P}[self.attends]

    @property
    def least_numbers(self) -> int:
        """The weights of the layers, without biases."""
        attention = 2 * self.heads * self.d_k * self.feature_dim + 2 * self.embed**2
        return self.layers * (attention + 3 * self.embed * self.width)

    @property
    def least_beside(self) -> int:
        return 4 * self.encoded_positions * self.encoding_dim + OBJECTS * self.layers

    @property
    def output_dim(self) -> int:
        """Width of what the decoder gives at each position."""
        return 1

    def answers(self, out: Float[Tensor, "*batch N V"]) -> Float[Tensor, "*out"]:
        """The answers among the decoder's outputs at all positions."""
        return out[..., :-1, 0]

    @property
    def network(self) -> "type[Transformer]":
        return Transformer

    def build(self) -> "Transformer":
        return self.network(self)

    def to_dict(self) -> dict[str, object]:
        return stored_fields(self, self.later)


def positions_of(length: int, config: ModelConfig, device: torch.device | None = None) -> Int64[Tensor, " N"]:
    """Where the entries of a list of ``length`` sit: 0..length-1, and the scratchpad at n."""
    if not 1 <= length <= config.n:
        what = "list has {} numbers" if config.reads == "none" else "sequence has {} tokens"
        raise UsageError(f"the {what.format(length)}; this model takes 1 to {config.n}.")
    return torch.cat([torch.arange(length, device=device), torch.full((1,), config.n, device=device)])


def input_features(
    entries: Float[Tensor, "*batch k F"],
    p: Float[Tensor, "*lists N d_P"],
    positions: Int64[Tensor, " N"],
    config: ModelConfig,
) -> Float[Tensor, "*any N d_in"]:
    """What the encoder reads: each entry, alone or with its encoding, or Diag(X). The scratchpad holds 0."""
    value = torch.cat([entries, torch.zeros_like(entries[..., :1, :])], dim=-2)
    if config.design.diagonal_input:
        return value * nn.functional.one_hot(positions, config.positions).to(value.dtype)
    if config.design.encoded_input:
        return torch.cat([value, p.expand(*value.shape[:-1], -1)], dim=-1)
    return value


class Layer(nn.Module):
    """Eq. 1: F(X) = Φ((⊕_h A_h X W_V,h) W_O ⊕ X). The published Φ has one hidden layer; other kinds may have more."""

    attention: Any  # an Attention; other kinds of network may have another

    def __init__(
        self,
        attention: nn.Module,
        d: int,
        hidden: Sequence[int],
        bias: bool = True,
        attends: str = "position",
        causal: bool = False,
        attended: int | None = None,
    ):
        """``hidden`` are Φ's hidden widths. ``attended`` is the width of what attention brings, d by default."""
        super().__init__()
        self.attention, self.attends, self.causal = attention, attends, causal
        self.W_1 = nn.Linear((d if attended is None else attended) + d, hidden[0], bias=bias)
        self.between = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in pairwise(hidden))
        self.W_2 = nn.Linear(hidden[-1], d, bias=bias)

    def weights(
        self, x: Float[Tensor, "*batch n d"], p: Float[Tensor, "*lists n d_P"], positions: Int64[Tensor, " n"]
    ) -> Float[Tensor, "*any H n n"]:
        """A. Eq. 2: softmax(X W_Q (X W_K)^T); Eq. 3: softmax(P W_Q (P W_K)^T), the same for every input."""
        mask = causal_mask(positions) if self.causal else None
        if self.attends == "position":
            return self.attention.weights(p, positions, mask)
        if self.attends == "both":
            x = torch.cat([x, p.expand(*x.shape[:-1], -1)], dim=-1)
        return self.attention.weights(x, positions, mask)

    def forward(
        self, x: Float[Tensor, "*batch n d"], p: Float[Tensor, "*lists n d_P"], positions: Int64[Tensor, " n"]
    ) -> Float[Tensor, "*batch n d"]:
        return self.update(self.attention.mix(self.weights(x, p, positions), x), x)

    def update(
        self, attended: Float[Tensor, "*batch n e"], x: Float[Tensor, "*batch n d"]
    ) -> Float[Tensor, "*batch n d"]:
        """Φ(attended ⊕ X)."""
        hidden = torch.relu(self.W_1(torch.cat([attended, x], dim=-1)))
        for linear in self.between:
            hidden = torch.relu(linear(hidden))
        return self.W_2(hidden)


class Transformer(nn.Module):
    """Lists of numbers in, lists of numbers out: (..., k) to (..., k) for any k up to ``config.n``.

    A shorter list keeps the encodings of the first k positions; the scratchpad always has the last one.
    ``Transformer(config)`` makes a network of the configuration's kind, such as a TokenTransformer.
    """

    P: Tensor
    config: Any  # a ModelConfig; other kinds of network have their own
    trained_on: str | None = None  # the task of a network that comes with the package
    layers: nn.ModuleList

    def __new__(cls, config: Any = None, *_more: Any, **_named: Any) -> Any:
        own = cls if config is None else getattr(config, "network", None)  # none where a copy is made
        if own is None:
            raise UsageError(
                f"config is a {type(config).__name__}, whose network is no Transformer: config.build() makes it."
            )
        return super().__new__(own if issubclass(own, cls) else cls)

    def __init__(self, config: Any):
        super().__init__()
        instance("config", config, NetworkConfig, "a ModelConfig").require_room()
        self.config = config
        self.encoder = nn.Linear(config.input_dim, config.embed, bias=config.bias)
        self.layers = nn.ModuleList(self._layer(index) for index in range(config.layers))
        if config.output_dim:
            self.decoder = nn.Linear(config.embed, config.output_dim, bias=config.bias)
        p = ENCODINGS[config.encoding].matrix(config.encoded_positions, config.encoding_dim)
        self.register_buffer("P", p, persistent=False)

    def _layer(self, index: int) -> Layer:
        config, d = self.config, self.config.embed
        made = self.attention_class()
        attention = made(d, config.feature_dim, config.d_k, config.heads, config.bias, config.design.rotary)
        return Layer(attention, d, (config.width,), config.bias, config.attends, config.causal)

    def attention_class(self) -> type[Attention]:
        return Attention

    def forward(self, x: Shaped[Tensor, "*input"]) -> Float[Tensor, "*out"]:
        return self.decode(self.last_state(x))

    def last_state(self, x: Shaped[Tensor, "*input"]) -> Float[Tensor, "*any N d"]:
        """X after the last layer; the states before it are not kept."""
        return deque(self._states(x), maxlen=1).pop()

    @property
    def input_dtype(self) -> torch.dtype:
        return self.encoder.weight.dtype

    def entries(self, x: Shaped[Tensor, "*batch k"]) -> Float[Tensor, "*batch k F"]:
        """The features of every entry of the input: a number has one, itself."""
        return x[..., None]

    def encode(self, x: Shaped[Tensor, "*input"]) -> tuple[Tensor, Tensor, Tensor]:
        """The first state, and the encodings and positions of its entries."""
        check_input(x, self.input_dtype)
        positions = positions_of(x.shape[-1], self.config, x.device)
        p = self.P[positions]
        return self.encoder(input_features(self.entries(x), p, positions, self.config)), p, positions

    def decode(self, z: Float[Tensor, "*batch N d"]) -> Float[Tensor, "*out"]:
        """The answers from the last state."""
        return self.config.answers(self.decoder(z))

    def states(self, x: Shaped[Tensor, "*input"]) -> list[Float[Tensor, "*any N d"]]:
        """X before every layer, and after the last."""
        return list(self._states(x))

    def _states(self, x: Shaped[Tensor, "*input"]) -> Iterator[Float[Tensor, "*any N d"]]:
        """The states, one at a time."""
        z, p, positions = self.encode(x)
        yield z
        for layer in self.passes(len(positions)):
            z = layer(z, p, positions)
            yield z

    def passes(self, positions: int) -> list[Layer]:
        """The layers that a list on so many positions passes, in order."""
        return list(self.layers)  # type: ignore[arg-type]

    def attention(
        self, x: Shaped[Tensor, "*input"] | None = None, *, length: int | None = None
    ) -> Float[Tensor, "L *any H N N"]:
        """The attention weights of all layers: (L, H, N, N) if positional, where no input is needed, else for ``x``."""
        if x is not None and length is not None:
            raise UsageError("attention takes x or length, not both.")
        if x is None and self.config.attends in ("input", "both"):
            raise UsageError(f"the attention of the {self.config.arch} architecture depends on the input; pass x.")
        if x is None:
            x = self.blank_input(self.config.n if length is None else whole("length", length, least=0))
        return self._maps(x)

    def _maps(self, x: Shaped[Tensor, "*input"]) -> Float[Tensor, "L *any H N N"]:
        _, p, positions = self.encode(x)
        passes = self.passes(len(positions))
        return torch.stack([layer.weights(z, p, positions) for layer, z in zip(passes, self._states(x), strict=False)])

    def blank_input(self, length: int) -> Tensor:
        """Zeros as input, for what does not depend on the input."""
        return self.encoder.weight.new_zeros(length, dtype=self.input_dtype)
