"""The network of a compiled program: a positional Transformer with the weights of Lemma B.2, for lists of exactly n.

Each position is a machine. It reads the machine's input and number, and its state is the machine's memory. Spare machines
follow the list, and the sink takes the scratchpad's place. The network refuses inputs that the program was not compiled for,
and lists on which a machine breaks the rules of its model of computation.
"""

from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from posattn.attention import Attention, hardmax
from posattn.compiler.machine_memory import memory_cells, refuse_breaches, with_length, within_bounds
from posattn.compiler.traces import Labels, Trace, trace_of
from posattn.devices import require_room
from posattn.errors import UsageError, flag, whole, without
from posattn.looped.looped_model import hidden_widths
from posattn.model import ARCHITECTURES, Architecture, Layer, Transformer
from posattn.network import NetworkConfig, check_input

_NUMBER = 8 / 0.95  # bytes: weights are float64, and building them takes a twentieth of the memory beside


def attention_parameters(n: int, heads: int, embed: int, d_v: int, sparse: bool = False) -> int:
    """Numbers of one layer's attention on n positions: W_Q and W_K (d_P = d_k = n), W_V and W_O, with biases; or indices."""
    if sparse:
        return n * heads
    return 2 * heads * n * (n + 1) + heads * d_v * (embed + 1) + embed * (heads * d_v + 1)


def require_room_for(name: str, count: int, sparse: bool = False) -> None:
    """Raises if a program whose network holds at least ``count`` numbers does not fit into free memory."""
    fewer = "; take fewer machines" + ("" if sparse else ", or a sparse network (sparse=True, --sparse)")
    require_room(f"{name} compiles to {count:.3g} numbers or more, which", count * _NUMBER, instead=fewer)


@dataclass(frozen=True)
class CompiledConfig(NetworkConfig):
    """What determines a compiled network up to its weights.

    Args:
        n: machines with an input: the length of the list.
        layers: one per round, and one more.
        heads: one per position of a machine's memory.
        embed: width of the state: a machine's memory and its number.
        d_v: value width of a head.
        mlp: hidden widths of every layer's MLP.
        inputs: numbers that a machine is given; more than one makes them vectors, (..., n, inputs).
        outputs: numbers that a machine answers, likewise.
        spare: blank machines between the list and the sink.
        hardmax: hardmax (Eq. 6) in place of softmax.
        bounds: smallest and largest value of each input; others are refused.
        integers: which inputs must be whole numbers; other values are refused there.
        lengths: whether lists may be shorter; every machine is then told the length.
    """

    n: int
    layers: int
    heads: int
    embed: int
    d_v: int
    mlp: tuple[tuple[int, ...], ...]
    bounds: tuple[tuple[float, float], ...]
    inputs: int = 1
    outputs: int = 1
    spare: int = 0
    hardmax: bool = False
    integers: tuple[int, ...] = ()
    lengths: bool = False

    kind: ClassVar[str] = "compiled"
    trainable: ClassVar[bool] = False
    arch: ClassVar[str] = "positional"
    attends: ClassVar[str] = "position"
    encoding: ClassVar[str] = "one-hot"
    bias: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._count("n", "layers", "heads", "embed", "d_v", "inputs", "outputs")
        self._set("spare", whole("spare", self.spare, least=0))
        self._set("mlp", hidden_widths(self.mlp, self.layers))
        flag("hardmax", self.hardmax)
        flag("lengths", self.lengths)
        if not isinstance(self.bounds, tuple) or not all(map(_is_range, self.bounds)):
            raise UsageError(
                f"bounds is {self.bounds!r}; it must be a tuple of smallest and largest numbers, such as ((-1.0, 1.0),)."
            )
        if len(self.bounds) != self.inputs:
            raise UsageError(f"bounds has {len(self.bounds)} rows; it must have one for each of {self.inputs} inputs.")
        if not isinstance(self.integers, tuple) or not all(place in range(self.inputs) for place in self.integers):
            raise UsageError(
                f"integers is {self.integers!r}; it must be a tuple of inputs, from 0 to {self.inputs - 1}."
            )

    @property
    def design(self) -> Architecture:
        return ARCHITECTURES["positional"]

    @property
    def positions(self) -> int:
        """The list, spare machines, and the sink."""
        return self.n + self.spare + 1

    encoded_positions = encoding_dim = d_k = positions  # encodings are one-hot

    @property
    def width(self) -> int:
        """The widest hidden layer."""
        return max(max(hidden) for hidden in self.mlp)

    @property
    def least_numbers(self) -> int:
        """All parameters."""
        attention = self.layers * attention_parameters(self.positions, self.heads, self.embed, self.d_v)
        widths = [pairwise((2 * self.embed, *hidden, self.embed)) for hidden in self.mlp]
        ends = (self.input_dim + 1) * self.embed + (self.embed + 1) * self.outputs
        return ends + attention + sum((read + 1) * given for each in widths for read, given in each)

    @property
    def input_dim(self) -> int:
        return self.inputs + self.lengths + 1

    @property
    def output_dim(self) -> int:
        return self.outputs

    def answers(self, out: Float[Tensor, "*batch N outputs"]) -> Float[Tensor, "*out"]:
        own = out[..., : self.n, :]
        return own[..., 0] if self.outputs == 1 else own

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "CompiledConfig":
        """The configuration that ``to_dict`` described; older folders also hold fields that follow from the others."""
        derived = ("arch", "width", "encoding", "encoding_dim", "d_k", "bias")
        made = cls(**{name: value for name, value in given.items() if name not in (*derived, "numbered")})
        without(given, {name: getattr(made, name) for name in derived} | {"numbered": True}, "this program")
        return made


