"""The ways in which several members compute a step, behind one contract.

    prepared = way.prepare(parameters, members, k)        once per step, such as folding
    way.predict(prepared.tensors, x)                      answers to every member's own lists
    way.gradient(prepared.tensors, x, y, lists)           the loss of a part of a batch, and its gradient for those tensors
    prepared.adjoint(gradients)                           that gradient for the parameters, one row per member

``Plain`` calls the network itself, ``Looped`` and ``Folded`` compute with its weights multiplied out (posattn.folding), and
``Fused`` takes the whole step through GPU kernels. :func:`way_for` chooses.

A loss is a sum over the lists and outputs of a part of a batch, by the name that tasks give it (:data:`LOSSES`).

Letters: M members, m some of them, P parameters of one, b lists, k numbers per list, V words.
"""

import copy
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from torch.func import functional_call, vmap

from posattn.devices import runs_kernels
from posattn.errors import UsageError
from posattn.folding import Fold, FoldFromEncoder, SharedFold, Tensors, folded_forward, input_encoding, looped_forward
from posattn.kernels.shapes import ROWS, enters, folds_rows, serves
from posattn.looped.looped_model import LoopedConfig
from posattn.metrics import cross_entropies
from posattn.model import ModelConfig, Transformer, input_features, positions_of
from posattn.network import NetworkConfig, can
from posattn.tasks import task
from posattn.tokens.token_model import SharedEncoder, TokenConfig
from posattn.tokens.vocabulary import relative_numbers
from posattn.training.parameters import Layered, Parameters, initial_model

Lists = Shaped[Tensor, "M b k"]
Targets = Shaped[Tensor, "M b out"]
Answers = Float[Tensor, "M b *out"]
Loss = Callable[[Tensor, Tensor], Tensor]  # of answers and targets, one per member
Made = TypeVar("Made")

_LONG = 1 << 14  # numbers: longer lists take the plain network, which saves memory
_COMPARED = 500  # lists at once whose gradient PyTorch computes beside the kernels, in memory that these do not take


def squared_error(out: Float[Tensor, "M b k"], y: Float[Tensor, "M b k"]) -> Float[Tensor, " M"]:
    return (out - y).square().sum(dim=(1, 2))


def cross_entropy(out: Float[Tensor, "M b k V"], y: Int64[Tensor, "M b k"]) -> Float[Tensor, " M"]:
    return cross_entropies(out, y).sum(dim=(1, 2))


LOSSES: dict[str, Loss] = {"squared-error": squared_error, "cross-entropy": cross_entropy}


def loss_of(tasks: Sequence[str]) -> Loss:
    """The loss that tasks share."""
    names = {task(name).LOSS for name in tasks}
    if len(names) > 1:
        raise UsageError(f"the tasks are {', '.join(tasks)}; those of one ensemble must have one loss.")
    return LOSSES[names.pop()]


class Precision:
    """While open, PyTorch multiplies float32 matrices on a GPU in full precision, or in TensorFloat-32 for ``tf32``."""

    def __init__(self, name: str, device: torch.device):
        self.wanted, self.active = "tf32" if name == "tf32" else "ieee", device.type == "cuda"

    def __enter__(self) -> None:
        if self.active:
            self._before = torch.backends.cuda.matmul.fp32_precision
            torch.backends.cuda.matmul.fp32_precision = self.wanted

    def __exit__(self, *_: object) -> None:
        if self.active:
            torch.backends.cuda.matmul.fp32_precision = self._before


class Prepared(NamedTuple):
    """What a network computes with, and how gradients of it become those of the parameters, one row per member."""

    tensors: Tensors
    adjoint: Callable[[Tensors], Float[Tensor, "m P"]]


