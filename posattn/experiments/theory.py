"""Figures of the theory: what :mod:`posattn.theory` computes, as result rows."""

import pandas as pd

from posattn.errors import choice
from posattn.theory.ood import ood_probability

# Appendix E: the lengths and scales of the experiments. c = 1 is in distribution, where the probability is one.
LENGTHS = (2, 4, 8, 16, 32)
FACTORS = tuple(range(2, 11))
_SIMULATED = {"smoke": 2000, "quick": 100_000, "paper": 1_000_000}  # lists


def ood_probability_rows(scale: str) -> pd.DataFrame:
    """Figure 35 and what it leaves out: the bound, its printed form, the exact value and a simulation, for every n and c."""
    samples = _SIMULATED[choice("scale", scale, _SIMULATED)]
    rows = []
    for n in LENGTHS:
        for c in FACTORS:
            found = ood_probability(n, c, samples)
            own = {"n": n, "series": f"n = {n}", "scale": c, "samples": samples, "seed": 0}
            for metric in ("bound", "printed", "exact", "simulated"):
                rows.append(own | {"metric": metric, "value": getattr(found, metric)})
    return computed_rows(rows)


def computed_rows(rows: list[dict[str, object]]) -> pd.DataFrame:
    """Rows with the columns that all results have; those that only runs fill in are empty."""
    filled = {"run": None, "task": "", "arch": "", "split": "test", "domain": "ood", "status": "ok"}
    return pd.DataFrame([filled | row for row in rows])
