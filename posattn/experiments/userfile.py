"""Experiments of your own, in a Python file that defines ``EXPERIMENT`` or in a TOML file with the same parts."""

import re
import runpy
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from posattn.baselines import GraphConfig
from posattn.errors import UsageError, choice, positive, whole
from posattn.experiments.catalog import EXPERIMENTS
from posattn.experiments.declaration import BY_DISTRIBUTION, BY_STAGE, Experiment, Grid, Lines, Series, View, series
from posattn.experiments.measures import FineTuned, Measure, Scales, Shifts
from posattn.metrics import row_metrics, scores_of
from posattn.model import ARCHITECTURES
from posattn.runs import ROW_COLUMNS
from posattn.tasks import TASKS
from posattn.training.recipe import RECIPES, recipe

SUFFIXES = (".py", ".toml")
_MEASURES = {"scales": (Scales, Lines()), "fine-tuned": (FineTuned, BY_STAGE), "shifts": (Shifts, BY_DISTRIBUTION)}
_GRAPHS = ("gcn", "gat")


def load_experiment(path: Path) -> Experiment:
    """The experiment that a file declares. A Python file is run, so it may define tasks, encodings and networks too."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"the experiment's file is {str(path)!r}; it must end in {' or '.join(SUFFIXES)}.")
    if not path.is_file():
        raise UsageError(f"the experiment's file is {str(path)!r}, which does not exist.")
    experiment = _from_python(path) if path.suffix == ".py" else _from_toml(path)
    _check(path, experiment)
    return experiment


def _check(path: Path, experiment: Experiment) -> None:
    """Finds what would only show after training."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", experiment.name):
        raise UsageError(f"name in {path} is {experiment.name!r}; it must be letters, digits, dots and dashes.")
    if experiment.name in EXPERIMENTS:
        raise UsageError(f"name in {path} is {experiment.name!r}, an experiment of the package; it must be another.")
    whole("grid.seeds", experiment.grid.seeds)
    for field, values in (("n", experiment.grid.n), ("samples", experiment.grid.samples)):
        if not values:
            raise UsageError(f"grid.{field} in {path} is empty; it must have at least one number.")
        for value in values:
            whole(f"grid.{field}", value)
    if experiment.grid.recipe.only is not None:
        raise UsageError(
            f"recipe in {path} trains {experiment.grid.recipe.only!r} alone, which takes a run to begin with."
        )
    labels = [line.label for line in experiment.grid.series]
    if len(set(labels)) < len(labels):
        raise UsageError(f"{path} has two series of one label; every label must be its own.")
    experiment.cells("paper")  # every network of the grid can be configured
    columns = (*ROW_COLUMNS, *scores_of(experiment.grid.tasks[0]).by)
    if isinstance(experiment.measure, (Scales, FineTuned, Shifts)):
        whole("measure.samples", experiment.measure.samples)
    if isinstance(experiment.measure, Shifts) and not experiment.measure.names:
        raise UsageError(f"measure.names in {path} is empty; it must have at least one distribution.")
    if isinstance(experiment.measure, FineTuned):
        for line in experiment.grid.series:
            if line.settings.get("arch") in _GRAPHS:
                raise UsageError(f"{path} fine-tunes {line.label!r}, a graph network, which has no V matrices.")
        whole("measure.epochs", experiment.measure.epochs)
        positive("measure.scale", experiment.measure.scale)
    if isinstance(experiment.measure, Scales):
        if not experiment.measure.factors:
            raise UsageError(f"measure.factors in {path} is empty; it must have at least one number.")
        for factor in experiment.measure.factors:
            positive("measure.factors", factor)
        for view in experiment.shown.views:
            choice("figure.views.metric", view.metric, row_metrics(experiment.grid.tasks[0]))
            for column in view.where:
                choice("figure.views.where", column, columns)
        for column in experiment.shown.columns:
            choice("figure.columns", column, columns)


def _from_python(path: Path) -> Experiment:
    try:
        found = runpy.run_path(str(path)).get("EXPERIMENT")
    except UsageError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path} could not be run: {type(error).__name__}: {reason}.") from error
    if not isinstance(found, Experiment):
        raise UsageError(f"{path} does not define EXPERIMENT; it must be a posattn.experiments.Experiment.")
    return found


def _from_toml(path: Path) -> Experiment:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
    _known(path, "", content, ("name", "title", "reference", "grid", "recipe", "series", "measure", "figure"))
    name = _taken(path, "", content, "name", str)
    measure, shown = _measure(path, _taken(path, "", content, "measure", dict, {}))
    figure = _taken(path, "", content, "figure", dict, {})
    if figure and not isinstance(measure, Scales):
        raise UsageError(
            f"{path} has a figure, which goes with measure.kind scales alone; the other kinds have their own."
        )
    return Experiment(
        name,
        _taken(path, "", content, "reference", str, "not in the paper"),
        _taken(path, "", content, "title", str, name),
        _grid(path, content),
        measure,
        _figure(path, figure) if figure else shown,
    )


