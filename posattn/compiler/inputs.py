"""The inputs of a program: their ranges, which the program declares, and the check of actual inputs against them."""

import math

import numpy as np
import torch

from posattn.compiler.analysis import LARGEST, Known
from posattn.compiler.expressions import Array
from posattn.compiler.machine_memory import within_bounds
from posattn.errors import UsageError, flag, instance, several, whole


class ParallelProgram:
    """What MPC and PCOC programs share. The last ``spare`` machines have no input; every other one has c = len(``inputs``)."""

    name: str
    machines: int
    spare: int
    inputs: tuple[Known, ...]

    @property
    def length(self) -> int:
        """How many machines have an input: the length of the list."""
        return self.machines - self.spare

    @property
    def bounds(self) -> tuple[tuple[float, float], ...]:
        """The smallest and the largest value of each input."""
        return tuple((float(known.lo), float(known.hi)) for known in self.inputs)

    @property
    def integers(self) -> tuple[int, ...]:
        """Which inputs must be whole numbers."""
        return tuple(place for place, known in enumerate(self.inputs) if known.integer)

    def check_inputs(self) -> None:
        """Raises if the range of an input is empty or too large, or if all machines are spare."""
        instance("name", self.name, str, "a text")
        for place, known in enumerate(several("inputs", self.inputs)):
            instance(f"input {place}", known, Known, "a Known, such as Known(-1, 1)")
            flag(f"integer of input {place}", known.integer)
            if not -math.inf < known.lo <= known.hi < math.inf or known.size > LARGEST:
                raise UsageError(
                    f"{self.name} has input {place} in [{known.lo:g}, {known.hi:g}]; the bounds must be numbers of at most "
                    f"{LARGEST:.3g}, the smaller one first."
                )
        if whole("spare", self.spare, least=0) >= self.machines:
            raise UsageError(f"{self.name} has {self.spare} spare machines; it has {self.machines} in all.")

    def given(self, x: Array) -> Array:
        """``x`` as an array (..., length, c) of numbers; raises if the program does not take it."""
        try:
            if np.iscomplexobj(x):
                raise TypeError
            x = np.asarray(x, dtype=float)
        except (TypeError, ValueError) as error:
            raise UsageError(f"the input of {self.name} must be an array of real numbers.") from error
        c = len(self.inputs)
        if x.shape[-2:] != (self.length, c):
            raise UsageError(f"the input has shape {x.shape}; {self.name} takes (..., {self.length}, {c}).")
        within_bounds(torch.from_numpy(x[..., 0] if c == 1 else x), self.length, self.bounds, self.integers)
        return x
