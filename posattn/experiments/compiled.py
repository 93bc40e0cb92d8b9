"""Compiled programs beside trained networks: the same measure, no training."""

from collections.abc import Sequence
from functools import cache

import pandas as pd

from posattn.compiled_run import CompiledRun
from posattn.compiler import compile
from posattn.compiler.library import program as program_of
from posattn.compiler.library import solving
from posattn.experiments.measures import Measure

LABEL = "compiled"


@cache
def compiled_run(program: str, n: int) -> CompiledRun:
    """A program of the library, compiled for lists of n numbers, or for sequences or prompts of n tokens.

    A sequence is the hop count and then letters, and has a machine for each letter.
    """
    machines = n - 1 if program_of(program).task == "khop" else n
    return CompiledRun(program, compile(program, machines=machines))


def compiled_rows(tasks: Sequence[str], lengths: Sequence[int], measure: Measure) -> pd.DataFrame:
    """Rows per task that a program solves, and length; of several programs for a task the first of the library is taken."""
    programs = dict.fromkeys(row.name for task in tasks for row in solving(task)[:1])
    rows = pd.concat([measure.rows(compiled_run(name, n)) for n in lengths for name in programs], ignore_index=True)
    return rows[rows["task"].isin(tasks)].assign(series=LABEL)
