"""Runs an experiment: trains and measures what the store lacks, and writes rows, figure, tables and page.

out/experiment.json      which experiment, at which scale
out/rows.csv             all rows: one a run, condition and metric, with the settings beside each
out/NAME.png, .pdf       the figure, drawn from the rows alone
out/NAME.md, .tex        the medians as tables
out/NAME.html            figure, numbers, settings and hardware on one self-contained page
"""

import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import torch

from posattn import files
from posattn.errors import UsageError, whole
from posattn.experiments import figures, report
from posattn.experiments.catalog import EXPERIMENTS
from posattn.experiments.compiled import compiled_name, compiled_rows
from posattn.experiments.declaration import SCALES, Cell, Experiment, GapPanels
from posattn.experiments.gap_figure import draw_gaps
from posattn.experiments.measures import Measure
from posattn.experiments.store import Store
from posattn.tasks import task
from posattn.training import RunSpec, train_spec
from posattn.training.fit import check_precision

AT_ONCE = 50  # runs in one ensemble at most
_WAIT = 2.0  # seconds between looks at what another process is training


class NothingStored(UsageError):
    """No rows to draw, and none to be trained."""


@dataclass(frozen=True)
class Outcome:
    """What a reproduction leaves behind."""

    rows: pd.DataFrame
    table: pd.DataFrame
    page: Path
    figure: Path


@dataclass(frozen=True)
class Engine:
    """This machine: ensembles one after another on one device."""

    device: torch.device
    announce: Callable[[str], None] = lambda message: None
    progress: bool | None = None
    _waited_for: set[str] = field(default_factory=set)

    def check(self, cells: Iterable[Cell], precision: str) -> None:
        """Raises if a cell cannot train in ``precision`` here."""
        for model in dict.fromkeys(cell.model for cell in cells):
            check_precision(model, precision, self.device)

    def run(self, specs: list[RunSpec], measure: Measure, store: Store) -> list[RunSpec]:
        """Trains and measures the ensembles; returns those that another process is at."""
        elsewhere = []
        for spec in specs:
            if spec.digest not in self._waited_for:
                self.announce(plan(spec))
            try:
                run = train_spec(spec, self.device, store.folder(spec), progress=self.progress)
            except files.InUse:
                if spec.digest not in self._waited_for:
                    self.announce("Another process is training these; waiting for it.")
                self._waited_for.add(spec.digest)
                elsewhere.append(spec)
                continue
            store.write(spec, measure, measure.rows(run), run.result)
        return elsewhere


class AnyEngine(Protocol):
    """Where ensembles are trained: here, on a Ray cluster, or somewhere of your own."""

    def check(self, cells: Iterable[Cell], precision: str) -> None:
        """Raises if a cell cannot train in ``precision`` there."""
        ...

    def run(self, specs: list[RunSpec], measure: Measure, store: Store) -> list[RunSpec]:
        """Trains and measures the ensembles; returns those that another process is at."""
        ...


def plan(spec: RunSpec) -> str:
    """What is about to be trained, in words."""
    inputs = task(spec.members[0].task).INPUTS
    return f"{called(spec)}: {spec.recipe.epochs} epochs of {spec.recipe.samples} {inputs}"


def called(spec: RunSpec) -> str:
    """An ensemble in words."""
    count = len(spec.members)
    return f"{spec.model.arch}, n = {spec.model.n}: {count} model{'s' if count > 1 else ''}"


def reproduce(
    experiment: Experiment,
    scale: str,
    out: Path,
    store: Store,
    engine: AnyEngine,
    precision: str | None = None,
    only: Collection[str] = (),
    runs: int | None = None,
) -> Outcome:
    """Runs ``experiment`` at ``scale`` into the folder ``out``; called again, it goes on or does nothing.

    ``only`` names the series to train now, and ``runs`` how many of every point, or 0; what has rows already is drawn too.
    Without a ``precision`` rows of any will do, and what is lacking is trained in fp32.
    """
    cells, measure = experiment.cells(scale), experiment.measure.at(scale)
    labels = dict.fromkeys(cell.label for cell in cells)
    for label in only:
        if label not in labels:
            raise UsageError(f"only is {label!r}; {experiment.name} has {', '.join(map(repr, labels))}.")
    if len({cell.key for cell in cells}) < len(cells):
        raise UsageError(f"{experiment.name} has two series of the same networks; every series must be its own.")
    seeds = experiment.grid.seeds if runs is None else whole("runs", runs, least=0)
    if seeds == 0 and not _has_rows(experiment, scale, store, precision):
        raise NothingStored(
            f"runs is 0, and the store at {str(store.root)!r} has no rows of {experiment.name} at scale {scale} to draw."
        )
    _claim(out, {"experiment": experiment.name, "scale": scale})
    chosen = [cell for cell in cells if (not only or cell.label in only) and cell.member.seed < seeds]
    _complete(chosen, measure, store, engine, precision)
    rows, described = held(experiment, scale, store, precision)
    files.write(out / "rows.csv", rows.to_csv(index=False, na_rep="nan").encode())
    drawn = _draw(rows, experiment, out)
    summary = figures.medians(rows, experiment.shown)
    page = report.write(out, experiment, scale, summary, drawn, described)
    return Outcome(rows, summary, page, drawn[0])


def _has_rows(experiment: Experiment, scale: str, store: Store, precision: str | None) -> bool:
    if experiment.computed is not None:
        return store.has_computed(_of_scale(experiment, scale))
    return bool(store.find(experiment.cells(scale), experiment.measure.at(scale), precision))


def _of_scale(experiment: Experiment, scale: str) -> str:
    return f"{experiment.name}-{scale}"


