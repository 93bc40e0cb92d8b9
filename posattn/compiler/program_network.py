"""The network of a compiled program with weights that training may change.

It has the shape of the compiled network with softmax, and computes in float32. It refuses lists of another length only: the
program's bounds and rules say nothing about weights that are no longer the program's.
"""

from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from posattn.compiler.compiled_model import CompiledConfig, CompiledTransformer
from posattn.compiler.machine_memory import memory_cells
from posattn.errors import UsageError, counted
from posattn.network import check_input


@dataclass(frozen=True)
class ProgramConfig(CompiledConfig):
    """A :class:`CompiledConfig` with softmax, of one number in and out per machine."""

    kind: ClassVar[str] = "program"
    arch: ClassVar[str] = "program"
    trainable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hardmax:
            raise UsageError("hardmax is True; hardmax has no gradient, so compile with epsilon to train on (softmax).")
        if self.lengths:
            raise UsageError("lengths is True; a program that trains on is for lists of one length.")
        for field in ("inputs", "outputs"):
            if getattr(self, field) != 1:
                raise UsageError(f"{field} is {getattr(self, field)}; tasks of lists have 1 number per position.")


class ProgramTransformer(CompiledTransformer):
    """Maps lists (..., n) to (..., n)."""

    config: ProgramConfig

    def forward(self, x: Shaped[Tensor, "*input"]) -> Float[Tensor, "*batch n"]:
        return self.decode(self.last_state(x))

    def encode(self, x: Shaped[Tensor, "*input"]) -> tuple[Tensor, Tensor, Tensor]:
        check_input(x, self.input_dtype)
        if x.shape[-1] != self.config.n:
            raise UsageError(f"the list has {counted(x.shape[-1], 'number')}; this network takes {self.config.n}.")
        positions = torch.arange(self.config.positions, device=x.device)
        return self.encoder(memory_cells(x[..., None], positions)), self.P, positions


ProgramConfig.network = ProgramTransformer


def trainable(model: CompiledTransformer) -> ProgramTransformer:
    """A copy of a compiled network, in float32, whose weights can be trained on."""
    config = ProgramConfig(**{field.name: getattr(model.config, field.name) for field in fields(CompiledConfig)})
    network = ProgramTransformer(config)
    network.load_state_dict(model.state_dict())
    network.labels = model.labels
    return network
