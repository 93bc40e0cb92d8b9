"""Compiled programs beside trained networks: the same measure, no training."""

from functools import cache

import pandas as pd

from posattn.compiler import PROGRAMS, compile
from posattn.compiler.mpc_to_pcoc import fixed_communication
from posattn.compiler.run import CompiledRun
from posattn.compiler.selection import SelectionNetwork
from posattn.experiments.declaration import Experiment
from posattn.experiments.store import digest

LABEL = "compiled"


@cache
def compiled_run(program: str, n: int) -> CompiledRun:
    """A program of the library for lists, or sequences of tokens, of n.

    ``khop``, on a machine a letter, stays without its large matrices, which at n = 30 are four GiB.
    """
    row = PROGRAMS[program]
    if row.task != "khop":
        return CompiledRun(program, compile(program, machines=n))
    return CompiledRun(program, SelectionNetwork(fixed_communication(row.build(n - 1, 1.0), direct=True)))


def compiled_name(experiment: Experiment, scale: str) -> str:
    """Under which a store keeps the rows of programs: with what determines them, as an experiment of one's own may change."""
    grid, measure = experiment.grid.at(scale), experiment.measure.at(scale)
    return f"{experiment.name}-{scale}-compiled-{digest([grid.tasks, grid.n, measure.key()])}"


def compiled_rows(experiment: Experiment, scale: str) -> pd.DataFrame:
    """Rows of a program for every task of the experiment that one solves; of several programs the last of the library."""
    grid, measure = experiment.grid.at(scale), experiment.measure.at(scale)
    solving = {row.task: row.name for row in PROGRAMS.values() if row.task is not None}
    tables = [measure.rows(compiled_run(solving[task], n)) for n in grid.n for task in grid.tasks if task in solving]
    return pd.concat(tables, ignore_index=True).assign(experiment=experiment.name, series=LABEL)
