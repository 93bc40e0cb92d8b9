"""Figures from rows alone: medians and percentiles by hand, tables, and the published numbers beside ours."""

import itertools
import math

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.collections import LineCollection

from posattn.errors import UsageError
from posattn.experiments import EXPERIMENTS, Bars, Lines, View, figures
from posattn.experiments.figures import published
from posattn.experiments.report import _cells
from posattn.experiments.styles import STYLES

FIX_SCALE = EXPERIMENTS["fix-scale"].figure


def rows(values, metric="mse", series="positional", status="ok"):
    own = pd.DataFrame({"value": values})
    return own.assign(metric=metric, series=series, task="sum", split="test", scale=2.0, status=status)


def test_medians_are_midpoints_and_percentiles_by_hand():
    four = rows([4.0, 1.0, 2.0, 10.0])
    five = rows([5.0, 1.0, 2.0, 9.0, 30.0], series="standard")
    four.loc[3, "status"] = "diverged"
    table = FIX_SCALE.medians(pd.concat([four, five, rows([99.0], metric="rounding")])).set_index("series")
    # 1 2 4 10: (2 + 4) / 2; the 10th percentile lies 0.3 of the way from 1 to 2, the 90th 0.7 of it from 4 to 10.
    assert table.loc["positional", ["median", "p10", "p90"]].tolist() == pytest.approx([3.0, 1.3, 8.2])
    # 1 2 5 9 30: 0.4 of the way from 1 to 2, 0.6 from 9 to 30.
    assert table.loc["standard", ["median", "p10", "p90"]].tolist() == pytest.approx([5.0, 1.4, 21.6])
    assert table["runs"].tolist() == [4, 5] and table["ok"].tolist() == [3, 5]


def test_published_medians_come_with_the_package():
    known = published("fix-scale").query("split == 'test'")
    assert set(known["task"]) == {"sum", "min", "median", "sort", "maxsub"}
    assert (known["p10"] <= known["median"]).all() and (known["median"] <= known["p90"]).all()


def test_ours_against_the_published_medians():
    """Rows made up of the published medians themselves, one of them three times the 90th percentile."""
    known = published("fix-scale").query("split == 'test'")
    made = known.rename(columns={"median": "value"}).assign(status="ok")
    first = (made["task"] == "sum") & (made["scale"] == 10) & (made["series"] == "positional")
    made.loc[first, "value"] = 3 * made.loc[first, "p90"]
    both = FIX_SCALE.against_published(FIX_SCALE.medians(made))
    assert len(both) == 100 and both["inside"].sum() == 99 and not both[both["inside"]]["ratio"].ne(1).any()
    assert EXPERIMENTS["compact"].figure.against_published(FIX_SCALE.medians(made)).empty


@pytest.mark.parametrize(("name", "numbers"), [("fine-tune", 18), ("gnn", 48)])
def test_published_tables_belong_to_the_series_and_conditions_of_their_experiments(name, numbers):
    experiment = EXPERIMENTS[name]
    known = published(name)
    assert set(known["series"]) <= {cell.label for cell in experiment.cells("paper")}
    made = known.rename(columns={"median": "value"}).assign(status="ok")
    both = experiment.figure.against_published(experiment.figure.medians(made))
    assert len(both) == numbers and both["ratio"].eq(1).all()
    assert name != "fine-tune" or tuple(dict.fromkeys(known["stage"])) == experiment.source.measure.STAGES


def drawn(name, made):
    """The figure of an experiment."""
    figure = EXPERIMENTS[name].figure
    return figure.draw(made, figure.medians(made))[""]


def test_published_numbers_are_drawn_hollow_and_columns_of_numbers_in_order():
    known = published("fine-tune")
    made = known.rename(columns={"median": "value"}).assign(status="ok")
    panel = drawn("fine-tune", made).axes[0]
    lines = {line.get_label(): line for line in panel.get_lines()}
    hollow = lines["standard, published (full recipe)"]
    assert hollow.get_markerfacecolor() == "none" and hollow.get_linestyle() == "None"
    assert sorted(hollow.get_ydata()) == sorted(lines["standard"].get_ydata())

    rows = [
        {
            "series": "standard",
            "layer": layer,
            "scale": 1,
            "metric": "probe",
            "value": 0.5,
            "split": "test",
            "status": "ok",
        }
        for layer in (2, 0, 1)
    ]
    titles = [axes.get_title() for axes in drawn("attention-maps", pd.DataFrame(rows)).axes if axes.get_visible()]
    assert [title.split(":")[0] for title in titles] == ["layer 0", "layer 1", "layer 2"]


