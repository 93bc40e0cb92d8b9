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

from posattn.errors import UsageError
from posattn.model import ModelConfig, Transformer, input_features, positions_of

Tensors = dict[str, Tensor]


def folds(config: ModelConfig) -> bool:
    """Whether the architecture folds: not with a rotary embedding or encodings beside the state in queries and keys."""
    return config.design.attends != "both" and not config.design.rotary


def fold(parameters: Mapping[str, Tensor], config: ModelConfig, p: Float[Tensor, "N d_P"]) -> Tensors:
    """Folds an ensemble's parameters, named as in ``Transformer`` with a leading member axis, at the encodings ``p``.

    The result holds for layer l: ``U.l.0`` and ``U.l.h``, ``c.l``, and ``A.l.h`` or ``M.l.h`` and ``m.l.h`` (heads count
    from 1); then ``w`` and, with biases, ``b`` of the readout.
    """
    if not folds(config):
        raise UsageError(f"the {config.arch} architecture does not fold.")
    folded: Tensors = {}
    transform, shift = _linear(parameters, "encoder")
    for index in range(config.layers):
        name = f"layers.{index}"
        if config.design.attends == "position":
            folded |= _positional_weights(parameters, f"{name}.attention", index, config, p)
        else:
            folded |= _bilinear_logits(parameters, f"{name}.attention", index, config, transform, shift)
        folded |= _layer(parameters, name, index, config, transform, shift)
        transform, shift = _linear(parameters, f"{name}.W_2")
    readout, constant = _linear(parameters, "decoder")
    folded["w"] = transform @ readout
    if constant is not None and shift is not None:
        folded["b"] = shift @ readout + constant
    return folded


def _linear(parameters: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor | None]:
    """The matrix W (M, in, out) and the row b (M, 1, out) of the map x W + b."""
    bias = parameters.get(f"{name}.bias")
    return parameters[f"{name}.weight"].mT, None if bias is None else bias[:, None]


def _layer(
    parameters: Mapping[str, Tensor], name: str, index: int, config: ModelConfig, transform: Tensor, shift: Tensor | None
) -> Tensors:
    """U_0, U_h and c."""
    w_v, b_v = _linear(parameters, f"{name}.attention.W_V")
    w_o, b_o = _linear(parameters, f"{name}.attention.W_O")
    w_1, b_1 = _linear(parameters, f"{name}.W_1")
    w_1a, w_1x = w_1[:, : config.embed], w_1[:, config.embed :]
    output = w_o @ w_1a
    d_v = config.embed // config.heads
    folded = {f"U.{index}.0": transform @ w_1x}
    for head in range(config.heads):
        rows = slice(head * d_v, (head + 1) * d_v)
        folded[f"U.{index}.{head + 1}"] = transform @ (w_v[..., rows] @ output[:, rows])
    if shift is not None and b_v is not None and b_o is not None and b_1 is not None:
        folded[f"c.{index}"] = shift @ w_1x + (shift @ w_v + b_v) @ output + b_o @ w_1a + b_1
    return folded


def _positional_weights(
    parameters: Mapping[str, Tensor], name: str, index: int, config: ModelConfig, p: Tensor
) -> Tensors:
    """A_h of Eq. 3, the same for every input."""
    queries, keys = (_heads(p @ w if b is None else p @ w + b, config) for w, b in _query_key(parameters, name))
    weights = (queries @ keys.mT / math.sqrt(queries.shape[-1])).softmax(dim=-1)
    return {f"A.{index}.{head + 1}": weights[:, head] for head in range(config.heads)}


def _bilinear_logits(
    parameters: Mapping[str, Tensor], name: str, index: int, config: ModelConfig, transform: Tensor, shift: Tensor | None
) -> Tensors:
    """M_h and m_h of Eq. 2's logits. The key's bias is left out: it shifts whole rows."""
    (w_q, b_q), (w_k, _) = _query_key(parameters, name)
    keys = _heads(transform @ w_k, config) / math.sqrt(config.d_k)
    bilinear = _heads(transform @ w_q, config) @ keys.mT
    folded = {f"M.{index}.{head + 1}": bilinear[:, head] for head in range(config.heads)}
    if b_q is not None and shift is not None:
        constant = _heads(shift @ w_q + b_q, config) @ keys.mT
        folded |= {f"m.{index}.{head + 1}": constant[:, head] for head in range(config.heads)}
    return folded


def _query_key(parameters: Mapping[str, Tensor], name: str) -> list[tuple[Tensor, Tensor | None]]:
    return [_linear(parameters, f"{name}.{projection}") for projection in ("W_Q", "W_K")]


def _heads(x: Float[Tensor, "M n Hd"], config: ModelConfig) -> Float[Tensor, "M H n d"]:
    return x.unflatten(-1, (config.heads, -1)).transpose(1, 2)


