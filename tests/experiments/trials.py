"""An experiment that takes seconds, and what a folder holds."""

from posattn.experiments import Experiment, Grid, Scales, series
from posattn.training import Recipe

SMALL = Recipe(samples=40, epochs=2, batch=20)


def small(name="trial", archs=("positional",), tasks=("sum",), seeds=2, recipe=SMALL, **changes):
    grid = Grid(tasks, series(*archs), n=(2,), samples=(recipe.samples,), seeds=seeds, recipe=recipe)
    return Experiment(name, "nowhere", "a trial", grid, Scales((1, 2), samples=20), **changes)


def files_of(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}
