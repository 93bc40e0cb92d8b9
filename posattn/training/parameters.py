"""The parameters of an ensemble as one matrix, and as views of it by name.

Letters: M members, m some of them, P parameters of one, L layers.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from posattn.errors import UsageError
from posattn.folding import Tensors
from posattn.network import NetworkConfig
from posattn.streams import stream

Shapes = dict[str, torch.Size]


def initial_model(config: NetworkConfig, seed: int) -> nn.Module:
    """The network with the initial weights that ``seed`` determines, whatever else has drawn random numbers."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(stream(seed, "initialisation"))
        return config.build()


class Parameters:
    """The parameters of M networks as one (M, P) matrix, so that an optimiser sees a single tensor."""

    def __init__(self, config: NetworkConfig, flat: Shaped[Tensor, "M P"]):
        self.config, self.flat = config, flat
        # Not on the meta device, where eye and normal_ import torch's compiler, which takes seconds.
        self.shapes = {name: value.shape for name, value in initial_model(config, 0).named_parameters()}
        *starts, self.size = accumulate((shape.numel() for shape in self.shapes.values()), initial=0)
        self.starts = dict(zip(self.shapes, starts, strict=True))  # of each parameter in a row
        # Encoder, layers, decoder follow one another in a row, and every layer has the same parameters.
        every = [(name.replace("layers.0", "layers"), name, shape) for name, shape in self.shapes.items()]
        self._parts = {
            part: {short: shape for short, name, shape in every if name.startswith(part)}
            for part in ("encoder", "layers.0.", "decoder")
        }

    @classmethod
    def initial(cls, config: NetworkConfig, seeds: Sequence[int], device: torch.device) -> "Parameters":
        rows = [torch.cat([p.detach().flatten() for p in initial_model(config, seed).parameters()]) for seed in seeds]
        return cls(config, torch.stack(rows).to(device))

    @classmethod
    def of(cls, config: NetworkConfig, named: Tensors) -> "Parameters":
        """From named tensors with a member axis, such as a file holds."""
        own = cls(config, torch.empty(0, 0))
        return cls(config, own.flatten({name: named[name] for name in own.shapes}, own.by_name))

    def named(self, members: slice = slice(None)) -> Tensors:
        """Views (m, *shape) of the parameters of some members, by name."""
        return self.by_name(self.flat[members])

    def by_name(self, rows: Shaped[Tensor, "m P"]) -> Tensors:
        """Views (m, *shape) of rows laid out like these."""
        return _split(rows, self.shapes)

    def by_layer(self, rows: Shaped[Tensor, "m P"]) -> Tensors:
        """The same with all layers in one view (L, m, *shape), as ``stack_layers`` would copy them."""
        encoder, layer, decoder = self._parts.values()
        first, each, last = (sum(shape.numel() for shape in part.values()) for part in (encoder, layer, decoder))
        outer, layers, end = rows.split([first, rows.shape[1] - first - last, last], dim=1)
        stacked = layers.unflatten(1, (-1, each)).transpose(0, 1)
        return _split(outer, encoder) | _split(stacked, layer) | _split(end, decoder)

    def flatten(self, tensors: Tensors, views: Callable[[Tensor], Tensors]) -> Float[Tensor, "m P"]:
        """One row per member from tensors named as in ``views``, by name or by layer, such as a gradient."""
        first = next(iter(tensors.values()))
        rows = first.new_empty(len(first), self.size)
        for name, view in views(rows).items():
            view.copy_(tensors[name])
        return rows

    def mask(self, part: str) -> Bool[Tensor, " P"]:
        """Which entries of a row belong to parameters whose name has ``part`` in it."""
        if not any(part in name for name in self.shapes):
            raise UsageError(f"only is {part!r}; no parameter of this network has it in its name.")
        return torch.cat([torch.full((shape.numel(),), part in name) for name, shape in self.shapes.items()])

    def model(self, member: int) -> nn.Module:
        """One member as a plain module."""
        model = initial_model(self.config, 0)
        named = self.named(slice(member, member + 1))
        model.load_state_dict({name: value[0] for name, value in named.items()}, strict=False)  # buffers are as built
        return model.to(self.flat.device)


def _split(rows: Shaped[Tensor, "*lead size"], shapes: Shapes) -> Tensors:
    pieces = rows.split([shape.numel() for shape in shapes.values()], dim=-1)
    return {name: piece.unflatten(-1, shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


class Layered:
    """The parameters of some members as ``Parameters.by_layer`` gives them, in one piece: every tensor is contiguous.

    Products of contiguous matrices need no copies. One gather for all tensors costs less than one copy per tensor.
    """

    def __init__(self, parameters: Parameters, members: slice):
        rows = parameters.flat[members]
        views = parameters.by_layer(torch.arange(rows.numel()).view(rows.shape))
        self.shapes = {name: view.shape for name, view in views.items()}
        there = torch.cat([view.flatten() for view in views.values()])
        self.there, self.back = there.int().to(rows.device), there.argsort().int().to(rows.device)

    def gather(self, rows: Float[Tensor, "m P"]) -> Tensors:
        return _split(rows.flatten().index_select(0, self.there), self.shapes)

    def scatter(self, stacked: Tensors, members: int) -> Float[Tensor, "m P"]:
        """Back to one row per member."""
        return torch.cat([stacked[name].flatten() for name in self.shapes]).index_select(0, self.back).view(members, -1)
