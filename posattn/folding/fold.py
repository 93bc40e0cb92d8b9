"""The folded network: Eq. 1 with every product of weight matrices that no input comes between multiplied out.

Between two ReLUs the network is linear in the state, so with s the hidden activation before W_2 of the previous layer
(or the encoder's input) and x = s T + t what Eq. 1 calls X, the next pre-activation is

    s U_0 + Σ_h A_h s U_h + c,      U_0 = T W_1x,   U_h = T W_V,h W_O,h W_1a,

where W_1a and W_1x are the rows of W_1 that read the attention's output and X. Rows of A sum to one, so every bias
ends up in the constant c. Self-attention folds too: softmax ignores what is the same for a whole row, so the logits

    (x_i W_Q + b_Q)(x_j W_K + b_K)^T   may be replaced by   (s_i M + m) s_j^T,
    M = T W_Q W_K^T T^T,   m = (t W_Q + b_Q) W_K^T T^T.

Where something comes between W_Q and W_K^T, queries and keys stay apart, each folded (posattn.folding.queries_and_keys).

The products are taken once per step, and :class:`Fold` carries gradients back through them; frozen, the network is a
constant linear map and a ReLU per layer. Exact up to rounding, with half the multiplications of the plain network.

Letters: M members of an ensemble, L layers, b lists, N positions, H heads, w hidden width. Parameters and folded tensors of
all layers lead with (L, M), so that those of any run of layers are one batch of matrices.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from posattn.attention import merge_heads, softmax, split_heads
from posattn.errors import UsageError
from posattn.folding.queries_and_keys import KEY, QUERY, QueriesAndKeys, keeps_queries_apart
from posattn.model import ModelConfig, input_features
from posattn.network import require
from posattn.tokens.token_model import SharedEncoder, TokenConfig

Tensors = dict[str, Tensor]
_VALUE, _OUT = "layers.attention.W_V", "layers.attention.W_O"


def input_encoding(
    p: Float[Tensor, "N d_P"], positions: Int64[Tensor, " N"], config: ModelConfig
) -> Float[Tensor, "2 N d_in"]:
    """``input_features`` of lists as number * slope + base: slope and base, which are the same for all lists."""
    nothing = p.new_zeros(len(positions) - 1, 1)
    base, one = (input_features(value, p, positions, config) for value in (nothing, nothing + 1))
    return torch.stack([one - base, base])


def stack_layers(parameters: Mapping[str, Tensor]) -> Tensors:
    """Parameters named as in ``Transformer``, with a leading member axis, as one tensor (L, M, ...) for all layers.

    ``layers.0.W_1.weight``, ``layers.1.W_1.weight``, ... become ``layers.W_1.weight``.
    """
    stacked = {name: value for name, value in parameters.items() if not name.startswith("layers.")}
    layers = [name for name in parameters if name.startswith("layers.")]
    for short in dict.fromkeys(name.split(".", 2)[2] for name in layers):
        same = [parameters[name] for name in layers if name.split(".", 2)[2] == short]
        stacked[f"layers.{short}"] = torch.stack(same)
    return stacked


def fold(stacked: Mapping[str, Tensor], config: ModelConfig, p: Float[Tensor, "N d_P"]) -> Tensors:
    """The folded tensors of an ensemble whose parameters are as ``stack_layers`` gives them, at the encodings ``p``.

    ``U.first`` (M, d_in, H+1, w) and ``U`` (L-1, M, w, H+1, w), with U_0 first; ``c`` (L, M, 1, w); ``A`` (L, M, H, N, N),
    or ``M.first`` (M, d_in, H, d_in), ``M`` (L-1, M, w, H, w), ``m.first`` (M, H, d_in) and ``m`` (L-1, M, H, w), or what
    :class:`QueriesAndKeys` has;
    ``w`` (M, w, V) and ``b`` (M, 1, V) of the readout, V = 1 for numbers. Without biases there are no c, m and b, and a tied
    decoder has only the b that W_2 gives it.
    """
    return Fold(stacked, config, p).folded


class Fold:
    """``folded``, and ``adjoint``: from gradients of the folded tensors to those of the parameters.

    With biases the maps T carry t as one more row, and so do U and M the constants t P and t G + ... below it.
    """

    def __init__(self, stacked: Mapping[str, Tensor], config: ModelConfig, p: Float[Tensor, "N d_P"]):
        require(config, "fold")
        if "encoder.weight" not in stacked:
            raise UsageError("the encoder has columns that places share; posattn.folding.SharedFold folds it.")
        self.stacked, self.config, self.p = stacked, config, p
        # A tied decoder: how many words, which are single characters then, the first rows of the encoder embed.
        self.tied = len(config.vocabulary.words) if isinstance(config, TokenConfig) and config.tied else None
        # x = s T + t: T and t are the encoder in the first layer and W_2 of the layer before in the others.
        encoder, w_2 = self._matrix("encoder"), self._matrix("layers.W_2")
        self.d_in, self.inner, self.last = encoder.shape[-2], w_2[:-1], w_2[-1]
        self.first_map = self._below(encoder, "encoder")
        self.inner_map = torch.cat([self.inner, self._row("layers.W_2")[:-1]], dim=-2) if config.bias else self.inner
        self.folded = self._values()
        if keeps_queries_apart(config):
            self.queries_and_keys = QueriesAndKeys(stacked, config, p, self.first_map, self.inner_map)
            self.folded |= self.queries_and_keys.folded
        else:
            positional = config.design.attends == "position"
            self.folded |= self._positional_weights() if positional else self._bilinear_logits()
        self.folded |= self._readout()

    def adjoint(self, gradients: Mapping[str, Tensor]) -> Tensors:
        """A gradient for every parameter, in the order and shape of ``stacked``."""
        found: Tensors = {}
        first, inner = self._values_adjoint(gradients, found)
        if self.config.design.attends == "position":
            self._positional_adjoint(gradients["A"], found)
        else:
            adjoint = self.queries_and_keys.adjoint if keeps_queries_apart(self.config) else self._bilinear_adjoint
            more_first, more_inner = adjoint(gradients, found)
            first, inner = first + more_first, inner + more_inner
        self._maps_adjoint(first, inner, gradients, found)
        return {name: found[name] for name in self.stacked}

    def _matrix(self, name: str) -> Tensor:
        """W (..., in, out) of the map x W + b."""
        return self.stacked[f"{name}.weight"].mT

    def _row(self, name: str) -> Tensor:
        """b (..., 1, out) of the map x W + b."""
        return self.stacked[f"{name}.bias"][..., None, :]

    def _below(self, matrix: Tensor, name: str) -> Tensor:
        """The matrix with the bias of ``name`` as one more row."""
        return torch.cat([matrix, self._row(name)], dim=-2) if self.config.bias else matrix

    # --- U and c -----------------------------------------------------------------------------------------------------------

    def _values(self) -> Tensors:
        """U = T P with P = [W_1x | W_V,1 O_1 | W_V,2 O_2 | ...] and O = W_O W_1a."""
        heads, bias, d, width = self.config.heads, self.config.bias, self.config.embed, self.config.width
        w_1 = self._matrix("layers.W_1")
        self.w_1a, w_1x = w_1[..., :d, :], w_1[..., d:, :]
        self.w_v, self.w_o = self._matrix(_VALUE), self._matrix(_OUT)
        self.o = self.w_o @ self.w_1a
        by_head = [v @ o for v, o in zip(self.w_v.chunk(heads, dim=-1), self.o.chunk(heads, dim=-2), strict=True)]
        self.products = torch.cat([w_1x, *by_head], dim=-1)
        first, inner = (
            u.unflatten(-1, (heads + 1, width))
            for u in (self.first_map @ self.products[0], self.inner_map @ self.products[1:])
        )
        folded = {"U.first": first[:, : self.d_in], "U": inner[:, :, :width]}
        if bias:
            rows = torch.cat([first[None, :, self.d_in :], inner[:, :, width:]]).sum(dim=-2)
            b_v, b_o, b_1 = (self._row(name) for name in (_VALUE, _OUT, "layers.W_1"))
            folded["c"] = rows + b_v @ self.o + b_o @ self.w_1a + b_1
        return folded

    def _values_adjoint(self, gradients: Mapping[str, Tensor], found: Tensors) -> tuple[Tensor, Tensor]:
        """Gradients of W_V, W_O and W_1; returns those of T."""
        heads, bias, width = self.config.heads, self.config.bias, self.config.width
        first, inner = gradients["U.first"].flatten(-2), gradients["U"].flatten(-2)
        if bias:
            dc = gradients["c"]
            same = dc.repeat(1, 1, 1, heads + 1)
            first, inner = torch.cat([first, same[0]], dim=-2), torch.cat([inner, same[1:]], dim=-2)
        products = torch.empty_like(self.products)
        torch.matmul(self.first_map.mT, first, out=products[0])
        torch.matmul(self.inner_map.mT, inner, out=products[1:])
        direct, *by_head = products.split(width, dim=-1)
        v, o = self.w_v.chunk(heads, dim=-1), self.o.chunk(heads, dim=-2)
        do = torch.cat([v_h.mT @ part for v_h, part in zip(v, by_head, strict=True)], dim=-2)
        dv = torch.cat([o_h @ part.mT for o_h, part in zip(o, by_head, strict=True)], dim=-2)
        attended, by_attended = self._below(self.w_o, _OUT), do
        if bias:
            do = do + self._row(_VALUE).mT @ dc
            constants = {_VALUE: dc @ self.o.mT, _OUT: dc @ self.w_1a.mT, "layers.W_1": dc}
            found |= {f"{name}.bias": value.squeeze(-2) for name, value in constants.items()}
            by_attended = torch.cat([do, dc], dim=-2)
        found |= {f"{_VALUE}.weight": dv, f"{_OUT}.weight": self.w_1a @ do.mT}
        found["layers.W_1.weight"] = torch.cat([by_attended.mT @ attended, direct.mT], dim=-1)
        return first @ self.products[0].mT, inner @ self.products[1:].mT

    # --- A of Eq. 3 --------------------------------------------------------------------------------------------------------

    def _positional_weights(self) -> Tensors:
        """A of Eq. 3, the same for every input."""
        both = {name: self.p @ self._matrix(name) for name in (QUERY, KEY)}
        if self.config.bias:
            both = {name: features + self._row(name) for name, features in both.items()}
        self.queries, self.keys = (split_heads(features, self.config.heads) for features in both.values())
        self.queries = self.queries / math.sqrt(self.config.d_k)
        return {"A": softmax(self.queries @ self.keys.mT, self.config.causal)}

    def _positional_adjoint(self, gradient: Float[Tensor, "L M H N N"], found: Tensors) -> None:
        a = self.folded["A"]
        weighted = a * gradient
        logits = weighted - a * weighted.sum(dim=-1, keepdim=True)
        sides = {QUERY: (logits @ self.keys) / math.sqrt(self.config.d_k), KEY: logits.mT @ self.queries}
        for name, side in sides.items():
            merged = merge_heads(side)
            found[f"{name}.weight"] = merged.mT @ self.p
            if self.config.bias:
                found[f"{name}.bias"] = merged.sum(dim=-2)

    # --- M and m of Eq. 2 --------------------------------------------------------------------------------------------------

    def _bilinear_logits(self) -> Tensors:
        """M_h = T G_h T^T, G_h = W_Q,h W_K,h^T / sqrt(d_k), its last row m_h. The key's bias shifts whole rows: left out."""
        heads = self.config.heads
        self.left = self._below(self._matrix(QUERY), QUERY).chunk(heads, dim=-1)
        self.right = (self._matrix(KEY) / math.sqrt(self.config.d_k)).chunk(heads, dim=-1)
        g = torch.cat([q @ k.mT for q, k in zip(self.left, self.right, strict=True)], dim=-1)  # (L, M, d + 1, H d)
        d = self.config.embed
        self.g = g[..., :d, :]
        self.bilinear = [self.first_map @ self.g[0], self.inner_map @ self.g[1:]]
        if self.config.bias:  # m_h also has b_Q,h W_K,h^T
            self.bilinear[0][:, -1:] += g[0, :, d:]
            self.bilinear[1][..., -1:, :] += g[1:, ..., d:, :]
        folded: Tensors = {}
        places = ((".first", self.first_map, self.d_in), ("", self.inner_map, self.config.width))
        for (end, t, size), x in zip(places, self.bilinear, strict=True):
            m = self._rows(x) @ t[..., :size, :].mT  # ((size + 1) H, size)
            m = m.unflatten(-2, (-1, heads))
            folded[f"M{end}"] = m[..., :size, :, :]
            if self.config.bias:
                folded[f"m{end}"] = m[..., size, :, :]
        return folded

    def _rows(self, x: Float[Tensor, "*lead size Hd"]) -> Float[Tensor, "*lead sizeH d"]:
        return x.unflatten(-1, (self.config.heads, -1)).flatten(-3, -2)

    def _bilinear_adjoint(self, gradients: Mapping[str, Tensor], found: Tensors) -> tuple[Tensor, Tensor]:
        """Gradients of W_Q and W_K; returns those of T."""
        heads, bias, d = self.config.heads, self.config.bias, self.config.embed
        maps, by_products = [], []
        places = ((".first", self.first_map, self.d_in, self.g[0]), ("", self.inner_map, self.config.width, self.g[1:]))
        for (end, t, size, g), x in zip(places, self.bilinear, strict=True):
            dm = gradients[f"M{end}"]
            if bias:
                dm = torch.cat([dm, gradients[f"m{end}"][..., None, :, :]], dim=-3)
            dm = dm.flatten(-3, -2)  # ((size + 1) H, size)
            dx = (dm @ t[..., :size, :]).unflatten(-2, (-1, heads)).flatten(-2)  # (size + 1, H d)
            dt = dx @ g.mT
            dt[..., :size, :] += dm.mT @ self._rows(x)
            maps.append(dt)
            dg = t.mT @ dx
            by_products.append(torch.cat([dg, dx[..., -1:, :]], dim=-2) if bias else dg)
        dg = torch.cat([by_products[0][None], by_products[1]])  # (L, M, d + 1, H d)
        by_head = dg.split(d, dim=-1)
        # (H d_k, d + 1) and (H d_k, d)
        queries = torch.cat([k.mT @ part.mT for k, part in zip(self.right, by_head, strict=True)], dim=-2)
        keys = torch.cat([q.mT @ part for q, part in zip(self.left, by_head, strict=True)], dim=-2)
        found |= {f"{QUERY}.weight": queries[..., :d], f"{KEY}.weight": keys / math.sqrt(self.config.d_k)}
        if bias:
            found |= {f"{QUERY}.bias": queries[..., d], f"{KEY}.bias": torch.zeros_like(self.stacked[f"{KEY}.bias"])}
        return maps[0], maps[1]

    # --- the readout, encoder and W_2 --------------------------------------------------------------------------------------

    def _decoder(self) -> Float[Tensor, "M d V"]:
        """The decoder's matrix; where it is tied, the vectors that embed words, which are single characters then."""
        if self.tied is None:
            return self._matrix("decoder")
        return self._matrix("encoder")[:, : self.tied].mT

    def _readout(self) -> Tensors:
        decoder = self._decoder()
        folded = {"w": self.last @ decoder}
        if self.config.bias:
            row = self._row("layers.W_2")[-1] @ decoder
            folded["b"] = row + self._row("decoder") if self.tied is None else row
        return folded

    def _maps_adjoint(self, first: Tensor, inner: Tensor, gradients: Mapping[str, Tensor], found: Tensors) -> None:
        decoder, dw = self._decoder(), gradients["w"]
        found["encoder.weight"] = first[:, : self.d_in].mT
        found["layers.W_2.weight"] = torch.cat([inner[..., : self.config.width, :].mT, (decoder @ dw.mT)[None]])
        by_word = dw.mT @ self.last  # (M, V, d)
        if self.config.bias:
            db = gradients["b"]
            found["encoder.bias"] = first[:, self.d_in]
            found["layers.W_2.bias"] = torch.cat([inner[..., self.config.width, :], (db @ decoder.mT)[None, :, 0]])
            by_word = by_word + db.mT @ self._row("layers.W_2")[-1]
        if self.tied is not None:
            found["encoder.weight"] = found["encoder.weight"] + F.pad(by_word.mT, (0, self.d_in - by_word.shape[1]))
            return
        found["decoder.weight"] = by_word
        if self.config.bias:
            found["decoder.bias"] = db[:, 0]


