"""Compiled programs beside trained networks: the same measure, no training."""

from collections.abc import Sequence
from functools import cache

import pandas as pd

from posattn.compiled_run import CompiledRun
from posattn.compiler import PROGRAMS, compile
from posattn.experiments.measures import Measure

LABEL = "compiled"


@cache
def compiled_run(program: str, n: int) -> CompiledRun:
    """A program of the library, compiled for lists of n numbers or sequences of n tokens.

    ``khop`` has a machine per letter and is sparse: at n = 30 the large matrices would take four GiB.
    """
    if PROGRAMS[program].task != "khop":
        return CompiledRun(program, compile(program, machines=n))
    return CompiledRun(program, compile(program, machines=n - 1, bound=1.0, direct=True, sparse=True))


def compiled_rows(tasks: Sequence[str], lengths: Sequence[int], measure: Measure) -> pd.DataFrame:
    """Rows per task that a program solves, and length; of several programs for a task the last of the library is taken."""
    solving = {row.task: row.name for row in PROGRAMS.values() if row.task is not None}
    tables = [measure.rows(compiled_run(solving[task], n)) for n in lengths for task in tasks if task in solving]
    return pd.concat(tables, ignore_index=True).assign(series=LABEL)
