"""Ensemble training: M networks of one shape as one program, each with its own data, shuffle, learning rate and fate.

A member's numbers never depend on its companions. On a CPU a step is cut into units (member, tile of the batch) that the
cores share; each unit computes on one core and tiles are added in order, so members are bit-equal alone or together and
on any number of cores. On a GPU all members form one batched unit.

Letters: M members, P parameters, S training lists per member, b lists per batch, k numbers per list.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from posattn.errors import positive, seed_number
from posattn.folding import Tensors
from posattn.network import NetworkConfig, stored_fields
from posattn.streams import fold_in, permutation, stream
from posattn.tasks import task
from posattn.training.parameters import Parameters
from posattn.training.recipe import Recipe
from posattn.training.ways import loss_of, way_for
from posattn.training.workers import Item, Result, Workers

_TILE = 500  # lists at most: the state of a tile fits a core's cache


@dataclass(frozen=True)
class Member:
    """What distinguishes a network from the others of its ensemble."""

    task: str
    seed: int
    lr: float
    begin: str | None = None  # the fingerprint of the weights that it begins with; None for new ones

    def __post_init__(self) -> None:
        seed_number(self.seed)
        positive("lr", self.lr)

    def starts(self, count: int) -> list["Member"]:
        """The member and, with seeds derived from its own, ``count`` - 1 more to choose from."""
        derived = [abs(stream(self.seed, "start", start)) for start in range(1, count)]
        return [self, *(replace(self, seed=seed) for seed in derived)]

    def to_dict(self) -> dict[str, object]:
        return stored_fields(self, ["begin"])


@dataclass
class Block:
    """Training lists of one length for all members, and the streams that shuffle them."""

    x: Shaped[Tensor, "M S k"]
    y: Shaped[Tensor, "M S out"]
    keys: Tensor

    def order(self, epoch: int) -> Tensor:
        return permutation(fold_in(self.keys, epoch), self.x.shape[1])


class Trainer:
    """The state of an ensemble in training, and how it advances. ``steps()`` yields after every step.

    Between two yields the state is whole: ``state_dict`` then holds all that is needed to go on bit for bit.
    """

    def __init__(
        self,
        config: NetworkConfig,
        recipe: Recipe,
        members: Sequence[Member],
        device: torch.device,
        workers: Workers,
        lengths: Sequence[int] = (),
        precision: str | None = None,
        scale: float = 1.0,
        only: str | None = None,
    ):
        """``lengths`` are those of the lists, by default n; ``only`` is a part of the names of what is trained."""
        self.config, self.recipe, self.members, self.device, self.workers = config, recipe, members, device, workers
        count = len(members)
        self.blocks = self._blocks(lengths or (config.n,), scale)
        self.shuffles_batches = recipe.shuffle_lengths and len(self.blocks) > 1
        self.precision = precision or "fp32"
        self.way = way_for(config, device, loss_of([member.task for member in members]), precision)
        self.parameters = Parameters.initial(config, [member.seed for member in members], device)
        self.trained = None if only is None else self.parameters.mask(only).to(device)
        self.first_moment = torch.zeros_like(self.parameters.flat)
        self.second_moment = torch.zeros_like(self.parameters.flat)
        self.lr = torch.tensor([member.lr for member in members], device=device)
        self.best = torch.full((count,), math.inf, device=device)
        self.stale = torch.zeros(count, dtype=torch.int64, device=device)
        self.alive = torch.ones(count, dtype=torch.bool, device=device)
        self.loss = torch.zeros(count, device=device)
        # Mean loss and learning rate of every epoch; on the device, so that no epoch waits for the host to read them.
        self.history = torch.full((recipe.epochs, 2, count), math.nan, device=device)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.epoch = self.batch = 0
        # Of every step: the schedule over the first moment's correction, and the root of the second moment's.
        self.total = recipe.epochs * len(self.batches())
        steps = torch.arange(self.total + 1).double()
        self.rates = (self._schedule(steps) / (1 - recipe.beta_1**steps)).float().to(device)
        self.spreads = (1 - recipe.beta_2**steps).sqrt().float().to(device)
        self.sharpness = None
        if recipe.sharpen_to and config.sharpened is not None:
            factor = config.sharpening(steps / self.total, recipe.sharpen_from, recipe.sharpen_to)
            self.sharpness = factor.float().to(device)
        self.groups = units(count, device)
        # Half a batch at most, so that two cores can share an odd number of members; a function of the recipe alone.
        self.tile = min(_TILE, math.ceil(recipe.batch / 2)) if device.type == "cpu" else recipe.batch

    def _blocks(self, lengths: Sequence[int], scale: float) -> list[Block]:
        """Every member's training data, of all lengths equally often."""
        count, members = self.recipe.samples, self.members
        drawn = [task(own.task).sample_lengths(count, lengths, scale, own.seed, device=self.device) for own in members]
        return [
            Block(
                torch.stack([data[length][0] for data in drawn]),
                torch.stack([data[length][1] for data in drawn]),
                torch.tensor([stream(member.seed, "shuffle", length) for member in members], device=self.device),
            )
            for length in lengths
        ]

    def batches(self) -> list[tuple[int, int, int]]:
        """(block, start, stop) of every batch: of one length each, lengths in turn."""
        size = min(self.recipe.batch, self.recipe.samples)
        starts = [
            (start, index, min(start + size, block.x.shape[1]))
            for index, block in enumerate(self.blocks)
            for start in range(0, block.x.shape[1], size)
        ]
        return [(index, start, stop) for start, index, stop in sorted(starts)]

    def batch_order(self) -> list[int]:
        """Which of ``batches`` come one after another in this epoch.

        A shuffled order is a function of the epoch alone, because all members take a step on the same length, and none may
        depend on its companions.
        """
        count = len(self.batches())
        if not self.shuffles_batches:
            return list(range(count))
        order: list[int] = permutation(fold_in(torch.tensor(stream(0, "batches")), self.epoch), count).tolist()
        return order

    @property
    def steps_done(self) -> int:
        return self.epoch * len(self.batches()) + self.batch

    def steps(self) -> Iterator[None]:
        """Trains to the end of the recipe from wherever the state is."""
        while self.epoch < self.recipe.epochs:
            yield from self._rest_of_epoch()

    def _rest_of_epoch(self) -> Iterator[None]:
        orders, batches = [block.order(self.epoch) for block in self.blocks], self.batches()
        for place in self.batch_order()[self.batch :]:
            index, start, stop = batches[place]
            block, rows = self.blocks[index], orders[index][:, start:stop, None]
            self._step(block.x.take_along_dim(rows, dim=1), block.y.take_along_dim(rows, dim=1))
            self.batch += 1
            yield
        self._end_epoch()

    def _step(self, x: Shaped[Tensor, "M b k"], y: Shaped[Tensor, "M b out"]) -> None:
        """One step of every member: fold, the gradient of each tile, then back through the fold and the update."""
        lists, length = x.shape[1:]

        def tile_gradient(unit: tuple[int, int]) -> tuple[Tensor, Tensors]:
            index, start = unit
            group, piece = self.groups[index], slice(start, start + self.tile)
            return self.way.gradient(prepared[index].tensors, x[group, piece], y[group, piece], lists)

        def update(index: int) -> None:
            losses, gradients = zip(*(results[unit] for unit in units if unit[0] == index), strict=True)
            summed = {name: _total([part[name] for part in gradients]) for name in gradients[0]}
            gradient = prepared[index].adjoint(summed)
            self._update(self.groups[index], _total(losses), gradient, torch.linalg.vector_norm(gradient, dim=1))

        self.step += 1
        factor = None if self.sharpness is None else self.sharpness.take(self.step)
        prepared = self._map(lambda group: self.way.prepare(self.parameters, group, length, factor), self.groups)
        units = [(index, start) for index in range(len(self.groups)) for start in range(0, lists, self.tile)]
        results = dict(zip(units, self._map(tile_gradient, units), strict=True))
        self._map(update, range(len(self.groups)))

    def _map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """``[function(item) for item in items]``, shared among the cores."""
        return self.workers.map(function, items)

    def _update(self, group: slice, loss: Tensor, gradient: Float[Tensor, "m P"], norm: Float[Tensor, " m"]) -> None:
        """Adam. A member whose loss or gradient is not finite stops for good, with the weights it had."""
        if self.trained is not None:
            gradient = gradient.masked_fill_(~self.trained, 0)  # so their moments and steps are 0, too
            norm = torch.linalg.vector_norm(gradient, dim=1)
        self.alive[group] &= loss.isfinite() & norm.isfinite()
        self.loss[group] += loss
        self._adam(group, gradient, norm)

    def _adam(self, group: slice, gradient: Float[Tensor, "m P"], norm: Float[Tensor, " m"]) -> None:
        recipe, alive = self.recipe, self.alive[group]
        gradient = gradient.masked_fill_(~alive[:, None], 0)
        if recipe.clip is not None:
            gradient *= (recipe.clip / norm.clamp_min(recipe.clip))[:, None].where(alive[:, None], 0)
        first, second = self.first_moment[group], self.second_moment[group]
        first.lerp_(gradient, 1 - recipe.beta_1)
        second.mul_(recipe.beta_2).addcmul_(gradient, gradient, value=1 - recipe.beta_2)
        rate = self.lr[group] * self.rates.take(self.step)
        denominator = second.sqrt().div_(self.spreads.take(self.step)).add_(recipe.epsilon)
        self.parameters.flat[group] -= (first / denominator).mul_((rate * alive)[:, None])

    def _schedule(self, step: Float[Tensor, "*steps"]) -> Float[Tensor, "*steps"]:
        """The factor on the learning rate at a step; the plateau schedule acts at the end of epochs instead."""
        if self.recipe.schedule == "plateau":
            return torch.ones_like(step)
        warm = self.recipe.warmup * self.total
        falling = 0.5 * (1 + torch.cos(math.pi * (step - 1 - warm) / (self.total - warm)))
        return torch.where(step <= warm, step / max(warm, 1), falling)

    def _end_epoch(self) -> None:
        self.history[self.epoch] = torch.stack(
            [self.loss / len(self.batches()), self.lr * self._schedule(self.step.double()).float()]
        )
        if self.recipe.schedule == "plateau":
            self._plateau()
        self.loss.zero_()
        self.epoch, self.batch = self.epoch + 1, 0

    def _plateau(self) -> None:
        """torch.optim.lr_scheduler.ReduceLROnPlateau for every member at once, on the epoch's summed loss."""
        recipe = self.recipe
        better = self.loss < self.best * (1 - recipe.threshold)
        self.best.copy_(torch.where(better, self.loss, self.best))
        self.stale.copy_(torch.where(better, 0, self.stale + 1))
        reduce = self.stale > recipe.patience
        lower = (self.lr * recipe.factor).clamp_min(recipe.floor)
        self.lr.copy_(torch.where(reduce & (self.lr - lower > 1e-8), lower, self.lr))  # torch's eps
        self.stale.copy_(torch.where(reduce, 0, self.stale))

    _TENSORS = ("step", "first_moment", "second_moment", "lr", "best", "stale", "alive", "loss")

    def keep(self, members: Sequence[int]) -> None:
        """Continues with these members alone."""
        chosen = torch.tensor(members, device=self.device)
        self.members = [self.members[k] for k in members]
        self.groups = units(len(members), self.device)
        self.blocks = [Block(block.x[chosen], block.y[chosen], block.keys[chosen]) for block in self.blocks]
        self.parameters = Parameters(self.config, self.parameters.flat[chosen])
        for name in self._TENSORS[1:]:  # all but the step have one entry per member
            setattr(self, name, getattr(self, name)[chosen])
        self.history = self.history[..., chosen]

    def tensors(self) -> Tensors:
        """What a step changes."""
        return {name: getattr(self, name) for name in self._TENSORS} | {"parameters": self.parameters.flat}

    def state_dict(self) -> Tensors:
        """All that training changes. The shuffles and data are functions of the seed and the epoch."""
        state = {name: value.cpu() for name, value in self.tensors().items()}
        place = torch.tensor([self.epoch, self.batch])
        return state | {"history": self.history[: self.epoch].clone().cpu(), "progress": place}

    def fits(self, state: Tensors) -> bool:
        """Whether a checkpoint's tensors have the names, shapes and types of this trainer's state, and of the seconds spent."""
        own = self.state_dict() | {"seconds": torch.tensor(0.0)}
        if not own.keys() <= state.keys():
            return False
        own["history"] = self.history[: state["history"].numel() // self.history[0].numel()]  # the epochs that are done
        if any((state[name].dtype, state[name].shape) != (value.dtype, value.shape) for name, value in own.items()):
            return False
        epoch, batch = state["progress"].tolist()
        return epoch == len(own["history"]) and 0 <= batch <= len(self.batches())

    def load_state_dict(self, state: Tensors) -> None:
        self.parameters = Parameters(self.config, state["parameters"].clone().to(self.device))
        for name in self._TENSORS:
            setattr(self, name, state[name].clone().to(self.device))
        self.epoch, self.batch = state["progress"].tolist()
        self.history[: self.epoch] = state["history"]


def units(count: int, device: torch.device) -> list[slice]:
    """Which of ``count`` members compute together: each alone on a CPU, all at once on a GPU."""
    return [slice(k, k + 1) for k in range(count)] if device.type == "cpu" else [slice(0, count)]


def _total(parts: Sequence[Tensor]) -> Tensor:
    """The sum of the parts, which come in a fixed order."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(dim=0)