def folded_forward(folded: Tensors, features: Float[Tensor, "M b N d_in"], config: ModelConfig) -> Float[Tensor, "M b k"]:
    """The network's outputs from the encoder's input, for every member on lists of its own."""
    run = _positional_forward if config.design.attends == "position" else _self_attention_forward
    return run(folded, features, config)


def _positional_forward(folded: Tensors, features: Float[Tensor, "M b N d_in"], config: ModelConfig) -> Tensor:
    members, b, n, _ = features.shape
    s = features.transpose(1, 2)
    for index in range(config.layers):
        by_position, by_entry = s.reshape(members, n, -1), s.reshape(members, n * b, -1)
        z = _affine(by_entry, folded[f"U.{index}.0"], folded.get(f"c.{index}"))
        for head in range(1, config.heads + 1):
            # A_h s for all lists at once: (N, N) times (N, b d)
            mixed = torch.bmm(folded[f"A.{index}.{head}"], by_position).view(by_entry.shape)
            z = torch.baddbmm(z, mixed, folded[f"U.{index}.{head}"])
        s = torch.relu(z).view(members, n, b, -1)
    out = _affine(s.view(members, n * b, -1), folded["w"], folded.get("b")).view(members, n, b)
    return out[:, :-1].transpose(1, 2)


def _self_attention_forward(folded: Tensors, features: Float[Tensor, "M b N d_in"], config: ModelConfig) -> Tensor:
    members, b, n, _ = features.shape
    s = features
    for index in range(config.layers):
        by_entry, by_list = s.reshape(members, b * n, -1), s.reshape(members * b, n, -1)
        z = _affine(by_entry, folded[f"U.{index}.0"], folded.get(f"c.{index}")).view(members * b, n, -1)
        for head in range(1, config.heads + 1):
            queries = _affine(by_entry, folded[f"M.{index}.{head}"], folded.get(f"m.{index}.{head}"))
            weights = torch.bmm(queries.view(by_list.shape), by_list.mT).softmax(dim=-1)
            values = torch.bmm(by_entry, folded[f"U.{index}.{head}"]).view(z.shape)
            z = torch.baddbmm(z, weights, values)
        s = torch.relu(z).view(members, b, n, -1)
    out = _affine(s.view(members, b * n, -1), folded["w"], folded.get("b")).view(members, b, n)
    return out[..., :-1]


def _affine(x: Float[Tensor, "M rows d"], matrix: Float[Tensor, "M d e"], row: Float[Tensor, "M 1 e"] | None) -> Tensor:
    return torch.bmm(x, matrix) if row is None else torch.baddbmm(row, x, matrix)


class Frozen(nn.Module):
    """A trained positional model for inference on lists of one length: per layer one constant linear map and a ReLU.

    Nothing of queries, keys or softmax is left. ``forward`` maps (..., k) to (..., k).
    """

    def __init__(self, model: Transformer, length: int | None = None):
        super().__init__()
        config = model.config
        if config.design.attends != "position":
            raise UsageError(f"the attention of the {config.arch} architecture depends on the input; it cannot be frozen.")
        self.config = config
        self.length = config.n if length is None else length
        with torch.no_grad():
            positions = positions_of(self.length, config, model.P.device)
            p = model.P[positions]
            folded = fold({name: value[None] for name, value in model.named_parameters()}, config, p)
            identity = torch.eye(len(positions), dtype=p.dtype, device=p.device)
            for index in range(config.layers):
                heads = range(1, config.heads + 1)
                mixing = [identity, *(folded[f"A.{index}.{head}"][0] for head in heads)]
                self.register_buffer(f"A_{index}", torch.cat(mixing, dim=1))  # (N, (H+1) N)
                self.register_buffer(f"U_{index}", torch.cat([folded[f"U.{index}.{head}"] for head in (0, *heads)]))
                self.register_buffer(f"c_{index}", folded[f"c.{index}"][0, 0] if config.bias else None)
            self.register_buffer("w", folded["w"][0, :, 0])
            self.register_buffer("b", folded["b"][0, 0, 0] if config.bias else None)
            # What the encoder reads beside the numbers, for architectures that read more.
            self.register_buffer("P", p)
            self.register_buffer("positions", positions)

    def forward(self, x: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
        if x.shape[-1] != self.length:
            raise UsageError(f"the list has {x.shape[-1]} numbers; this model was frozen for {self.length}.")
        features = input_features(x.reshape(-1, self.length), self.P, self.positions, self.config)
        b, n, _ = features.shape
        s = features.transpose(0, 1).reshape(n * b, -1)
        for index in range(self.config.layers):
            products = torch.matmul(s, getattr(self, f"U_{index}"))  # s U_0, s U_1, ... : (H+1, N b, w)
            z = torch.mm(getattr(self, f"A_{index}"), products.view(-1, b * products.shape[-1])).view(n * b, -1)
            c = getattr(self, f"c_{index}")
            s = (z if c is None else z.add_(c)).relu_()
        out = torch.mv(s, self.w) if self.b is None else torch.addmv(self.b, s, self.w)
        return out.view(n, b)[:-1].T.reshape(x.shape)
