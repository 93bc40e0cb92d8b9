"""Compiled programs beside trained networks: the same measure, no training."""

from collections.abc import Sequence
from functools import cache

import pandas as pd

from posattn.compiled_run import CompiledRun
from posattn.compiler import PROGRAMS, compile
from posattn.compiler.mpc_to_pcoc import fixed_communication
from posattn.compiler.selection import SelectionNetwork
from posattn.experiments.measures import Measure

LABEL = "compiled"


@cache
def compiled_run(program: str, n: int) -> CompiledRun:
    """A program of the library, compiled for lists of n numbers, or for sequences or prompts of n tokens.

    ``khop`` has a machine per letter and is a SelectionNetwork: at n = 30 the large matrices would take four GiB.
    """
    row = PROGRAMS[program]
    if row.task != "khop":
        return CompiledRun(program, compile(program, machines=n))
    return CompiledRun(program, SelectionNetwork(fixed_communication(row.build(n - 1, 1.0), direct=True)))


def compiled_rows(tasks: Sequence[str], lengths: Sequence[int], measure: Measure) -> pd.DataFrame:
    """Rows per task that a program solves, and length; of several programs for a task the last of the library is taken."""
    solving = {task: row.name for row in PROGRAMS.values() for task in row.tasks}
    chosen = dict.fromkeys(solving[task] for task in tasks if task in solving)
    rows = pd.concat([measure.rows(compiled_run(name, n)) for n in lengths for name in chosen], ignore_index=True)
    return rows[rows["task"].isin(tasks)].assign(series=LABEL)
