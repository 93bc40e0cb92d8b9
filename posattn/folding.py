"""The folded network: Eq. 1 with every product of weight matrices that no input comes between multiplied out.

Between two ReLUs the network is linear in the state, so with s the hidden activation before W_2 of the previous layer
(or the encoder's input) and x = s T + t what Eq. 1 calls X, the next pre-activation is

    s U_0 + Σ_h A_h s U_h + c,      U_0 = T W_1x,   U_h = T W_V,h W_O,h W_1a,

where W_1a and W_1x are the rows of W_1 that read the attention's output and X. Rows of A sum to one, so every bias
ends up in the constant c. Self-attention folds too: softmax ignores what is the same for a whole row, so the logits

    (x_i W_Q + b_Q)(x_j W_K + b_K)^T   may be replaced by   (s_i M + m) s_j^T,
    M = T W_Q W_K^T T^T,   m = (t W_Q + b_Q) W_K^T T^T.

The products are taken once a step, and gradients flow through them to the original parameters; frozen, the network is
a constant linear map and a ReLU a layer. Exact up to rounding, with half the multiplications of the plain network.

Letters: M members of an ensemble (a leading axis of every tensor here), b lists, N positions, H heads, s (M, N, b, ·) the
state, positions first so that mixing them is one matrix product.
"""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posattn.attention import attention_weights, split_heads
from posattn.errors import UsageError
from posattn.model import ModelConfig, Transformer, input_features, positions_of

Tensors = dict[str, Tensor]


def folds(config: ModelConfig) -> bool:
    """Whether the architecture folds: not with a rotary embedding or encodings beside the state in queries and keys."""
    return config.design.attends != "both" and not config.design.rotary


def stack_layers(parameters: Mapping[str, Tensor]) -> Tensors:
    """Parameters named as in ``Transformer``, with a leading member axis, as one tensor (M, L, ...) for all layers.

    ``layers.0.W_1.weight``, ``layers.1.W_1.weight``, ... become ``layers.W_1.weight``.
    """
    stacked = {name: value for name, value in parameters.items() if not name.startswith("layers.")}
    layers = [name for name in parameters if name.startswith("layers.")]
    for short in dict.fromkeys(name.split(".", 2)[2] for name in layers):
        same = [parameters[name] for name in layers if name.split(".", 2)[2] == short]
        stacked[f"layers.{short}"] = torch.stack(same, dim=1)
    return stacked


def fold(stacked: Mapping[str, Tensor], config: ModelConfig, p: Float[Tensor, "N d_P"]) -> Tensors:
    """Folds an ensemble's parameters, as ``stack_layers`` gives them, at the encodings ``p``.

    Returns, with heads counted from 0 for the state itself: ``U.first`` (M, H+1, d_in, w) and ``U`` (M, L-1, H+1, w, w);
    ``c`` (M, L, 1, w); ``A`` (M, L, H, N, N) or ``M.first``, ``M``, ``m.first``, ``m``; and ``w``, ``b`` of the readout.
    """
    if not folds(config):
        raise UsageError(f"the {config.arch} architecture does not fold.")
    # x = s T + t: T and t are the encoder in the first layer and W_2 of the layer before in the others.
    encoder, encoder_bias = _linear(stacked, "encoder")
    w_2, b_2 = _linear(stacked, "layers.W_2")
    inner = w_2[:, :-1]
    shift = None if b_2 is None or encoder_bias is None else torch.cat([encoder_bias[:, None], b_2[:, :-1]], dim=1)

    folded = _values(stacked, config, encoder, inner, shift)
    if config.design.attends == "position":
        folded["A"] = _positional_weights(stacked, config, p)
    else:
        folded |= _bilinear_logits(stacked, config, encoder, inner, shift)
    decoder, constant = _linear(stacked, "decoder")
    folded["w"] = w_2[:, -1] @ decoder
    if constant is not None and b_2 is not None:
        folded["b"] = b_2[:, -1] @ decoder + constant
    return folded


def _linear(parameters: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor | None]:
    """The matrix W (..., in, out) and the row b (..., 1, out) of the map x W + b."""
    bias = parameters.get(f"{name}.bias")
    return parameters[f"{name}.weight"].mT, None if bias is None else bias[..., None, :]


def _through(name: str, encoder: Tensor, inner: Tensor, products: Float[Tensor, "M L H d e"]) -> Tensors:
    """T times each product: ``name.first`` for the first layer, whose T is the encoder, and ``name`` for the others."""
    return {f"{name}.first": encoder[:, None] @ products[:, 0], name: inner[:, :, None] @ products[:, 1:]}


