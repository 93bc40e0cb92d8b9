"""What layers of positional attention share: checks, the projections around the mixing of values, and decoding.

Letters: n positions, k of them in a step, H heads, d width of X, e value width of a head.
"""

from abc import abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from posattn.errors import UsageError, instance, whole
from posattn.layers.multihead import Multihead
from posattn.network import check_input


class Values(NamedTuple):
    """What decoding keeps of the positions so far: their values, in room for all positions, and how many there are."""

    values: Float[Tensor, "*batch N H e"]
    length: int


def check_padding(padding: object, n: int) -> None:
    """Raises unless this is a boolean mask of sequences of n positions."""
    mask = instance("key_padding_mask", padding, Tensor, "a tensor")
    if mask.dtype != torch.bool or mask.shape[-1:] != (n,):
        kind = f"{mask.dtype} of shape {tuple(mask.shape)}"
        raise UsageError(f"key_padding_mask is {kind}; it must be torch.bool of shape (..., {n}).")


def _extends(shape: torch.Size, whole: torch.Size) -> bool:
    """Whether a shape can be extended to the ``whole`` one."""
    try:
        return torch.broadcast_shapes(shape, whole) == whole
    except RuntimeError:
        return False


class MixingLayer(nn.Module):
    """(..., n, d_model) to (..., n, d_model): W_V, a mixing of positions that depends on no input, W_O."""

    W_V: nn.Linear
    W_O: nn.Linear

    def __init__(self, heads: int, causal: bool, n_positions: int | None):
        super().__init__()
        self.heads, self.causal, self.n_positions = heads, causal, n_positions

    @abstractmethod
    def mix(
        self,
        v: Float[Tensor, "*batch n H e"],
        padding: Bool[Tensor, "*#batch n"] | None,
        causal: bool,
        seen: Bool[Tensor, "n n"] | None,
    ) -> Float[Tensor, "*batch n H e"]:
        """The values that each position attends to; ``seen`` is True where a row may attend, None for everywhere."""

    @abstractmethod
    def pattern(
        self,
        n: int,
        padding: Bool[Tensor, "*batch {n}"] | None,
        causal: bool,
        seen: Bool[Tensor, "{n} {n}"] | None,
    ) -> Float[Tensor, "*batch H {n} {n}"]:
        """The matrix A by which ``mix`` mixes: (H, n, n), or one per padding mask."""

    def weights(
        self, n: int | None = None, key_padding_mask: Bool[Tensor, "*batch n"] | None = None
    ) -> Float[Tensor, "*batch H n n"]:
        """A for a sequence on the first ``n`` positions (all by default): (H, n, n), or one per padding mask."""
        n = self.n_positions if n is None and self.n_positions else whole("n", n, least=0)
        self.check_length(n)
        if key_padding_mask is not None:
            check_padding(key_padding_mask, n)
        return self.pattern(n, key_padding_mask, self.causal, None)

    def check_length(self, n: int) -> None:
        if n < 1 or (self.n_positions is not None and n > self.n_positions):
            most = "1 or more" if self.n_positions is None else f"1 to {self.n_positions}"
            raise UsageError(f"the sequence has {n} positions; this layer takes {most}.")

    def values_of(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n H e"]:
        """X W_V, in heads."""
        v: Tensor = self.W_V(x)
        return v.unflatten(-1, (self.heads, -1))

    def attend(
        self,
        x: Float[Tensor, "*batch n d"],
        key_padding_mask: Bool[Tensor, "*#batch n"] | None = None,
        causal: bool | None = None,
        seen: Bool[Tensor, "n n"] | None = None,
    ) -> Float[Tensor, "*batch n d"]:
        """``forward`` with other masks: ``causal``, by default the layer's own, and ``seen``, True where a row may attend."""
        d_model = self.W_V.in_features
        check_input(x, self.W_V.weight.dtype)
        if x.ndim < 2 or x.shape[-1] != d_model:
            raise UsageError(f"x has shape {tuple(x.shape)}; it must be (..., n, {d_model}).")
        self.check_length(x.shape[-2])
        if key_padding_mask is not None:
            check_padding(key_padding_mask, x.shape[-2])
            if not _extends(key_padding_mask.shape[:-1], x.shape[:-2]):
                found = f"key_padding_mask has shape {tuple(key_padding_mask.shape)}"
                raise UsageError(
                    f"{found}; for x of shape {tuple(x.shape)} it must be {tuple(x.shape[:-1])}, or fewer axes."
                )
        mixed = self.mix(self.values_of(x), key_padding_mask, self.causal if causal is None else causal, seen)
        y: Tensor = self.W_O(mixed.flatten(-2))
        return y

    def forward(
        self, x: Float[Tensor, "*batch n d"], key_padding_mask: Bool[Tensor, "*#batch n"] | None = None
    ) -> Float[Tensor, "*batch n d"]:
        """``key_padding_mask`` is True at padding, to which no position attends (the convention of nn.MultiheadAttention)."""
        return self.attend(x, key_padding_mask)

    def as_multihead(self, batch_first: bool = False) -> Multihead:
        """This layer with the arguments and results of nn.MultiheadAttention, for networks that call that."""
        return Multihead(self, batch_first)


class DecodingLayer(MixingLayer):
    """A layer whose weights can be had row by row, so that it decodes one position at a time."""

    n_positions: int

    @abstractmethod
    def rows(self, start: int, stop: int) -> Float[Tensor, "H k {stop}"]:
        """The weights of positions start..stop - 1, which attend to those before ``stop``."""

    def start(self, *batch: int) -> Values:
        """The state before the first position: room for the values of all positions, half of what self-attention keeps."""
        sizes = [whole("batch", size, least=0) for size in batch]
        return Values(self.W_V.weight.new_empty(*sizes, *self._room()), 0)

    def _room(self) -> tuple[int, int, int]:
        """The shape of the values of all positions of a sequence."""
        if not self.causal:
            raise UsageError("this layer is not causal; decoding position by position needs causal=True.")
        return self.n_positions, self.heads, self.W_V.out_features // self.heads

    @torch.no_grad()
    def step(self, x: Float[Tensor, "*batch_k d"], state: Values) -> tuple[Float[Tensor, "*batch_k d"], Values]:
        """The next position, x of (*batch, d_model), or the next k of them, (*batch, k, d_model): their outputs and the state.

        The new state takes over the old one's memory. There are no gradients.
        """
        values, start = instance("state", state, Values, "what start or step returned")
        d_model, lead, room, dtype = self.W_V.in_features, values.shape[:-3], self._room(), self.W_V.weight.dtype
        if values.dtype != dtype or values.shape[-2:] != room[1:] or values.shape[-3] < room[0]:
            found = f"{values.dtype} of shape {tuple(values.shape)}"
            wanted = ", ".join(map(str, room))
            raise UsageError(f"state is of another layer: {found}; it must be {dtype} of shape (..., {wanted}).")
        check_input(x, dtype)
        several = x.ndim == len(lead) + 2
        if x.shape != (*lead, *x.shape[len(lead) : -1], d_model) or not (several or x.ndim == len(lead) + 1):
            shape = ", ".join(map(str, (*lead, d_model)))
            raise UsageError(
                f"x has shape {tuple(x.shape)}; for this state it must be ({shape}), or k positions of it."
            )
        fresh = self.values_of(x if several else x.unsqueeze(-2))
        stop = start + fresh.shape[-3]
        self.check_length(stop)
        values[..., start:stop, :, :] = fresh
        a = self.rows(start, stop).to(values.dtype)
        attended = torch.einsum("hkn,...nhe->...khe", a, values[..., :stop, :, :])
        y = self.W_O(attended.flatten(-2))
        return y if several else y.squeeze(-2), Values(values, stop)
