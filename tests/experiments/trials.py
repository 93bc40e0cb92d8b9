"""An experiment that takes seconds, and what a folder holds."""

from dataclasses import replace

from posattn.experiments import Experiment, Grid, Lines, Scales, series
from posattn.training import Recipe

SMALL = Recipe(samples=40, epochs=2, batch=20)
MEASURE, FIGURE = Scales((1, 2), samples=20), Lines()


def small(name="trial", archs=("positional",), tasks=("sum",), seeds=2, recipe=SMALL, measure=MEASURE, figure=FIGURE, n=2):
    grid = Grid(tasks, series(*archs), n=(n,), samples=(recipe.samples,), seeds=seeds, recipe=recipe, measure=measure)
    return Experiment(name, "nowhere", "a trial", grid, figure)


def grid_changed(experiment, **changes):
    """The experiment with another grid."""
    return replace(experiment, source=replace(experiment.source, **changes))


def rows_of(experiment, store, engine, precision=None, size="paper"):
    """The rows that ``reproduce`` would draw, trained, measured or computed where the store lacks them."""
    store.complete(experiment.cells(size), engine, precision)
    return experiment.held(size, store, precision).read(keep=True)[0]


def files_of(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}
