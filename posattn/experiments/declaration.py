"""What an experiment is: a source of rows, which is a grid of runs or a computation, and a figure of them.

Sizes: ``smoke`` takes seconds and exists for tests, ``quick`` takes minutes on two cores, ``paper`` is the published recipe.
The first two follow from the third by :meth:`Grid.at`: fewer tasks, runs, epochs and points, the same code.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pandas as pd
import torch

from posattn.compiled_run import CompiledRun
from posattn.compiler import compile
from posattn.compiler.library import solving
from posattn.errors import UsageError, choice, counted, instance, shown, some, whole
from posattn.experiments.figures import Lines
from posattn.experiments.measures import Measure, Scales
from posattn.experiments.store import Cell, Store, Stored, digest
from posattn.experiments.yardsticks import yardstick_rows
from posattn.network import NetworkConfig, configuration
from posattn.runs import ROW_COLUMNS, result_rows
from posattn.tasks import TASKS, MixedTask
from posattn.training import Member, Recipe
from posattn.training.recipe import recipe
from posattn.training.suitability import suited

SIZES = ("smoke", "quick", "paper")


@dataclass(frozen=True)
class Series:
    """One line of a figure: a network for every list length, and what the figure calls it.

    A ``recipe`` of its own replaces that of the grid, with its number of training lists, at every size but ``smoke``;
    ``seeds`` of its own are at most the grid's.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the configuration, beside n
    kind: Callable[..., NetworkConfig] = configuration
    recipe: Recipe | None = None
    seeds: int | None = None

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
class Held:
    """What a store holds of a source.

    ``read`` gives the rows, and the descriptions of the ensembles that they come from. Rows that need no runs and
    are not there it computes; ``read(keep=True)`` also writes them into the store.
    """

    some: bool
    enough: bool  # for a figure
    said: str  # how much, in words
    read: Callable[..., tuple[pd.DataFrame, list[dict[str, Any]]]]


class Source(ABC):
    """Where an experiment's rows come from."""

    @abstractmethod
    def held(self, name: str, size: str, store: Store, precision: str | None = None) -> Held:
        """What the store holds of this source for the experiment of that name."""

    def cells(self, size: str) -> list[Cell]:
        """The runs to train, if any."""
        choice("scale", size, SIZES)
        return []

    def more(self, size: str) -> str:
        """In words, what :meth:`prepare` computes beside the runs, if anything."""
        return ""

    def prepare(
        self, size: str, store: Store, runs: int | None, device: torch.device, announce: Callable[[str], None]
    ) -> None:
        """Puts rows into the store that are neither of trained runs nor quick to compute; ``runs`` as for ``reproduce``."""

    def check(self, figure: Lines) -> None:
        """Raises if the figure shows something that this source does not measure."""


