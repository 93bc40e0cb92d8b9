"""Figures and tables from result rows alone: median, 10th to 90th percentile, and where known the published medians.

Those are dotted lines, or hollow markers where x is a name.
"""

import math
from collections.abc import Sequence
from importlib.resources import files as resources
from io import BytesIO
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from posattn import files
from posattn.experiments.declaration import Bars, Contours, Experiment, Lines, View
from posattn.tasks import TASKS, task

# Okabe and Ito's colours, which stay apart for colour-blind readers; markers say the same again.
STYLES = {
    "standard": ("#D55E00", "s"),
    "positional": ("#0072B2", "o"),
    "scale-exact": ("#009E73", "^"),
}
_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#7F3C00")  # of other series, taken in turn
_MARKERS = ("d", "v", "P", "X", "*", "<", ">")  # one more than colours: series without variants differ up to the 42nd
_DASHES = ("-", "--", "-.")
_LETTERS = 14  # of the legend to an inch
AXES = {
    "scale": "scale of the numbers (1 is the training range)",
    "samples": "training lists",
    "n": "numbers in a list",
    "layers": "layers",
    "distribution": "",
}
METRICS = {
    "mse": "mean squared error",
    "mse_over_c2": "mean squared error / c²",
    "movement": "total variation from c = 1",
    "probe": "share of positions",
    "relative": "squared error / variance of answers",
    "relative_square": "squared error / mean square of answers",
    "rounding": "share right after rounding",
    "closeness": "share within 5%",
    "mape": "mean absolute percentage error / 100",
    "unparsed": "answers that are no number",
    "cross_entropy": "cross-entropy",
    "accuracy": "share of letters right",
    "accuracy_found": "share of letters right",
    "risk": "mean absolute error, and bounds on it",
    "gap": "|risk - empirical risk|",
    "positional bound": "bound on the gap",
    "self-attention bound": "bound on the gap",
    "positional power": "growth when W_Q, W_K grow by t",
    "self-attention power": "growth when W_Q, W_K grow by t",
}
_PUBLISHED = "{}, published (full recipe)"
_NO_NUMBER = 1e300
LOGARITHMIC = (
    "mse",
    "mse_over_c2",
    "relative",
    "relative_square",
    "mape",
    "cross_entropy",
    "risk",
    "gap",
    "positional bound",
    "self-attention bound",
)
SHARES = ("rounding", "closeness", "accuracy", "accuracy_found")  # lines of these are drawn from 0 to 1
_TITLE, _ACROSS = 42, 40  # letters in a line of a panel's title, and along its axis
_LEAST = 1e-16  # where an error of 0, which compiled programs have, is drawn on a logarithmic axis


def axis(experiment: Experiment) -> str:
    """What stands along a figure's axis: lists, sequences or prompts, as the tasks have."""
    x, tasks = experiment.shown.x, experiment.grid.tasks
    return f"training {task(tasks[0]).INPUTS}" if x == "samples" and tasks else AXES.get(x, x)


def style(label: str, labels: Sequence[str]) -> tuple[str, str]:
    """Colour and marker of a series, the same in every panel of a view that shows ``labels``."""
    plain = {name: name.split(",")[0] for name in labels}
    own = {name for name in labels if plain[name] in STYLES and list(plain.values()).count(plain[name]) == 1}
    if label in own or label in STYLES:
        return STYLES[plain.get(label, label)]  # published ones may be there without ours
    others = [name for name in labels if name not in own and name not in STYLES]
    kinds = list(dict.fromkeys(_kind(name, others) for name in others))
    colour = _COLOURS[kinds.index(_kind(label, others)) % len(_COLOURS)]
    return colour, _MARKERS[others.index(label) % len(_MARKERS)]


def _kind(label: str, labels: Sequence[str]) -> str:
    """The series that one is a variant of, with which it shares the colour: "RoPE" of "RoPE, looped" if both are shown."""
    return next((name for name in labels if label.startswith(f"{name}, ")), label)