class Plain:
    """The network itself, for all members at once."""

    def __init__(self, config: NetworkConfig, device: torch.device, loss: Loss = squared_error):
        self.config, self.device, self.loss = config, device, loss
        self.skeleton = initial_model(config, 0).to(device)  # for its structure; its weights do not matter
        self._own = threading.local()

    def prepare(self, parameters: Parameters, members: slice, length: int, factor: Tensor | None = None) -> Prepared:
        """``length`` is that of the lists; ``factor`` multiplies the attention logits of a looped network."""
        # Copies: products of matrices that lie elsewhere in memory may differ in the last bit.
        named = {name: value.clone() for name, value in parameters.named(members).items()}
        sharpened = self.config.sharpened
        if factor is None or sharpened is None:
            return Prepared(named, lambda found: parameters.flatten(found, parameters.by_name))
        return Prepared(
            named | {sharpened: named[sharpened] * factor},
            lambda found: parameters.flatten(found | {sharpened: found[sharpened] * factor}, parameters.by_name),
        )

    def predict(self, tensors: Tensors, x: Lists) -> Answers:
        if len(x) == 1:  # vmap costs time and gains nothing for one member
            return self._answer({name: value[0] for name, value in tensors.items()}, x[0])[None]
        return vmap(self._answer)(tensors, x)

    def _answer(self, parameters: Tensors, x: Tensor) -> Tensor:
        # functional_call swaps parameters into the module, so every thread needs a module of its own.
        if not hasattr(self._own, "skeleton"):
            self._own.skeleton = copy.deepcopy(self.skeleton)
        return functional_call(self._own.skeleton, parameters, (x,))

    def gradient(self, tensors: Tensors, x: Lists, y: Targets, lists: int) -> tuple[Tensor, Tensors]:
        """The loss of a part of a batch of ``lists``, and its gradient; over the parts both add up to the mean's."""
        leaves = {name: value.detach().requires_grad_() for name, value in tensors.items()}
        loss = self.loss(self.predict(leaves, x), y) / (lists * y.shape[-1])
        found = torch.autograd.grad(loss.sum(), list(leaves.values()), materialize_grads=True)
        return loss.detach(), dict(zip(leaves, found, strict=True))


class Looped(Plain):
    """A looped network, folded; for very long lists the network itself."""

    config: LoopedConfig

    def predict(self, tensors: Tensors, x: Lists) -> Answers:
        if x.shape[-1] > _LONG:
            return super().predict(tensors, x)
        return looped_forward(tensors, x, self.config)


class Folded(Plain):
    """A network that folds, computed from the products of its weights."""

    config: ModelConfig
    skeleton: Transformer

    def prepare(self, parameters: Parameters, members: slice, length: int, factor: Tensor | None = None) -> Prepared:
        views = parameters.by_layer(parameters.flat[members])
        stacked = {name: value.clone(memory_format=torch.contiguous_format) for name, value in views.items()}
        fold = self.fold(stacked, length)
        return Prepared(fold.folded, lambda found: parameters.flatten(fold.adjoint(found), parameters.by_layer))

    def fold(self, stacked: Tensors, length: int) -> Fold:
        p, encoder = self.encodings(length), self.skeleton.encoder
        if isinstance(encoder, SharedEncoder):
            return SharedFold(stacked, self.config, p, encoder)
        return Fold(stacked, self.config, p)

    def predict(self, tensors: Tensors, x: Lists) -> Answers:
        x, mean = self.relative(x)
        out = folded_forward(tensors, self.features(x), self.config)
        return out if mean is None else out * mean

    def relative(self, x: Lists) -> tuple[Tensor, Tensor | None]:
        """The numbers relative to their mean, and the mean, if the network reads them so; else ``x`` and None."""
        return relative_numbers(x) if isinstance(self.config, TokenConfig) and self.config.relative else (x, None)

    def features(self, x: Shaped[Tensor, "*lead k"]) -> Float[Tensor, "*lead N d_in"]:
        """What the encoder reads."""
        length = x.shape[-1]
        return input_features(self.skeleton.entries(x), self.encodings(length), self._positions(length), self.config)

    def encodings(self, length: int) -> Float[Tensor, "N d_P"]:
        return self.skeleton.P[self._positions(length)]

    def _positions(self, length: int) -> Tensor:
        return positions_of(length, self.config, self.device)


