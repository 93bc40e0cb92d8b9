"""The measurement of results/compiled-start: what is compared, on the smallest scale."""

import runpy
from pathlib import Path

import pandas as pd

MEASURE = runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "compiled_start.py"))["measure"]


def test_errors_begin_at_the_programs_and_steps_at_larger_rates_move_them_further():
    rows = pd.DataFrame(MEASURE("sum", 1, seeds=2, samples=500))
    assert set(rows["program"]) == {"prefix-sum"} and set(rows["status"]) == {"ok"} and set(rows["steps"]) == {0, 2}
    near = rows[rows["scale"] == 1].groupby(["start", "lr"])["mse"].median()
    assert near["compiled", 0.0] < 1e-9 < near["compiled", 1e-5] < near["compiled", 1e-3] < near["random", 1e-3]
    assert rows.groupby(["start", "lr", "scale"]).size().eq(2).all()  # one of each seed
