"""The positional Transformer (Section 4), the standard one, and everything between them: Eq. 1 with any attention.

A list of n numbers and one empty scratchpad entry are encoded linearly, pass through L layers

    F(X) = Φ( (⊕_h A_h X W_V,h) W_O  ⊕  X ),        Φ a two-layer ReLU MLP,                                    (Eq. 1)

and are decoded linearly; the scratchpad's output is dropped. ⊕ joins along the feature axis. What the architectures
differ in is said by one row of ``ARCHITECTURES`` each: what feeds A, what feeds X, and in which form.

Letters: n list length, N = n + 1 positions with the scratchpad, d embedding width, H heads, L layers,
X (..., N, d) the state, P (N, d_P) the positional encodings, A (..., H, N, N) the attention weights.
Defaults are those of the published runs: 84,577 parameters positional and 150,273 standard at n = 8.
"""

from dataclasses import asdict, dataclass, fields
from itertools import pairwise

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from posattn.attention import Attention
from posattn.encodings import ENCODINGS
from posattn.errors import UsageError, choice, whole
from posattn.memory import check_numbers, memory_cells, within_bounds


@dataclass(frozen=True)
class Architecture:
    """The design choices of the paper's ablation (Appendix D.1), as data."""

    attends: str  # what feeds queries and keys: "position" (Eq. 3), "input" (Eq. 2) or "both"
    encoded_input: bool = False  # positional encodings are appended to the input, so values and MLP see them too
    diagonal_input: bool = False  # the input is Diag(X): each number in a coordinate of its own
    rotary: bool = False  # queries and keys are turned by their position
    biases: bool = True  # False: the network is homogeneous, f(c x) = c f(x) for c > 0, if A is positional


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
class ModelConfig:
    """What determines a network up to its weights. A field left out has the published value, which is filled in.

    Args:
        n: the longest list.
        arch: a row of ``ARCHITECTURES``.
        layers: floor(log2 n) + 1 by default.
        heads: attention heads a layer.
        embed: width d of the state.
        width: hidden width of the MLP.
        encoding: a row of :data:`posattn.encodings.ENCODINGS`.
        encoding_dim: its dimension d_P.
        d_k: query and key width of a head; d_P if attention is positional, else ``embed``.
        bias: False removes every bias; ``positional`` without biases is ``scale-exact``.

    What only compiled programs use (:mod:`posattn.compiler`), which are for lists of exactly n:
        inputs, outputs: numbers at each position; more than one makes them vectors, (..., n, inputs).
        numbered: the position's number is appended to its input (the node identifier of Lemma B.2).
        spare: blank positions between the list and the scratchpad.
        d_v: value width of a head; embed / heads by default.
        mlp: hidden widths of every layer's MLP, from the first hidden layer on; one layer of ``width`` by default.
        hardmax: hardmax (Eq. 6) in place of softmax.
        bounds: smallest and largest value of each input; others are refused.
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
    inputs: int = 1
    outputs: int = 1
    numbered: bool = False
    spare: int = 0
    d_v: int | None = None
    mlp: tuple[tuple[int, ...], ...] | None = None
    hardmax: bool = False
    bounds: tuple[tuple[float, float], ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole("n", self.n))
        choice("arch", self.arch, ARCHITECTURES)
        choice("encoding", self.encoding, ENCODINGS)
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
        if self.mlp is not None and (len(self.mlp) != self.layers or not all(self.mlp)):
            raise UsageError(f"mlp has {len(self.mlp)} rows; it must have widths for each of {self.layers} layers.")
        if self.bounds is not None and len(self.bounds) != self.inputs:
            raise UsageError(f"bounds has {len(self.bounds)} rows; it must have one for each of {self.inputs} inputs.")
        self._fill("bias", self.design.biases)
        if not isinstance(self.bias, bool):
            raise UsageError(f"bias is {self.bias!r}; it must be True or False.")
        if self.bias and not self.design.biases:
            raise UsageError(f"bias is True; the {self.arch} architecture has no biases.")
        if self.arch == "positional" and not self.bias:
            object.__setattr__(self, "arch", "scale-exact")

    def _fill(self, field: str, value: object) -> None:
        if getattr(self, field) is None:
            object.__setattr__(self, field, value)

    @property
    def design(self) -> Architecture:
        return ARCHITECTURES[self.arch]

    @property
    def positions(self) -> int:
        """N: the list and the scratchpad, and between them what is spare."""
        return self.n + self.spare + 1

    @property
    def input_dim(self) -> int:
        """Width of what the encoder reads at each position."""
        if self.design.diagonal_input:
            return self.positions
        return self.inputs + self.numbered + self.encoding_dim * self.design.encoded_input

    @property
    def compiled(self) -> bool:
        """Whether any field says what only compiled programs have."""
        return any(getattr(self, name) != default for name, default in _COMPILED.items())

    def build(self) -> "Transformer":
        return Transformer(self)

    def to_dict(self) -> dict[str, object]:
        """All fields, without those of compiled programs that are at their defaults."""
        own = asdict(self).items()
        return {name: value for name, value in own if name not in _COMPILED or value != _COMPILED[name]}


_NAMES = ("inputs", "outputs", "numbered", "spare", "d_v", "mlp", "hardmax", "bounds")
_COMPILED = {field.name: field.default for field in fields(ModelConfig) if field.name in _NAMES}


class Layer(nn.Module):
    """Eq. 1: F(X) = Φ((⊕_h A_h X W_V,h) W_O ⊕ X)."""

    def __init__(self, config: ModelConfig, index: int = 0):
        super().__init__()
        d, self.attends = config.embed, config.design.attends
        d_features = {"input": d, "position": config.encoding_dim, "both": d + config.encoding_dim}[self.attends]
        self.attention = Attention(
            d, d_features, config.d_k, config.heads, config.bias, config.design.rotary, config.d_v, config.hardmax
        )
        hidden = (config.width,) if config.mlp is None else config.mlp[index]
        self.W_1 = nn.Linear(2 * d, hidden[0], bias=config.bias)
        # Between W_1 and W_2 there is nothing but in deeper MLPs, which only compiled programs have.
        self.between = nn.ModuleList(nn.Linear(a, b, bias=config.bias) for a, b in pairwise(hidden))
        self.W_2 = nn.Linear(hidden[-1], d, bias=config.bias)

    def weights(
        self, x: Float[Tensor, "*batch n d"], p: Float[Tensor, "n d_P"], positions: Int64[Tensor, " n"]
    ) -> Float[Tensor, "*any H n n"]:
        """A. Eq. 2: softmax(X W_Q (X W_K)^T); Eq. 3: softmax(P W_Q (P W_K)^T), the same for every input."""
        if self.attends == "position":
            return self.attention.weights(p, positions)
        if self.attends == "both":
            x = torch.cat([x, p.expand(*x.shape[:-1], -1)], dim=-1)
        return self.attention.weights(x, positions)

    def forward(
        self, x: Float[Tensor, "*batch n d"], p: Float[Tensor, "n d_P"], positions: Int64[Tensor, " n"]
    ) -> Float[Tensor, "*batch n d"]:
        attended = self.attention.mix(self.weights(x, p, positions), x)
        hidden = torch.relu(self.W_1(torch.cat([attended, x], dim=-1)))
        for linear in self.between:
            hidden = torch.relu(linear(hidden))
        return self.W_2(hidden)


class Transformer(nn.Module):
    """Lists of numbers in, lists of numbers out: (..., k) to (..., k) for any k up to ``config.n``.

    A shorter list keeps the encodings of the first k positions; the scratchpad always has the last one. A compiled
    program may take vectors, (..., n, inputs), and give vectors, (..., n, outputs).
    """

    P: Tensor

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(config.input_dim, config.embed, bias=config.bias)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.layers))
        self.decoder = nn.Linear(config.embed, config.outputs, bias=config.bias)
        p = ENCODINGS[config.encoding].matrix(config.positions, config.encoding_dim)
        self.register_buffer("P", p, persistent=False)

    def forward(self, x: Float[Tensor, "*batch k"]) -> Float[Tensor, "*answers"]:
        z, p, positions = self._encode(x)
        for layer in self.layers:
            z = layer(z, p, positions)
        if self.config.numbered:
            check_numbers(z[..., -1], self.config.layers - 1)
        y = self.decoder(z)[..., : -1 - self.config.spare, :]
        return y[..., 0] if self.config.outputs == 1 else y

    def attention(
        self, x: Float[Tensor, "*batch k"] | None = None, *, length: int | None = None
    ) -> Float[Tensor, "L *any H N N"]:
        """The attention weights of all layers: (L, H, N, N) if positional, where no input is needed, else for ``x``."""
        if x is None and self.config.design.attends != "position":
            raise UsageError(f"the attention of the {self.config.arch} architecture depends on the input; pass x.")
        if x is not None and length is not None:
            raise UsageError("attention takes x or length, not both.")
        if x is None:
            words = (self.config.inputs,) * (self.config.inputs > 1)
            x = self.P.new_zeros(self.config.n if length is None else length, *words)
        *states, _ = self.states(x)
        positions = positions_of(self._length(x), self.config, x.device)
        maps = []
        for layer, z in zip(self.layers, states, strict=True):
            assert isinstance(layer, Layer)
            maps.append(layer.weights(z, self.P[positions], positions))
        return torch.stack(maps)

    def states(self, x: Float[Tensor, "*batch k"]) -> list[Float[Tensor, "*any N d"]]:
        """X before every layer, and after the last."""
        z, p, positions = self._encode(x)
        states = [z]
        for layer in self.layers:
            states.append(layer(states[-1], p, positions))
        return states

    def _encode(self, x: Float[Tensor, "*batch k"]) -> tuple[Tensor, Tensor, Tensor]:
        """The first state, and the encodings and positions of its entries."""
        if self.config.bounds is not None:
            x = within_bounds(x, self.config.n, self.config.bounds).to(self.P.dtype)
        positions = positions_of(self._length(x), self.config, x.device)
        p = self.P[positions]
        return self.encoder(input_features(x, p, positions, self.config)), p, positions

    def _length(self, x: Tensor) -> int:
        """How many positions an input fills: vectors have one axis more."""
        return x.shape[-1 if self.config.inputs == 1 else -2]


def positions_of(length: int, config: ModelConfig, device: torch.device | None = None) -> Int64[Tensor, " N"]:
    """Where the entries of a list of ``length`` sit: 0..length-1, and the scratchpad at n."""
    if config.compiled and length != config.n:
        raise UsageError(f"the list has {length} numbers; this compiled program takes {config.n}.")
    if not 1 <= length <= config.n:
        raise UsageError(f"the list has {length} numbers; this model takes 1 to {config.n}.")
    if config.spare:
        return torch.arange(config.positions, device=device)
    return torch.cat([torch.arange(length, device=device), torch.full((1,), config.n, device=device)])


def input_features(
    x: Float[Tensor, "*batch k"], p: Float[Tensor, "N d_P"], positions: Int64[Tensor, " N"], config: ModelConfig
) -> Float[Tensor, "*any N d_in"]:
    """What the encoder reads: each number, or number and encoding, or Diag(X); the scratchpad holds 0."""
    if config.compiled:
        return memory_cells(x, positions, config.inputs, config.numbered)
    value = torch.cat([x, torch.zeros_like(x[..., :1])], dim=-1)[..., None]
    if config.design.diagonal_input:
        unit = torch.nn.functional.one_hot(positions, config.positions)
        return value * unit.to(x.dtype)
    if config.design.encoded_input:
        return torch.cat([value, p.expand(*value.shape[:-1], -1)], dim=-1)
    return value


def input_encoding(
    p: Float[Tensor, "N d_P"], positions: Int64[Tensor, " N"], config: ModelConfig
) -> Float[Tensor, "2 N d_in"]:
    """``input_features`` as number * slope + base: slope and base, which are the same for all lists."""
    nothing = p.new_zeros(len(positions) - 1)
    base, one = (input_features(value, p, positions, config) for value in (nothing, nothing + 1))
    return torch.stack([one - base, base])
