"""The looped positional network: one tied layer of Eq. 1, which a list passes once per loop of a family.

A list of n has ⌈log2 n⌉ loops in a scan, and about half the square of that in a sorter. Attention looks at a few offsets
(posattn.looped.offsets), so the same weights take lists of every length. There is no scratchpad and no bias, and
f(c x) = c f(x) for c > 0. See docs/any-length.md.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posattn.errors import UsageError, choice, flag, positive, whole, without
from posattn.looped.families import FAMILIES, Family, Loop, family_of
from posattn.looped.offsets import OffsetAttention
from posattn.model import Layer, Transformer
from posattn.network import KINDS_BY_ARCH, NetworkConfig, check_input, check_memory


class _Undecided(str):
    """The family of a network until its task is known; ``filled`` are the fields that were filled in to go with it."""

    filled: dict[str, Any]


@dataclass(frozen=True)
class LoopedConfig(NetworkConfig):
    """What determines a looped network up to its weights. A field left out is filled in.

    Args:
        n: the longest list trained on; the network takes every length.
        family: a row of :data:`posattn.looped.FAMILIES`, which says where a position may look in each loop. By default the
            one whose networks solve the task that it is trained for, and ``dilated`` without a task.
        heads: attention heads; by default as many as the family has.
        embed: width of the state, by default what the family has.
        width: hidden width of the MLP.
        d_v: value width of a head, ``embed`` by default.
        mlp: hidden widths of the MLP, such as ((24, 24),); by default ``width`` for each hidden layer that the family has.
        sharpness: S, the factor on the attention logits; a recipe may let it grow to this value.
        stay: a position keeps its state to the extent that its attention falls outside the list; else it sees a blank there.
    """

    n: int
    arch: str = "looped"
    family: str = None  # type: ignore[assignment]  # None until filled in
    heads: int = None  # type: ignore[assignment]
    embed: int = None  # type: ignore[assignment]
    width: int = 24
    d_v: int = None  # type: ignore[assignment]
    mlp: tuple[tuple[int, ...], ...] = None  # type: ignore[assignment]
    sharpness: float = 100.0
    stay: bool = True

    kind: ClassVar[str] = "looped"
    any_length: ClassVar[bool] = True
    attends: ClassVar[str] = "offset"
    sharpened: ClassVar[str] = "layers.0.attention.logits"
    layers: ClassVar[int] = 1
    bias: ClassVar[bool] = False
    encoding: ClassVar[str] = "one-hot"  # what result rows say

    def __post_init__(self) -> None:
        if isinstance(self.family, _Undecided):  # as dataclasses.replace has it, which gives every field
            for field, value in self.family.filled.items():
                self._set(field, None if getattr(self, field) == value else getattr(self, field))
            self._set("family", None)
        left_out = [field for field in ("heads", "embed", "d_v", "mlp") if getattr(self, field) is None]
        choice("arch", self.arch, ["looped"])
        family = FAMILIES[choice("family", self._fill("family", _Undecided("dilated")), FAMILIES)]
        self._fill("heads", family.heads)
        self._fill("embed", family.words)
        self._fill("d_v", self.embed)
        self._count("n", "heads", "embed", "width", "d_v")
        self._fill("mlp", ((self.width,) * family.hidden,))
        self._set("mlp", hidden_widths(self.mlp, 1))
        self._set("sharpness", positive("sharpness", self.sharpness))
        flag("stay", self.stay)
        if isinstance(self.family, _Undecided):
            self.family.filled = {field: getattr(self, field) for field in left_out}

    def for_task(self, task: str) -> "LoopedConfig":
        """The same network, of the family that solves the task if none was given."""
        family = family_of(task)
        if family is None or not isinstance(self.family, _Undecided):
            return self
        left_out: dict[str, Any] = dict.fromkeys(self.family.filled)
        return replace(self, family=family, **left_out)

    @property
    def shape(self) -> Family:
        return FAMILIES[self.family]

    @property
    def recipe(self) -> str:
        return self.shape.recipe

    @property
    def positions(self) -> int:
        return self.n

    @property
    def least_numbers(self) -> int:
        """The weights of values and of the MLP."""
        values, hidden = self.heads * self.d_v, self.mlp[0]
        between = sum(a * b for a, b in pairwise(hidden))
        return values * (values + hidden[0]) + self.embed * (values + hidden[-1]) + between

    def numbers_per_position(self, n: int, gradients: bool) -> int:
        """How many numbers a position of a list of n takes in memory, about: four states, and its rows of A.

        For ``gradients`` every loop also keeps states, attended values and hidden activations.
        """
        looks = self.heads * (1 + len(self.shape.candidates))
        kept = 2 * self.embed + 3 * sum(map(sum, self.mlp)) + 2 * looks * self.d_v
        return 4 * self.embed + 4 * looks + (kept * len(self.shape.loops(n)) if gradients else 0)

    _FIXED: ClassVar[dict[str, object]] = {
        "any_length": True, "looped": True, "layers": layers, "bias": bias, "encoding": encoding,
    }  # fmt: skip

    def to_dict(self) -> dict[str, object]:
        """The fields, and what all looped networks share: the digest of a stored run is made from both."""
        return asdict(self) | self._FIXED | {"family": str(self.family), "encoding_dim": self.n, "d_k": self.embed}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "LoopedConfig":
        own = without(given, cls._FIXED, "a looped network")
        made = cls(**{name: value for name, value in own.items() if name not in ("encoding_dim", "d_k")})
        without(own, {"encoding_dim": made.n, "d_k": made.embed}, "this looped network")
        return made


KINDS_BY_ARCH["looped"] = lambda **fields: LoopedConfig.from_dict(fields)


def hidden_widths(mlp: object, layers: int) -> tuple[tuple[int, ...], ...]:
    """Hidden widths of every layer's MLP as tuples; JSON gives lists."""
    if not isinstance(mlp, (list, tuple)) or not all(isinstance(row, (list, tuple)) for row in mlp):
        raise UsageError(f"mlp is {mlp!r}; it must have a tuple of hidden widths for each layer, such as ((24, 24),).")
    if len(mlp) != layers or not all(mlp):
        raise UsageError(f"mlp has {len(mlp)} rows; it must have hidden widths for each of {layers} layers.")
    return tuple(tuple(whole("mlp", width) for width in row) for row in mlp)


