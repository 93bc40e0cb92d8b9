"""What an experiment is: a grid of runs, what is measured of each, and how the rows are shown. Nothing here trains or draws.

Scales: ``smoke`` takes seconds and exists for tests, ``quick`` takes minutes on two cores, ``paper`` is the published recipe.
The first two follow from the third by :meth:`Grid.at`: fewer tasks, runs, epochs and points, the same code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from posattn.errors import UsageError, choice
from posattn.experiments.measures import Measure, Scales
from posattn.network import NetworkConfig, configuration
from posattn.training import Member, Recipe, RunSpec
from posattn.training.network import suited
from posattn.training.recipe import recipe

SCALES = ("smoke", "quick", "paper")


@dataclass(frozen=True)
class Series:
    """One line of a figure: a network for every list length, and what the figure calls it."""

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the configuration, beside n
    kind: Callable[..., NetworkConfig] = configuration

    def config(self, n: int, layers: int | None = None) -> NetworkConfig:
        """The network for lists of n; ``layers`` in place of its own."""
        try:
            return self.kind(n=n, **(dict(self.settings) if layers is None else {**self.settings, "layers": layers}))
        except TypeError as error:
            raise UsageError(
                f"the series {self.label!r} has settings that its network does not take: {error}."
            ) from error


def series(*archs: str, **settings: Any) -> tuple[Series, ...]:
    """Architectures by name, with the same further settings."""
    return tuple(Series(arch, {"arch": arch, **settings}) for arch in archs)


@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    label: str
    model: NetworkConfig
    recipe: Recipe
    member: Member
    variable_length: bool | tuple[int, ...]

    def spec(self, precision: str = "fp32") -> RunSpec:
        """The run alone."""
        return RunSpec(self.model, self.recipe, (self.member,), self.variable_length, precision)

    @property
    def key(self) -> str:
        """Names the run's numbers up to the precision they were computed in."""
        return self.spec().identity(0, precision=False)

    @property
    def point(self) -> str:
        """Names what runs that differ in their seeds alone share: a point of the figure."""
        return replace(self, member=replace(self.member, seed=0)).key


@dataclass(frozen=True)
class Grid:
    """Every task with every series, list length, number of layers, number of training lists and seed."""

    tasks: tuple[str, ...]
    series: tuple[Series, ...]
    n: tuple[int, ...] = (8,)
    samples: tuple[int, ...] = (30_000,)
    seeds: int = 10
    recipe: Recipe = field(default_factory=Recipe)
    variable_length: bool | tuple[int, ...] = False
    layers: tuple[int, ...] = ()  # none: what the series have
    quick: tuple[int, int, int, int] = (10_000, 50, 250, 3)  # lists, epochs, batch and seeds of that scale
    smoke: tuple[int, int, int, int] = (200, 3, 100, 2)

    def at(self, scale: str) -> "Grid":
        """The grid at a scale; nothing becomes larger than it was declared.

        Below ``paper`` the recipe is ``tuned`` with small batches: there the number of steps matters more than how exact
        each gradient is.
        """
        if choice("scale", scale, SCALES) == "paper":
            return self
        samples, epochs, batch, seeds = self.smoke if scale == "smoke" else self.quick
        samples, epochs = min(samples, *self.samples[-1:]), min(epochs, self.recipe.epochs)
        batch = min(batch, self.recipe.batch)
        few = 2 if scale == "smoke" else 3
        own_samples = self.samples[:few]
        lists = tuple(samples * own // max(own_samples) for own in own_samples)
        for_loops = self.recipe.for_loops | {"polish": min(self.recipe.polish, epochs)}
        return replace(
            self,
            tasks=self.tasks[:1],
            n=self.n[:few],
            layers=tuple(dict.fromkeys(min(own, few) for own in self.layers[:few])),
            samples=lists,
            seeds=min(seeds, self.seeds),
            recipe=recipe("tuned", epochs=epochs, batch=batch, **for_loops),
        )

    def cells(self) -> list[Cell]:
        points = product(self.series, self.n, self.layers or (None,), self.samples, self.tasks, range(self.seeds))
        return [
            Cell(
                line.label,
                suited(line.config(n, layers), task),
                recipe(self.recipe, samples=samples),
                Member(task, seed, self.recipe.lr),
                self.variable_length,
            )
            for line, n, layers, samples, task, seed in points
        ]


@dataclass(frozen=True)
class View:
    """One row of a figure's panels: the rows that match ``where``, and what they are called.

    Published medians match ``published`` instead, where the published record has another split.
    """

    title: str
    where: Mapping[str, Any] = field(default_factory=dict)
    metric: str = "mse"
    published: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Lines:
    """Panels of lines, median and band over runs: columns by ``columns``, one row of panels a view."""

    x: str = "scale"
    views: tuple[View, ...] = (View("", {"split": "test"}),)
    columns: tuple[str, ...] = ("task",)


@dataclass(frozen=True)
class Bars(Lines):
    """The same where x is a name: for each name the series side by side, marker and bar, in the order of the rows.

    Wider panels, so ``columns`` go down and views across.
    """

    x: str = "distribution"


BY_STAGE = Bars("stage", (View("", {"split": "test"}, "mse_over_c2"),))
BY_DISTRIBUTION = Bars(views=(View("relative error", metric="relative"), View("closeness", metric="closeness")))


@dataclass(frozen=True)
class Contours(Lines):
    """Level lines over x and the number in each series' column ``y``: one panel a view, both axes logarithmic."""

    y: str = "n"
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class GapPanels(Lines):
    """Drawn by :mod:`posattn.experiments.gap_figure`; views and columns are those of the tables."""


@dataclass(frozen=True)
class Computed:
    """Rows that come from no run of the store: a function of the scale, and what the page says of them."""

    rows: Callable[[str], pd.DataFrame]
    explained: str


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper, or one of your own."""

    name: str
    reference: str  # its number in the paper, or that it has none
    title: str
    grid: Grid
    measure: Measure = field(default_factory=Scales)
    shown: Lines = field(default_factory=Lines)
    published: str = ""  # the name under which published medians are known, if they are
    maps: bool = False  # whether rows hold attention weights, to be drawn too
    compiled: bool = False  # whether compiled programs are measured and drawn beside the trained networks
    computed: Computed | None = None  # in place of runs, whose grid is then empty
    pictures: Callable[[pd.DataFrame], dict[str, Figure]] | None = None  # from rows, by file name, in place of lines

    def __post_init__(self) -> None:
        """Raises for a panel of what is not measured."""
        measure = self.measure
        if not isinstance(measure, Scales):
            return
        for where in (view.where for view in self.shown.views):
            if where.get("split") == "train" and not measure.train:
                raise UsageError(f"{self.name} has a panel of training lists; it must measure them, with train = true.")
            if measure.factors and where.get("scale", measure.factors[0]) not in measure.factors:
                known = ", ".join(f"{factor:g}" for factor in measure.factors)
                raise UsageError(f"{self.name} has a panel of scale {where['scale']}; it measures {known}.")

    def cells(self, scale: str) -> list[Cell]:
        return self.grid.at(scale).cells()
