"""What layers of positional attention share: checks, masks, the projections around the mixing of values, and decoding.

Letters: n positions, k of them in a step, H heads, d width of X, e value width of a head.
"""

from abc import abstractmethod
from functools import partial, reduce
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from posattn.attention import causal_mask
from posattn.errors import UsageError, counted, flag, instance, whole
from posattn.layers.products import over_padding, product, product_each, underflows
from posattn.network import check_input


class Masks(NamedTuple):
    """Whom rows may attend to: nobody at ``padding``; none after them if ``causal``; only where ``seen`` is True."""

    padding: Bool[Tensor, "*batch n"] | None = None
    causal: bool = False
    seen: Bool[Tensor, "n n"] | None = None


def allowed(masks: Masks, n: int, device: torch.device) -> Bool[Tensor, "*mask n n"] | None:
    """Where a row may attend: (n, n), or (..., 1, n, n) with padding; None if everywhere."""
    parts = [] if masks.seen is None else [masks.seen]
    if masks.causal:
        parts.append(causal_mask(torch.arange(n, device=device)))
    if masks.padding is not None:
        real = ~masks.padding[..., None, None, :]
        parts.append(real.expand(*real.shape[:-2], n, n))
    return reduce(torch.logical_and, parts) if parts else None


class Values(NamedTuple):
    """What decoding keeps of the positions so far: their values, in room for all positions, and how many there are."""

    values: Float[Tensor, "*batch N H e"]
    length: int

    def __repr__(self) -> str:
        """Without the values: memory that no step has written yet is among them."""
        return f"Values(shape {tuple(self.values.shape)}, length {self.length})"


def check_padding(padding: object, n: int) -> None:
    """Raises unless this is a boolean mask of sequences of n positions."""
    mask = instance("key_padding_mask", padding, Tensor, "a tensor")
    if mask.dtype != torch.bool or mask.shape[-1:] != (n,):
        kind = f"{mask.dtype} of shape {tuple(mask.shape)}"
        raise UsageError(f"key_padding_mask is {kind}; it must be torch.bool of shape (..., {n}).")


