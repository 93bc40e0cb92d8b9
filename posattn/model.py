"""The positional Transformer (Section 4), the standard one, and everything between them: Eq. 1 with any attention.

A list of n numbers and one empty scratchpad entry are encoded linearly, pass through L layers

    F(X) = Φ( (⊕_h A_h X W_V,h) W_O  ⊕  X ),        Φ a two-layer ReLU MLP,                                    (Eq. 1)

and are decoded linearly; the scratchpad's output is dropped. ⊕ joins along the feature axis. What the architectures
differ in is said by one row of ``ARCHITECTURES`` each: what feeds A, what feeds X, and in which form. The same network reads
tokens, or numbers among tokens, if its configuration names a vocabulary (``posattn/tokens.py``).

Letters: n list length, N = n + 1 positions with the scratchpad, d embedding width, H heads, L layers,
X (..., N, d) the state, P (N, d_P) the positional encodings, A (..., H, N, N) the attention weights.
Defaults are those of the published runs: 84,577 parameters positional and 150,273 standard at n = 8.
"""

from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from posattn.attention import Attention, causal_mask
from posattn.encodings import ENCODINGS
from posattn.errors import UsageError, choice, whole
from posattn.tokens import VOCABULARIES, Vocabulary, relative_numbers, reset_embedding, token_features


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
        tokens: a row of :data:`posattn.tokens.VOCABULARIES` that the network reads in place of a list of numbers.
        causal: position i attends to positions up to i; the scratchpad, which comes last, to all.
        tied: words are decoded by the vectors that embed them, without a bias; else by a linear map of their own.
        relative: numbers among tokens are read relative to their mean, which the answer is multiplied by: f(c x) = c f(x).
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
    tokens: str = "none"
    causal: bool = False
    tied: bool = False
    relative: bool = False

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
        for field in ("layers", "heads", "embed", "width", "encoding_dim", "d_k"):
            object.__setattr__(self, field, whole(field, getattr(self, field)))
        if self.embed % self.heads:
            raise UsageError(f"embed is {self.embed}; it must be a multiple of heads, which is {self.heads}.")
        self._fill("bias", self.design.biases)
        for field in ("bias", "causal", "tied", "relative"):
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

    def _fill(self, field: str, value: object) -> None:
        if getattr(self, field) is None:
            object.__setattr__(self, field, value)

    @property
    def design(self) -> Architecture:
        return ARCHITECTURES[self.arch]

    @property
    def positions(self) -> int:
        """N: the list and the scratchpad."""
        return self.n + 1

    @property
    def vocabulary(self) -> Vocabulary:
        """The words that the network reads; none for lists of numbers."""
        return VOCABULARIES[self.tokens]

    @property
    def input_dim(self) -> int:
        """Width of what the encoder reads at each position."""
        if self.design.diagonal_input:
            return self.positions
        return self.vocabulary.features + self.encoding_dim * self.design.encoded_input

    @property
    def COLUMNS(self) -> tuple[str, ...]:
        """What result rows say beside the usual."""
        return ("tied", "relative") if self.vocabulary.words else ()

    def build(self) -> "Transformer":
        return Transformer(self)

    def to_dict(self) -> dict[str, object]:
        """The fields; the last four only where they are not the default: a run is known by these, and older runs lack them."""
        given = {"tokens": "none", "causal": False, "tied": False, "relative": False}
        return {field: value for field, value in asdict(self).items() if field not in given or value != given[field]}


