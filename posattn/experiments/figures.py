"""Figures that draw, tabulate and explain themselves, from result rows alone.

They show medians over runs, the 10th to 90th percentile and, where known, the published medians: as dotted lines, or as hollow
markers where x is a name.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files as resources
from io import BytesIO
from typing import Any, ClassVar

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from posattn.errors import UsageError
from posattn.experiments.styles import STYLES, axis, looks, metric, titled
from posattn.tasks import TASKS, Task

_LETTERS = 14  # of the legend to an inch
_TITLE, _ACROSS = 42, 40  # letters in a line of a panel's title, and along its axis
_PUBLISHED = "{}, published (full recipe)"
_NO_NUMBER = 1e300
_PAGE, _VIEWS = 2, 3  # panels of a view and views side by side that are still read at the width of a page
_LEAST = 1e-16  # where an error of 0, which compiled programs have, is drawn on a logarithmic axis
_ABOUT = {
    "none": "Models are trained on numbers in [−2, 2] (scale 1) and tested on numbers in [−2c, 2c]. ",
    "letters": "Models are trained on sequences of the letters a-e (scale 1) and tested on these and on sequences of f-j "
    "(scale 2, out of distribution). ",
    "prompts": "Models are trained on prompts with identifiers 1 to 20 and values in [0, 5] (scale 1) and tested on these "
    "and, at scale c, on identifiers 21 to 40, other irrelevant elements and values in [0, 5c]. ",
}
_SHIFTS = (
    "Models are trained on one distribution of lists and tested on it and on others. The relative error is the squared error "
    "over the variance of the answers: 1 is what the best constant has. "
)
_EXACT = "The scale-exact Transformer is the positional one without biases."


@cache
def published(experiment: str) -> pd.DataFrame:
    """The published medians of an experiment, with percentiles where it is drawn as lines; empty if unknown."""
    data, names = resources("posattn").joinpath("data"), ("published.csv", "published-tables.csv")
    lines, tables = (pd.read_csv(BytesIO(data.joinpath(name).read_bytes())) for name in names)
    known = pd.concat([lines.assign(series=lines["arch"], metric="mse"), tables], ignore_index=True)
    return known[known["experiment"] == experiment]


@dataclass(frozen=True)
class View:
    """One row of a figure's panels: its title and which result rows it shows, by default all of split test.

    ``published``, if given, selects the published medians in place of ``where``: they may have another split. ``more`` puts the
    view into a second picture, so that the first stays readable on a page. The explorer begins with the view that ``opens``,
    where networks differ, else with the first.
    """

    title: str
    where: Mapping[str, Any] = field(default_factory=lambda: {"split": "test"})
    metric: str = "mse"
    published: Mapping[str, Any] | None = None
    more: bool = False
    opens: bool = False

    def of(self, rows: pd.DataFrame) -> pd.DataFrame:
        return _where({**self.where, "metric": self.metric}, rows)

    def of_medians(self, table: pd.DataFrame) -> pd.DataFrame:
        return _where({"view": self.title, "metric": self.metric}, table)

    def of_published(self, known: pd.DataFrame) -> pd.DataFrame:
        """The published medians to draw beside the view; none if the view selects by a column that they lack."""
        return _where({**(self.where if self.published is None else self.published), "metric": self.metric}, known)


def _where(where: Mapping[str, Any], rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose columns have these values."""
    for column, value in where.items():
        rows = rows[rows[column] == value] if column in rows else rows[:0]
    return rows