def _is_range(bound: object) -> bool:
    """Whether a bound is a pair of numbers in order."""
    pair = isinstance(bound, tuple) and len(bound) == 2 and all(isinstance(number, Real) for number in bound)
    return pair and bound[0] <= bound[1]  # type: ignore[index]


class HardAttention(Attention):
    """Eq. 6: hardmax in place of softmax."""

    def weights(
        self,
        features: Float[Tensor, "*batch n d_features"],
        positions: Int64[Tensor, " n"] | None = None,
        mask: Bool[Tensor, "*mask n n"] | None = None,
    ) -> Float[Tensor, "*batch H n n"]:
        return hardmax(self.logits(features, positions))


class CompiledTransformer(Transformer):
    """Maps numbers (..., n), or vectors (..., n, inputs), to the same of outputs; the compiler makes it in float64."""

    config: CompiledConfig
    labels: Labels | None = None  # of a program whose variables have names

    def _layer(self, index: int) -> Layer:
        config, d = self.config, self.config.embed
        made = HardAttention if config.hardmax else Attention
        return Layer(made(d, config.encoding_dim, config.d_k, config.heads, d_v=config.d_v), config.mlp[index])

    def forward(self, x: Float[Tensor, "*input"]) -> Float[Tensor, "*out"]:
        rounds = () if self.labels is None else self.labels.rounds
        answers = self.decode(refuse_breaches(self.last_state(x), self.config.layers, rounds))
        return answers.narrow(-1 - (self.config.outputs > 1), 0, self.length_of(x))

    def length_of(self, x: Float[Tensor, "*input"]) -> int:
        """How many machines a list has inputs for."""
        return x.shape[-1 - (self.config.inputs > 1)]

    def trace(self, x: Float[Tensor, "*input"], name: str = "program") -> Trace:
        """Every variable at every machine and round, read from the states; raises where ``forward`` does."""
        with torch.no_grad():
            self(x)
            states = [state.cpu().numpy() for state in self.states(x)[1:]]
        return trace_of(name, self.labels, states, self.length_of(x))

    def encode(self, x: Float[Tensor, "*input"]) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        # Real numbers may be of any dtype: they are converted.
        check_input(x, x.dtype if isinstance(x, Tensor) and not x.is_complex() else self.input_dtype)
        given = within_bounds(x, config.n, config.bounds, config.integers, config.lengths).to(self.P.dtype)
        if config.lengths:
            given = with_length(given, config.n, config.bounds, config.integers)
        positions = torch.arange(config.positions, device=given.device)
        return self.encoder(memory_cells(given, positions)), self.P, positions

    def tensors(self) -> dict[str, Tensor]:
        """What a folder stores: every tensor once, by name."""
        return dict(self.named_parameters())

    @property
    def sound(self) -> bool:
        """Whether the network can run with the tensors that it was given; those of another shape it cannot be given."""
        return True

    def sizes(self) -> list[tuple[str, int]]:
        """How many numbers the network holds, in words."""
        parameters = list(self.parameters())
        return [
            ("parameters", sum(p.numel() for p in parameters)),
            ("of them not 0", sum(int(p.count_nonzero()) for p in parameters)),
        ]

    def blank_input(self, length: int) -> Tensor:
        least, integers = self.P.new_tensor([low for low, _ in self.config.bounds]), list(self.config.integers)
        least[integers] = least[integers].ceil()
        return least.expand(length, -1).squeeze(-1) if self.config.inputs == 1 else least.expand(length, -1)


CompiledConfig.network = CompiledTransformer