class Fused(Folded):
    """A network that folds, on a GPU: loss and gradient of a step through the kernels of posattn.kernels."""

    def __init__(
        self, config: NetworkConfig, device: torch.device, loss: Loss = squared_error, precision: str = "fp32"
    ):
        super().__init__(config, device, loss)
        self.precision = precision
        self.folds_in_kernels = folds_rows(self.config)
        self._made: dict[Hashable, Any] = {}

    def _once(self, what: str, which: Hashable, make: Callable[[], Made]) -> Made:
        """What the first step makes; a CUDA graph then finds it."""
        if (what, which) not in self._made:
            self._made[what, which] = make()
        return cast(Made, self._made[what, which])

    def step(
        self, parameters: Parameters, members: slice, x: Lists, y: Targets
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, "m P"], Float[Tensor, " m"]]:
        """The mean loss of some members, its gradient and that gradient's norm."""
        rows = parameters.flat[members]
        if self.folds_in_kernels:
            from posattn.kernels.folds import RowsFold  # needs Triton, as all kernels do

            by_rows = RowsFold(rows, parameters.starts, self.config, self.encodings(x.shape[-1]))
            loss, gradients = self._gradients(by_rows.folded, x, y)
            return loss, *by_rows.adjoint(gradients)
        layered = self._once("layered", (members.start, members.stop), lambda: Layered(parameters, members))
        stacked, length = layered.gather(rows), x.shape[-1]
        if enters(self.config):
            fold: Fold = FoldFromEncoder(stacked, self.config, self.encodings(length))
        else:
            fold = self.fold(stacked, length)
        loss, gradients = self._gradients(fold.folded, x, y)
        found = layered.scatter(fold.adjoint(gradients), len(x))
        return loss, found, torch.linalg.vector_norm(found, dim=1)

    def error(self, parameters: Parameters, members: slice, x: Lists, y: Targets) -> float:
        """How far the gradient of the last of some members is from PyTorch's, as a part of its norm."""
        _, found, _ = self.step(parameters, members, x, y)
        plain, lists = Folded(self.config, self.device, self.loss), x.shape[1]
        prepared = plain.prepare(parameters, slice(members.stop - 1, members.stop), x.shape[-1])
        parts = [
            plain.gradient(prepared.tensors, x[-1:, at : at + _COMPARED], y[-1:, at : at + _COMPARED], lists)[1]
            for at in range(0, lists, _COMPARED)
        ]
        (exact,) = prepared.adjoint({name: torch.stack([part[name] for part in parts]).sum(dim=0) for name in parts[0]})
        return float((found[-1] - exact).norm() / exact.norm().clamp_min(torch.finfo(exact.dtype).tiny))

    def with_fewer_kernels(self) -> Plain | None:
        """The next way for a GPU on which these kernels fail: folding in PyTorch, then all; None for ``fp16``."""
        if self.folds_in_kernels:
            self.folds_in_kernels = False
            return self
        return None if self.precision == "fp16" else Folded(self.config, self.device, self.loss)

    def _gradients(self, folded: Tensors, x: Lists, y: Targets) -> tuple[Float[Tensor, " m"], Tensors]:
        """The mean loss, and its gradient for every folded tensor."""
        from posattn.kernels import fused, words

        config, precision, length = self.config, self.precision, x.shape[-1]
        if not isinstance(config, TokenConfig):
            read = self._once(
                "input", length, lambda: input_encoding(self.encodings(length), self._positions(length), config)
            )
            return fused.loss_and_gradients(folded, x, y, read, config, precision)
        x, mean = self.relative(x)

        def finish(out: Tensor) -> Tensor:
            return self.loss(out if mean is None else out * mean, y) / (x.shape[1] * y.shape[-1])

        if enters(config):
            characters = self._once("table", length, lambda: words.characters_of(self.skeleton.get_buffer("table")))
            entrance = words.Entrance(x, characters, folded, precision)
            step = fused.LongStep(folded, entrance.states(), config, precision, enters=True)
            loss, gradients = step.differentiate_answers(finish)
            return loss, gradients | entrance.gradients(step.first_gradient, step.loss)
        table = self._once(
            "table",
            length,
            lambda: words.table_of(self.features(words.every_word(config, length, self.device)), precision),
        )
        states = words.first_states(x, table, config, precision)
        if config.vocabulary.numbers:
            kind = fused.TokenStep if states.shape[2] <= ROWS else fused.LongStep
            return kind(folded, states, config, precision).differentiate_answers(finish)
        assert self.loss is cross_entropy
        return fused.TokenStep(folded, states, config, precision).differentiate_letters(y)

    def encodings(self, length: int) -> Float[Tensor, "N d_P"]:
        return self._once("encodings", length, lambda: super(Fused, self).encodings(length))


def way_for(
    config: NetworkConfig, device: torch.device, loss: Loss = squared_error, precision: str | None = None
) -> Plain:
    """The fastest way that a network has on a device. ``precision`` asks for kernels."""
    if isinstance(config, LoopedConfig):
        return Looped(config, device, loss)
    if not can(config, "fold"):
        return Plain(config, device, loss)
    if precision is not None and has_kernels(config, device, precision):
        return Fused(config, device, loss, precision)
    return Folded(config, device, loss)


def has_kernels(config: NetworkConfig, device: torch.device, precision: str) -> bool:
    """Whether the fused kernels serve a network here: the device must run kernels, and they must have the network's shape."""
    there = runs_kernels(device) and can(config, "fold")
    return there and isinstance(config, ModelConfig) and serves(config, precision)