def test_runs_without_a_number_make_a_median_infinite_and_not_undefined():
    table = FIX_SCALE.medians(rows([float("nan")] * 6 + [1.0, 2.0, 3.0, 4.0]))
    assert table["p10"].tolist() == pytest.approx([1.9]) and table["median"].tolist() == [float("inf")]
    assert table["p90"].tolist() == [float("inf")]


def test_architectures_keep_their_colours_where_a_panel_shows_each_once():
    """Binary and sinusoidal networks have panels of their own, so six lines have the colours of three architectures."""
    labels = [f"{arch}, {encoding}" for encoding in ("binary", "sinusoidal") for arch in STYLES]
    rows = pd.DataFrame(
        {"task": "sum", "series": label, "encoding": label.split(", ")[1], "split": "test", "scale": scale}
        | {"metric": "mse", "value": 1.0, "status": "ok"}
        for label in labels
        for scale in (1, 2)
    )
    panels = drawn("encodings", rows).axes[:2]
    colours = [line.get_color() for panel in panels for line in panel.get_lines()]
    assert colours == 2 * [colour for colour, _ in STYLES.values()]


@pytest.mark.parametrize(
    ("name", "inputs"), [("fix-sample", "lists"), ("khop-samples", "sequences"), ("mixed-samples", "prompts")]
)
def test_a_figure_calls_what_a_network_was_trained_on_by_its_name(name, inputs):
    experiment = EXPERIMENTS[name]
    made = pd.DataFrame(
        {**view.where, "task": experiment.source.tasks[0], "domain": "id", "series": "positional", "samples": samples}
        | {"metric": view.metric, "value": 1.0, "status": "ok"}
        for view in experiment.figure.views
        for samples in (5000, 10_000)
    )
    panels = drawn(name, made).axes
    assert {panel.get_xlabel() for panel in panels} == {f"training {inputs}"}
    assert all("lists" not in panel.get_title() for panel in panels) or inputs == "lists"


def test_a_legend_of_long_names_stays_within_the_figure():
    known = published("gnn")
    made = known.rename(columns={"median": "value"}).assign(status="ok")
    figure = drawn("gnn", made)
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert len(legend.get_texts()) == 8 and box.x0 >= 0 and box.x1 <= figure.bbox.width


@pytest.mark.parametrize("values", [[2, 4, 8, 16], [2**k for k in range(1, 11)], list(range(5000, 50_001, 5000)), [7]])
def test_names_along_a_logarithmic_axis_do_not_overlap_and_the_ends_are_named(values):
    figure, axes = plt.subplots(figsize=(4.0, 3.4), layout="constrained")
    axes.plot(values, values)
    axes.set_xscale("log")
    figures._mark(axes, values)
    figure.draw_without_rendering()
    labels = sorted(
        (tick for tick in axes.get_xticklabels() if tick.get_text()), key=lambda tick: tick.get_position()[0]
    )
    boxes = [label.get_window_extent() for label in labels]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
    assert {labels[0].get_text(), labels[-1].get_text()} == {f"{values[0]:,}", f"{values[-1]:,}"}
    plt.close(figure)


def test_shares_are_drawn_from_0_to_1_and_a_series_of_one_point_shows_its_spread():
    """A panel of zeros is not stretched to what differs from 0, and errors within a decade have names along y."""
    made = pd.DataFrame(
        {"series": series, "samples": samples, "domain": "ood", "split": "test", "hops": "all", "status": "ok"}
        | {"metric": metric, "value": value}
        for metric, values in (("accuracy_found", (0.0, 0.0, 0.001)), ("cross_entropy", (40.0, 50.0, 90.0)))
        for series, sizes in (("positional", (5000, 50_000)), ("standard", (5000,)))
        for samples in sizes
        for value in values
    )
    figure = drawn("khop-samples", made)
    figure.draw_without_rendering()
    loss, share = [axes for axes in figure.axes if axes.get_visible()][:2]
    assert share.get_ylim()[0] < 0 < 1 < share.get_ylim()[1] and loss.get_ylim()[0] > 10
    assert any(label.get_text() for label in loss.get_yticklabels(which="minor"))
    assert not loss.get_xticks(minor=True).tolist()
    (spread,) = [lines for lines in loss.collections if isinstance(lines, LineCollection)]
    ((_, low), (_, high)) = spread.get_segments()[0]
    assert (low, high) == pytest.approx((42.0, 82.0))


