"""Figure 35: the probability that a list drawn at scale c lies inside the training domain, as result rows and level lines."""

import math
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from posattn.experiments.figures import Lines
from posattn.experiments.styles import axis
from posattn.theory.ood import ood_probability

# Appendix E: the lengths and scales of the experiments. c = 1 is in distribution, where the probability is one.
LENGTHS = (2, 4, 8, 16, 32)
FACTORS = tuple(range(2, 11))
_SIMULATED = {"smoke": 2000, "quick": 100_000, "paper": 1_000_000}  # lists


def ood_probability_rows(size: str) -> pd.DataFrame:
    """Rows of Figure 35, and of what it leaves out: bound, its printed form, exact value and simulation, for every n and c."""
    samples = _SIMULATED[size]
    rows = []
    for n in LENGTHS:
        for c in FACTORS:
            found = ood_probability(n, c, samples)
            own = {"n": n, "series": f"n = {n}", "scale": c, "samples": samples, "seed": 0}
            for metric in ("bound", "printed", "exact", "simulated"):
                rows.append(own | {"metric": metric, "value": getattr(found, metric)})
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Contours(Lines):
    """Level lines of the values over ``x`` and the length n: one panel per view, both axes logarithmic."""

    columns: tuple[str, ...] = ()

    def draw(self, rows: pd.DataFrame, medians: pd.DataFrame) -> dict[str, Figure]:
        size = (1.2 + 4.6 * len(self.views), 4.0)
        figure, panels = plt.subplots(
            1, len(self.views), figsize=size, squeeze=False, layout="constrained", sharey=True
        )
        for axes, view in zip(panels[0], self.views, strict=True):
            grid = view.of(rows).pivot(index="n", columns=self.x, values="value").sort_index()
            heights = np.log10(grid)
            axes.contourf(grid.columns, grid.index, heights, levels=16, cmap="viridis")
            levels = range(math.floor(np.nanmin(heights)), math.ceil(np.nanmax(heights)) + 1)
            fine = sorted({power + step for power in levels for step in (0, math.log10(2), math.log10(5))})
            lines = axes.contour(grid.columns, grid.index, heights, levels=fine, colors="white", linestyles="solid")
            axes.clabel(lines, fmt=_level, fontsize="small")
            axes.set(xscale="log", yscale="log", xlabel=axis(self.x), title=view.title)
            axes.set_xticks(grid.columns, [f"{value:g}" for value in grid.columns], minor=False)
            axes.set_yticks(grid.index, [f"{value:g}" for value in grid.index], minor=False)
            axes.minorticks_off()
        panels[0][0].set_ylabel(axis("n"))
        return {"": figure}


def _level(power: float) -> str:
    return f"{10**power:.0e}" if power < -3 else f"{10**power:.3g}"
