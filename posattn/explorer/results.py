"""The figures of a result store as numbers for the page: medians and bands of ours, and the published ones beside them."""

import math
from typing import Any

import pandas as pd

from posattn.experiments import EXPERIMENTS, Bars, Experiment, Store, View, figures
from posattn.experiments.engine import reportable

_DIGITS = 4  # significant ones of what is drawn


def figures_of(store: Store | None) -> list[dict[str, Any]]:
    """Every experiment that the store has enough of for a figure, scale by scale; of others published medians, where known."""
    drawn = []
    if store is not None:
        for experiment, scale, runs, rows, _ in reportable(store):
            if experiment.computed is not None:  # level lines and the like, which the page does not draw
                continue
            drawn.append(_figure(experiment, scale, figures.medians(rows, experiment.shown), runs))
    known = set(figures.published()["experiment"])
    here = {figure["name"] for figure in drawn}
    for experiment in EXPERIMENTS.values():
        if experiment.name in known - here and experiment.published == experiment.name:
            drawn.append(_figure(experiment, "published", _nothing(experiment), "no runs in the store"))
    return [figure for figure in drawn if figure["panels"]]


def _nothing(experiment: Experiment) -> pd.DataFrame:
    by = [*experiment.shown.columns, "series", experiment.shown.x]
    return pd.DataFrame(columns=[*by, "p10", "median", "p90", "runs", "ok", "view", "metric"])


def _figure(experiment: Experiment, scale: str, table: pd.DataFrame, runs: str) -> dict[str, Any]:
    shown = experiment.shown
    known = figures.published()
    known = known[known["experiment"] == experiment.published]
    labels = list(dict.fromkeys(table["series"])) or list(dict.fromkeys(known["series"]))
    panels = []
    for view in shown.views:
        ours = table[(table["view"] == view.title) & (table["metric"] == view.metric)]
        theirs = figures.matching_published(known, view)
        drawn = labels if isinstance(shown, Bars) else list(dict.fromkeys(ours["series"])) or labels
        theirs = theirs[theirs["series"].isin([*drawn, *figures.STYLES])]
        columns = list(shown.columns)
        keys = [frame[columns].drop_duplicates() for frame in (ours, theirs) if set(columns) <= set(frame)]
        found = dict.fromkeys(key for frame in keys for key in frame.itertuples(index=False, name=None))
        for key in found:
            panels.append(_panel(experiment, view, key, _at(ours, columns, key), _at(theirs, columns, key), drawn))
    return {
        "name": experiment.name,
        "title": experiment.title,
        "reference": experiment.reference,
        "scale": scale,
        "runs": runs,
        "bars": isinstance(shown, Bars),
        "xlabel": figures.axis(experiment),
        "xlog": shown.x not in ("scale", "layers") and not isinstance(shown, Bars),
        "panels": panels,
    }


def _at(table: pd.DataFrame, columns: list[str], key: tuple[Any, ...]) -> pd.DataFrame:
    for column, value in zip(columns, key, strict=True):
        table = table[table[column] == value] if column in table else table[:0]
    return table


def _panel(
    experiment: Experiment,
    view: View,
    key: tuple[Any, ...],
    ours: pd.DataFrame,
    theirs: pd.DataFrame,
    labels: list[str],
) -> dict[str, Any]:
    shown = experiment.shown
    names = ", ".join(figures.titled(column, value) for column, value in zip(shown.columns, key, strict=True))
    series = []
    for label in dict.fromkeys([*ours["series"], *theirs["series"]]):
        colour, marker = figures.style(str(label), labels)
        own, published = (frame[frame["series"] == label] for frame in (ours, theirs))
        series.append(
            {
                "label": str(label),
                "colour": colour,
                "marker": marker,
                "dash": figures.dash(str(label), labels),
                "points": _points(own, shown.x),
                "published": _points(published, shown.x) if shown.x in published else [],
            }
        )
    return {
        "title": f"{names}: {view.title}" if view.title else names,
        "ylabel": figures.METRICS.get(view.metric, view.metric),
        "ylog": view.metric in figures.LOGARITHMIC,
        "series": series,
    }


def _points(frame: pd.DataFrame, x: str) -> list[list[Any]]:
    """[x, median, 10th, 90th percentile], in the order of x where it is a number; what is no finite number is None."""
    if len(frame) and not isinstance(frame[x].iloc[0], str):
        frame = frame.sort_values(x)
    rows = frame[[x, "median", "p10", "p90"]].itertuples(index=False, name=None)
    return [[place if isinstance(place, str) else float(place), *map(_rounded, values)] for place, *values in rows]


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
