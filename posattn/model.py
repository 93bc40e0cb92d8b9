"""The positional Transformer (Section 4), the standard one, and everything between them: Eq. 1 with any attention.

A list of n numbers and one empty scratchpad entry are encoded linearly, pass through L layers

    F(X) = Φ( (⊕_h A_h X W_V,h) W_O  ⊕  X ),        Φ a two-layer ReLU MLP,                                    (Eq. 1)

and are decoded linearly; the scratchpad's output is dropped. ⊕ joins along the feature axis. What the architectures
differ in is said by one row of ``ARCHITECTURES`` each: what feeds A, what feeds X, and in which form. The same network reads
tokens, or numbers among tokens, if its configuration names a vocabulary (``posattn/tokens.py``). Networks for lists of every
length have no scratchpad, and the looped one passes one layer again and again (``posattn/offsets.py``, docs/any-length.md).

Letters: n list length, N = n + 1 positions with the scratchpad, d embedding width, H heads, L layers,
X (..., N, d) the state, P (N, d_P) the positional encodings, A (..., H, N, N) the attention weights.
Defaults are those of the published runs: 84,577 parameters positional and 150,273 standard at n = 8.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from posattn.attention import Attention, causal_mask
from posattn.config import ARCHITECTURES, RANGE, Architecture, ModelConfig
from posattn.devices import check_fits
from posattn.encodings import ENCODINGS, random_places
from posattn.errors import UsageError
from posattn.inputs import Sequence, check_input, input_encoding, input_features, positions_of
from posattn.memory import refuse_breaches, within_bounds
from posattn.offsets import FAMILIES, Loop, OffsetAttention, depth
from posattn.tokens import relative_numbers, reset_embedding

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Layer",
    "LoopedLayer",
    "ModelConfig",
    "Transformer",
    "input_encoding",
    "input_features",
    "positions_of",
]


class Layer(nn.Module):
    """Eq. 1: F(X) = Φ((⊕_h A_h X W_V,h) W_O ⊕ X)."""

    def __init__(self, config: ModelConfig, index: int = 0):
        super().__init__()
        d, self.attends, self.causal = config.embed, config.design.attends, config.causal
        self._add_attention(config)
        hidden = (config.width,) if config.mlp is None else config.mlp[index]
        self.W_1 = nn.Linear(config.attended + d, hidden[0], bias=config.bias)
        # Between W_1 and W_2 there is nothing but in deeper MLPs, which only compiled programs have.
        self.between = nn.ModuleList(nn.Linear(a, b, bias=config.bias) for a, b in pairwise(hidden))
        self.W_2 = nn.Linear(hidden[-1], d, bias=config.bias)

    def _add_attention(self, config: ModelConfig) -> None:
        d, d_P = config.embed, config.encoding_dim
        d_features = {"input": d, "position": d_P, "both": d + d_P}[self.attends]
        design = config.design
        self.attention = Attention(
            d,
            d_features,
            config.d_k,
            config.heads,
            config.bias,
            design.rotary,
            config.d_v,
            config.hardmax,
            design.alibi,
        )

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


_TILE = 1 << 16  # positions that a long list takes at once: what a loop needs beside the state fits a cache


class LoopedLayer(Layer):
    """Eq. 1 with attention over offsets, F_l for loop l. Where a position stays, X' = m F_l(X) + (1 - m) X."""

    attention: OffsetAttention  # type: ignore[assignment]

    def carry(self) -> bool:
        """Gives the first 2d hidden units to the state, x = relu(x) - relu(-x): at first Φ(attended ⊕ x) is x and a little.

        A layer that has fewer is left as it is, and the answer is False.
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

    def _add_attention(self, config: ModelConfig) -> None:
        assert config.family is not None and config.sharpness is not None
        self.stay = config.stay
        self.attention = OffsetAttention(
            config.embed, config.heads, config.family, config.sharpness, config.bias, config.d_v
        )

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


class Transformer(nn.Module):
    """Lists of numbers in, lists of numbers out: (..., k) to (..., k) for any k up to ``config.n``.

    A shorter list keeps the encodings of the first k positions; the scratchpad always has the last one. Tokens (..., k) give
    a logit for each word, (..., k, V); numbers among tokens give one number, (..., 1), the scratchpad's output. A compiled
    program may take vectors, (..., n, inputs), and give vectors, (..., n, outputs).
    """

    P: Tensor
    table: Tensor

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(config.input_dim, config.embed, bias=config.bias)
        looped = config.design.attends == "offset"
        self.layers = nn.ModuleList(
            LoopedLayer(config) if looped else Layer(config, index) for index in range(config.layers)
        )
        if not config.tied:
            outputs = config.outputs if config.vocabulary.numbers else len(config.vocabulary.words)
            self.decoder = nn.Linear(config.embed, outputs, bias=config.bias)
        with torch.device("cpu"):  # also where the network is only sketched, on the meta device
            p = ENCODINGS[config.encoding].matrix(config.encoded_places, config.encoding_dim)
        self.register_buffer("P", p.to(torch.get_default_device()), persistent=False)
        self.register_buffer("table", config.vocabulary.table(), persistent=False)
        if config.vocabulary.words:
            reset_embedding(self.encoder, config.vocabulary)
        if looped and self.offset_attention().family.carries:
            self._hand_on()

    def _hand_on(self) -> None:
        """Weights to begin with whose answer is the list itself, and a little."""
        layer = self.layers[0]
        assert isinstance(layer, LoopedLayer)
        if layer.carry():
            nn.init.ones_(self.encoder.weight)
            nn.init.constant_(self.decoder.weight, 1 / self.config.embed)

    def forward(self, x: Sequence) -> Float[Tensor, "*out"]:
        if self.config.relative:
            x, mean = relative_numbers(x)
        z = deque(self._states(x), maxlen=1).pop()  # the last; the others need not be kept
        if self.config.numbered:
            z = refuse_breaches(z, self.config.layers)
        return self._decode(z) * mean if self.config.relative else self._decode(z)

    def _decode(self, z: Float[Tensor, "*batch N d"]) -> Float[Tensor, "*out"]:
        words = self.config.vocabulary
        if not words.words:
            y = self.decoder(z)
            y = y if self.config.any_length else y[..., : -1 - self.config.spare, :]
            return y[..., 0] if self.config.outputs == 1 else y
        if words.numbers:
            return self.decoder(z[..., -1, :])
        if self.config.tied:
            return z[..., :-1, :] @ (self.encoder.weight[:, : len(words.characters)] @ self.table.mT)
        return self.decoder(z[..., :-1, :])

    def attention(self, x: Sequence | None = None, *, length: int | None = None) -> Float[Tensor, "L *any H N N"]:
        """The attention weights of all layers: (L, H, N, N) if positional, where no input is needed, else for ``x``.

        Of a looped network, those of all loops; what falls out of the list goes to the sink, which is the last position.
        """
        if x is None and self.config.design.attends not in ("position", "offset"):
            raise UsageError(f"the attention of the {self.config.arch} architecture depends on the input; pass x.")
        if x is not None and length is not None:
            raise UsageError("attention takes x or length, not both.")
        if x is not None:
            check_input(x, self.config, self.encoder.weight.dtype)
        if x is None:
            kind = self.P.dtype if self.config.vocabulary.numbers else torch.int64
            vector = (self.config.inputs,) * (self.config.inputs > 1)
            x = self.P.new_zeros(self.config.n if length is None else length, *vector, dtype=kind)
        if self.config.family is not None:
            loops = FAMILIES[self.config.family].loops(self._length(x))
            attention = self.offset_attention()
            maps = [attention.matrix(self._length(x), loop) for loop in loops]
            return (
                torch.stack(maps) if maps else self.P.new_zeros(0, self.config.heads, 2, 2)
            )  # a list of one has no loop
        *states, _ = self.states(x)
        positions = positions_of(self._length(x), self.config, x.device)
        maps = []
        for layer, z in zip(self._passes(self._length(x)), states, strict=True):
            maps.append(layer.weights(z, self._encodings(x, positions), positions))
        return torch.stack(maps)

    def offset_attention(self) -> OffsetAttention:
        """Of a looped network: its table, and where it looks."""
        layer = self.layers[0]
        assert isinstance(layer, LoopedLayer)
        return layer.attention

    def states(self, x: Sequence) -> list[Float[Tensor, "*any N d"]]:
        """X before every layer, and after the last."""
        return list(self._states(x))

    def _states(self, x: Sequence) -> Iterator[Float[Tensor, "*any N d"]]:
        """The same, one after the other."""
        z, p, positions = self._encode(x)
        yield z
        if self.config.family is not None:
            for loop in FAMILIES[self.config.family].loops(self._length(x)):
                z = self.layers[0](z, loop)
                yield z
            return
        for layer in self._passes(self._length(x)):
            z = layer(z, p, positions)
            yield z

    def _passes(self, length: int) -> list[Layer]:
        """The layers in the order in which a list meets them."""
        times = max(1, depth(length)) if self.config.looped else 1
        return [layer for layer in self.layers if isinstance(layer, Layer)] * times

    def rewired(self, x: Sequence, mix: Callable[[int, Tensor], Tensor]) -> Float[Tensor, "*out"]:
        """The answers if layer ℓ heard ``mix(ℓ, X)`` in place of its own (⊕_h A_h X W_V,h) W_O."""
        z, _, _ = self._encode(x)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            z = layer.update(mix(index, z), z)
        return self._decode(z)

    def _encode(self, x: Sequence) -> tuple[Tensor, Tensor, Tensor]:
        """The first state, and the encodings and positions of its entries."""
        check_input(x, self.config, self.encoder.weight.dtype)
        if self.config.bounds is not None:
            x = within_bounds(x, self.config.n, self.config.bounds, self.config.integers).to(self.P.dtype)
        n = self._length(x)
        if self.config.any_length and not torch.compiler.is_compiling():
            gradients = torch.is_grad_enabled() and any(weight.requires_grad for weight in self.parameters())
            numbers = self.config.numbers_a_position(n, gradients)
            check_fits(x.numel() // max(1, n), n, numbers, x.element_size(), x.device, gradients)
        positions = positions_of(n, self.config, x.device)
        p = self._encodings(x, positions)
        return self.encoder(input_features(x, p, positions, self.config, self.table)), p, positions

    def _encodings(self, x: Sequence, positions: Int64[Tensor, " N"]) -> Float[Tensor, "*any N d_P"]:
        """P of the positions; at random places of a range if it is so designed, and none where no table fits every length."""
        if self.config.design.randomized:
            if len(positions) > RANGE:
                raise UsageError(f"the list has {len(positions)} numbers; randomized encodings have {RANGE} places.")
            return self.P[random_places(x, RANGE)]
        return self.P.new_zeros(len(positions), 0) if self.config.any_length else self.P[positions]

    def _length(self, x: Tensor) -> int:
        """How many positions an input fills: vectors have one axis more."""
        return x.shape[-1 if self.config.inputs == 1 else -2]
