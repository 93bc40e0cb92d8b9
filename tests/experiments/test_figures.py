"""Figures from rows alone: medians and percentiles by hand, and the published numbers beside ours."""

import itertools

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.collections import LineCollection

from posattn.experiments import EXPERIMENTS, figures
from posattn.experiments.figures import STYLES, against_published, dash, draw, medians, published, style

FIX_SCALE = EXPERIMENTS["fix-scale"]


def rows(values, metric="mse", series="positional", status="ok"):
    own = pd.DataFrame({"value": values})
    return own.assign(metric=metric, series=series, task="sum", split="test", scale=2.0, status=status)


def test_medians_are_midpoints_and_percentiles_by_hand():
    four = rows([4.0, 1.0, 2.0, 10.0])
    five = rows([5.0, 1.0, 2.0, 9.0, 30.0], series="standard")
    four.loc[3, "status"] = "diverged"
    table = medians(pd.concat([four, five, rows([99.0], metric="rounding")]), FIX_SCALE.shown).set_index("series")
    # 1 2 4 10: (2 + 4) / 2; the 10th percentile lies 0.3 of the way from 1 to 2, the 90th 0.7 of it from 4 to 10.
    assert table.loc["positional", ["median", "p10", "p90"]].tolist() == pytest.approx([3.0, 1.3, 8.2])
    # 1 2 5 9 30: 0.4 of the way from 1 to 2, 0.6 from 9 to 30.
    assert table.loc["standard", ["median", "p10", "p90"]].tolist() == pytest.approx([5.0, 1.4, 21.6])
    assert table["runs"].tolist() == [4, 5] and table["ok"].tolist() == [3, 5]


def test_published_medians_come_with_the_package():
    known = published().query("experiment == 'fix-scale' and split == 'test'")
    assert set(known["task"]) == {"sum", "min", "median", "sort", "maxsub"}
    assert (known["p10"] <= known["median"]).all() and (known["median"] <= known["p90"]).all()


def test_ours_against_the_published_medians():
    """Rows made up of the published medians themselves, one of them three times the 90th percentile."""
    known = published().query("experiment == 'fix-scale' and split == 'test'")
    made = known.rename(columns={"median": "value"}).assign(status="ok")
    first = (made["task"] == "sum") & (made["scale"] == 10) & (made["series"] == "positional")
    made.loc[first, "value"] = 3 * made.loc[first, "p90"]
    both = against_published(medians(made, FIX_SCALE.shown), FIX_SCALE)
    assert len(both) == 100 and both["inside"].sum() == 99 and not both[both["inside"]]["ratio"].ne(1).any()
    assert against_published(medians(made, FIX_SCALE.shown), EXPERIMENTS["compact"]).empty


@pytest.mark.parametrize(("name", "numbers"), [("fine-tune", 18), ("gnn", 48)])
def test_published_tables_belong_to_the_series_and_conditions_of_their_experiments(name, numbers):
    experiment = EXPERIMENTS[name]
    known = published().query("experiment == @name")
    assert set(known["series"]) <= {cell.label for cell in experiment.cells("paper")}
    made = known.rename(columns={"median": "value"}).assign(status="ok")
    both = against_published(medians(made, experiment.shown), experiment)
    assert len(both) == numbers and both["ratio"].eq(1).all()
    assert name != "fine-tune" or tuple(dict.fromkeys(known["stage"])) == experiment.measure.STAGES


def drawn(experiment, made, monkeypatch, tmp_path):
    """The figure, before it is closed."""
    figures = []
    monkeypatch.setattr("posattn.experiments.figures.save", lambda figure, path: figures.append(figure) or path)
    draw(made, experiment, tmp_path)
    return figures[0]


def test_published_numbers_are_drawn_hollow_and_columns_of_numbers_in_order(monkeypatch, tmp_path):
    known = published().query("experiment == 'fine-tune'")
    made = known.rename(columns={"median": "value"}).assign(status="ok")
    panel = drawn(EXPERIMENTS["fine-tune"], made, monkeypatch, tmp_path).axes[0]
    lines = {line.get_label(): line for line in panel.get_lines()}
    hollow = lines["standard, published (full recipe)"]
    assert hollow.get_markerfacecolor() == "none" and hollow.get_linestyle() == "None"
    assert sorted(hollow.get_ydata()) == sorted(lines["standard"].get_ydata())

    study = EXPERIMENTS["attention-maps"]
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
    titles = [
        axes.get_title() for axes in drawn(study, pd.DataFrame(rows), monkeypatch, tmp_path).axes if axes.get_visible()
    ]
    assert [title.split(":")[0] for title in titles] == ["layer 0", "layer 1", "layer 2"]