@pytest.mark.parametrize("values", [[], [0, 1, 2]])
def test_an_axis_without_values_or_with_0_is_left_as_it_is(values):
    figure, axes = plt.subplots()
    before = axes.get_xticks().tolist()
    figures._mark(axes, values)
    assert axes.get_xticks().tolist() == before
    plt.close(figure)


def test_a_dash_stands_where_nothing_was_trained_and_nan_where_runs_failed():
    rows = [(1, "a", 0.5), (2, "a", float("nan")), (1, "b", 0.25)]
    medians = pd.DataFrame(rows, columns=["scale", "series", "median"]).assign(metric="mse", view="", task="sum")
    ((_, table),) = Lines().tables(medians)
    assert table.loc[1].tolist() == [0.5, 0.25]
    assert math.isnan(table.loc[2, "a"]) and table.loc[2, "b"] == "-"
    assert _cells(table)[1:] == [["1", "5.00e-01", "2.50e-01"], ["2", "nan", "-"]]


def test_runs_without_a_number_do_not_stop_a_figure_of_bars():
    """Nor does a series that one of two tasks lacks."""
    made = pd.DataFrame(
        {"task": task, "series": series, "distribution": name, "metric": metric, "split": "test", "status": "ok"}
        | {"value": 0.5 if series == "positional" else math.nan}
        for task, series in (("sum", "positional"), ("sum", "standard"), ("min", "positional"))
        for name, metric in itertools.product(("training", "sparse"), ("relative", "closeness"))
    )
    figure = drawn("distribution-shift", made)
    figure.draw_without_rendering()
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["training", "sparse"]


def test_bars_of_numbers_keep_their_names():
    two = pd.concat([rows([1.0]).assign(layers=1), rows([2.0]).assign(layers=8)])
    figure = Bars("layers").draw(two, Bars("layers").medians(two))[""]
    figure.draw_without_rendering()
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["1", "8"]


def test_a_figure_of_nothing_is_one_sentence():
    with pytest.raises(
        UsageError, match=r"^none of the 2 rows is one that the figure shows; its views must pick some\.$"
    ):
        Lines(views=(View("", {"split": "moon"}),)).medians(rows([1.0, 2.0]))


def test_pages_have_panels_of_what_was_published_alone():
    figure = EXPERIMENTS["fine-tune"].figure
    assert isinstance(figure, Bars)
    page = figure.page(pd.DataFrame(), figure.medians(pd.DataFrame()))
    assert page["bars"] and len(page["panels"]) == 3  # tasks
    assert all(line["published"] and not line["points"] for panel in page["panels"] for line in panel["series"])


@pytest.mark.parametrize(
    ("views", "columns", "grid"),
    [(1, 2, (1, 2)), (1, 5, (3, 2)), (2, 2, (2, 2)), (2, 3, (3, 2)), (3, 5, (5, 3)), (4, 5, (4, 5)), (6, 4, (6, 4))],
)
def test_a_figure_is_no_wider_than_a_page_where_its_panels_can_be_laid_out_so(views, columns, grid):
    lines = Lines(views=tuple(View(str(number)) for number in range(views)))
    figure, panels = lines._panels(columns)
    assert panels.shape == (views, columns) and len(figure.axes) == views * columns
    assert panels[0, 0].get_subplotspec().get_gridspec().get_geometry() == grid
    plt.close(figure)


def test_views_with_more_are_a_second_picture_if_they_have_rows():
    figure = Lines(views=(View("first"), View("second", {"split": "train"}, more=True)))
    made = rows([1.0, 2.0]).assign(arch="positional")
    for given, ends in ((made, [""]), (pd.concat([made, made.assign(split="train")]), ["", "-more"])):
        pictures = figure.draw(given, figure.medians(given))
        titles = [axes.get_title() for picture in pictures.values() for axes in picture.axes]
        assert list(pictures) == ends
        assert [title.split(": ")[1] for title in titles] == ["first", "second"][: len(ends)]
        for picture in pictures.values():
            plt.close(picture)


@pytest.mark.parametrize("name", ["khop-layers", "khop-samples", "mixed-samples"])
def test_figures_of_many_panels_begin_with_a_few(name):
    views = EXPERIMENTS[name].figure.views
    assert sum(view.more for view in views) >= 4 and 1 <= sum(not view.more for view in views) <= 2
