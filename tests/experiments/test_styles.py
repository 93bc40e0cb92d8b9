"""Looks of series: no two alike, variants akin, the paper's architectures always the same."""

import pytest

from posattn.experiments import EXPERIMENTS, Grid
from posattn.experiments.styles import STYLES, dash, style

TRAINED = [each for each in EXPERIMENTS.values() if isinstance(each.source, Grid)]


def test_a_variant_has_the_colour_of_what_it_varies_and_another_line():
    labels = ["RoPE", "RoPE, looped", "ALiBi", "ALiBi, looped", "ALiBi, wide", "positional"]
    looks = [(style(label, labels)[0], dash(label, labels)) for label in labels]
    assert len(set(looks)) == len(labels) and [line for _, line in looks] == ["-", "--", "-", "--", "-.", "-"]
    assert looks[0][0] == looks[1][0] != looks[2][0] == looks[3][0] == looks[4][0]
    assert len({style(label, labels)[1] for label in labels}) == len(labels)


@pytest.mark.parametrize("experiment", TRAINED, ids=lambda each: each.name)
def test_no_two_lines_of_a_panel_look_alike(experiment):
    encodings = {line.label: getattr(line.config(8), "encoding", None) for line in experiment.source.series}
    for view in experiment.figure.views:
        labels = [label for label, own in encodings.items() if view.where.get("encoding", own) == own]
        assert len({(style(label, labels)[0], dash(label, labels)) for label in labels}) == len(labels)
        assert len({style(label, labels) for label in labels}) == len(labels)


def test_an_architecture_of_which_only_the_published_line_is_drawn_has_its_own_look():
    assert style("standard", ["positional"]) == STYLES["standard"]