@dataclass(frozen=True)
class Lines:
    """Panels of lines, median and band over runs: one row of panels per view, columns by ``columns``.

    Where that is wider than a page, a single view goes on in further rows, and two or three views stand side by side.
    """

    x: str = "scale"  # the column of the result rows that is on the x axis
    views: tuple[View, ...] = (View(""),)
    columns: tuple[str, ...] = ("task",)  # of the result rows; each combination of their values is a column of panels
    published: str = ""  # the experiment whose published medians are drawn beside ours
    prose: str = ""  # what pages say of the figure; by default a text that fits every figure of its class
    akin: bool = False  # whether variants of an architecture, such as "positional, binary", share its colour

    BARS: ClassVar[bool] = False  # whether x is a name
    _WIDTH: ClassVar[float] = 3.8  # of a panel, in inches
    _MARKS: ClassVar[tuple[str, ...]] = ("Lines", "bands", "Dotted lines")  # of medians, percentiles, published medians

    def medians(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Median, 10th and 90th percentile over runs, and how many runs ended well: by view, column, series and x."""
        tables = []
        for view in self.views:
            chosen = view.of(rows)
            if chosen.empty:
                continue
            # A run without a number is worse than any; a finite stand-in, because quantiles of infinities are not numbers.
            chosen = chosen.assign(value=chosen["value"].fillna(_NO_NUMBER).clip(upper=_NO_NUMBER))
            groups = chosen.groupby(self._by, sort=False)
            table = groups["value"].quantile([0.1, 0.5, 0.9]).unstack()
            table.columns = ["p10", "median", "p90"]
            table = table.mask(table > _NO_NUMBER / 1e6, float("inf"))
            table["runs"] = groups["value"].size()
            table["ok"] = groups["status"].agg(lambda status: int((status == "ok").sum()))
            tables.append(table.reset_index().assign(view=view.title, metric=view.metric))
        if len(rows) and not tables:
            raise UsageError(f"none of the {len(rows)} rows is one that the figure shows; its views must pick some.")
        empty = pd.DataFrame(columns=[*self._by, "p10", "median", "p90", "runs", "ok", "view", "metric"])
        return pd.concat(tables, ignore_index=True) if tables else empty

    @property
    def _by(self) -> list[str]:
        return list(dict.fromkeys([*self.columns, "series", self.x]))

    def tables(self, medians: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
        """For every panel its title and its medians: x down, series across, and a dash where there is no run."""
        found = []
        for (name, view, *column), own in medians.groupby(["metric", "view", *self.columns], sort=False):
            title = ", ".join(dict.fromkeys(str(part) for part in (*column, view, name) if part != ""))
            wide = own.pivot(index=self.x, columns="series", values="median")
            there = own.assign(there=True).pivot(index=self.x, columns="series", values="there").notna()
            if not there.all(axis=None):  # a median that is nan is one of runs that failed
                wide = wide.astype(object).where(there, "-")
            if self.BARS:  # names, in the order of the rows
                wide = wide.loc[list(dict.fromkeys(own[self.x]))]
            found.append((title, wide[list(dict.fromkeys(own["series"]))]))
        return found

    def against_published(self, medians: pd.DataFrame) -> pd.DataFrame:
        """Our medians beside the published ones: their ratio, and whether ours lies in the published band widened twofold."""
        known, parts = published(self.published), []
        for view in self.views:
            theirs = view.of_published(known)
            if len(theirs) and set(self._by) <= set(theirs):
                beside = theirs[[*self._by, "median", "p10", "p90"]]
                parts.append(view.of_medians(medians).merge(beside, on=self._by, suffixes=("", "_published")))
        if not parts:
            return pd.DataFrame()
        both = pd.concat(parts, ignore_index=True)
        both["ratio"] = both["median"] / both["median_published"]
        both["inside"] = both["median"].between(both["p10_published"] / 2, both["p90_published"] * 2)
        return both

    def explained(self, rows: pd.DataFrame, size: str) -> str:
        if self.prose:
            return self.prose
        medians, percentiles, known = self._MARKS
        said = self._about(rows) + f"{medians} are medians over runs, {percentiles} the 10th to 90th percentile. "
        if self.published:
            less = size != "paper" and not self.BARS
            shapes = ": ours are trained for a fraction of that, so compare the shapes" if less else ""
            said += f"{known} are the published medians, which took the full recipe{shapes}. "
        return said + (_EXACT if "scale-exact" in set(rows["arch"]) else "")

    def _about(self, rows: pd.DataFrame) -> str:
        return _ABOUT[_task_of(rows).TOKENS]

    def draw(self, rows: pd.DataFrame, medians: pd.DataFrame) -> dict[str, Figure]:
        """The pictures by the ending of their file names: none for the panels, ``-more`` for those of views with ``more``."""
        views = {"": [view for view in self.views if not view.more]}
        views["-more"] = [view for view in self.views if view.more and len(view.of_medians(medians))]
        return {end: replace(self, views=tuple(own))._draw_views(rows, medians) for end, own in views.items() if own}

    def _draw_views(self, rows: pd.DataFrame, medians: pd.DataFrame) -> Figure:
        keys = list(medians[list(self.columns)].drop_duplicates().itertuples(index=False, name=None))
        if not any(isinstance(value, str) for key in keys for value in key):
            keys.sort()
        figure, panels = self._panels(len(keys))
        for row, (view, ours, theirs, labels) in zip(panels, self._by_view(medians), strict=True):
            for axes, key in zip(row, keys, strict=True):
                here = self._at(ours, key)
                axes.set_visible(len(here) > 0)
                if len(here):
                    self._draw_panel(axes, here, self._at(theirs, key), labels)
                axes.set_title(self._title(view, key), fontsize="medium")
                axes.set_xlabel(axis(self.x, _task_of(rows).INPUTS))
                axes.set_yscale("log" if metric(view.metric).axis == "log" else "linear")
                if metric(view.metric).axis == "share" and not self.BARS:
                    axes.set_ylim(-0.03, 1.03)
                if self._x_is_log:
                    axes.set_xscale("log")
                    _mark(axes, sorted(set(ours[self.x])))
                elif self.x == "layers" and not self.BARS:
                    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
                if self._side_by_side(len(keys)) or axes.get_subplotspec().is_first_col():
                    axes.set_ylabel(metric(view.metric).title)
        add_legend(figure, panels.flat)
        return figure

    def _panels(self, columns: int) -> tuple[Figure, Any]:
        side_by_side, down, across = self._side_by_side(columns), len(self.views), columns
        if side_by_side:
            down, across = across, down
        elif down == 1:
            down, across = math.ceil(columns / _PAGE), min(columns, _PAGE)
        size = (1.2 + self._WIDTH * across, 0.4 + 3.4 * down)
        figure, panels = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
        if side_by_side:
            return figure, panels.T
        used = len(self.views) * columns
        for axes in panels.flat[used:]:
            axes.remove()
        return figure, panels.flat[:used].reshape(-1, columns)

    def _side_by_side(self, columns: int) -> bool:
        """Whether a view is a column of panels and not a row, which would be wider than a page."""
        return self.BARS or 1 < len(self.views) <= min(_VIEWS, columns - 1)

    def _by_view(self, medians: pd.DataFrame) -> Iterator[tuple[View, pd.DataFrame, pd.DataFrame, list[str]]]:
        """Per view our medians, the published ones to draw beside them, and the series that share out the styles."""
        known = published(self.published)
        every = list(dict.fromkeys(medians["series"])) or list(dict.fromkeys(known["series"]))
        for view in self.views:
            ours, theirs = view.of_medians(medians), view.of_published(known)
            yield view, ours, theirs[theirs["series"].isin([*every, *STYLES])], every  # as one legend names all

    def _at(self, table: pd.DataFrame, key: tuple[Any, ...]) -> pd.DataFrame:
        return _where(dict(zip(self.columns, key, strict=True)), table)

    def _title(self, view: View, key: tuple[Any, ...]) -> str:
        names = ", ".join(titled(name, value) for name, value in zip(self.columns, key, strict=True))
        long = len(names) + len(view.title) > _TITLE * self._WIDTH / Lines._WIDTH
        return names + (":\n" if long else ": ") + view.title if view.title else names

    @property
    def _x_is_log(self) -> bool:
        return self.x not in ("scale", "layers") and not self.BARS

    def _draw_panel(self, axes: Axes, ours: pd.DataFrame, theirs: pd.DataFrame, labels: list[str]) -> None:
        shown = looks(labels, self.akin)
        for label, own in ours.groupby("series", sort=False):
            colour, marker, dash = shown[str(label)]
            own = own.sort_values(self.x)
            if all(metric(name).axis == "log" for name in own["metric"]):
                own = own.assign(**{column: own[column].clip(lower=_LEAST) for column in ("p10", "median", "p90")})
            axes.fill_between(own[self.x], own["p10"], own["p90"], color=colour, alpha=0.18, linewidth=0)
            if len(own) == 1:  # which has no area
                axes.vlines(own[self.x], own["p10"], own["p90"], color=colour, linewidth=1.2)
            axes.plot(own[self.x], own["median"], dash, color=colour, marker=marker, markersize=4, label=str(label))
        for label, own in theirs.groupby("series", sort=False):
            own, name = own.sort_values(self.x), _PUBLISHED.format(label)
            axes.plot(own[self.x], own["median"], color=shown[str(label)].colour, linestyle=":", linewidth=1.2, label=name)
        axes.grid(alpha=0.25, which="both")

    def page(self, rows: pd.DataFrame, medians: pd.DataFrame) -> dict[str, Any]:
        """The figure as numbers, for a page that draws it: panels of series, ours and the published ones."""
        panels, opens = [], []
        names = [view.title for view in self.views]
        for view, ours, theirs, labels in self._by_view(medians):
            columns, shown = list(self.columns), looks(labels, self.akin)
            keys = [frame[columns].drop_duplicates() for frame in (ours, theirs) if set(columns) <= set(frame)]
            for key in dict.fromkeys(key for frame in keys for key in frame.itertuples(index=False, name=None)):
                here, there, lines = self._at(ours, key), self._at(theirs, key), []
                for label in dict.fromkeys([*here["series"], *there["series"]]):
                    points, known = (_points(frame[frame["series"] == label], self.x) for frame in (here, there))
                    look = shown[label]._asdict()
                    lines.append({"label": label} | look | {"points": points, "published": known})
                title, scaled = metric(view.metric)
                name = view.title if names.count(view.title) == 1 else ", ".join(filter(None, (view.title, title)))
                about = {"title": self._title(view, key).replace("\n", " "), "view": name, "ylabel": title}
                ends = [0, 1] if scaled == "share" else None
                opens += [name] * view.opens
                panels.append({**about, "ylog": scaled == "log", "yends": ends, "series": lines})
        xlabel, views = axis(self.x, _task_of(rows).INPUTS), [panel["view"] for panel in panels]
        opening = next(iter(opens + views), None)
        return {"bars": self.BARS, "xlabel": xlabel, "xlog": self._x_is_log, "opens": opening, "panels": panels}


@dataclass(frozen=True)
class Bars(Lines):
    """The same for an x that is a name: per name the series side by side, each a marker and a bar, in the order of the rows.

    Panels are wider, so ``columns`` go down and views across.
    """

    x: str = "distribution"

    BARS = True
    _WIDTH = 7.6
    _MARKS = ("Markers", "bars", "Hollow markers")

    def _about(self, rows: pd.DataFrame) -> str:
        return _SHIFTS if self.x == "distribution" else ""

    def _draw_panel(self, axes: Axes, ours: pd.DataFrame, theirs: pd.DataFrame, labels: list[str]) -> None:
        names = list(dict.fromkeys(ours[self.x]))
        step, shown = 0.8 / len(labels), looks(labels, self.akin)
        for label, own in ours.replace(float("inf"), float("nan")).groupby("series", sort=False):
            colour, marker, _ = shown[str(label)]
            aside = (labels.index(str(label)) - (len(labels) - 1) / 2) * step
            places = [names.index(name) + aside for name in own[self.x]]
            axes.vlines(places, own["p10"], own["p90"], color=colour, linewidth=1.2)
            axes.plot(places, own["median"], color=colour, marker=marker, markersize=4, linestyle="", label=str(label))
            known = _where({"series": label}, theirs)
            known = known[known[self.x].isin(names)] if self.x in known else known[:0]
            if len(known):
                places = [names.index(name) + aside + step / 4 for name in known[self.x]]
                (hollow,) = axes.plot(places, known["median"], marker, color=colour, label=_PUBLISHED.format(label))
                hollow.set(markersize=6, markerfacecolor="none")
        axes.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize="small")
        axes.grid(alpha=0.25, axis="y")


def _task_of(rows: pd.DataFrame) -> Task:
    """The task of the first row; all tasks of a figure are of one kind, and unknown ones read lists of numbers as sum does."""
    return TASKS.get(str(rows["task"].iloc[0]) if "task" in rows and len(rows) else "", TASKS["sum"])


def add_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Below the panels, each series once, with as many side by side as fit."""
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    fit = int(figure.get_figwidth() * _LETTERS / max(len(label) + 6 for label in handles))  # with the line and a gap
    beside = max(1, min(len(handles), 4, fit))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=beside, fontsize="small")


def _mark(axes: Axes, values: Sequence[float]) -> None:
    """Labels a logarithmic axis with values that were measured: both ends, and those between for which there is room."""
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


def _points(frame: pd.DataFrame, x: str) -> list[list[Any]]:
    """[x, median, 10th, 90th percentile] per point, to four digits, in the order of x if that is a number.

    None stands for what is not finite.
    """
    if x not in frame or frame.empty:
        return []
    if not isinstance(frame[x].iloc[0], str):
        frame = frame.sort_values(x).astype({x: float})
    rows = frame[[x, "median", "p10", "p90"]].itertuples(index=False, name=None)
    return [[place, *(float(f"{v:.4g}") if math.isfinite(v) else None for v in values)] for place, *values in rows]


def rendered(figure: Figure, kind: str) -> bytes:
    """The content of the picture's file, png or pdf."""
    image = BytesIO()
    figure.savefig(image, format=kind, dpi=150, metadata={"CreationDate": None} if kind == "pdf" else None)
    figure.set_layout_engine("none")  # a PDF is laid out as the PNG was: that takes longer than to draw it
    return image.getvalue()