def _grid(path: Path, content: Mapping[str, Any]) -> Grid:
    given = _taken(path, "", content, "grid", dict)
    _known(path, "grid", given, ("tasks", "archs", "n", "layers", "samples", "seeds", "variable_length"))
    tasks = _taken(path, "grid", given, "tasks", list)
    for task in tasks:
        choice("grid.tasks", task, TASKS)
    lines = [_series(path, own) for own in _taken(path, "", content, "series", list, [])]
    for arch in _taken(path, "grid", given, "archs", list, []):
        lines.extend(series(choice("grid.archs", arch, ARCHITECTURES)))
    if not tasks or not lines:
        raise UsageError(f"{path} names no {'task' if lines else 'architecture'}; grid needs at least one.")
    changes = _taken(path, "", content, "recipe", dict, {})
    base = changes.pop("name", "paper")
    try:
        plan = recipe(choice("recipe.name", base, RECIPES), **changes)
    except TypeError as error:
        raise UsageError(f"recipe in {path} has a field that recipes do not have: {error}.") from error
    return Grid(
        tuple(tasks),
        tuple(lines),
        tuple(_taken(path, "grid", given, "n", list, [8])),
        tuple(_taken(path, "grid", given, "samples", list, [plan.samples])),
        _taken(path, "grid", given, "seeds", int, 10),
        plan,
        _taken(path, "grid", given, "variable_length", bool, False),
        tuple(_taken(path, "grid", given, "layers", list, [])),
    )


def _series(path: Path, given: Any) -> Series:
    if not isinstance(given, dict):
        raise UsageError(f"series in {path} is {given!r}; it must be a table with a label and settings.")
    settings = dict(given)
    label = _taken(path, "series", settings, "label", str)
    del settings["label"]
    return Series(label, settings, GraphConfig) if settings.get("arch") in _GRAPHS else Series(label, settings)


def _measure(path: Path, given: Mapping[str, Any]) -> tuple[Measure, Lines]:
    """What is measured, and how that is shown."""
    kind, shown = _MEASURES[choice("measure.kind", _taken(path, "measure", given, "kind", str, "scales"), _MEASURES)]
    default = kind()
    _known(path, "measure", given, ("kind", *(field.name for field in fields(kind))))
    values = {}
    for field in fields(kind):
        before = getattr(default, field.name)
        if isinstance(before, tuple):
            values[field.name] = tuple(_taken(path, "measure", given, field.name, list, list(before)))
        else:
            values[field.name] = _taken(path, "measure", given, field.name, type(before), before)
    return kind(**values), shown


def _figure(path: Path, given: Mapping[str, Any]) -> Lines:
    _known(path, "figure", given, ("x", "columns", "views"))
    default = Lines()
    views = []
    for own in _taken(path, "figure", given, "views", list, []):
        if not isinstance(own, dict):
            raise UsageError(f"figure.views in {path} has {own!r}; it must be tables with title, where and metric.")
        _known(path, "figure.views", own, ("title", "where", "metric"))
        views.append(
            View(
                _taken(path, "figure.views", own, "title", str, ""),
                _taken(path, "figure.views", own, "where", dict, {"split": "test"}),
                _taken(path, "figure.views", own, "metric", str, "mse"),
            )
        )
    return Lines(
        choice("figure.x", _taken(path, "figure", given, "x", str, default.x), ("scale", "samples", "n", "layers")),
        tuple(views) or default.views,
        tuple(_taken(path, "figure", given, "columns", list, list(default.columns))),
    )


def _known(path: Path, table: str, given: Mapping[str, Any], fields: tuple[str, ...]) -> None:
    for field in given:
        if field not in fields:
            place = f"{table}.{field}" if table else field
            raise UsageError(f"{path} has {place!r}; {table or 'the file'} has {', '.join(fields)}.")


def _taken(
    path: Path, table: str, given: Mapping[str, Any], field: str, kind: Callable[..., Any], default: Any = None
) -> Any:
    """A field of the right kind, or its default."""
    place = f"{table}.{field}" if table else field
    if field not in given:
        if default is None:
            raise UsageError(f"{path} has no {place}.")
        return default
    value = given[field]
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):  # type: ignore[arg-type]
        words = {str: "text", list: "a list", dict: "a table", int: "a whole number", bool: "true or false"}
        words[float] = "a number"
        raise UsageError(f"{place} in {path} is {value!r}; it must be {words[kind]}.")  # type: ignore[index]
    return value
