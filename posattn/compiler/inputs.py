"""What a program is given: what is known of it beforehand, checked, and the inputs themselves, checked against it."""

import math
from typing import Protocol

import numpy as np
import torch

from posattn.compiler.analysis import LARGEST, Known
from posattn.compiler.expressions import Array
from posattn.compiler.machine_memory import within_bounds
from posattn.errors import UsageError


class Program(Protocol):
    """MPC or PCOC: the last ``spare`` machines have no input."""

    @property
    def name(self) -> str: ...
    @property
    def machines(self) -> int: ...
    @property
    def spare(self) -> int: ...
    @property
    def inputs(self) -> tuple[Known, ...]: ...


def check_inputs(program: Program) -> None:
    """Raises if the ranges of a program's inputs are none, or its spare machines are more than it has."""
    for place, known in enumerate(program.inputs):
        if not -math.inf < known.lo <= known.hi < math.inf or known.size > LARGEST:
            raise UsageError(
                f"{program.name} has input {place} in [{known.lo:g}, {known.hi:g}]; the bounds must be numbers of at most "
                f"{LARGEST:.3g}, the smaller one first."
            )
    if not 0 <= program.spare < program.machines:
        raise UsageError(f"{program.name} has {program.spare} spare machines; it has {program.machines} in all.")


def bounds_of(inputs: tuple[Known, ...]) -> tuple[tuple[float, float], ...]:
    return tuple((float(known.lo), float(known.hi)) for known in inputs)


def integers_of(inputs: tuple[Known, ...]) -> tuple[int, ...]:
    """The places of inputs that must be whole numbers."""
    return tuple(place for place, known in enumerate(inputs) if known.integer)


def given(program: Program, x: Array) -> Array:
    """``x`` as (..., N, c) numbers, if the program takes it."""
    try:
        x = np.asarray(x, dtype=float)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the input of {program.name} must be an array of numbers.") from error
    machines, c = program.machines - program.spare, len(program.inputs)
    if x.shape[-2:] != (machines, c):
        raise UsageError(f"the input has shape {x.shape}; {program.name} takes (..., {machines}, {c}).")
    within_bounds(torch.from_numpy(x), machines, bounds_of(program.inputs), integers_of(program.inputs))
    return x