def _values(
    stacked: Mapping[str, Tensor], config: ModelConfig, encoder: Tensor, inner: Tensor, shift: Tensor | None
) -> Tensors:
    """U_0, U_h and c."""
    w_v, b_v = _linear(stacked, "layers.attention.W_V")
    w_o, b_o = _linear(stacked, "layers.attention.W_O")
    w_1, b_1 = _linear(stacked, "layers.W_1")
    w_1a, w_1x = w_1[:, :, : config.embed], w_1[:, :, config.embed :]
    output = w_o @ w_1a
    by_head = split_heads(w_v, config.heads) @ output.unflatten(-2, (config.heads, -1))
    folded = _through("U", encoder, inner, torch.cat([w_1x[:, :, None], by_head], dim=2))
    if shift is not None and b_v is not None and b_o is not None and b_1 is not None:
        folded["c"] = shift @ w_1x + (shift @ w_v + b_v) @ output + b_o @ w_1a + b_1
    return folded


def _positional_weights(stacked: Mapping[str, Tensor], config: ModelConfig, p: Tensor) -> Float[Tensor, "M L H N N"]:
    """A of Eq. 3, the same for every input."""
    (w_q, b_q), (w_k, b_k) = (_linear(stacked, f"layers.attention.{name}") for name in ("W_Q", "W_K"))
    queries, keys = (p @ w if b is None else p @ w + b for w, b in ((w_q, b_q), (w_k, b_k)))
    return attention_weights(split_heads(queries, config.heads), split_heads(keys, config.heads))


def _bilinear_logits(
    stacked: Mapping[str, Tensor], config: ModelConfig, encoder: Tensor, inner: Tensor, shift: Tensor | None
) -> Tensors:
    """M_h and m_h of Eq. 2's logits. The key's bias is left out: it shifts whole rows."""
    (w_q, b_q), (w_k, _) = (_linear(stacked, f"layers.attention.{name}") for name in ("W_Q", "W_K"))
    keys = split_heads(w_k, config.heads) / math.sqrt(config.d_k)
    left = _through("M", encoder, inner, split_heads(w_q, config.heads) @ keys.mT)
    folded = {"M.first": left["M.first"] @ encoder.mT[:, None], "M": left["M"] @ inner.mT[:, :, None]}
    if b_q is not None and shift is not None:
        constant = split_heads(shift @ w_q + b_q, config.heads) @ keys.mT
        folded |= {"m.first": constant[:, 0] @ encoder.mT[:, None], "m": constant[:, 1:] @ inner.mT[:, :, None]}
    return folded


def _by_layer(folded: Tensors, name: str, config: ModelConfig) -> list[tuple[Tensor, ...]]:
    """The tensors (M, ...) of ``name`` for every layer and head."""
    others = folded[name].unbind(dim=1) if config.layers > 1 else ()
    return [layer.unbind(dim=1) for layer in (folded[f"{name}.first"], *others)]


def folded_forward(
    folded: Tensors, features: Float[Tensor, "M b N d_in"], config: ModelConfig
) -> Float[Tensor, "M b k"]:
    """The network's outputs from the encoder's input, for every member on lists of its own."""
    run = _positional_forward if config.design.attends == "position" else _self_attention_forward
    return run(folded, features, config)


def _positional_forward(folded: Tensors, features: Float[Tensor, "M b N d_in"], config: ModelConfig) -> Tensor:
    members, b, n, _ = features.shape
    s = features.transpose(1, 2)
    constants = folded["c"].unbind(dim=1) if config.bias else [None] * config.layers
    weights = [layer.unbind(dim=1) for layer in folded["A"].unbind(dim=1)]
    for u, a, c in zip(_by_layer(folded, "U", config), weights, constants, strict=True):
        d = s.shape[-1]
        by_position, by_entry = s.reshape(members, n, b * d), s.reshape(members, n * b, d)
        z = _affine(by_entry, u[0], c)
        for a_h, u_h in zip(a, u[1:], strict=True):
            # A_h s for all lists at once: (N, N) times (N, b d)
            z = torch.baddbmm(z, torch.bmm(a_h, by_position).view(by_entry.shape), u_h)
        s = torch.relu_(z).view(members, n, b, config.width)
    out = _affine(s.view(members, n * b, config.width), folded["w"], folded.get("b")).view(members, n, b)
    return out[:, :-1].transpose(1, 2)


