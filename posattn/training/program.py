"""How an ensemble computes: its parameters as one matrix, and its outputs through the folded or the plain network.

Letters: M members, P parameters of one, b lists, k numbers a list. All tensors of an ensemble lead with the member axis.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from types import ModuleType
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call, vmap

from posattn import looped
from posattn.errors import UsageError
from posattn.folding import Fold, Tensors, folded_forward, folds
from posattn.model import ModelConfig, input_encoding, input_features, positions_of
from posattn.streams import stream
from posattn.tokens import relative_numbers
from posattn.training.losses import Loss, cross_entropy, squared_error
from posattn.training.network import NetworkConfig

Shapes = dict[str, torch.Size]
_LONG = 1 << 14  # numbers: longer lists take the plain network, which saves memory
LOGITS = "layers.0.attention.logits"  # of a looped network


def initial_model(config: NetworkConfig, seed: int) -> nn.Module:
    """The network with the initial weights that ``seed`` determines, whatever else has drawn random numbers."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(stream(seed, "initialisation"))
        return config.build()


def _blank_model(config: NetworkConfig) -> nn.Module:
    """A network whose weights do not matter, without drawing from the caller's random numbers."""
    return initial_model(config, 0)


class Precision:
    """Float32 products of PyTorch on a GPU in full, or in TensorFloat-32 (``tf32``), while open."""

    def __init__(self, name: str, device: torch.device):
        self.wanted, self.active = "tf32" if name == "tf32" else "ieee", device.type == "cuda"

    def __enter__(self) -> None:
        if self.active:
            self._before = torch.backends.cuda.matmul.fp32_precision
            torch.backends.cuda.matmul.fp32_precision = self.wanted

    def __exit__(self, *_: object) -> None:
        if self.active:
            torch.backends.cuda.matmul.fp32_precision = self._before


class Parameters:
    """The parameters of M networks as one (M, P) matrix, so that an optimiser sees a single tensor."""

    def __init__(self, config: NetworkConfig, flat: Shaped[Tensor, "M P"]):
        self.config, self.flat = config, flat
        with torch.device("meta"):
            self.shapes = {name: value.shape for name, value in config.build().named_parameters()}
        sizes = [shape.numel() for shape in self.shapes.values()]
        self.starts = dict(zip(self.shapes, accumulate(sizes, initial=0), strict=False))  # of each parameter in a row
        # Encoder, layers, decoder follow one another in a row, and every layer has the same parameters.
        self._layer = {
            name.replace("layers.0", "layers"): shape
            for name, shape in self.shapes.items()
            if name.startswith("layers.0.")
        }
        self._outer = {
            part: {name: shape for name, shape in self.shapes.items() if name.startswith(part)}
            for part in ("encoder", "decoder")
        }

    @classmethod
    def initial(cls, config: NetworkConfig, seeds: Sequence[int], device: torch.device) -> "Parameters":
        rows = [torch.cat([p.detach().flatten() for p in initial_model(config, seed).parameters()]) for seed in seeds]
        return cls(config, torch.stack(rows).to(device))

    @classmethod
    def of(cls, config: NetworkConfig, named: Tensors) -> "Parameters":
        """From named tensors with a member axis, such as a file holds."""
        own = cls(config, torch.empty(0, 0))
        return cls(config, own.flatten([named[name] for name in own.shapes], stacked=False))

    def named(self, members: slice = slice(None)) -> Tensors:
        """Views (m, *shape) of the parameters of some members, by name."""
        return self.by_name(self.flat[members])

    def by_name(self, rows: Shaped[Tensor, "m P"]) -> Tensors:
        """Views (m, *shape) of rows laid out like these."""
        return _split(rows, self.shapes)

    def stacked(self, members: slice = slice(None)) -> Tensors:
        """The same with all layers in one view (L, m, *shape), as ``stack_layers`` would copy them."""
        first, layers, last = self._sections(self.flat[members])
        encoder, decoder = _split(first, self._outer["encoder"]), _split(last, self._outer["decoder"])
        return encoder | _split(layers.transpose(0, 1), self._layer) | decoder

    def _sections(self, rows: Shaped[Tensor, "m P"]) -> tuple[Tensor, Tensor, Tensor]:
        outer = [_size(self._outer[part]) for part in ("encoder", "decoder")]
        first, layers, last = rows.split([outer[0], rows.shape[1] - sum(outer), outer[1]], dim=1)
        return first, layers.unflatten(1, (-1, _size(self._layer))), last

    def mask(self, part: str) -> Bool[Tensor, " P"]:
        """Which entries of a row belong to parameters whose name has ``part`` in it."""
        if not any(part in name for name in self.shapes):
            raise UsageError(f"only is {part!r}; no parameter of this network has it in its name.")
        return torch.cat([torch.full((shape.numel(),), part in name) for name, shape in self.shapes.items()])

    def flatten(self, tensors: Sequence[Tensor], stacked: bool) -> Float[Tensor, "m P"]:
        """One row a member from tensors in the order of ``named`` or ``stacked``: a gradient, say."""
        if not stacked:
            return torch.cat([value.flatten(1) for value in tensors], dim=1)
        count, end = len(self._outer["encoder"]), len(tensors) - len(self._outer["decoder"])
        first, layers, last = tensors[:count], tensors[count:end], tensors[end:]
        body = torch.cat([value.flatten(2) for value in layers], dim=2).transpose(0, 1).flatten(1)
        return torch.cat([*(value.flatten(1) for value in first), body, *(value.flatten(1) for value in last)], dim=1)

    def model(self, member: int) -> nn.Module:
        """One member as a plain module."""
        model = _blank_model(self.config)
        named = self.named(slice(member, member + 1))
        model.load_state_dict({name: value[0] for name, value in named.items()}, strict=False)  # buffers are as built
        return model.to(self.flat.device)


