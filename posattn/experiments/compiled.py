"""Compiled programs beside trained networks: the same measure, no training."""

import pandas as pd

from posattn.compiler import PROGRAMS, compile
from posattn.compiler.saved import CompiledRun
from posattn.experiments.declaration import Experiment

LABEL = "compiled"


def compiled_rows(experiment: Experiment, scale: str) -> pd.DataFrame:
    """Rows of a program for every task of the experiment that one solves; of several programs the last of the library."""
    grid, measure = experiment.grid.at(scale), experiment.measure.at(scale)
    solving = {row.task: row.name for row in PROGRAMS.values() if row.task is not None}
    tables = [
        measure.rows(CompiledRun(solving[task], compile(solving[task], machines=n)))
        for n in grid.n
        for task in grid.tasks
        if task in solving
    ]
    return pd.concat(tables, ignore_index=True).assign(experiment=experiment.name, series=LABEL)
