"""Runs an experiment: trains and measures what the store lacks, and writes rows, figure, tables and page.

out/experiment.json      which experiment, at which size
out/rows.csv             all rows: one per run, condition and metric, with the settings beside each
out/NAME.png, .pdf       the figure, drawn from the rows alone
out/NAME.md, .tex        the medians as tables
out/NAME.html            figure, numbers, settings and hardware on one self-contained page
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from posattn import files
from posattn.devices import pick_device
from posattn.errors import UsageError, choice, counted, whole
from posattn.experiments import report
from posattn.experiments.catalog import EXPERIMENTS
from posattn.experiments.declaration import SIZES, Experiment, Held
from posattn.experiments.measures import Measure
from posattn.experiments.store import STORES, AnyEngine, Cell, Store
from posattn.names import PRECISIONS
from posattn.run_folder import RunFolder
from posattn.tasks import task
from posattn.training import RunSpec, train_spec
from posattn.training.fit import check_precision


class NothingStored(UsageError):
    """The store has no rows to draw, and nothing was to be trained."""


@dataclass(frozen=True)
class Outcome:
    """What a reproduction gives: its rows, their medians, the medians as one table per panel, and where page and figure are."""

    rows: pd.DataFrame
    table: pd.DataFrame
    tables: list[tuple[str, pd.DataFrame]]
    page: Path
    figure: Path


@dataclass(frozen=True)
class Engine:
    """This machine: ensembles one after another on one device."""

    device: torch.device
    announce: Callable[[str], None] = lambda message: None
    _waited_for: set[str] = field(default_factory=set)

    def check(self, cells: Iterable[Cell], precision: str) -> None:
        for model in dict.fromkeys(cell.model for cell in cells):
            check_precision(model, precision, self.device)

    def run(self, specs: list[RunSpec], measure: Measure, store: Store) -> list[RunSpec]:
        elsewhere = []
        for number, spec in enumerate(specs, start=1):
            if new := spec.digest not in self._waited_for:
                done = RunFolder(store.folder(spec)).finished
                place = f"{number}/{len(specs)} " if len(specs) > 1 else ""
                self.announce(place + (f"{called(spec)}: trained before, measured now" if done else plan(spec)))
            try:
                run = train_spec(spec, self.device, store.folder(spec))
                store.write(spec, measure, measure.rows(run), run.result)
            except files.InUse:
                if new:
                    self.announce("Another process is training these; waiting for it.")
                self._waited_for.add(spec.digest)
                elsewhere.append(spec)
        return elsewhere


def plan(spec: RunSpec) -> str:
    """What is about to be trained, in words."""
    inputs = task(spec.members[0].task).INPUTS
    return f"{called(spec)}: {counted(spec.recipe.epochs, 'epoch')} of {spec.recipe.samples} {inputs}"


def called(spec: RunSpec) -> str:
    """What messages call an ensemble."""
    return f"{spec.model.arch}, n = {spec.model.n}: {counted(len(spec.members), 'model')}"


def having(
    experiments: Sequence[Experiment], only: Collection[str], size: str
) -> list[tuple[Experiment, Collection[str]]]:
    """The experiments that have a series of ``only``, each with those that it has; all experiments if ``only`` is empty.

    Raises for a series that no experiment has.
    """
    if not only:
        return [(each, ()) for each in experiments]
    labels = [dict.fromkeys(cell.label for cell in each.cells(size)) for each in experiments]
    known = {label: None for own in labels for label in own}
    for label in only:
        if label not in known:
            whose = f"{experiments[0].name} has" if len(experiments) == 1 else "the experiments have"
            raise UsageError(f"only is {label!r}; {whose} {', '.join(map(repr, known))}.")
    both = zip(experiments, (own.keys() & set(only) for own in labels), strict=True)
    return [(each, own) for each, own in both if own]


def reproduce(
    experiment: Experiment,
    size: str,
    out: Path,
    store: Store,
    engine: AnyEngine,
    precision: str | None = None,
    only: Collection[str] = (),
    runs: int | None = None,
) -> Outcome:
    """Runs ``experiment`` at ``size`` into the folder ``out``; called again, it goes on or does nothing.

    ``only`` names the series to train now, and ``runs`` says how many runs per point; with 0 nothing is written into the
    store. The figure shows all rows that the store then has. Without a ``precision``, rows of any precision serve, and
    missing runs train in fp32.
    """
    having([experiment], only, size)
    cells = experiment.cells(size)
    if precision is not None:
        choice("precision", precision, PRECISIONS)
    if len({cell.key for cell in cells}) < len(cells):
        raise UsageError(f"{experiment.name} has two series of the same networks; every series must be its own.")
    if runs is not None and whole("runs", runs, least=0) == 0 and not experiment.held(size, store, precision).some:
        others = [str(root) for root in STORES if experiment.held(size, Store(root), precision).some]
        hint = f" Those in {others[0]!r} can be: give it as --store." if others else ""
        raise NothingStored(
            f"runs is 0, and the store at {str(store.root)!r} has no rows of {experiment.name} at scale {size} to draw.{hint}"
        )
    _claim(out, experiment.name, size)
    chosen = [cell for cell in cells if (not only or cell.label in only) and (runs is None or cell.member.seed < runs)]
    if not only:
        here = engine.device if isinstance(engine, Engine) else pick_device(None)
        experiment.source.prepare(size, store, runs, here, getattr(engine, "announce", lambda line: None))
    store.complete(chosen, engine, precision)
    rows, ensembles = experiment.held(size, store, precision).read(keep=runs != 0)
    shown, stem = report.Shown(experiment.figure, rows), out / experiment.name
    section = report.section(experiment, size, shown, shown.write(stem), ensembles)
    page, figure = (out / f"{experiment.name}{end}" for end in (".html", ".png"))
    files.write(page, report.page(experiment.name, [section]))
    return Outcome(rows, shown.medians, shown.tables, page, figure)


def held_in(store: Store) -> Iterator[tuple[Experiment, str, Held]]:
    """The experiments of the catalogue of which the store holds anything, size by size, and what it holds."""
    for experiment, size in product(EXPERIMENTS.values(), SIZES):
        if (held := experiment.held(size, store)).some:
            yield experiment, size, held


def report_on(store: Store, out: Path) -> tuple[list[str], list[str]]:
    """Writes one page of what the store holds of the catalogue; returns what is on it, and what has too few rows.

    Pictures that ``reproduce`` has drawn of the same medians, in a folder beside the store, are taken as they are.
    """
    if not store.root.is_dir():
        raise UsageError(f"store is {str(store.root)!r}; there is no such folder.")
    drawn = {_claimed(path): path.parent for path in sorted(store.root.parent.glob("*/experiment.json"))}
    sections: list[dict[str, Any]] = []
    others: list[str] = []
    for experiment, size, held in held_in(store):
        if not held.enough:
            others.append(f"{experiment.name}, {size} scale, {held.said}")
            continue
        rows, ensembles = held.read()
        shown = report.Shown(experiment.figure, rows)
        line = f"{experiment.title} ({experiment.reference}), {size} scale, {held.said}"
        folder = drawn.get((experiment.name, size))
        pictures = [] if folder is None else shown.drawn_before(folder / experiment.name)
        sections.append(report.section(experiment, size, shown, pictures or shown.draw(), ensembles, line))
    if not sections:
        few = f"too few for a figure ({'; '.join(others)})" if others else "no rows of the package's experiments"
        raise UsageError(f"store is {str(store.root)!r}, which holds {few}.")
    files.output(out, report.page("posattn: results", sections, contents=True, others=others))
    return [f"{section['name']}: {section['line']}" for section in sections], others


def _claim(out: Path, name: str, size: str) -> None:
    """Makes ``out`` the folder of one experiment at one size; a folder of anything else is refused."""
    described = out / "experiment.json"
    if not described.exists():
        files.check_new(out, described.name)
        files.write_json(described, {"experiment": name, "scale": size})
    elif (held := _claimed(described)) != (name, size):
        words = "something else" if held is None else "{} at {} scale".format(*held)
        raise UsageError(f"out is {str(out)!r}, which holds {words}; give another folder for {name} at {size} scale.")


def _claimed(described: Path) -> tuple[str, str] | None:
    """The experiment and the size that a file of ``_claim`` names; None if it names none."""
    try:
        held = files.read_json(described)
        return str(held["experiment"]), str(held["scale"])
    except (UsageError, OSError, LookupError, TypeError):
        return None