def _size(shapes: Shapes) -> int:
    return sum(shape.numel() for shape in shapes.values())


def _split(rows: Shaped[Tensor, "*lead size"], shapes: Shapes) -> Tensors:
    pieces = rows.split([shape.numel() for shape in shapes.values()], dim=-1)
    return {name: piece.unflatten(-1, shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


class Layered:
    """The parameters of some members as ``Parameters.stacked`` gives them, in one piece: every tensor is contiguous.

    Products of contiguous matrices need no copies, and one gather either way costs less than a copy of each.
    """

    def __init__(self, parameters: Parameters, members: slice):
        count = parameters.flat[members].numel()
        places = torch.arange(count).view(parameters.flat[members].shape)
        views = Parameters(parameters.config, places).stacked()
        self.shapes = {name: view.shape for name, view in views.items()}
        there = torch.cat([view.flatten() for view in views.values()])
        device = parameters.flat.device
        self.there, self.back = there.int().to(device), there.argsort().int().to(device)

    def gather(self, rows: Float[Tensor, "m P"]) -> Tensors:
        return _split(rows.flatten().index_select(0, self.there), self.shapes)

    def scatter(self, stacked: Sequence[Tensor], members: int) -> Float[Tensor, "m P"]:
        """Back to one row a member."""
        return torch.cat([value.flatten() for value in stacked]).index_select(0, self.back).view(members, -1)


class Prepared(NamedTuple):
    """What a network computes with, and how gradients of it become those of the parameters."""

    tensors: Tensors
    adjoint: Callable[[list[Tensor]], list[Tensor]]


class Program:
    """Outputs of several members, each on lists of its own: ``predict(prepare(parameters, members, k).tensors, x)``.

    ``prepare`` does what is needed once a step (folding), ``predict`` what is needed for every list.
    """

    def __init__(
        self,
        config: NetworkConfig,
        device: torch.device,
        folded: bool | None = None,
        precision: str | None = None,
        loss: Loss = squared_error,
    ):
        """``precision`` asks for the fused kernels, where there are a GPU, Triton and a kernel for the architecture."""
        self.config, self.device, self.precision, self.loss = config, device, precision, loss
        self.folded = folds(config) if folded is None else folded
        self.kernels = _kernels(config, device, precision) if self.folded and precision is not None else None
        self.skeleton = _blank_model(config).to(device)
        self._own = threading.local()
        self._encodings: dict[int, tuple[Tensor, Tensor]] = {}
        self._tables: dict[int, Tensor] = {}
        self._layered: dict[tuple[int, int], Layered] = {}

    def prepare(
        self, parameters: Parameters, members: slice, length: int, factor: Float[Tensor, ""] | None = None
    ) -> Prepared:
        """``factor`` multiplies the attention logits of a looped network."""
        # Copies: products of matrices that lie elsewhere in memory may differ in the last bit.
        if self.folded:
            stacked = parameters.stacked(members)
            return self._fold(
                {name: value.clone(memory_format=torch.contiguous_format) for name, value in stacked.items()}, length
            )
        named = {name: value.clone() for name, value in parameters.named(members).items()}
        if factor is None or LOGITS not in named:
            return Prepared(named, lambda found: found)
        named[LOGITS] *= factor

        def adjoint(found: list[Tensor]) -> list[Tensor]:
            return [value * factor if name == LOGITS else value for name, value in zip(named, found, strict=True)]

        return Prepared(named, adjoint)

    def _fold(self, stacked: Tensors, length: int) -> Prepared:
        with torch.no_grad():
            fold = Fold(stacked, self._transformer, self._encodings_of(length))

        def adjoint(found: list[Tensor]) -> list[Tensor]:
            with torch.no_grad():
                return list(fold.adjoint(dict(zip(fold.folded, found, strict=True))).values())

        return Prepared(fold.folded, adjoint)

    def predict(self, tensors: Tensors, x: Shaped[Tensor, "M b k"]) -> Float[Tensor, "M b *out"]:
        if self.folded:
            if not self._transformer.relative:
                return folded_forward(tensors, self._features(x), self._transformer)
            x, mean = relative_numbers(x)
            return folded_forward(tensors, self._features(x), self._transformer) * mean
        if looped.serves(self.config) and x.shape[-1] <= _LONG:
            return looped.looped_forward(tensors, x, self._transformer)
        if len(x) == 1:  # vmap costs time and gains nothing for one member
            return self._plain({name: value[0] for name, value in tensors.items()}, x[0])[None]
        return vmap(self._plain)(tensors, x)

    def gradient(
        self, tensors: Tensors, x: Shaped[Tensor, "M b k"], y: Shaped[Tensor, "M b out"], lists: int
    ) -> tuple[Float[Tensor, " M"], list[Tensor]]:
        """The loss of a part of a batch of ``lists``, and its gradient for every prepared tensor.

        Losses and gradients of the parts add up to those of the batch's mean.
        """
        leaves = {name: value.detach().requires_grad_() for name, value in tensors.items()}
        loss = self.loss(self.predict(leaves, x), y) / (lists * y.shape[-1])
        found = torch.autograd.grad(loss.sum(), list(leaves.values()), materialize_grads=True)
        return loss.detach(), list(found)

    def fused_gradient(
        self, parameters: Parameters, members: slice, x: Shaped[Tensor, "m b k"], y: Shaped[Tensor, "m b out"]
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, "m P"], Float[Tensor, " m"]]:
        """The mean loss of some members, its gradient and that gradient's norm, through the fused kernels."""
        assert self.kernels is not None and self.precision is not None
        from posattn.kernels.folds import RowsFold, serves  # needs Triton, which is there if the kernels are

        rows, length = parameters.flat[members], x.shape[-1]
        if self._transformer.vocabulary.words:
            return self._fused_tokens(parameters, members, x, y)
        if length not in self._encodings:
            positions, p = self._positions(length), self._encodings_of(length)
            self._encodings[length] = p, input_encoding(p, positions, self._transformer)
        p, encoding = self._encodings[length]
        given = (x, y, encoding, self._transformer, self.precision)
        if serves(self._transformer):
            fold = RowsFold(rows, parameters.starts, self._transformer, p)
            loss, parts = self.kernels.loss_and_parts(fold.folded, *given)
            return loss, *fold.adjoint(parts)
        layered = self._layered_of(parameters, members)
        prepared = self._fold(layered.gather(rows), length)
        loss, gradients = self.kernels.loss_and_gradients(prepared.tensors, *given)
        found = layered.scatter(prepared.adjoint([gradients[name] for name in prepared.tensors]), len(x))
        return loss, found, torch.linalg.vector_norm(found, dim=1)

    def _fused_tokens(
        self, parameters: Parameters, members: slice, x: Shaped[Tensor, "m b k"], y: Shaped[Tensor, "m b out"]
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, "m P"], Float[Tensor, " m"]]:
        assert self.kernels is not None
        config, layered = self._transformer, self._layered_of(parameters, members)
        prepared = self._fold(layered.gather(parameters.flat[members]), x.shape[-1])
        x, mean = relative_numbers(x) if config.relative else (x, None)

        def finish(out: Tensor) -> Tensor:
            return self.loss(out if mean is None else out * mean, y) / (x.shape[1] * y.shape[-1])

        given = prepared.tensors, self._first_states(x)
        if config.vocabulary.numbers:
            loss, gradients = self.kernels.loss_and_gradients_of_answers(*given, finish, config, self.precision)
        else:
            assert self.loss is cross_entropy
            loss, gradients = self.kernels.loss_and_gradients_of_letters(*given, y, config, self.precision)
        found = layered.scatter(prepared.adjoint([gradients[name] for name in prepared.tensors]), len(x))
        return loss, found, torch.linalg.vector_norm(found, dim=1)

    def _layered_of(self, parameters: Parameters, members: slice) -> Layered:
        key = (members.start, members.stop)
        if key not in self._layered:
            self._layered[key] = Layered(parameters, members)
        return self._layered[key]

    def _first_states(self, x: Shaped[Tensor, "M b k"]) -> Float[Tensor, "M b N D"]:
        from posattn.kernels import words

        assert self.precision is not None
        length = x.shape[-1]
        if length not in self._tables:
            features = self._features(words.every_word(self._transformer, length, self.device))
            self._tables[length] = words.table_of(features, self.precision)
        return words.first_states(x, self._tables[length], self._transformer, self.precision)

    def _features(self, x: Shaped[Tensor, "*lead k"]) -> Float[Tensor, "*lead N d_in"]:
        length = x.shape[-1]
        table = self.skeleton.get_buffer("table")
        return input_features(x, self._encodings_of(length), self._positions(length), self._transformer, table)

    def _plain(self, parameters: Tensors, x: Tensor) -> Tensor:
        # functional_call swaps parameters into the module, so every thread needs a module of its own.
        if not hasattr(self._own, "skeleton"):
            self._own.skeleton = copy.deepcopy(self.skeleton)
        out: Tensor = functional_call(self._own.skeleton, parameters, (x,))
        return out

    @property
    def _transformer(self) -> ModelConfig:
        """The configuration, where it is a Transformer's: only those fold."""
        assert isinstance(self.config, ModelConfig)
        return self.config

    def _positions(self, length: int) -> Tensor:
        return positions_of(length, self._transformer, self.device)

    def _encodings_of(self, length: int) -> Tensor:
        return self.skeleton.get_buffer("P")[self._positions(length)]


def has_kernels(config: NetworkConfig, device: torch.device, precision: str) -> bool:
    """Whether the fused kernels serve a network here."""
    return folds(config) and _kernels(config, device, precision) is not None


def _kernels(config: NetworkConfig, device: torch.device, precision: str) -> ModuleType | None:
    """The fused kernels, if they can run here and serve the architecture."""
    if device.type != "cuda":
        return None
    try:
        from posattn.kernels import fused
    except ImportError:  # no Triton: the plain path serves
        return None
    return fused if isinstance(config, ModelConfig) and fused.supported(config, precision) else None
