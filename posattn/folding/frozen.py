"""One trained network, folded once for inference on lists of one length."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posattn.errors import UsageError, counted, whole
from posattn.folding.fold import fold, stack_layers
from posattn.folding.forward import folded_forward
from posattn.model import Transformer, input_features, positions_of
from posattn.network import check_input, require


class Frozen(nn.Module):
    """A network folded for lists of one length: ``forward`` maps (..., k) to (..., k).

    A positional network becomes one constant linear map and a ReLU per layer: nothing of queries, keys or softmax is left.
    Self-attention keeps its softmax.
    """

    P: Tensor
    positions: Tensor
    CHUNK = 512  # lists at once on a CPU: bounds the memory of the products, at no cost in time

    def __init__(self, model: Transformer, length: int | None = None):
        super().__init__()
        if not isinstance(model, Transformer):
            raise UsageError(f"model is a {type(model).__name__}; it must be a Transformer, such as run.model(0).")
        require(model.config, "freeze")
        self.config, self.length = model.config, model.config.n if length is None else whole("length", length, least=0)
        with torch.no_grad():
            positions = positions_of(self.length, model.config, model.P.device)
            named = {name: value.detach()[None] for name, value in model.named_parameters()}
            folded = fold(stack_layers(named), model.config, model.P[positions])
            if model.config.attends == "position":
                folded = self._by_layer(folded)
        self.names = list(folded)
        self.register_buffer("P", model.P[positions].clone())
        self.register_buffer("positions", positions)
        for name, value in folded.items():
            self.register_buffer(name.replace(".", "_"), value.clone())

    def _by_layer(self, folded: dict[str, Tensor]) -> dict[str, Tensor]:
        """Per layer [I | A_1 | A_2 | ...] (N, (H+1) N), U (H+1, d, w) and c; then the readout."""
        layers = {}
        identity = torch.eye(folded["A"].shape[-1], dtype=folded["A"].dtype, device=folded["A"].device)
        for index, u in enumerate((folded["U.first"][0], *folded["U"][:, 0])):
            layers[f"A{index}"] = torch.cat([identity, *folded["A"][index, 0]], dim=1)
            layers[f"U{index}"] = u.transpose(0, 1).contiguous()
            if self.config.bias:
                layers[f"c{index}"] = folded["c"][index, 0, 0]
        return layers | {name: folded[name][0] for name in ("w", "b") if name in folded}

    def forward(self, x: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
        check_input(x, self.P.dtype)
        if x.shape[-1] != self.length:
            raise UsageError(f"the list has {counted(x.shape[-1], 'number')}; this model was frozen for {self.length}.")
        if torch.compiler.is_compiling():
            return self._forward(x)
        lists = x.reshape(math.prod(x.shape[:-1]), self.length)
        if len(lists) <= self.CHUNK or x.is_cuda:
            return self._forward(lists).reshape(x.shape)
        return torch.cat([self._forward(part) for part in lists.split(self.CHUNK)]).reshape(x.shape)

    def extra_repr(self) -> str:
        return f"{self.config.arch}, n={self.length}, layers={self.config.layers}"

    def _forward(self, x: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
        features = input_features(x[..., None], self.P, self.positions, self.config)
        if self.config.attends != "position":
            folded = {name: self.get_buffer(name.replace(".", "_")) for name in self.names}
            return folded_forward(folded, features[None], self.config)[0]
        tensors: dict[str, Any] = self._buffers  # by name, at once: a list alone takes microseconds
        (b, n, d_in), width, bias = features.shape, self.config.width, self.config.bias
        s = features.transpose(0, 1).reshape(n * b, d_in)
        for index in range(self.config.layers):
            products = torch.matmul(s, tensors[f"U{index}"])  # s U_0, s U_1, ... : (H+1, N b, w)
            stacked = products.view(len(products), n, b * width).flatten(0, 1)  # torch.export wants two steps
            z = torch.mm(tensors[f"A{index}"], stacked).view(n * b, width)
            s = (z.add_(tensors[f"c{index}"]) if bias else z).relu_()
        out = torch.mm(s, tensors["w"])
        return (out + tensors["b"] if bias else out).view(n, b)[:-1].T
