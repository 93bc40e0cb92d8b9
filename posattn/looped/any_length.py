"""Self-attention for lists of every length: what the looped networks are compared with (docs/any-length.md).

These are architectures of posattn.model without a table of positions, and two from elsewhere: ALiBi and randomized encodings.
There is no scratchpad. With ``looped`` a list of n passes one tied layer ⌈log2 n⌉ times.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from posattn.attention import Attention
from posattn.encodings import random_places
from posattn.errors import UsageError, choice, flag, whole, without
from posattn.looped.families import depth
from posattn.looped.looped_model import check_list
from posattn.model import ARCHITECTURES, Architecture, Layer, ModelConfig, Transformer
from posattn.network import KINDS_BY_ARCH

RANGE = 2048  # places among which randomized encodings choose, as in Ruoss et al. (2023)
_ARCHITECTURES = {
    "no-encoding": ARCHITECTURES["no-encoding"],
    "rope-only": ARCHITECTURES["rope-only"],
    "alibi": Architecture("input"),  # logits fall with the distance (Press et al., 2022)
    "randomized": Architecture("input", encoded_input=True),  # encodings of random places (Ruoss et al., 2023)
}


@dataclass(frozen=True)
class AnyLengthConfig(ModelConfig):
    """A :class:`ModelConfig` for lists of every length, of which n is the longest trained on.

    Args:
        arch: ``no-encoding``, ``rope-only``, ``alibi`` or ``randomized``, whose encodings are sinusoidal by default. It must
            be given: the default of a ModelConfig has a table of n positions.
        looped: one tied layer, which a list of n passes ⌈log2 n⌉ times, and at least once.
    """

    looped: bool = False

    kind: ClassVar[str] = "any-length"
    any_length: ClassVar[bool] = True
    architectures: ClassVar[dict[str, Architecture]] = _ARCHITECTURES
    later: ClassVar[tuple[str, ...]] = (*ModelConfig.later, "looped")

    def __post_init__(self) -> None:
        if flag("looped", self.looped):
            self._fill("layers", 1)
            if whole("layers", self.layers) != 1:
                raise UsageError(f"layers is {self.layers}; a looped network has 1, which is tied.")
        if choice("arch", self.arch, _ARCHITECTURES) == "randomized":
            self._set("encoding", "sinusoidal" if self.encoding == "one-hot" else self.encoding)
            self._fill("encoding_dim", self.embed)
        super().__post_init__()

    @property
    def positions(self) -> int:
        return self.n

    @property
    def encoded_positions(self) -> int:
        return RANGE if self.arch == "randomized" else 0

    def numbers_per_position(self, n: int, gradients: bool) -> int:
        """How many numbers a position of a list of n takes in memory, about: four states, and its rows of A."""
        return (self.layers if gradients else 1) * (4 * self.embed + 2 * self.heads * n)

    def answers(self, out: Float[Tensor, "*batch n 1"]) -> Float[Tensor, "*batch n"]:
        return out[..., 0]

    def to_dict(self) -> dict[str, object]:
        return super().to_dict() | {"any_length": True}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "AnyLengthConfig":
        return cls(**without(given, {"any_length": True}, "this network"))


KINDS_BY_ARCH["alibi"] = KINDS_BY_ARCH["randomized"] = AnyLengthConfig


def alibi(positions: Int64[Tensor, " n"], heads: int, dtype: torch.dtype) -> Float[Tensor, "{heads} n n"]:
    """ALiBi (Press et al., 2022): head h of H adds -2^(-8 (h+1) / H) |i - j| to its logits."""
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, device=positions.device) / heads)
    return -slopes[:, None, None].to(dtype) * (positions[:, None] - positions).abs().to(dtype)


class AlibiAttention(Attention):
    """Self-attention whose logits fall with the distance."""

    def logits(
        self, features: Float[Tensor, "*batch n d"], positions: Int64[Tensor, " n"] | None = None
    ) -> Float[Tensor, "*batch H n n"]:
        positions = torch.arange(features.shape[-2], device=features.device) if positions is None else positions
        return super().logits(features, positions) + alibi(positions, self.heads, features.dtype)


class AnyLengthTransformer(Transformer):
    """Lists of numbers in, lists of numbers out: (..., k) to (..., k) for every k."""

    config: AnyLengthConfig

    @property
    def attention_class(self) -> type[Attention]:  # type: ignore[override]
        return AlibiAttention if self.config.arch == "alibi" else Attention

    def encode(self, x: Float[Tensor, "*batch k"]) -> tuple[Tensor, Tensor, Tensor]:
        check_list(self, x)
        entries, positions = self.entries(x), torch.arange(x.shape[-1], device=x.device)
        if self.config.arch != "randomized":
            return self.encoder(entries), self.P.new_zeros(len(positions), 0), positions
        if len(positions) > RANGE:
            raise UsageError(f"the list has {len(positions)} numbers; randomized encodings have {RANGE} places.")
        p = self.P[random_places(x, RANGE)]
        return self.encoder(torch.cat([entries, p.expand(*entries.shape[:-1], -1)], dim=-1)), p, positions

    def passes(self, positions: int) -> list[Layer]:
        return super().passes(positions) * (max(1, depth(positions)) if self.config.looped else 1)


AnyLengthConfig.network = AnyLengthTransformer