_TILE = 1 << 16  # positions of a long list that a loop computes at once, so that all but the state fits in a cache


class LoopedLayer(Layer):
    """Eq. 1 with attention over offsets, F_l for loop l. Where a position stays, X' = m F_l(X) + (1 - m) X."""

    attention: OffsetAttention

    def __init__(self, config: LoopedConfig):
        attention = OffsetAttention(config.embed, config.heads, config.d_v, config.family, config.sharpness)
        super().__init__(attention, config.mlp[0], bias=False)
        self.stay = config.stay

    def carry(self) -> bool:
        """Sets the first 2d hidden units to carry the state, x = relu(x) - relu(-x), so that Φ(attended ⊕ x) is x and a little.

        Returns False, and changes nothing, if a hidden layer has fewer units.
        """
        d, hidden = self.W_2.out_features, (self.W_1, *self.between)
        if min(linear.out_features for linear in hidden) < 2 * d:
            return False
        signed = torch.cat([torch.eye(d), -torch.eye(d)])
        with torch.no_grad():
            for linear in hidden:
                linear.weight[: 2 * d] = 0
            self.W_1.weight[: 2 * d, -d:] = signed
            for linear in hidden[1:]:
                linear.weight[: 2 * d, : 2 * d] = torch.eye(2 * d)
            self.W_2.weight[:, : 2 * d] = signed.mT
        return True

    def forward(self, x: Float[Tensor, "*batch n d"], loop: Loop) -> Float[Tensor, "*batch n d"]:  # type: ignore[override]
        n = x.shape[-2]
        a, m = self.attention.weights(n, loop)
        values = self.attention.W_V(x)
        tile = n if torch.is_grad_enabled() else _TILE
        parts = []
        for start in range(0, n, tile):
            here = slice(start, min(start + tile, n))
            old = x[..., here, :]
            new = self.update(self.attention.mix(a[:, here], values, loop, start), old)
            parts.append(torch.lerp(old, new, m[here, None].to(old.dtype)) if self.stay else new)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)


class LoopedTransformer(Transformer):
    """Lists of numbers in, lists of numbers out: (..., k) to (..., k) for every k."""

    config: LoopedConfig

    def __init__(self, config: LoopedConfig):
        nn.Module.__init__(self)
        config.require_room()
        self.config = config
        self.encoder = nn.Linear(1, config.embed, bias=False)
        self.layers = nn.ModuleList([LoopedLayer(config)])
        self.decoder = nn.Linear(config.embed, 1, bias=False)
        self.register_buffer("P", torch.zeros(0, 0), persistent=False)  # positions have no encodings
        if config.shape.carries and self.layer.carry():  # a new network's answer is the list itself, and a little
            nn.init.ones_(self.encoder.weight)
            nn.init.constant_(self.decoder.weight, 1 / config.embed)

    @property
    def layer(self) -> LoopedLayer:
        """The one layer."""
        return self.layers[0]  # type: ignore[return-value]

    def encode(self, x: Float[Tensor, "*batch k"]) -> tuple[Tensor, Tensor, Tensor]:
        check_list(self, x)
        positions = torch.arange(x.shape[-1], device=x.device)
        return self.encoder(self.entries(x)), self.P.new_zeros(len(positions), 0), positions

    def _states(self, x: Float[Tensor, "*batch k"]) -> Iterator[Float[Tensor, "*any k d"]]:
        z, _, _ = self.encode(x)
        yield z
        for loop in self.config.shape.loops(x.shape[-1]):
            z = self.layer(z, loop)
            yield z

    def decode(self, z: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch k"]:
        return self.decoder(z)[..., 0]

    def _maps(self, x: Float[Tensor, "*batch k"]) -> Float[Tensor, "L H N N"]:
        """A of every loop, (loops, H, N, N), for lists as long as ``x``. The last position is the sink, which is blank."""
        check_list(self, x)
        n = x.shape[-1]
        maps = [self.layer.attention.matrix(n, loop) for loop in self.config.shape.loops(n)]
        return torch.stack(maps) if maps else self.encoder.weight.new_zeros(0, self.config.heads, 2, 2)


LoopedConfig.network = LoopedTransformer


def check_list(model: Transformer, x: Float[Tensor, "*batch k"]) -> None:
    """Raises unless a network of every length can read ``x``: of its dtype, not empty, and within the free memory."""
    check_input(x, model.input_dtype)
    if x.shape[-1] < 1:
        raise UsageError("the list is empty; this model takes lists of 1 number or more.")
    check_memory(model, x)