def _draw(rows: pd.DataFrame, experiment: Experiment, out: Path) -> list[Path]:
    """The figure, and attention maps where there are any; or pictures of the experiment's own."""
    if experiment.pictures is not None:
        return figures.draw_pictures(rows, experiment, out)
    maps = figures.draw_maps(rows, experiment, out) if experiment.maps else []
    draw = draw_gaps if isinstance(experiment.shown, GapPanels) else figures.draw
    return [draw(rows, experiment, out), *maps]


def held(
    experiment: Experiment, scale: str, store: Store, precision: str | None = None
) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """The rows of an experiment that the store has, under its names, and what is known of the ensembles they are from."""
    if experiment.computed is not None:
        return store.computed(_of_scale(experiment, scale), lambda: _rows_computed(experiment, scale)), []
    cells, measure = experiment.cells(scale), experiment.measure.at(scale)
    found = store.find(cells, measure, precision)
    rows, described = store.rows(found, measure)
    if not found:
        return rows, described
    rows = _labelled(rows, cells, {stored.run: key for key, stored in found.items()}, experiment)
    if experiment.compiled:
        compiled = store.computed(compiled_name(experiment, scale), lambda: compiled_rows(experiment, scale))
        rows = pd.concat([rows, compiled], ignore_index=True)
    return rows, described


def _rows_computed(experiment: Experiment, scale: str) -> pd.DataFrame:
    assert experiment.computed is not None
    return experiment.computed.rows(scale).assign(experiment=experiment.name)


def reportable(
    store: Store, left_out: Callable[[str], None] = lambda line: None
) -> Iterator[tuple[Experiment, str, str, pd.DataFrame, list[dict[str, Any]]]]:
    """The experiments of the catalogue, scale by scale, that the store has enough of for a figure, and how much in words.

    Enough is half of what is drawn: tasks, series and settings, of each one run at least. Of the rest ``left_out`` is told.
    """
    for experiment, scale in product(EXPERIMENTS.values(), SCALES):
        if experiment.computed is None:
            cells = experiment.cells(scale)
            found = store.find(cells, experiment.measure.at(scale), None).keys()
            runs = f"{sum(cell.key in found for cell in cells)} of {len(cells)} runs"
            there = {cell.point for cell in cells if cell.key in found}
            if 2 * len(there) < len({cell.point for cell in cells}):
                if there:
                    left_out(f"{experiment.name}, {scale} scale, {runs}")
                continue
        elif store.has_computed(_of_scale(experiment, scale)):
            runs = "computed"
        else:
            continue
        yield experiment, scale, runs, *held(experiment, scale, store)


def report_on(store: Store, out: Path) -> tuple[list[str], list[str]]:
    """One page of what the store holds of the catalogue, at ``out``; returns what is on it, and of what there is too little."""
    if not store.root.is_dir():
        raise UsageError(f"store is {str(store.root)!r}; there is no such folder.")
    sections: list[str] = []
    listed: list[tuple[str, str, str]] = []
    others: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for experiment, scale, runs, rows, described in reportable(store, others.append):
            drawn = _draw(rows, experiment, Path(folder))
            summary = figures.medians(rows, experiment.shown)
            sections.append(report.section(experiment, scale, summary, drawn, described))
            listed.append(
                (experiment.name, scale, f"{experiment.title} ({experiment.reference}), {scale} scale, {runs}")
            )
    if not sections:
        few = f"too few for a figure ({'; '.join(others)})" if others else "no rows of any experiment"
        raise UsageError(f"store is {str(store.root)!r}, which holds {few}.")
    files.write(
        out, report.page("posattn: results", "<hr>".join([report.contents(listed, others), *sections])).encode()
    )
    return [f"{name}: {said}" for name, _, said in listed], others


def _complete(cells: list[Cell], measure: Measure, store: Store, engine: AnyEngine, precision: str | None) -> None:
    """Trains and measures until the store has every cell's rows; waits for what another process is training."""
    while missing := _missing(cells, measure, store, precision):
        engine.check(missing, precision or "fp32")
        specs = store.lay_out(missing, precision, "fp32", AT_ONCE)
        if engine.run(specs, measure, store):
            time.sleep(_WAIT)


def _missing(cells: list[Cell], measure: Measure, store: Store, precision: str | None) -> list[Cell]:
    found = store.find(cells, measure, precision)
    return [cell for cell in cells if cell.key not in found]


def _labelled(rows: pd.DataFrame, cells: list[Cell], keys: dict[str, str], experiment: Experiment) -> pd.DataFrame:
    """The rows in the order of the cells, under the names that the experiment has for them."""
    order = {cell.key: (position, cell.label) for position, cell in enumerate(cells)}
    own = [order[keys[run]] for run in rows["run"]]
    rows = rows.assign(
        experiment=experiment.name, series=[label for _, label in own], order=[place for place, _ in own]
    )
    return rows.sort_values("order", kind="stable", ignore_index=True).drop(columns="order")


def _claim(out: Path, what: dict[str, str]) -> None:
    """Makes ``out`` the folder of one experiment at one scale; a folder of anything else is refused."""
    described = out / "experiment.json"
    if not described.exists():
        if out.is_dir() and any(out.iterdir()):
            raise UsageError(f"out is {str(out)!r}, which holds other files; give an empty or a new folder.")
        files.write_json(described, what)
    elif (held := files.read_json(described)) != what:
        raise UsageError(
            f"out is {str(out)!r}, which holds {_in_words(held)}; give another folder for {_in_words(what)}."
        )


def _in_words(described: Any) -> str:
    if not isinstance(described, dict) or not {"experiment", "scale"} <= set(described):
        return "something else"
    return f"{described['experiment']} at {described['scale']} scale"