def _self_attention_forward(folded: Tensors, features: Float[Tensor, "M b N d_in"], config: ModelConfig) -> Tensor:
    members, b, n, _ = features.shape
    s = features
    constants = folded["c"].unbind(dim=1) if config.bias else [None] * config.layers
    bilinear = _by_layer(folded, "M", config)
    rows = _by_layer(folded, "m", config) if config.bias else [(None,) * config.heads] * config.layers
    for u, m, m_row, c in zip(_by_layer(folded, "U", config), bilinear, rows, constants, strict=True):
        d = s.shape[-1]
        by_entry, by_list = s.reshape(members, b * n, d), s.reshape(members * b, n, d)
        z = _affine(by_entry, u[0], c).view(members * b, n, config.width)
        for m_h, m_row_h, u_h in zip(m, m_row, u[1:], strict=True):
            queries = _affine(by_entry, m_h, m_row_h).view(by_list.shape)
            weights = torch.bmm(queries, by_list.mT).softmax(dim=-1)
            z = torch.baddbmm(z, weights, torch.bmm(by_entry, u_h).view(z.shape))
        s = torch.relu_(z).view(members, b, n, config.width)
    out = _affine(s.view(members, b * n, config.width), folded["w"], folded.get("b")).view(members, b, n)
    return out[..., :-1]


def _affine(x: Float[Tensor, "M rows d"], matrix: Float[Tensor, "M d e"], row: Float[Tensor, "M 1 e"] | None) -> Tensor:
    return torch.bmm(x, matrix) if row is None else torch.baddbmm(row, x, matrix)


class Frozen(nn.Module):
    """A trained positional model for inference on lists of one length: per layer one constant linear map and a ReLU.

    Nothing of queries, keys or softmax is left. ``forward`` maps (..., k) to (..., k).
    """

    P: Tensor
    positions: Tensor
    w: Tensor
    b: Tensor | None

    def __init__(self, model: Transformer, length: int | None = None):
        super().__init__()
        config = model.config
        if config.design.attends != "position":
            raise UsageError(
                f"the attention of the {config.arch} architecture depends on the input; it cannot be frozen."
            )
        self.config = config
        self.length = config.n if length is None else length
        with torch.no_grad():
            positions = positions_of(self.length, config, model.P.device)
            # What the encoder reads beside the numbers, in architectures that read more.
            self.register_buffer("P", model.P[positions].clone())
            self.register_buffer("positions", positions)
            named = {name: value[None] for name, value in model.named_parameters()}
            folded = fold(stack_layers(named), config, self.P)
            identity = torch.eye(len(positions), dtype=self.P.dtype, device=self.P.device)
            for index, u in enumerate((folded["U.first"][0], *folded["U"][0])):
                self.register_buffer(f"A_{index}", torch.cat([identity, *folded["A"][0, index]], dim=1))  # (N, (H+1) N)
                self.register_buffer(f"U_{index}", u.clone())  # (H+1, d_in, w)
                self.register_buffer(f"c_{index}", folded["c"][0, index, 0].clone() if config.bias else None)
            self.register_buffer("w", folded["w"][0, :, 0])
            self.register_buffer("b", folded["b"][0, 0] if config.bias else None)

    def forward(self, x: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
        if x.shape[-1] != self.length:
            raise UsageError(f"the list has {x.shape[-1]} numbers; this model was frozen for {self.length}.")
        lists = x.reshape(math.prod(x.shape[:-1]), self.length)
        if len(lists) <= self.CHUNK or x.is_cuda:
            return self._forward(lists).reshape(x.shape)
        return torch.cat([self._forward(part) for part in lists.split(self.CHUNK)]).reshape(x.shape)

    CHUNK = 512  # lists at once on a CPU: bounds the memory of the products, at no cost in time

    def _forward(self, x: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
        features = input_features(x, self.P, self.positions, self.config)
        b, n, d_in = features.shape
        width = self.config.width
        s = features.transpose(0, 1).reshape(n * b, d_in)
        for index in range(self.config.layers):
            products = torch.matmul(s, getattr(self, f"U_{index}"))  # s U_0, s U_1, ... : (H+1, N b, w)
            z = torch.mm(getattr(self, f"A_{index}"), products.view(len(products) * n, b * width)).view(n * b, width)
            c = getattr(self, f"c_{index}")
            s = (z if c is None else z.add_(c)).relu_()
        out = torch.mv(s, self.w)
        if self.b is not None:
            out += self.b
        return out.view(n, b)[:-1].T
