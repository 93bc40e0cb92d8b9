"""The runs of an experiment, one by one: a network for every line of a figure, a task, a recipe and a seed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from posattn.errors import UsageError
from posattn.experiments.measures import Measure
from posattn.network import NetworkConfig, configuration
from posattn.training import Member, Recipe, RunSpec


@dataclass(frozen=True)
class Series:
    """One line of a figure: a network for every list length, and what the figure calls it.

    A ``recipe`` of its own replaces that of the grid, with its number of training lists, at every size but ``smoke``.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the configuration, beside n
    kind: Callable[..., NetworkConfig] = configuration
    recipe: Recipe | None = None

    def config(self, n: int, layers: int | None = None) -> NetworkConfig:
        """The network for lists of n; ``layers``, if given, replaces its own number of layers."""
        try:
            return self.kind(n=n, **(dict(self.settings) if layers is None else {**self.settings, "layers": layers}))
        except (TypeError, UsageError) as error:
            told = f"the series {self.label!r} has settings that its network does not take"
            raise UsageError(f"{told}: {str(error).removesuffix('.')}.") from error


def series(*archs: str, **settings: Any) -> tuple[Series, ...]:
    """Architectures by name, with the same further settings."""
    return tuple(Series(arch, {"arch": arch, **settings}) for arch in archs)


@dataclass(frozen=True)
class Cell:
    """One run of a grid, and what is measured of it."""

    label: str
    model: NetworkConfig
    recipe: Recipe
    member: Member
    variable_length: bool | tuple[int, ...]
    measure: Measure

    def spec(self, precision: str = "fp32") -> RunSpec:
        """This run as an ensemble of one."""
        return RunSpec(self.model, self.recipe, (self.member,), self.variable_length, precision)

    @cached_property
    def key(self) -> str:
        """The identity of the run, whatever precision it is computed in."""
        return self.spec().identity(0, precision=False)

    @cached_property
    def point(self) -> str:
        """The identity that runs share if only their seeds differ: a point of the figure."""
        return replace(self, member=replace(self.member, seed=0)).key
