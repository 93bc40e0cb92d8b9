"""Graphs of programs and networks: those of Figures 7 and 8, and an arrow for every message."""

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
    assert svg(graph_of("prefix-sum", 4)).count("#D55E00") == len(tree)


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


def test_a_network_is_drawn_where_its_attention_is_strong(lively):
    model = lively(n=3, heads=2, embed=8, width=8)
    strong = attention_graph(model.attention(), "lively", 0.4)
    expected = {(l, j, i) for l, h, i, j in (model.attention() >= 0.4).nonzero().tolist()}
    assert strong.arrows == expected and 0 < len(expected) < 2 * 16