class FoldFromEncoder(Fold):
    """A fold from the encoder's output on, which is token T + t with t = P T_P + b.

    With the encoder folded in, the first layer would read a one-hot position: 102 features for prompts of characters, a
    width that matrix units take badly.
    """

    def __init__(self, stacked: Mapping[str, Tensor], config: ModelConfig, p: Float[Tensor, "N d_P"]):
        encoder = stacked["encoder.weight"].mT
        self.read = p if config.design.encoded_input else p[:, :0]  # the encodings that the encoder reads
        tokens = config.input_dim - self.read.shape[1]
        entrance = {"T": encoder[:, :tokens], "t": self.read @ encoder[:, tokens:]}
        own = {**stacked, "encoder.weight": torch.eye(config.embed, device=p.device).expand(len(encoder), -1, -1)}
        if config.bias:
            own["encoder.bias"] = torch.zeros_like(stacked["encoder.bias"])
            entrance["t"] = entrance["t"] + stacked["encoder.bias"][:, None]
        super().__init__(own, config, p)
        self.folded |= entrance

    def adjoint(self, gradients: Mapping[str, Tensor]) -> Tensors:
        found = super().adjoint(gradients)
        found["encoder.weight"] = torch.cat([gradients["T"], self.read.mT @ gradients["t"]], dim=-2).mT
        if self.config.bias:
            found["encoder.bias"] = gradients["t"].sum(dim=-2)
        return found


class SharedFold(Fold):
    """A fold whose encoder has its columns from what places share, in place of a weight."""

    def __init__(
        self, stacked: Mapping[str, Tensor], config: ModelConfig, p: Float[Tensor, "N d_P"], encoder: SharedEncoder
    ):
        self.given = stacked
        with torch.enable_grad():
            self.shared = {
                name: stacked[name].detach().requires_grad_()
                for name in ("encoder.others", "encoder.vectors", "encoder.places")
            }
            self.weight = encoder.columns(*self.shared.values())
        plain = {name: value for name, value in stacked.items() if name not in self.shared}
        super().__init__(plain | {"encoder.weight": self.weight.detach()}, config, p)

    def adjoint(self, gradients: Mapping[str, Tensor]) -> Tensors:
        found = super().adjoint(gradients)
        parts = torch.autograd.grad(self.weight, list(self.shared.values()), found["encoder.weight"])
        found |= dict(zip(self.shared, parts, strict=True))
        return {name: found[name] for name in self.given}