def dash(label: str, labels: Sequence[str]) -> str:
    """How the line of a series is drawn: variants differ in it, and where their colours come again, with another one."""
    alike = [name for name in labels if _kind(name, labels) == _kind(label, labels) and name not in STYLES]
    if label not in alike:
        return "-"
    index = alike.index(label)
    return _DASHES[(index + index // len(_COLOURS)) % len(_DASHES)]


def published() -> pd.DataFrame:
    """Medians of the published runs, where they are known, and percentiles of those that are drawn as lines."""
    tables = []
    for name in ("published.csv", "published-tables.csv"):
        with resources("posattn").joinpath("data", name).open(encoding="utf-8") as file:
            tables.append(pd.read_csv(file))
    return pd.concat([tables[0].assign(series=tables[0]["arch"], metric="mse"), tables[1]], ignore_index=True)


def matching(rows: pd.DataFrame, view: View) -> pd.DataFrame:
    """The rows that a view shows."""
    for column, value in view.where.items():
        rows = rows[rows[column] == value]
    return rows[rows["metric"] == view.metric] if "metric" in rows else rows


def medians(rows: pd.DataFrame, shown: Lines) -> pd.DataFrame:
    """Median, 10th and 90th percentile over runs, and how many runs ended well: by view, column, series and x."""
    tables = []
    for view in shown.views:
        chosen = matching(rows, view)
        if chosen.empty:
            continue
        # A run without a number is worse than any; a finite stand-in, because quantiles of infinities are not numbers.
        chosen = chosen.assign(value=chosen["value"].fillna(_NO_NUMBER).clip(upper=_NO_NUMBER))
        by = list(dict.fromkeys([*shown.columns, "series", shown.x]))
        groups = chosen.groupby(by, sort=False)
        table = groups["value"].quantile([0.1, 0.5, 0.9]).unstack()
        table.columns = ["p10", "median", "p90"]
        table = table.mask(table > _NO_NUMBER / 1e6, float("inf"))
        table["runs"] = groups["value"].size()
        table["ok"] = groups["status"].agg(lambda status: int((status == "ok").sum()))
        tables.append(table.reset_index().assign(view=view.title, metric=view.metric))
    return pd.concat(tables, ignore_index=True)


def draw(rows: pd.DataFrame, experiment: Experiment, out: Path) -> Path:
    """Writes PNG and PDF, returns the PNG's path."""
    shown = experiment.shown
    if isinstance(shown, Contours):
        return _draw_contours(rows, shown, out / f"{experiment.name}.png")
    table = medians(rows, shown)
    columns = list(table[list(shown.columns)].drop_duplicates().itertuples(index=False, name=None))
    if not any(isinstance(value, str) for column in columns for value in column):
        columns.sort()
    labels = list(dict.fromkeys(table["series"]))
    bars = isinstance(shown, Bars)
    down, across = (len(columns), len(shown.views)) if bars else (len(shown.views), len(columns))
    size = (1.2 + (7.6 if bars else 3.8) * across, 0.4 + 3.4 * down)
    figure, panels = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    panels = panels.T if bars else panels
    known = published()
    known = known[known["experiment"] == experiment.published]
    for row, view in zip(panels, shown.views, strict=True):
        own = table[(table["view"] == view.title) & (table["metric"] == view.metric)]
        theirs = matching_published(known, view)
        for axes, column in zip(row, columns, strict=True):
            here, there = own, theirs
            for name, value in zip(shown.columns, column, strict=True):
                here = here[here[name] == value]
                there = there[there[name] == value] if name in there else there[:0]
            axes.set_visible(len(here) > 0)
            if bars:
                _bars(axes, here, there, labels, shown.x)
            else:
                _panel(axes, here, there, list(dict.fromkeys(own["series"])), shown.x)
            title = ", ".join(titled(name, value) for name, value in zip(shown.columns, column, strict=True))
            long = len(title) + len(view.title) > _TITLE * (2 if bars else 1)
            title = title + (":\n" if long else ": ") + view.title if view.title else title
            axes.set_title(title, fontsize="medium")
            axes.set_xlabel(axis(experiment))
            axes.set_yscale("log" if view.metric in LOGARITHMIC else "linear")
            if view.metric in SHARES and not bars:
                axes.set_ylim(-0.03, 1.03)
            if shown.x not in ("scale", "layers") and not bars:
                axes.set_xscale("log")
                _mark(axes, sorted(set(own[shown.x])))
            elif shown.x == "layers":
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in row if bars else row[:1]:
            axes.set_ylabel(METRICS.get(view.metric, view.metric))
    handles = {
        label: handle for axes in panels.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    fit = int(figure.get_figwidth() * _LETTERS / max(len(label) + 6 for label in handles))  # with the line and a gap
    beside = max(1, min(len(handles), 4, fit))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=beside, fontsize="small")
    return save(figure, out / f"{experiment.name}.png")


def _mark(axes: Axes, values: Sequence[float]) -> None:
    """Names the values that were measured along a logarithmic axis: the ends, and those between that there is room for."""
    if not values or values[0] <= 0:  # nothing measured, or no such axis
        return
    span, marks = math.log(values[-1] / values[0]) or 1.0, dict[float, str]()
    for value in (values[-1], *values[:-1]):
        name = f"{value:,g}" if value < 1e6 else f"{value:.0e}"
        apart = ((len(name) + len(other)) / 2 + 1 for other in marks.values())
        away = (abs(math.log(value / other)) / span * _ACROSS for other in marks)
        if all(gap >= room for gap, room in zip(away, apart, strict=True)):
            marks[value] = name
    axes.set_xticks(list(marks), list(marks.values()))
    axes.xaxis.set_minor_locator(NullLocator())  # along y small marks stay: within a decade no others have names


def _draw_contours(rows: pd.DataFrame, shown: Contours, path: Path) -> Path:
    size = (1.2 + 4.6 * len(shown.views), 4.0)
    figure, panels = plt.subplots(1, len(shown.views), figsize=size, squeeze=False, layout="constrained", sharey=True)
    for axes, view in zip(panels[0], shown.views, strict=True):
        grid = matching(rows, view).pivot(index=shown.y, columns=shown.x, values="value").sort_index()
        heights = np.log10(grid)
        axes.contourf(grid.columns, grid.index, heights, levels=16, cmap="viridis")
        levels = range(math.floor(np.nanmin(heights)), math.ceil(np.nanmax(heights)) + 1)
        fine = sorted({power + step for power in levels for step in (0, math.log10(2), math.log10(5))})
        lines = axes.contour(grid.columns, grid.index, heights, levels=fine, colors="white", linestyles="solid")
        axes.clabel(lines, fmt=lambda power: f"{10**power:.0e}" if power < -3 else f"{10**power:.3g}", fontsize="small")
        axes.set(xscale="log", yscale="log", xlabel=AXES.get(shown.x, shown.x), title=view.title)
        axes.set_xticks(grid.columns, [f"{value:g}" for value in grid.columns], minor=False)
        axes.set_yticks(grid.index, [f"{value:g}" for value in grid.index], minor=False)
        axes.minorticks_off()
    panels[0][0].set_ylabel(AXES.get(shown.y, shown.y))
    return save(figure, path)


def save(figure: Figure, path: Path) -> Path:
    """Writes PNG and PDF."""
    for suffix in (".png", ".pdf"):
        image = BytesIO()
        figure.savefig(image, format=suffix[1:], dpi=150, metadata={"CreationDate": None} if suffix == ".pdf" else None)
        files.write(path.with_suffix(suffix), image.getvalue())
        figure.set_layout_engine("none")  # the PDF is laid out as the PNG was: that takes longer than to draw it
    plt.close(figure)
    return path


def draw_pictures(rows: pd.DataFrame, experiment: Experiment, out: Path) -> list[Path]:
    """An experiment's own pictures in place of lines."""
    assert experiment.pictures is not None
    return [save(figure, out / f"{name}.png") for name, figure in experiment.pictures(rows).items()]


def draw_maps(rows: pd.DataFrame, experiment: Experiment, out: Path) -> list[Path]:
    """Attention weights as in Figures 36 and 37, a file a list: series and layers down, scales across."""
    chosen = rows[rows["metric"] == "attention"]
    lists = enumerate(chosen.groupby("list", sort=False), start=1)
    return [_maps(own, str(name), out / f"{experiment.name}-{index}.png") for index, (name, own) in lists]


def _maps(rows: pd.DataFrame, name: str, path: Path) -> Path:
    down = list(rows[["series", "layer"]].drop_duplicates().itertuples(index=False, name=None))
    across = sorted(set(rows["scale"]))
    size = (1.0 + 1.3 * len(across), 0.6 + 1.3 * len(down))
    figure, panels = plt.subplots(len(down), len(across), figsize=size, squeeze=False, layout="constrained")
    for panel_row, (label, layer) in zip(panels, down, strict=True):
        for axes, scale in zip(panel_row, across, strict=True):
            own = rows[(rows["series"] == label) & (rows["layer"] == layer) & (rows["scale"] == scale)]
            weights = own.pivot(index="query", columns="key", values="value")
            axes.imshow(weights, vmin=0, vmax=1, cmap="viridis")
            axes.set_xticks([])
            axes.set_yticks([])
        panel_row[0].set_ylabel(f"{label}\nlayer {layer:g}", fontsize="small")
    for axes, scale in zip(panels[0], across, strict=True):
        axes.set_title(f"c = {scale:g}", fontsize="small")
    figure.suptitle(f"{name}: attention weights on c X, queries down, keys across, 0 (dark) to 1", fontsize="medium")
    return save(figure, path)


def against_published(table: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
    """Our medians beside the published ones: their ratio, and whether ours lies in the published band widened twofold."""
    known, shown = published(), experiment.shown
    known, parts = known[known["experiment"] == experiment.published], []
    for view in shown.views:
        theirs = matching_published(known, view)
        ours = table[(table["view"] == view.title) & (table["metric"] == view.metric)]
        by = list(dict.fromkeys([*shown.columns, "series", shown.x]))
        if len(theirs) and set(by) <= set(theirs):
            parts.append(ours.merge(theirs[[*by, "median", "p10", "p90"]], on=by, suffixes=("", "_published")))
    if not parts:
        return pd.DataFrame()
    both = pd.concat(parts, ignore_index=True)
    both["ratio"] = both["median"] / both["median_published"]
    both["inside"] = both["median"].between(both["p10_published"] / 2, both["p90_published"] * 2)
    return both


def matching_published(known: pd.DataFrame, view: View) -> pd.DataFrame:
    """The published medians beside a view; none where the view picks by what they do not say."""
    where = view.where if view.published is None else view.published
    if not set(where) <= set(known):
        return known[:0]
    return matching(known, View(view.title, where, view.metric))


def _panel(axes: Axes, table: pd.DataFrame, known: pd.DataFrame, labels: list[str], x: str) -> None:
    for label, own in table.groupby("series", sort=False):
        colour, marker = style(str(label), labels)
        own = own.sort_values(x)
        if own["metric"].isin(LOGARITHMIC).all():
            own = own.assign(**{column: own[column].clip(lower=_LEAST) for column in ("p10", "median", "p90")})
        axes.fill_between(own[x], own["p10"], own["p90"], color=colour, alpha=0.18, linewidth=0)
        if len(own) == 1:  # which has no area
            axes.vlines(own[x], own["p10"], own["p90"], color=colour, linewidth=1.2)
        line = dash(str(label), labels)
        axes.plot(own[x], own["median"], line, color=colour, marker=marker, markersize=4, label=str(label))
    for label, theirs in known.groupby("series", sort=False):
        if str(label) not in (*labels, *STYLES):
            continue
        colour, _ = style(str(label), labels)
        theirs = theirs.sort_values(x)
        axes.plot(
            theirs[x], theirs["median"], color=colour, linestyle=":", linewidth=1.2, label=_PUBLISHED.format(label)
        )
    axes.grid(alpha=0.25, which="both")


def titled(column: str, value: object) -> str:
    if value in TASKS:
        return TASKS[str(value)].title
    if column == "domain":
        return {"id": "in distribution", "ood": "out of distribution"}[str(value)]
    return f"{value}" if isinstance(value, str) else f"{column} {value:g}"


def _bars(axes: Axes, table: pd.DataFrame, known: pd.DataFrame, labels: list[str], x: str) -> None:
    names = list(dict.fromkeys(table[x]))
    step = 0.8 / len(labels)
    for label, own in table.replace(float("inf"), float("nan")).groupby("series", sort=False):
        colour, marker = style(str(label), labels)
        aside = (labels.index(str(label)) - (len(labels) - 1) / 2) * step
        places = [names.index(name) + aside for name in own[x]]
        axes.vlines(places, own["p10"], own["p90"], color=colour, linewidth=1.2)
        axes.plot(places, own["median"], color=colour, marker=marker, markersize=4, linestyle="", label=str(label))
        theirs = known[(known["series"] == label) & known[x].isin(names)] if x in known else known[:0]
        if len(theirs):
            places = [names.index(name) + aside + step / 4 for name in theirs[x]]
            (hollow,) = axes.plot(places, theirs["median"], marker, color=colour, label=_PUBLISHED.format(label))
            hollow.set(markersize=6, markerfacecolor="none")
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize="small")
    axes.grid(alpha=0.25, axis="y")