def test_runs_without_a_number_make_a_median_infinite_and_not_undefined():
    table = medians(rows([float("nan")] * 6 + [1.0, 2.0, 3.0, 4.0]), FIX_SCALE.shown)
    assert table["p10"].tolist() == pytest.approx([1.9]) and table["median"].tolist() == [float("inf")]
    assert table["p90"].tolist() == [float("inf")]


def test_architectures_keep_their_colours_where_a_panel_shows_each_once(monkeypatch, tmp_path):
    """Binary and sinusoidal networks have panels of their own, so six lines have the colours of three architectures."""
    labels = [f"{arch}, {encoding}" for encoding in ("binary", "sinusoidal") for arch in STYLES]
    rows = pd.DataFrame(
        {"task": "sum", "series": label, "encoding": label.split(", ")[1], "split": "test", "scale": scale}
        | {"metric": "mse", "value": 1.0, "status": "ok"}
        for label in labels
        for scale in (1, 2)
    )
    panels = drawn(EXPERIMENTS["encodings"], rows, monkeypatch, tmp_path).axes[:2]
    colours = [line.get_color() for panel in panels for line in panel.get_lines()]
    assert colours == 2 * [colour for colour, _ in STYLES.values()]


def test_a_variant_has_the_colour_of_what_it_varies_and_another_line():
    labels = ["RoPE", "RoPE, looped", "ALiBi", "ALiBi, looped", "ALiBi, wide", "positional"]
    looks = [(style(label, labels)[0], dash(label, labels)) for label in labels]
    assert len(set(looks)) == len(labels) and [line for _, line in looks] == ["-", "--", "-", "--", "-.", "-"]
    assert looks[0][0] == looks[1][0] != looks[2][0] == looks[3][0] == looks[4][0]
    assert len({style(label, labels)[1] for label in labels}) == len(labels)


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_no_two_lines_of_a_panel_look_alike(experiment):
    encodings = {line.label: getattr(line.config(8), "encoding", None) for line in experiment.grid.series}
    for view in experiment.shown.views:
        labels = [label for label, own in encodings.items() if view.where.get("encoding", own) == own]
        assert len({(style(label, labels)[0], dash(label, labels)) for label in labels}) == len(labels)
        assert len({style(label, labels) for label in labels}) == len(labels)


@pytest.mark.parametrize(
    ("name", "inputs"), [("fix-sample", "lists"), ("khop-samples", "sequences"), ("mixed-samples", "prompts")]
)
def test_a_figure_calls_what_a_network_was_trained_on_by_its_name(name, inputs, monkeypatch, tmp_path):
    experiment = EXPERIMENTS[name]
    made = pd.DataFrame(
        {**view.where, "task": experiment.grid.tasks[0], "domain": "id", "series": "positional", "samples": samples}
        | {"metric": view.metric, "value": 1.0, "status": "ok"}
        for view in experiment.shown.views
        for samples in (5000, 10_000)
    )
    panels = drawn(experiment, made, monkeypatch, tmp_path).axes
    assert {panel.get_xlabel() for panel in panels} == {f"training {inputs}"}
    assert all("lists" not in panel.get_title() for panel in panels) or inputs == "lists"


def test_an_architecture_of_which_only_the_published_line_is_drawn_has_its_own_look():
    assert style("standard", ["positional"]) == STYLES["standard"]


def test_a_legend_of_long_names_stays_within_the_figure(monkeypatch, tmp_path):
    known = published().query("experiment == 'gnn'")
    made = known.rename(columns={"median": "value"}).assign(status="ok")
    figure = drawn(EXPERIMENTS["gnn"], made, monkeypatch, tmp_path)
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


def test_shares_are_drawn_from_0_to_1_and_a_series_of_one_point_shows_its_spread(monkeypatch, tmp_path):
    """A panel of zeros is not stretched to what differs from 0, and errors within a decade have names along y."""
    made = pd.DataFrame(
        {"series": series, "samples": samples, "domain": "ood", "split": "test", "hops": "all", "status": "ok"}
        | {"metric": metric, "value": value}
        for metric, values in (("accuracy_found", (0.0, 0.0, 0.001)), ("cross_entropy", (40.0, 50.0, 90.0)))
        for series, sizes in (("positional", (5000, 50_000)), ("standard", (5000,)))
        for samples in sizes
        for value in values
    )
    figure = drawn(EXPERIMENTS["khop-samples"], made, monkeypatch, tmp_path)
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
