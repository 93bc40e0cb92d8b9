"""The positional Transformer (Section 4), the standard one, and everything between them: Eq. 1 with any attention.

A list of n numbers and one empty scratchpad entry are encoded linearly, pass through L layers

    F(X) = Φ( (⊕_h A_h X W_V,h) W_O  ⊕  X ),        Φ a two-layer ReLU MLP,                                    (Eq. 1)

and are decoded linearly; the scratchpad's output is dropped. ⊕ joins along the feature axis. A row of ``ARCHITECTURES``
defines an architecture: what feeds A, what feeds X, and in which form.

Letters: n list length, N = n + 1 positions with the scratchpad, d embedding width, H heads, L layers,
X (..., N, d) the state, P (N, d_P) the positional encodings, A (..., H, N, N) the attention weights.
Defaults are those of the published runs: 84,577 parameters positional and 150,273 standard at n = 8.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor, nn

from posattn.attention import Attention, causal_mask
from posattn.encodings import ENCODINGS
from posattn.errors import UsageError, choice, flag, instance, whole
from posattn.network import KINDS_BY_ARCH, OBJECTS, NetworkConfig, check_encoding, check_input, network_class

State = Float[Tensor, "*batch N d"]  # X
Encodings = Float[Tensor, "*lists N d_P"]  # rows of P
Positions = Int64[Tensor, " N"]
Input = Shaped[Tensor, "*input"]  # lists of numbers (..., k), or what another kind of network reads


@dataclass(frozen=True)
class Architecture:
    """The design choices of the paper's ablation (Appendix D.1), as data."""

    attends: str  # what feeds queries and keys: "position" (Eq. 3), "input" (Eq. 2) or "both"
    encoded_input: bool = False  # positional encodings are appended to the input, so values and MLP see them too
    diagonal_input: bool = False  # the input is Diag(X): each number in a coordinate of its own
    rotary: bool = False  # queries and keys are rotated by their position
    biases: bool = True  # False: the network is homogeneous, f(c x) = c f(x) for c > 0, if A is positional

    def __post_init__(self) -> None:
        choice("attends", self.attends, ("position", "input", "both"))


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
    architectures: ClassVar[dict[str, Architecture]] = ARCHITECTURES
    output_dim: ClassVar[int] = 1  # width of what the decoder gives at each position
    later: ClassVar[tuple[str, ...]] = ("causal",)

    def __post_init__(self) -> None:
        self._count("n")
        choice("arch", self.arch, (*self.architectures, *(KINDS_BY_ARCH if type(self) is ModelConfig else ())))
        encoding = ENCODINGS[choice("encoding", self.encoding, ENCODINGS)]
        if self.encoding != "one-hot" and self.attends == "input" and not self.design.encoded_input:
            raise UsageError(f"encoding is {self.encoding!r}; the {self.arch} architecture takes none.")
        self._fill("layers", self.n.bit_length())  # floor(log2 n) + 1
        self._fill("encoding_dim", encoding.dim(self.n, self.positions))
        self._fill("d_k", self.encoding_dim if self.attends == "position" else self.embed)
        self._fill("bias", self.design.biases)
        self._count("layers", "heads", "embed", "width", "encoding_dim", "d_k")
        if encoding.full_rank and self.encoding_dim != (needed := self.positions):
            raise UsageError(f"encoding_dim is {self.encoding_dim}; {self.encoding} needs {needed} at n = {self.n}.")
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
    def input_dim(self) -> int:
        """Width of what the encoder reads at each position."""
        return self.positions if self.design.diagonal_input else 1 + self.encoding_dim * self.design.encoded_input

    @property
    def feature_dim(self) -> int:
        """Width of what queries and keys are made from."""
        return self.embed * (self.attends != "position") + self.encoding_dim * (self.attends != "input")

    @property
    def least_numbers(self) -> int:
        """The weights of the layers, without biases."""
        return self.layers * (2 * self.heads * self.d_k * self.feature_dim + self.embed * (2 * self.embed + 3 * self.width))

    @property
    def least_beside(self) -> int:
        return 4 * self.encoded_positions * self.encoding_dim + OBJECTS * self.layers

    def answers(self, out: Float[Tensor, "*batch N V"]) -> Float[Tensor, "*out"]:
        """The answers among the decoder's outputs at all positions."""
        return out[..., :-1, 0]


def positions_of(length: int, config: ModelConfig, device: torch.device | None = None) -> Positions:
    """Where the entries of a list of ``length`` sit: 0..length-1, and the scratchpad at n."""
    if not 1 <= length <= config.n:
        what = "list has {} numbers" if config.reads == "none" else "sequence has {} tokens"
        raise UsageError(f"the {what.format(length)}; this model takes 1 to {config.n}.")
    return torch.cat([torch.arange(length, device=device), torch.full((1,), config.n, device=device)])


def input_features(
    entries: Float[Tensor, "*batch k F"], p: Encodings, positions: Positions, config: ModelConfig
) -> Float[Tensor, "*any N d_in"]:
    """What the encoder reads: each entry, alone or with its encoding, or Diag(X). The scratchpad holds 0."""
    value = torch.cat([entries, torch.zeros_like(entries[..., :1, :])], dim=-2)
    if config.design.diagonal_input:
        return value * nn.functional.one_hot(positions, config.positions).to(value.dtype)
    return torch.cat([value, p.expand(*value.shape[:-1], -1)], dim=-1) if config.design.encoded_input else value


