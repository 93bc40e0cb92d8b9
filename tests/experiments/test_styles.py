"""Looks of series: no two alike, variants akin, the paper's architectures always the same."""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from posattn.experiments import EXPERIMENTS, Grid, Store
from posattn.experiments.styles import STYLES, YARDSTICKS, looks

STORE = Store(Path(__file__).parents[2] / "results/store")
TRAINED = [each for each in EXPERIMENTS.values() if isinstance(each.source, Grid)]


def test_a_variant_has_the_colour_of_what_it_varies_and_another_line():
    labels = ["RoPE", "RoPE, looped", "ALiBi", "ALiBi, looped", "ALiBi, wide", "positional"]
    shown = [looks(labels)[label] for label in labels]
    drawn = [(look.colour, look.dash) for look in shown]
    assert len(set(drawn)) == len(labels) and [line for _, line in drawn] == ["-", "--", "-", "--", "-.", "-"]
    assert drawn[0][0] == drawn[1][0] != drawn[2][0] == drawn[3][0] == drawn[4][0]
    assert len({look.marker for look in shown}) == len(labels)


def test_variants_that_are_akin_have_their_architectures_colour_and_are_marked_alike():
    labels = [
        "positional, binary",
        "standard, binary",
        "positional, wide",
        "standard, wide",
        "standard-rope",
        "positional",
    ]
    shown = {label: looks(labels, akin=True)[label] for label in labels}
    assert len(set(shown.values())) == len(labels) and shown["positional"] == (*STYLES["positional"], "-")
    for variant in ("binary", "wide"):
        colours, marks = zip(
            *((look[0], look[1:]) for label, look in shown.items() if label.endswith(variant)), strict=True
        )
        assert colours == (STYLES["positional"][0], STYLES["standard"][0]) and marks[0] == marks[1]
    assert shown["standard-rope"].colour not in {colour for colour, _ in STYLES.values()}


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda each: each.name)
def test_no_two_series_of_a_figure_look_alike(experiment):
    """One legend names the series of all panels; where x is a name, lines have no dash."""
    source, akin = experiment.source, experiment.figure.akin
    if isinstance(source, Grid):
        labels = (
            [line.label for line in source.series] + ["compiled"] * source.programs + [*YARDSTICKS] * source.yardsticks
        )
    else:
        rows, _ = experiment.held("paper", STORE).read()
        labels = list(dict.fromkeys(rows["series"])) if "series" in rows else []
    assert len({looks(labels, akin)[label][:2] for label in labels}) == len(labels)


@pytest.mark.parametrize("experiment", TRAINED, ids=lambda each: each.name)
def test_no_two_lines_of_a_panel_have_one_colour_and_dash(experiment):
    encodings = {line.label: getattr(line.config(8), "encoding", None) for line in experiment.source.series}
    shown = looks(list(encodings), experiment.figure.akin)
    for view in experiment.figure.views:
        own = [shown[label] for label, each in encodings.items() if view.where.get("encoding", each) == each]
        assert len({(look.colour, look.dash) for look in own}) == len(own)


def test_a_panel_draws_a_series_as_the_legend_of_all_panels_has_it():
    figure = EXPERIMENTS["encodings"].figure
    rows = pd.DataFrame(
        {"series": series, "encoding": encoding, "split": "test", "metric": "mse", "task": "sum", "arch": "positional"}
        | {"scale": scale, "value": 1.0, "status": "ok"}
        for series, encoding in (("positional, binary", "binary"), ("positional, sinusoidal", "sinusoidal"))
        for scale in (1, 2)
    )
    medians = figure.medians(rows)
    (drawn,) = figure.draw(rows, medians).values()
    lines = [line for axes in drawn.axes for line in axes.get_lines()]
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}) == len(lines) == 2
    of_page = [own for panel in figure.page(rows, medians)["panels"] for own in panel["series"]]
    assert [(own["colour"], own["marker"], own["dash"]) for own in of_page] == [
        (line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines
    ]
    plt.close(drawn)


def test_an_architecture_of_which_only_the_published_line_is_drawn_has_its_own_look():
    assert looks(["positional"])["standard"][:2] == STYLES["standard"]
