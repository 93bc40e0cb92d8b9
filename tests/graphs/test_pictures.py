"""Graphs of programs and networks: those of Figures 7 and 8, and an arrow for every message."""

import re
from dataclasses import replace

import pytest

from posattn.compiler import PROGRAMS, compile_program
from posattn.graphs.pictures import (
    attention_graph,
    benes_graph,
    graph_of,
    leading_to,
    network_graph,
    program_graph,
    svg,
)

pytestmark = pytest.mark.usefixtures("unchecked")


def test_prefix_sum_is_drawn_as_in_figure_7():
    graph = program_graph(PROGRAMS["prefix-sum"].build(4, 1.0))
    others = {(r, j, i) for r, j, i in graph.arrows if i != j}
    assert others == {(0, 0, 1), (0, 1, 2), (0, 2, 3), (1, 0, 2), (1, 1, 3)}
    assert len(graph.arrows) - len(others) == 2 * 4


def test_in_orange_is_the_tree_of_the_sum_that_is_not_cumulative():
    tree = leading_to(program_graph(PROGRAMS["tree-sum"].build(4, 1.0)), 3)
    assert tree == {(0, 0, 1), (0, 1, 1), (0, 2, 3), (0, 3, 3), (1, 1, 3), (1, 3, 3)}
    lines = [line for line in svg(graph_of("prefix-sum", 4)).splitlines() if line.startswith("<line")]
    assert sum("#D55E00" in line for line in lines) == len(tree)


def test_odd_even_sort_is_drawn_as_in_figure_7():
    graph = program_graph(PROGRAMS["odd-even-sort"].build(4, 1.0))
    pairs = {r: {frozenset((j, i)) for q, j, i in graph.arrows if q == r and i != j} for r in range(3)}
    assert (
        pairs[0] == {frozenset((0, 1)), frozenset((2, 3))} and pairs[1] == {frozenset((1, 2))} and pairs[2] == pairs[0]
    )


def test_the_benes_network_is_drawn_as_in_figure_8():
    graph = benes_graph(8)
    assert (graph.rounds, len(graph.names), len(graph.arrows)) == (5, 8, 5 * 16)


@pytest.mark.parametrize("name", ["prefix-sum", "bitonic-sort", "tree-min"])
def test_the_network_communicates_as_the_program_does(name):
    compiled = compile_program(name, 5, epsilon=0.1, bound=10.0)
    assert network_graph(compiled.model, name).arrows == program_graph(compiled.program).arrows


def test_the_picture_has_an_arrow_for_every_message():
    graph = program_graph(PROGRAMS["prefix-sum"].build(4, 1.0))
    picture = svg(graph)
    assert picture.count("<line") == len(graph.arrows) == 13
    assert picture.count("<circle") == 4 * 3


def words(picture):
    """What a picture says, its title and legend among it."""
    return [found[0] for found in re.findall(r"<text[^>]*>([^<]+)(</text>)", picture)]


def test_a_program_has_rounds_and_its_legend_explains_each_colour():
    said = words(svg(graph_of("prefix-sum", 4)))
    assert said[0] == "prefix-sum: 4 machines, 2 rounds"
    assert [name for name in said if name.startswith(("input", "round"))] == ["input", "round 1", "round 2"]
    explained = ["receives from another machine", "keeps its own", "needed for the answer of the last machine"]
    assert said[-3:] == explained
    assert "needed" not in " ".join(words(svg(graph_of("odd-even-sort", 4))))


@pytest.mark.parametrize("by, least", [("attention", "attention of at least 0.4"), ("effect", "at least 0.4 of the")])
def test_a_trained_network_has_layers_and_says_which_edges_are_drawn(lively, by, least):
    model = lively(n=3, heads=2, embed=8, width=8)
    said = words(svg(attention_graph(model.attention(), "lively", 0.4, by, model.attention())))
    assert said[0] == f"lively: 4 positions, {model.config.layers} layers"
    assert "layer 1" in said and not any("round" in name or "machine" in name for name in said)
    assert any(f"({least}" in name for name in said) and said[-2:] == ["s", "the scratchpad"]


def test_titles_and_legends_lie_inside_the_picture():
    for graph in (graph_of("prefix-sum", 2), replace(graph_of("prefix-sum", 2), title=80 * "m")):
        picture = svg(graph)
        width = int(re.search(r'viewBox="0 0 (\d+)', picture)[1])
        assert width >= 15 + 7 * max(len(name) for name in words(picture))


def test_a_network_is_drawn_where_its_attention_is_strong(lively):
    model = lively(n=3, heads=2, embed=8, width=8)
    strong = attention_graph(model.attention(), "lively", 0.4)
    expected = {(l, j, i) for l, h, i, j in (model.attention() >= 0.4).nonzero().tolist()}
    assert strong.arrows == expected and 0 < len(expected) < 2 * 16