class Layer(nn.Module):
    """Eq. 1: F(X) = Φ((⊕_h A_h X W_V,h) W_O ⊕ X)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        d, self.attends, self.causal = config.embed, config.design.attends, config.causal
        d_features = {"input": d, "position": config.encoding_dim, "both": d + config.encoding_dim}[self.attends]
        self.attention = Attention(d, d_features, config.d_k, config.heads, config.bias, config.design.rotary)
        self.W_1 = nn.Linear(2 * d, config.width, bias=config.bias)
        self.W_2 = nn.Linear(config.width, d, bias=config.bias)

    def weights(
        self, x: Float[Tensor, "*batch n d"], p: Float[Tensor, "n d_P"], positions: Int64[Tensor, " n"]
    ) -> Float[Tensor, "*any H n n"]:
        """A. Eq. 2: softmax(X W_Q (X W_K)^T); Eq. 3: softmax(P W_Q (P W_K)^T), the same for every input."""
        mask = causal_mask(positions) if self.causal else None
        if self.attends == "position":
            return self.attention.weights(p, positions, mask)
        if self.attends == "both":
            x = torch.cat([x, p.expand(*x.shape[:-1], -1)], dim=-1)
        return self.attention.weights(x, positions, mask)

    def forward(
        self, x: Float[Tensor, "*batch n d"], p: Float[Tensor, "n d_P"], positions: Int64[Tensor, " n"]
    ) -> Float[Tensor, "*batch n d"]:
        attended = self.attention.mix(self.weights(x, p, positions), x)
        return self.W_2(torch.relu(self.W_1(torch.cat([attended, x], dim=-1))))


Sequence = Float[Tensor, "*batch k"] | Int64[Tensor, "*batch k"]  # numbers, or tokens


class Transformer(nn.Module):
    """Lists of numbers in, lists of numbers out: (..., k) to (..., k) for any k up to ``config.n``.

    A shorter list keeps the encodings of the first k positions; the scratchpad always has the last one. Tokens (..., k) give
    a logit for each word, (..., k, V); numbers among tokens give one number, (..., 1), the scratchpad's output.
    """

    P: Tensor
    table: Tensor

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(config.input_dim, config.embed, bias=config.bias)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        if not config.tied:
            outputs = 1 if config.vocabulary.numbers else len(config.vocabulary.words)
            self.decoder = nn.Linear(config.embed, outputs, bias=config.bias)
        p = ENCODINGS[config.encoding].matrix(config.positions, config.encoding_dim)
        self.register_buffer("P", p, persistent=False)
        self.register_buffer("table", config.vocabulary.table(), persistent=False)
        if config.vocabulary.words:
            reset_embedding(self.encoder, config.vocabulary)

    def forward(self, x: Sequence) -> Float[Tensor, "*out"]:
        if self.config.relative:
            x, mean = relative_numbers(x)
        z, p, positions = self._encode(x)
        for layer in self.layers:
            z = layer(z, p, positions)
        return self._decode(z) * mean if self.config.relative else self._decode(z)

    def _decode(self, z: Float[Tensor, "*batch N d"]) -> Float[Tensor, "*out"]:
        words = self.config.vocabulary
        if not words.words:
            return self.decoder(z)[..., :-1, 0]
        if words.numbers:
            return self.decoder(z[..., -1, :])
        if self.config.tied:
            return z[..., :-1, :] @ (self.encoder.weight[:, : len(words.characters)] @ self.table.mT)
        return self.decoder(z[..., :-1, :])

    def attention(self, x: Sequence | None = None, *, length: int | None = None) -> Float[Tensor, "L *any H N N"]:
        """The attention weights of all layers: (L, H, N, N) if positional, where no input is needed, else for ``x``."""
        if x is None and self.config.design.attends != "position":
            raise UsageError(f"the attention of the {self.config.arch} architecture depends on the input; pass x.")
        if x is not None and length is not None:
            raise UsageError("attention takes x or length, not both.")
        if x is None:
            kind = self.P.dtype if self.config.vocabulary.numbers else torch.int64
            x = self.P.new_zeros(self.config.n if length is None else length, dtype=kind)
        *states, _ = self.states(x)
        positions = positions_of(x.shape[-1], self.config, x.device)
        maps = []
        for layer, z in zip(self.layers, states, strict=True):
            assert isinstance(layer, Layer)
            maps.append(layer.weights(z, self.P[positions], positions))
        return torch.stack(maps)

    def states(self, x: Sequence) -> list[Float[Tensor, "*batch N d"]]:
        """X before every layer, and after the last."""
        z, p, positions = self._encode(x)
        states = [z]
        for layer in self.layers:
            states.append(layer(states[-1], p, positions))
        return states

    def _encode(self, x: Sequence) -> tuple[Tensor, Tensor, Tensor]:
        """The first state, and the encodings and positions of its entries."""
        positions = positions_of(x.shape[-1], self.config, x.device)
        p = self.P[positions]
        return self.encoder(input_features(x, p, positions, self.config, self.table)), p, positions


def positions_of(length: int, config: ModelConfig, device: torch.device | None = None) -> Int64[Tensor, " N"]:
    """Where the entries of a list of ``length`` sit: 0..length-1, and the scratchpad at n."""
    if not 1 <= length <= config.n:
        raise UsageError(f"the list has {length} numbers; this model takes 1 to {config.n}.")
    return torch.cat([torch.arange(length, device=device), torch.full((1,), config.n, device=device)])


def input_features(
    x: Sequence,
    p: Float[Tensor, "N d_P"],
    positions: Int64[Tensor, " N"],
    config: ModelConfig,
    table: Float[Tensor, "V C"] | None = None,
) -> Float[Tensor, "*batch N d_in"]:
    """What the encoder reads: each number or row of ``table``, with its encoding or not, or Diag(X); the scratchpad holds 0."""
    value = x[..., None] if table is None else token_features(x, table, config.vocabulary.numbers)
    value = torch.cat([value, torch.zeros_like(value[..., :1, :])], dim=-2)
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