class MixingLayer(nn.Module):
    """(..., n, d_model) to (..., n, d_model): W_V, a mixing of positions that depends on no input, W_O."""

    W_V: nn.Linear
    W_O: nn.Linear

    def __init__(self, d_model: int, heads: int, causal: bool, n_positions: int | None):
        super().__init__()
        if whole("d_model", d_model) % whole("n_heads", heads):
            raise UsageError(f"d_model is {d_model}; it must be a multiple of n_heads, which is {heads}.")
        self.heads, self.causal, self.n_positions = heads, flag("causal", causal), n_positions

    @abstractmethod
    def mix(self, v: Float[Tensor, "*batch n H e"], masks: Masks) -> Float[Tensor, "*batch n H e"]:
        """The values that each position attends to."""

    @abstractmethod
    def pattern(self, n: int, masks: Masks) -> Float[Tensor, "*batch H {n} {n}"]:
        """The matrix A by which ``mix`` mixes: (H, n, n), or one per padding mask."""

    def weights(
        self, n: int | None = None, key_padding_mask: Bool[Tensor, "*batch n"] | None = None
    ) -> Float[Tensor, "*batch H n n"]:
        """A for a sequence on the first ``n`` positions (all by default): (H, n, n), or one per padding mask."""
        n = self.n_positions if n is None and self.n_positions else whole("n", n)
        self.check_length(n)
        if key_padding_mask is not None:
            check_padding(key_padding_mask, n)
        return self.pattern(n, Masks(key_padding_mask, self.causal))

    def check_length(self, n: int) -> None:
        if n < 1 or (self.n_positions is not None and n > self.n_positions):
            most = "1 or more" if self.n_positions is None else f"1 to {self.n_positions}"
            raise UsageError(f"the sequence has {counted(n, 'position')}; this layer takes {most}.")

    def values_of(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n H e"]:
        """X W_V, in heads."""
        v: Tensor = self.W_V(x)
        return v.unflatten(-1, (self.heads, -1))

    def attend(self, x: Float[Tensor, "*batch n d"], masks: Masks) -> Float[Tensor, "*batch n d"]:
        """``forward`` with other masks than the layer's own."""
        d_model, padding = self.W_V.in_features, masks.padding
        check_input(x, self.W_V.weight.dtype)
        if x.is_nested:
            raise UsageError("x is a nested tensor; pad it with x.to_padded_tensor(0.0) and give a key_padding_mask.")
        if x.ndim < 2 or x.shape[-1] != d_model:
            raise UsageError(f"x has shape {tuple(x.shape)}; it must be (..., n, {d_model}).")
        self.check_length(x.shape[-2])
        if padding is not None:
            check_padding(padding, x.shape[-2])
            sizes = zip(reversed(padding.shape), reversed(x.shape[:-1]), strict=False)
            if padding.ndim >= x.ndim or any(size not in (1, own) for size, own in sizes):
                found = f"key_padding_mask has shape {tuple(padding.shape)}; for x of shape {tuple(x.shape)}"
                raise UsageError(f"{found} it must be {tuple(x.shape[:-1])}, or fewer axes.")
        y: Tensor = self.W_O(self.mix(self.values_of(x), masks).flatten(-2))
        return y

    def forward(
        self, x: Float[Tensor, "*batch n d"], key_padding_mask: Bool[Tensor, "*#batch n"] | None = None
    ) -> Float[Tensor, "*batch n d"]:
        """``key_padding_mask`` is True at padding, to which no position attends (the convention of nn.MultiheadAttention)."""
        return self.attend(x, Masks(key_padding_mask, self.causal))

    def as_multihead(self, batch_first: bool = False) -> "Multihead":
        """This layer with the arguments and results of nn.MultiheadAttention, for networks that call that."""
        return Multihead(self, batch_first)


class DecodingLayer(MixingLayer):
    """A layer whose weights are a matrix, and can be had row by row, so that it decodes one position at a time."""

    n_positions: int

    @abstractmethod
    def rows(self, start: int, stop: int) -> Float[Tensor, "H k {stop}"]:
        """The weights of positions start..stop - 1, which attend to those before ``stop``."""

    def mix(self, v: Float[Tensor, "*batch n H e"], masks: Masks) -> Float[Tensor, "*batch n H e"]:
        """A V, one product per head for the whole batch."""
        n, padding = v.shape[-3], masks.padding
        if underflows(v, padding):
            return product_each(self.pattern(n, masks), v, padding)
        return over_padding(partial(product, self.pattern(n, Masks(None, masks.causal, masks.seen))), v, padding)

    def _whole(self, n: int) -> bool:
        """Whether a sequence has all positions. Not asked of a length that is traced, which is to stay open."""
        return not torch.compiler.is_compiling() and n == self.n_positions

    def start(self, *batch: int) -> Values:
        """The state before the first position: room for the values of all positions, half of what self-attention keeps.

        ``batch`` is the leading shape; without it the state is of one sequence.
        """
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

        The new state takes over the old one's memory, so a state that goes on in two ways must be copied first. There are no
        gradients.
        """
        values, start = instance("state", state, Values, "what start or step returned")
        lead, room, dtype = values.shape[:-3], self._room(), self.W_V.weight.dtype
        if values.dtype != dtype or values.shape[-2:] != room[1:] or values.shape[-3] < room[0]:
            found = f"{values.dtype} of shape {tuple(values.shape)}"
            wanted = ", ".join(map(str, room))
            raise UsageError(f"state is of another layer: {found}; it must be {dtype} of shape (..., {wanted}).")
        check_input(x, dtype)
        one = (*lead, self.W_V.in_features)  # the shape of one position
        several = x.ndim == len(one) + 1
        if x.shape != (one if not several else (*lead, x.shape[-2], one[-1])):
            shape = ", ".join(map(str, one))
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


class _NoTensor:
    """In place of a weight: PyTorch takes no fast path with what has a ``__torch_function__``."""

    @classmethod
    def __torch_function__(cls, *_: object, **__: object) -> object:
        return NotImplemented


class Multihead(nn.Module):
    """A layer of positional attention with the arguments and results of ``nn.MultiheadAttention``::

        encoder_layer.self_attn = posattn.PositionalAttention(128, 256, 8).as_multihead(batch_first=True)

    Query and key have no part in the weights; value is what is mixed. All three must have the same shape, as in self-attention.
    """

    # What nn.TransformerEncoderLayer and nn.TransformerEncoder ask before their fast paths, which would compute
    # self-attention: this is none.
    _qkv_same_embed_dim = False
    in_proj_weight = in_proj_bias = _NoTensor()

    def __init__(self, layer: MixingLayer, batch_first: bool = False):
        super().__init__()
        self.layer, self.batch_first = layer, flag("batch_first", batch_first)
        self.embed_dim, self.num_heads = layer.W_V.in_features, layer.heads

    @property
    def out_proj(self) -> nn.Linear:
        return self.layer.W_O

    def forward(
        self,
        query: Float[Tensor, "*shape"],
        key: Float[Tensor, "*other_shape"],
        value: Float[Tensor, "*third_shape"],
        key_padding_mask: Shaped[Tensor, "*batch n"] | None = None,
        need_weights: bool = True,
        attn_mask: Shaped[Tensor, "*mask n n"] | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*weights n n"] | None]:
        """The output, and with ``need_weights`` the weights, (batch, n, n), or of each head unless these are averaged."""
        if instance("query", query, Tensor, "a tensor").is_nested:
            if not (key is query and value is query and self.batch_first):
                raise UsageError("query is a nested tensor; key and value must be the same one, and batch_first True.")
            return self._nested(query, need_weights, attn_mask, average_attn_weights, is_causal)
        for name, other in (("key", key), ("value", value)):
            if instance(name, other, Tensor, "a tensor").shape != query.shape:
                shapes = f"{name} has shape {tuple(other.shape)} and query {tuple(query.shape)}"
                raise UsageError(f"{shapes}; positional attention is self-attention, of a sequence to itself.")
        if query.ndim not in (2, 3):
            raise UsageError(f"query has shape {tuple(query.shape)}; it must have two axes, or three with a batch.")
        turned = query.ndim == 3 and not self.batch_first
        x = value.transpose(0, 1) if turned else value
        n, seen = x.shape[-2], None
        if attn_mask is not None:
            if instance("attn_mask", attn_mask, Tensor, "a tensor").shape != (n, n):
                shape = f"attn_mask has shape {tuple(attn_mask.shape)}"
                raise UsageError(f"{shape}; it must be ({n}, {n}), as all sequences and heads share it.")
            if not is_causal:  # else it is the causal mask, and the kernels know that one
                seen = ~as_boolean("attn_mask", attn_mask)
        padding = None if key_padding_mask is None else as_boolean("key_padding_mask", key_padding_mask)
        masks = Masks(padding, self.layer.causal or is_causal, seen)
        y = self.layer.attend(x, masks)
        y = y.transpose(0, 1) if turned else y
        if not need_weights:
            return y, None
        a = self.layer.pattern(n, masks)
        a = a.mean(dim=-3) if average_attn_weights else a
        # Sequences without a padding mask of their own share the weights, in memory too.
        return y, a.expand(*x.shape[:-2], *a.shape[-2 if average_attn_weights else -3 :])

    def _nested(
        self, x: Tensor, need_weights: bool, attn_mask: Tensor | None, average_attn_weights: bool, is_causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        """For sequences that an nn.TransformerEncoder has rid of their padding, because its first layer is self-attention."""
        lengths = torch.tensor([len(own) for own in x.unbind()], device=x.device)
        full = x.to_padded_tensor(0.0)
        padding = torch.arange(full.shape[1], device=x.device) >= lengths[:, None]
        y, a = self(full, full, full, padding, need_weights, attn_mask, average_attn_weights, is_causal)
        return torch._nested_tensor_from_mask(y, ~padding), a


def as_boolean(name: str, mask: Shaped[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """A mask that is True where nobody may attend, from one that is -inf there and 0 elsewhere, as PyTorch's layers pass it."""
    if instance(name, mask, Tensor, "a tensor").dtype == torch.bool:
        return mask
    hidden = mask.isneginf()
    fits = (hidden | (mask == 0)).all()
    sentence = f"{name} adds to the logits; it must be boolean, or 0 where attention is allowed and -inf elsewhere."
    # A branch on the entries waits for a GPU, and can be neither traced nor recorded in a CUDA graph; meta tensors have none.
    recorded = mask.is_cuda and torch.cuda.is_current_stream_capturing()
    if torch.compiler.is_compiling() or recorded or mask.is_meta:
        torch._assert_async(fits, sentence)
    elif not fits:
        raise UsageError(sentence)
    return hidden
