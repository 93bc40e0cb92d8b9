"""A network as the page holds it: what its forward pass needs to know, and its weights as text, without loss.

Weights keep their names from the state dict. A tensor is stored in float32 if that loses nothing, else in float64. Of a tensor
that is mostly 0, as in compiled programs, only the other entries are stored. Bytes of equal significance are grouped, so that
deflate compresses the exponents, and the result is written in base 85: five ASCII characters per four bytes.
"""

import base64
import copy
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from posattn.compiler.compiled_model import CompiledConfig
from posattn.errors import UsageError
from posattn.looped.any_length import AnyLengthConfig, alibi
from posattn.looped.looped_model import LoopedConfig
from posattn.model import Layer, ModelConfig, Transformer
from posattn.network import require

_SPARSE = 0.25  # with a smaller share of nonzero entries, only these are stored
_KINDS = ("f8", "f4", "i4")  # in this order every array is aligned to its numbers
# Characters of Python's base85 that have a meaning in HTML, and their replacements.
_PLAIN = str.maketrans("<>&", ",.:")


# The fields of a kind of network that its forward pass on the page needs; the page reads a missing one as false.
_FIELDS: dict[str, tuple[str, ...]] = {
    ModelConfig.kind: ("causal",),
    AnyLengthConfig.kind: ("causal", "looped"),
    LoopedConfig.kind: ("family", "sharpness", "stay"),
    CompiledConfig.kind: ("hardmax", "spare", "inputs", "outputs", "bounds"),
}


@dataclass(frozen=True)
class Packed:
    """``described`` is JSON for the page; ``weights`` is text without characters that have a meaning in HTML or JSON."""

    described: dict[str, Any]
    weights: str


def pack(model: nn.Module) -> Packed:
    """Packs a network of lists of numbers, trained or compiled."""
    if not isinstance(model, Transformer):
        raise UsageError(f"the network is a {type(model).__name__}; the explorer shows posattn.Transformers.")
    config = model.config
    require(config, "show")
    own = {field: getattr(config, field) for field in _FIELDS[config.kind]}
    if config.kind in (ModelConfig.kind, AnyLengthConfig.kind):
        design = config.design
        own |= {"encoded": design.encoded_input, "diagonal": design.diagonal_input, "rotary": design.rotary}
    if config.arch == "alibi":  # what is added to each head's logits per step of distance
        own["falls"] = alibi(torch.arange(2), config.heads, torch.float64)[:, 0, 1].tolist()
    if isinstance(config, LoopedConfig):
        own |= {"looped": True, "candidates": config.shape.candidates}
    entries, content = _stored(_tensors(model))
    described = {
        "arch": config.arch,
        "n": config.n,
        "positions": config.positions,
        "layers": config.layers,
        "heads": config.heads,
        "embed": config.embed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "attends": config.attends,
        "anyLength": config.any_length,
        "compiled": config.kind == CompiledConfig.kind,
        "inputs": 1,
        "outputs": 1,
        **own,
        "tensors": entries,
    }
    return Packed(described, base64.b85encode(content).decode("ascii").translate(_PLAIN))


def _tensors(model: Transformer) -> dict[str, Tensor]:
    """The weights by name. Of positional attention the logits in float64, (H, N, N), which are the same for every list."""
    with torch.no_grad():
        found = {name: value.detach().cpu() for name, value in model.state_dict().items()}
        if not model.config.any_length:
            found["P"] = model.P.cpu()
        if model.config.attends == "position":
            for index, layer in enumerate(model.layers):
                assert isinstance(layer, Layer)
                attention = copy.deepcopy(layer.attention).double().cpu()
                found[f"layers.{index}.logits"] = attention.logits(model.P.double().cpu())
                for name in ("W_Q", "W_K"):
                    found.pop(f"layers.{index}.attention.{name}.weight")
                    found.pop(f"layers.{index}.attention.{name}.bias", None)
    return found


def _stored(tensors: dict[str, Tensor]) -> tuple[dict[str, Any], bytes]:
    """The shape and place of every tensor by name, and all numbers, kind by kind. Equal tensors share a place."""
    parts: dict[str, list[NDArray[Any]]] = {kind: [] for kind in _KINDS}
    places: list[list[Any]] = []
    known: dict[bytes, int] = {}
    named: dict[str, int] = {}

    def add(kind: str, values: NDArray[Any]) -> int:
        start = sum(len(part) for part in parts[kind])
        parts[kind].append(values.astype(f"<{kind}"))
        return start

    for name, tensor in tensors.items():
        values = tensor.double().numpy().ravel()
        shape = list(tensor.shape)
        key = repr(shape).encode() + values.tobytes()
        if key not in known:
            (filled,) = np.nonzero(values)
            sparse = len(filled) < _SPARSE * len(values)
            own = values[filled] if sparse else values
            kind = "f4" if np.array_equal(own.astype(np.float32), own, equal_nan=True) else "f8"
            steps = add("i4", np.diff(filled, prepend=0)) if sparse else -1
            known[key] = len(places)
            places.append([shape, kind, add(kind, own), len(own), steps])
        named[name] = known[key]
    joined = [np.concatenate([np.empty(0, f"<{kind}"), *own]) for kind, own in parts.items()]
    # The first bytes of all numbers of a kind, then their second bytes, and so on.
    content = b"".join(own.view(np.uint8).reshape(-1, own.itemsize).T.tobytes() for own in joined)
    return {"counts": [*map(len, joined)], "places": places, "named": named}, zlib.compress(content, 9)
