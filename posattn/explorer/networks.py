"""A network as the page holds it: what its forward pass needs to know, and its weights as text, without loss.

Weights keep their names from the state dict. A tensor is stored in float32 if that loses nothing, else in float64. Of a tensor
that is mostly 0, as in compiled programs, only the other entries are stored. Bytes of equal significance are grouped, so that
deflate compresses the exponents, and the result is written in base 85: five ASCII characters per four bytes.
"""

import base64
import copy
import zlib
from collections.abc import Callable
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
        "inputs": 1,
        "outputs": 1,
        **_OF_KIND[config.kind](config),
        "tensors": entries,
    }
    return Packed(described, base64.b85encode(content).decode("ascii").translate(_PLAIN))


def _of_model(config: ModelConfig) -> dict[str, Any]:
    design = config.design
    features = {"encoded": design.encoded_input, "diagonal": design.diagonal_input, "rotary": design.rotary}
    return {**features, "causal": config.causal}


def _of_any_length(config: AnyLengthConfig) -> dict[str, Any]:
    falls = _falls(config.heads) if config.arch == "alibi" else None
    return {**_of_model(config), "falls": falls, "looped": config.looped}


def _of_looped(config: LoopedConfig) -> dict[str, Any]:
    own = {"family": config.family, "candidates": config.shape.candidates}
    return {"looped": True, **own, "sharpness": config.sharpness, "stay": config.stay}


def _of_compiled(config: CompiledConfig) -> dict[str, Any]:
    fields = ("hardmax", "spare", "inputs", "outputs", "bounds")
    return {"compiled": True, **{field: getattr(config, field) for field in fields}}


# The fields that a kind of network adds to the common ones; the page reads a missing field as false.
_OF_KIND: dict[str, Callable[[Any], dict[str, Any]]] = {
    ModelConfig.kind: _of_model,
    AnyLengthConfig.kind: _of_any_length,
    LoopedConfig.kind: _of_looped,
    CompiledConfig.kind: _of_compiled,
}


def _tensors(model: Transformer) -> dict[str, Tensor]:
    """The weights by name. Positional attention is given by its logits, which are the same for every list."""
    with torch.no_grad():
        found = {name: value.detach().cpu() for name, value in model.state_dict().items()}
        if not model.config.any_length:
            found["P"] = model.P.cpu()
        if model.config.attends == "position":
            for index, layer in enumerate(model.layers):
                assert isinstance(layer, Layer)
                found[f"layers.{index}.logits"] = _logits(layer, model.P)
                for name in ("W_Q", "W_K"):
                    found.pop(f"layers.{index}.attention.{name}.weight")
                    found.pop(f"layers.{index}.attention.{name}.bias", None)
    return found


def _logits(layer: Layer, p: Tensor) -> Tensor:
    """(H, N, N): Q K^T / sqrt(d_k) in float64, of all positions."""
    logits: Tensor = copy.deepcopy(layer.attention).double().cpu().logits(p.double().cpu())
    return logits


def _falls(heads: int) -> list[float]:
    """What ALiBi adds to each head's logits per step of distance, rounded as in the model."""
    one_apart = alibi(torch.arange(2), heads, torch.float64)[:, 0, 1]
    return [float(step) for step in one_apart]


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
    joined = {kind: np.concatenate(own) if own else np.empty(0, f"<{kind}") for kind, own in parts.items()}
    content = b"".join(_by_significance(joined[kind]) for kind in _KINDS)
    counts = [len(joined[kind]) for kind in _KINDS]
    return {"counts": counts, "places": places, "named": named}, zlib.compress(content, 9)


def _by_significance(values: NDArray[Any]) -> bytes:
    """The first bytes of all numbers, then their second bytes, and so on."""
    return values.view(np.uint8).reshape(-1, values.itemsize).T.tobytes()
