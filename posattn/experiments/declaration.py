"""What an experiment is: a grid of runs for every scale it can be run at. Nothing here trains or draws.

``smoke`` takes seconds and exists for tests, ``quick`` takes minutes on two cores, ``paper`` is the published recipe.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from posattn.errors import choice
from posattn.model import ModelConfig
from posattn.training import Member, Recipe, RunSpec

SCALES = ("smoke", "quick", "paper")


@dataclass(frozen=True)
class Plan:
    """Every task with every architecture and seed, trained by one recipe and tested at every scale factor."""

    tasks: tuple[str, ...]
    archs: tuple[str, ...]
    seeds: int
    recipe: Recipe
    n: int = 8
    factors: tuple[float, ...] = tuple(range(1, 11))
    test_samples: int = 1000

    def ensembles(self) -> list[RunSpec]:
        """The runs, grouped by what can train as one batched program: one ensemble an architecture."""
        members = tuple(Member(task, seed, self.recipe.lr) for task in self.tasks for seed in range(self.seeds))
        return [RunSpec(ModelConfig(self.n, arch), self.recipe, members) for arch in self.archs]

    @property
    def models(self) -> int:
        return len(self.tasks) * len(self.archs) * self.seeds


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper."""

    name: str
    reference: str  # its number in the paper
    title: str
    plans: Mapping[str, Plan]

    def plan(self, scale: str) -> Plan:
        return self.plans[choice("scale", scale, self.plans)]
