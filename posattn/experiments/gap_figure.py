"""The figure of the generalization gap: measured, beside the bounds, against lists and against layers; and the powers of t."""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from posattn.experiments.declaration import Experiment, Lines, View
from posattn.experiments.figures import medians, save, style
from posattn.model import ARCHITECTURES
from posattn.tasks import task as find_task
from posattn.theory.bound import ATTENTION

_MEASURED, _OWN, _OTHER = "-", "--", ":"


def draw_gaps(rows: pd.DataFrame, experiment: Experiment, out: Path) -> Path:
    """Writes PNG and PDF: a row of three panels a task. Returns the PNG's path."""
    tasks, labels = list(dict.fromkeys(rows["task"])), list(dict.fromkeys(rows["series"]))
    size = (15.0, 0.6 + 4.0 * len(tasks))
    figure, panels = plt.subplots(len(tasks), 3, figsize=size, squeeze=False, layout="constrained")
    for (by_lists, by_layers, powers), name in zip(panels, tasks, strict=True):
        own = rows[rows["task"] == name]
        deepest = own[own["layers"] == own["layers"].max()]
        largest = own[own["samples"] == own["samples"].max()]
        title = find_task(name).title
        _lines(by_lists, deepest, "samples", labels, measured="gap", bound="bound")
        by_lists.set(
            xscale="log", yscale="log", xlabel="training lists m", ylabel="|risk - empirical risk|, and bounds on it"
        )
        by_lists.set_title(f"{title}: {own['layers'].max():g} layers", fontsize="medium")
        _lines(by_layers, largest, "layers", labels, measured="gap", bound="bound")
        by_layers.set(yscale="log", xlabel="layers L")
        by_layers.set_title(f"{title}: {own['samples'].max():g} lists", fontsize="medium")
        _lines(powers, largest, "layers", labels, measured="", bound="power")
        depths = sorted(set(own["layers"]))
        powers.plot(depths, [2 * depth for depth in depths], color="#999999", linewidth=0.8)
        powers.annotate("2L", (depths[-1], 2 * depths[-1]), xytext=(4, -2), textcoords="offset points", color="#777777")
        powers.axhline(2, color="#999999", linewidth=0.8)
        powers.set(xlabel="layers L", ylabel="power p of t", ylim=(0, None))
        powers.set_title("bounds grow by t^p when W_Q and W_K grow by t", fontsize="medium")
        for axes in (by_layers, powers):
            axes.set_xticks(depths)
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize="small")
    return save(figure, out / f"{experiment.name}.png")


def _lines(axes: Axes, rows: pd.DataFrame, x: str, labels: list[str], measured: str, bound: str) -> None:
    """For each series what was ``measured``, if anything, and the two bounds: of its own attention, and of the other kind."""
    for label, own in rows.groupby("series", sort=False):
        attends = ARCHITECTURES[str(own["arch"].iloc[0])].attends
        kind, other = ATTENTION if attends == "position" else ATTENTION[::-1]
        shown = {
            f"{label}: measured": (measured, _MEASURED),
            f"{label}: {kind} bound, its own": (f"{kind} {bound}", _OWN),
            f"{label}: {other} bound for the same norms": (f"{other} {bound}", _OTHER),
        }
        colour, marker = style(str(label), labels)
        for name, (metric, line) in shown.items():
            if metric:
                table = medians(own, Lines(x, (View("", metric=metric),), ("task",))).sort_values(x)
                axes.fill_between(table[x], table["p10"], table["p90"], color=colour, alpha=0.15, linewidth=0)
                axes.plot(table[x], table["median"], line, color=colour, marker=marker, markersize=4, label=name)
    axes.grid(alpha=0.25)
