"""Edges of trained networks: effects against differences, cuts against the network itself, patterns by hand."""

import pytest
import torch

import posattn
from posattn import UsageError
from posattn.compiler import PROGRAMS
from posattn.graphs.communication import (
    butterfly_edges,
    cuts,
    edges_between,
    effects,
    graph_weights,
    likeness,
    scan_edges,
    silenced,
    trace,
    tree_edges,
)
from posattn.graphs.pictures import leading_to, program_graph


@pytest.fixture
def small(lively):
    model = lively(n=3, heads=2, embed=6, width=7, layers=2)
    x, y = posattn.task("sum").sample(200, n=3)
    return model, x.double(), y.double()


def answers_with(model, x, weights):
    with torch.no_grad():
        return trace(model, x, weights).answers


def test_with_its_own_weights_a_traced_network_answers_as_it_does(small):
    model, x, _ = small
    torch.testing.assert_close(answers_with(model, x, graph_weights(model)), model(x).detach())


def test_the_effect_is_the_slope_of_the_answers_as_a_message_turns_into_its_mean(small):
    model, x, _ = small
    weights, found = graph_weights(model), effects(model, x)
    values = trace(model, x, weights).values
    for l, h, i, j in ((0, 0, 1, 0), (0, 1, 2, 3), (1, 0, 0, 2), (1, 1, 2, 2)):
        beside, small_step = [torch.zeros_like(value) for value in values], 1e-6
        beside[l][:, h, i] = -small_step * weights[l, h, i, j] * (values[l][:, h, j] - values[l][:, h, j].mean(dim=0))
        with torch.no_grad():
            moved = (trace(model, x, weights, beside).answers - model(x)) / small_step
        assert found[l, h, i, j].item() == pytest.approx(moved.square().sum(-1).mean().sqrt().item(), rel=1e-3)


def test_what_no_answer_hears_has_no_effect(small):
    model, x, _ = small
    found = effects(model, x)
    assert (found[-1, :, -1] == 0).all()  # the scratchpad's last state is dropped
    assert (found[0, :, :, -1] == 0).all()  # and its first is the same for all lists
    assert (found[0, :, :-1, :-1] > 0).all()


def test_effects_do_not_ask_for_parameters_that_can_be_trained(small):
    model, x, _ = small
    before = effects(model, x)
    assert torch.equal(effects(model.requires_grad_(False), x), before) and not before.requires_grad


def test_a_silenced_edge_carries_its_mean_and_nothing_of_the_list(small):
    model, x, _ = small
    everything = torch.ones_like(graph_weights(model), dtype=torch.bool)
    with torch.no_grad():
        torch.testing.assert_close(silenced(model, x, everything), model(x))
        deaf = everything.clone()
        deaf[:, :, 0, 1:] = False  # position 1 hears itself alone
        x[:, 0] = 1.5
        answers = silenced(model, x, deaf)
        torch.testing.assert_close(answers[:, 0], answers[:1, 0].expand(len(x)))
        assert model(x)[:, 0].std() > 1e-3 and answers[:, 1].std() > 1e-3
        by_hand = graph_weights(model)[
            1, :, 1:2, 2:3
        ]  # one edge of the last layer: take the message out, put its mean in
        one = everything.clone()
        one[1, :, 1, 2] = False
        values = trace(model, x, graph_weights(model)).values[1][:, :, 2:3]
        attention = model.layers[1].attention
        lost = attention.W_O.weight @ (by_hand * (values - values.mean(dim=0))).transpose(1, 2).flatten(2).mT
        states = model.states(x)
        heard = attention.mix(graph_weights(model)[1], states[1])
        heard[:, 1] -= lost[..., 0]
        expected = model.decoder(model.layers[1].update(heard, states[1]))[:, :-1, 0]
        torch.testing.assert_close(silenced(model, x, one), expected)


def test_cutting_everything_leaves_a_network_that_hears_nobody_else(small):
    model, x, y = small
    for cut in cuts(model, x, y, effects(model, x)):
        assert cut.edges == int(edges_between(graph_weights(model)).sum()) == 2 * 2 * 4 * 3
        assert cut.curve[0] == (0, cut.error) and cut.curve[-1][0] == cut.edges
    assert cut.how == "renormalised"
    alone = answers_with(model, x, torch.eye(4, dtype=torch.float64).expand(2, 2, 4, 4))
    assert cut.curve[-1][1] == pytest.approx((alone - y).square().mean().item())


def test_the_error_stays_within_bounds_up_to_the_count_and_not_beyond():
    model = posattn.pretrained("min", arch="scale-exact")
    x, y = posattn.task("min").sample(300, n=8, split="test")
    found = effects(model, x)
    cut = cuts(model, x, y, found)[0]
    assert cut.error == pytest.approx((model(x) - y).square().mean().item(), rel=1e-4)
    weights = graph_weights(model)
    edges = edges_between(weights).nonzero()
    edges = edges[found[tuple(edges.T)].argsort(stable=True)]

    def error(count):
        kept = torch.ones_like(weights, dtype=torch.bool)
        kept[tuple(edges[:count].T)] = False
        with torch.no_grad():
            return (silenced(model, x, kept) - y).square().mean().item()

    count = cut.allowed["the error doubles"]
    assert 32 <= count < 300  # 32 have no effect: to the scratchpad in the last layer, from it in the first
    assert error(count) <= 2 * cut.error < error(count + 1)
    assert list(cut.allowed) == ["the error doubles", "1% of the answers' variance"] and cut.allowed.popitem()[1] > count


@pytest.mark.parametrize(
    ("pattern", "name"),
    [(scan_edges, "prefix-sum"), (tree_edges, "tree-sum"), (butterfly_edges, "bitonic-sort")],
)
def test_patterns_are_those_of_the_programs(pattern, name):
    graph = program_graph(PROGRAMS[name].build(8, 1.0))
    arrows = leading_to(graph, 7) if name == "tree-sum" else graph.arrows
    offsets = {"bitonic-sort": [1, 2, 1, 4, 2, 1]}.get(name, [1, 2, 4])
    for r, offset in enumerate(offsets):
        assert {(i, j) for q, j, i in arrows if q == r and i != j} == set(pattern(8, offset))


def test_likeness_is_one_on_a_pattern_and_the_share_elsewhere():
    mass = torch.zeros(2, 5, 5, dtype=torch.float64)
    for i, j in scan_edges(4, 2):
        mass[1, i, j] = 0.5
    found = likeness(mass, 4)
    assert found is not None and found.patterns["scan"] == (1.0, 2) and found.earlier == 1
    assert found.patterns["tree"] == (0.5, 2) and found.uniform["scan"] == 2 / 20
    mass[0, 0, 4] = 0.5  # one hears the scratchpad
    mass[0, 0, 0] = 9.0  # what is kept does not count
    found = likeness(mass, 4)
    assert found is not None and found.patterns["scan"] == (pytest.approx(2 / 3), 2)
    assert (found.earlier, found.later, found.scratchpad) == pytest.approx((2 / 3, 0, 1 / 3))


def test_a_uniform_layer_has_the_uniform_shares():
    found = likeness(torch.ones(3, 9, 9), 8)
    assert found is not None
    assert {name: share for name, (share, _) in found.patterns.items()} == pytest.approx(found.uniform)
    assert likeness(torch.eye(9)[None], 8) is None


def test_only_positional_transformers_have_a_graph(lively):
    with pytest.raises(UsageError, match="depends on the input"):
        graph_weights(lively(n=3, arch="standard", embed=8, width=8))
    with pytest.raises(UsageError, match="the network is a Linear"):
        graph_weights(torch.nn.Linear(2, 2))