@dataclass(frozen=True)
class Grid(Source):
    """Every task with every series, list length, number of layers, number of training lists and seed, and what is measured.

    ``programs`` says whether compiled programs are measured and drawn beside the trained networks, ``yardsticks`` whether the
    errors of answers that do not read the whole prompt are (``posattn/experiments/yardsticks.py``). With ``equal_steps`` fewer
    training lists are seen in more epochs, so that every network takes about as many steps as with the most lists.
    """

    tasks: tuple[str, ...]
    series: tuple[Series, ...]
    n: tuple[int, ...] = (8,)
    samples: tuple[int, ...] = (30_000,)
    seeds: int = 10
    recipe: Recipe = field(default_factory=Recipe)
    variable_length: bool | tuple[int, ...] = False
    layers: tuple[int, ...] = ()  # none: what the series have
    quick: tuple[int, int, int, int] = (10_000, 50, 250, 3)  # lists, epochs, batch and seeds of that size
    smoke: tuple[int, int, int, int] = (200, 3, 100, 2)
    measure: Measure = field(default_factory=Scales)
    programs: bool = False
    yardsticks: bool = False
    equal_steps: bool = False

    def __post_init__(self) -> None:
        """Refuses what would otherwise fail only after training."""
        whole("grid.seeds", self.seeds)
        for name in self.tasks:
            choice("grid.tasks", name, TASKS)
        for name, values in (("tasks", self.tasks), ("series", self.series), ("n", self.n), ("samples", self.samples)):
            some(f"grid.{name}", values)
        for name, numbers in (("n", self.n), ("samples", self.samples), ("layers", self.layers)):
            for number in numbers:
                whole(f"grid.{name}", number)
        for own in (self.recipe, *(line.recipe for line in self.series if line.recipe is not None)):
            if instance("recipe", own, Recipe, 'a Recipe such as RECIPES["paper"]').only is not None:
                raise UsageError(f"the recipe trains {own.only!r} alone, which takes a run to begin with.")
        if len({line.label for line in self.series}) < len(self.series):
            raise UsageError("the grid has two series of one label; every label must be its own.")
        for line in self.series:
            self.measure.check_network(line.label, line.config(self.n[0]))
        if self.yardsticks and not (
            isinstance(self.measure, Scales) and all(isinstance(TASKS[name], MixedTask) for name in self.tasks)
        ):
            raise UsageError("the grid has yardsticks; these are for mixed-type prompts, measured by Scales.")

    def at(self, size: str) -> "Grid":
        """The grid at a size; nothing becomes larger than it was declared.

        Below ``paper`` the recipe is ``tuned`` with small batches: there the number of steps matters more than how exact
        each gradient is.
        """
        if choice("scale", size, SIZES) == "paper":
            return self
        few, (most, epochs, batch, seeds) = (2, self.smoke) if size == "smoke" else (3, self.quick)
        most, epochs = min(most, self.samples[-1]), min(epochs, self.recipe.epochs)
        samples = self.samples[:few]
        for_loops = self.recipe.for_loops | {"polish": min(self.recipe.polish, epochs)}
        return replace(
            self,
            tasks=self.tasks[:1],
            n=self.n[:few],
            layers=tuple(dict.fromkeys(min(own, few) for own in self.layers[:few])),
            samples=tuple(most * own // max(samples) for own in samples),
            seeds=min(seeds, self.seeds),
            recipe=recipe("tuned", epochs=epochs, batch=min(batch, self.recipe.batch), **for_loops),
            measure=self.measure.at(size),
        )

    def cells(self, size: str = "paper") -> list[Cell]:
        return [cell for line in self.series for cell in self._cells_of(line, size)]

    def _cells_of(self, line: Series, size: str) -> list[Cell]:
        own = self.at(size)
        if line.recipe is not None:
            alone: dict[str, Any] = {"samples": (line.recipe.samples,), "recipe": line.recipe, "layers": ()}
            own = replace(self, **alone).at(size) if size == "smoke" else replace(own, **alone)
        seeds = range(own.seeds if line.seeds is None else min(line.seeds, own.seeds))
        points = product(own.n, own.layers or (None,), own.samples, own.tasks, seeds)
        return [
            Cell(
                line.label,
                suited(line.config(n, layers), name),
                own._recipe_for(samples),
                Member(name, seed, own.recipe.lr),
                own.variable_length,
                own.measure,
            )
            for n, layers, samples, name, seed in points
        ]

    def _recipe_for(self, samples: int) -> Recipe:
        times = max(self.samples) / samples if self.equal_steps else 1
        epochs, patience = round(times * self.recipe.epochs), round(times * self.recipe.patience)
        return replace(self.recipe, samples=samples, epochs=epochs, patience=patience)

    def held(self, name: str, size: str, store: Store, precision: str | None = None) -> Held:
        """Enough for a figure is one run at least for half of its points, the combinations of task, series and settings."""
        own, cells = self.at(size), self.cells(size)
        # Where rows lack a part of the measure, what they have is drawn.
        found = store.find(cells, own.measure.needed(), precision) | store.find(cells, own.measure, precision)
        there = {cell.point for cell in cells if cell.key in found}
        enough = 2 * len(there) >= len({cell.point for cell in cells})

        def read(keep: bool = False) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
            rows, ensembles = store.rows(found, own.measure)
            rows = _labelled(rows, cells, found) if found else rows
            if found and self.programs:
                # With what determines them, as an experiment of one's own may change.
                called = f"{name}-{size}-compiled-{digest([own.tasks, own.n, own.measure.key()])}"
                compiled = store.computed(
                    called, lambda: compiled_rows(own.tasks, own.n, own.measure).assign(experiment=name), keep
                )
                rows = pd.concat([rows, compiled], ignore_index=True)
            if found and self.yardsticks and isinstance(own.measure, Scales):
                beside = yardstick_rows(own.tasks, own.n, own.samples, own.measure)
                rows = pd.concat([rows, beside], ignore_index=True)
            return rows.assign(experiment=name), ensembles

        return Held(bool(there), enough, f"{len(found)} of {counted(len(cells), 'run')}", read)

    def check(self, figure: Lines) -> None:
        networks = (suited(line.config(self.n[0]), self.tasks[0]) for line in self.series)
        own = (column for network in networks for column in network.columns)
        self.measure.check_figure(figure, self.tasks[0], (*ROW_COLUMNS, *dict.fromkeys(own)))
        if type(figure).medians is not Lines.medians:
            return  # which may tell them apart in another way
        for name, values in (("n", self.n), ("samples", self.samples), ("layers", self.layers)):
            apart = name in (figure.x, *figure.columns) or all(name in view.where for view in figure.views)
            if len(set(values)) > 1 and not apart:
                mixed = f"grid.{name} is {shown(values)}, of which the figure would draw one median"
                raise UsageError(f"{mixed}; {name} must be its x, one of its columns, or in the where of every view.")


@dataclass(frozen=True)
class Computation(Source):
    """A source without runs: a function from the size to rows, each with at least a metric and a value.

    Columns of other results that it leaves out are empty, but split is test, domain ood and status ok. ``trains`` says in
    words which networks it trains at a size, if any.
    """

    rows: Callable[[str], pd.DataFrame]
    trains: Callable[[str], str] = lambda size: ""

    def more(self, size: str) -> str:
        return self.trains(size)

    def held(self, name: str, size: str, store: Store, precision: str | None = None) -> Held:
        there = store.has_computed(f"{name}-{size}")

        def compute() -> pd.DataFrame:
            defaults = {"task": "", "arch": "", "split": "test", "domain": "ood", "status": "ok"}
            return result_rows(self.rows(size), defaults).assign(experiment=name)

        return Held(
            there, there, "computed", lambda keep=False: (store.computed(f"{name}-{size}", compute, keep), [])
        )


def compiled_rows(tasks: Sequence[str], lengths: Sequence[int], measure: Measure) -> pd.DataFrame:
    """Rows of compiled programs: for each length and each task that programs solve, of the first one in the library."""
    programs = {row.name: row for task in tasks for row in solving(task)[:1]}
    tables = []
    for n, (name, program) in product(lengths, programs.items()):
        machines = n - 1 if program.task == "khop" else n  # a sequence is the hop count, and a letter per machine
        tables.append(measure.rows(CompiledRun(name, compile(name, machines=machines))))
    rows = pd.concat(tables, ignore_index=True)
    return rows[rows["task"].isin(tasks)].assign(series="compiled")


def _labelled(rows: pd.DataFrame, cells: Iterable[Cell], found: dict[str, Stored]) -> pd.DataFrame:
    """The rows in the order of the cells, with each cell's label as ``series``."""
    labels = {found[cell.key].run: cell.label for cell in cells if cell.key in found}
    places = {run: place for place, run in enumerate(labels)}
    rows = rows.sort_values("run", key=lambda runs: runs.map(places), kind="stable", ignore_index=True)
    return rows.assign(series=rows["run"].map(labels))


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper, or one of your own.

    Args:
        name: what its files are called.
        reference: its number in the paper, or a phrase that says it has none.
        title: what it shows, in a line.
        source: a :class:`Grid` of runs, or a :class:`Computation`.
        figure: how its rows are shown.
    """

    name: str
    reference: str
    title: str
    source: Source
    figure: Lines = field(default_factory=Lines)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", self.name):
            raise UsageError(f"name is {self.name!r}; it must be letters, digits, dots and dashes.")
        instance("figure", self.figure, Lines, "a figure, such as Lines(); a measure goes into the grid, Grid(measure=...)")
        self.source.check(self.figure)

    def cells(self, size: str) -> list[Cell]:
        return self.source.cells(size)

    def held(self, size: str, store: Store, precision: str | None = None) -> Held:
        return self.source.held(self.name, size, store, precision)