class Layer(nn.Module):
    """Eq. 1: F(X) = Φ((⊕_h A_h X W_V,h) W_O ⊕ X). ``hidden`` are Φ's hidden widths: one as published, or more."""

    def __init__(
        self, attention: Any, hidden: Sequence[int], bias: bool = True, attends: str = "position", causal: bool = False
    ):
        super().__init__()
        self.attention, self.attends, self.causal, d = attention, attends, causal, attention.W_V.in_features
        self.W_1 = nn.Linear(attention.W_O.out_features + d, hidden[0], bias=bias)
        self.between = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in pairwise(hidden))
        self.W_2 = nn.Linear(hidden[-1], d, bias=bias)

    def weights(self, x: State, p: Encodings, positions: Positions) -> Float[Tensor, "*any H N N"]:
        """A. Eq. 2: softmax(X W_Q (X W_K)^T); Eq. 3: softmax(P W_Q (P W_K)^T), the same for every input."""
        features = p if self.attends == "position" else x
        if self.attends == "both":
            features = torch.cat([x, p.expand(*x.shape[:-1], -1)], dim=-1)
        return self.attention.weights(features, positions, causal_mask(positions) if self.causal else None)

    def forward(self, x: State, p: Encodings, positions: Positions) -> State:
        return self.update(self.attention.mix(self.weights(x, p, positions), x), x)

    def update(self, attended: Float[Tensor, "*batch N e"], x: State) -> State:
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
    attention_class: type[Attention] = Attention

    def __new__(cls, config: Any = None, *_more: Any, **_named: Any) -> Any:
        return super().__new__(network_class(cls, config))

    def __init__(self, config: Any):
        super().__init__()
        instance("config", config, NetworkConfig, "a ModelConfig").require_room()
        self.config = config
        self.encoder = nn.Linear(config.input_dim, config.embed, bias=config.bias)
        self.layers = nn.ModuleList(self._layer(index) for index in range(config.layers))
        if config.output_dim:
            self.decoder = nn.Linear(config.embed, config.output_dim, bias=config.bias)
        p = ENCODINGS[config.encoding].matrix(config.encoded_positions, config.encoding_dim)
        self.register_buffer("P", check_encoding(p, config), persistent=False)

    def _layer(self, index: int) -> Layer:
        config, made = self.config, self.attention_class
        attention = made(config.embed, config.feature_dim, config.d_k, config.heads, config.bias, config.design.rotary)
        return Layer(attention, (config.width,), config.bias, config.attends, config.causal)

    def forward(self, x: Input) -> Float[Tensor, "*out"]:
        return self.decode(self.last_state(x))

    def last_state(self, x: Input) -> State:
        """X after the last layer; the states before it are not kept."""
        return deque(self._states(x), maxlen=1).pop()

    @property
    def input_dtype(self) -> torch.dtype:
        return self.encoder.weight.dtype

    def entries(self, x: Input) -> Float[Tensor, "*batch k F"]:
        """The features of every entry of the input: a number has one, itself."""
        return x[..., None]

    def encode(self, x: Input) -> tuple[Tensor, Tensor, Tensor]:
        """The first state, and the encodings and positions of its entries."""
        check_input(x, self.input_dtype)
        positions = positions_of(x.shape[-1], self.config, x.device)
        p = self.P[positions]
        return self.encoder(input_features(self.entries(x), p, positions, self.config)), p, positions

    def decode(self, z: State) -> Float[Tensor, "*out"]:
        return self.config.answers(self.decoder(z))

    def states(self, x: Input) -> list[State]:
        """X before every layer, and after the last."""
        return list(self._states(x))

    def _states(self, x: Input) -> Iterator[State]:
        z, p, positions = self.encode(x)
        yield z
        for layer in self.passes(len(positions)):
            z = layer(z, p, positions)
            yield z

    def passes(self, positions: int) -> list[Layer]:
        """The layers that a list on so many positions passes, in order."""
        return list(self.layers)  # type: ignore[arg-type]

    def attention(self, x: Input | None = None, *, length: int | None = None) -> Float[Tensor, "L *any H N N"]:
        """The attention weights of all layers: (L, H, N, N) if positional, where no input is needed, else for ``x``."""
        if x is None:
            if self.config.attends in ("input", "both"):
                raise UsageError(f"the attention of the {self.config.arch} architecture depends on the input; pass x.")
            x = self.blank_input(self.config.n if length is None else whole("length", length, least=0))
        elif length is not None:
            raise UsageError("attention takes x or length, not both.")
        return self._maps(x)

    def _maps(self, x: Input) -> Float[Tensor, "L *any H N N"]:
        _, p, positions = self.encode(x)
        passes = zip(self.passes(len(positions)), self._states(x), strict=False)
        return torch.stack([layer.weights(z, p, positions) for layer, z in passes])

    def blank_input(self, length: int) -> Tensor:
        """Zeros as input, for what does not depend on the input."""
        return self.encoder.weight.new_zeros(length, dtype=self.input_dtype)


ModelConfig.network = Transformer
