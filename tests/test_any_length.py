"""Networks for lists of every length: the looped one, and those that it is compared with."""

import re

import pytest
import torch

import posattn
from posattn import ModelConfig, Transformer, UsageError
from posattn.compiler.graph_report import looped_report, pretrained_report
from posattn.export import to_torch
from posattn.looped import looped_forward
from posattn.model import LoopedLayer
from posattn.training.program import Parameters, Program

CPU = torch.device("cpu")
KINDS = {
    "scan": {},
    "blank": {"stay": False},
    "sorter": {"family": "butterfly", "heads": 4},
    "selector": {"family": "selector"},
    "deeper": {"mlp": ((12, 10),)},
    "narrow values": {"d_v": 3},
}
OTHERS = [
    {"arch": arch, "any_length": True, "looped": looped, "causal": True}
    for arch in ("no-encoding", "rope-only", "alibi", "randomized")
    for looped in (False, True)
]


def network(sharpness=2.0, **settings):
    """Weights large enough for every path to matter."""
    torch.manual_seed(0)
    config = ModelConfig(**({"n": 8, "arch": "looped", "embed": 8, "width": 9, "sharpness": sharpness} | settings))
    model = Transformer(config).double().requires_grad_(False)
    model.layers[0].W_2.weight.mul_(3)
    return model


def other(**settings):
    torch.manual_seed(0)
    return Transformer(ModelConfig(n=8, embed=8, width=9, **settings)).double().requires_grad_(False)


def lists(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("settings", [{}, {"embed": 3}, {"mlp": ((9, 7),)}, {"embed": 3, "mlp": ((9, 7, 8),)}])
def test_a_new_sorter_hands_the_list_on_but_for_what_the_other_hidden_units_add(settings):
    torch.manual_seed(0)
    model = Transformer(ModelConfig(n=8, arch="looped", family="butterfly", **settings)).double().requires_grad_(False)
    x, layer, own = lists(5, 13), model.layers[0], 2 * model.config.embed
    assert not torch.allclose(model(x), x, rtol=1e-3)
    layer.W_2.weight[:, own:] = 0
    torch.testing.assert_close(model(x), x)


def test_a_layer_too_narrow_to_hand_the_list_on_is_left_as_it_is():
    torch.manual_seed(0)
    layer = Transformer(ModelConfig(n=8, arch="looped", family="butterfly", embed=3, width=5)).layers[0]
    before = [weight.clone() for weight in layer.parameters()]
    layer.carry()
    assert all(torch.equal(*pair) for pair in zip(before, layer.parameters(), strict=True))
    assert layer.W_1.weight[:, -3:].abs().min() > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 70, 131])
def test_the_folded_loop_of_an_ensemble_is_the_network(kind, n):
    config = network(**KINDS[kind]).config
    parameters = Parameters.initial(config, [0, 1, 2], CPU)
    parameters.flat = 2 * parameters.flat.double()
    x = lists(3, 5, n)
    expected = torch.stack([parameters.model(k).double()(own) for k, own in enumerate(x)])
    torch.testing.assert_close(looped_forward(parameters.named(), x, config), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(Program(config, CPU).predict(parameters.named(), x), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["scan", "sorter"])
def test_the_folded_loop_has_the_networks_gradients(kind):
    model = network(**KINDS[kind]).requires_grad_()
    x, y = lists(4, 6), lists(4, 6, seed=2)
    expected = torch.autograd.grad((model(x) - y).square().sum(), list(model.parameters()))
    named = {name: value.detach()[None].requires_grad_() for name, value in model.named_parameters()}
    out = looped_forward(named, x[None], model.config)
    found = torch.autograd.grad((out - y).square().sum(), list(named.values()))
    for name, one, two in zip(named, found, expected, strict=True):
        torch.testing.assert_close(one[0], two, rtol=1e-8, atol=1e-10, msg=name)
        assert two.abs().max() > 0, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 5, 40])
def test_answers_scale_with_the_numbers(kind, n):
    model, x = network(**KINDS[kind]), lists(3, n)
    for c in (1e-6, 7.0, 1e9):
        torch.testing.assert_close(model(c * x), c * model(x))


def test_a_scans_answer_for_a_beginning_does_not_depend_on_what_follows():
    """With stay the further loops of a longer list do nothing where the attention is sharp; without it they do."""
    x = lists(3, 21)
    for stay in (True, False):
        model = network(sharpness=1e4, stay=stay)
        # Heads on the partner and on the position itself, as a scan has them.
        model.layers[0].attention.logits.copy_(torch.eye(5)[[1, 0]][:, None])
        same = [torch.allclose(model(x[:, :k]), model(x)[:, :k], rtol=1e-10) for k in (1, 2, 3, 5, 8, 16)]
        assert all(same) if stay else not any(same[:5])


def test_what_stays_is_the_state_and_the_rest_is_the_layers():
    model, loop = network(), posattn.model.FAMILIES["dilated"].loops(9)[2]
    layer, z = model.layers[0], lists(9, 8)
    assert isinstance(layer, LoopedLayer)
    a, m = layer.attention.weights(9, loop)
    fresh = layer.update(layer.attention.mix(a, layer.attention.W_V(z), loop), z)
    torch.testing.assert_close(layer(z, loop), m[:, None] * fresh + (1 - m[:, None]) * z)
    assert m[-1] < 1 and m[0] < m[5] < m[8] + 1e-12


def test_long_lists_go_in_tiles_with_the_same_answers(monkeypatch):
    model, x = network(), lists(2, 300)
    whole = model.requires_grad_()(x).detach()
    monkeypatch.setattr("posattn.model._TILE", 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x), whole)


@pytest.mark.parametrize("settings", OTHERS, ids=lambda each: f"{each['arch']}{' looped' if each['looped'] else ''}")
def test_networks_to_compare_with_take_lists_of_every_length(settings):
    model = other(**settings)
    assert len(model.layers) == (1 if settings["looped"] else 4)
    for n in (1, 2, 8, 33):
        assert model(lists(3, n)).shape == (3, n)
    states = model.states(lists(33))
    assert len(states) == 1 + (6 if settings["looped"] else 4) and states[0].shape == (33, 8)
    a = model.attention(lists(5))
    torch.testing.assert_close(a.sum(dim=-1), torch.ones_like(a[..., 0]))
    assert (a.triu(1) == 0).all()  # causal


def test_alibi_is_a_penalty_on_distance():
    """With no queries the weights are those of the distances alone, and the slopes those of the paper for two heads."""
    model = other(arch="alibi", any_length=True)
    model.layers[0].attention.W_Q.weight.zero_(), model.layers[0].attention.W_Q.bias.zero_()
    distance = (torch.arange(6)[:, None] - torch.arange(6)).abs().double()
    for head, slope in enumerate((2**-4, 2**-8)):
        torch.testing.assert_close(model.attention(lists(6))[0, head], (-slope * distance).softmax(dim=-1))


def test_randomized_places_are_different_ordered_and_spread_over_the_range():
    places = posattn.encodings.random_places(lists(400, 12), 2048)
    assert (places.diff(dim=-1) > 0).all() and places.min() >= 0 and places.max() < 2048
    assert abs(places.float().mean() - 1024) < 50 and places.float().std() > 500
    assert len(places.unique(dim=0)) == 400
    assert posattn.encodings.random_places(lists(2, 2048), 2048).tolist() == [list(range(2048))] * 2


def test_attention_needs_no_input_and_has_the_sink_last():
    model = network()
    a = model.attention(length=6)
    assert a.shape == (3, 2, 7, 7)
    torch.testing.assert_close(a.sum(dim=-1), torch.ones(3, 2, 7).double())
    assert (a[..., -1, -1] == 1).all() and torch.equal(a, model.attention(lists(6)))


@pytest.mark.parametrize("n", [1, 6])
def test_an_exported_program_is_the_network_at_that_length(tmp_path, n):
    model = network(sharpness=3.0).float()
    to_torch(model, tmp_path / "n.pt2", n)
    x = lists(4, n).float()
    loaded = torch.export.load(tmp_path / "n.pt2").module()
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)


def test_bad_input_is_one_sentence(monkeypatch):
    model = network()
    with pytest.raises(UsageError, match=r"^the list is empty; this model takes lists of 1 number or more\.$"):
        model(torch.zeros(3, 0).double())
    monkeypatch.setattr("posattn.free_memory.free_bytes", lambda device: 1e6)
    with pytest.raises(UsageError, match=r"^the list has 1048576 numbers; with 0\.0 GB of memory free .* up to \d+\.$"):
        model(torch.zeros(1 << 20).double())
    with pytest.raises(UsageError, match=r"^the list has 2049 numbers; randomized encodings have 2048 places\.$"):
        other(arch="randomized")(torch.zeros(2049).double())


@pytest.mark.parametrize("task", ["maxsub", "sort", "median-total"])
def test_what_gradients_keep_is_counted(task, monkeypatch):
    """What autograd stores of a list is what the check assumes, within a factor of two."""
    model, n, stored = posattn.pretrained(task, arch="looped"), 3000, {}

    def store(value):
        stored[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(store, lambda value: value):
        answers = model(torch.randn(1, n))  # kept, so that no storage is used twice
    assumed = 4 * n * model.config.numbers_a_position(n, gradients=True)
    assert answers.requires_grad and assumed / 2 < sum(stored.values()) <= assumed
    free = 4 * n * model.config.numbers_a_position(n)  # enough without
    monkeypatch.setattr("posattn.free_memory.free_bytes", lambda device: free)
    monkeypatch.setattr("posattn.free_memory._SMALL", 0)
    with pytest.raises(
        UsageError, match=rf"^the list has {n} .* takes up to \d+, and more under torch\.no_grad\(\)\.$"
    ):
        model(torch.zeros(1, n))
    with torch.no_grad():
        assert model(torch.zeros(1, n)).shape == (1, n)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"arch": "looped", "family": "star"}, "family is 'star'; it must be one of dilated, butterfly, selector."),
        ({"arch": "looped", "sharpness": 0}, "sharpness is 0; it must be a finite number above 0."),
        ({"arch": "looped", "layers": 3}, "layers is 3; a looped network has 1, which is tied."),
        ({"arch": "looped", "bias": True}, "bias is True; the looped architecture has no biases."),
        ({"arch": "standard", "stay": True}, "stay is True; the standard architecture has none."),
        ({"any_length": True}, "any_length is True; the positional architecture has encodings for n positions only."),
        ({"arch": "looped", "stay": 2}, "stay is 2; it must be True or False."),
        ({"arch": "looped", "encoding": "binary"}, "encoding is 'binary'; the looped architecture takes none."),
        ({"arch": "looped", "causal": True}, "causal is True; the looped architecture takes none."),
        ({"arch": "looped", "d_k": 7}, "d_k is 7; the looped architecture takes none."),
        ({"arch": "looped", "d_v": 0}, "d_v is 0; it must be a whole number of at least 1."),
        ({"arch": "looped", "mlp": ((0,),)}, "mlp is 0; it must be a whole number of at least 1."),
        (
            {"arch": "looped", "mlp": 24},
            "mlp is 24; it must have a tuple of hidden widths for each layer, such as ((24, 24),).",
        ),
        (
            {"arch": "alibi", "tokens": "letters"},
            "tokens is 'letters'; for a network of lists of every length it must be 'none'.",
        ),
        ({"arch": "looped", "inputs": 2}, "inputs is 2; for a network of lists of every length it must be 1."),
        ({"arch": "alibi", "looped": 1}, "looped is 1; it must be True or False."),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, sentence):
    with pytest.raises(UsageError, match=f"^{re.escape(sentence)}$"):
        ModelConfig(n=8, **settings)


def test_what_is_not_for_looped_networks_says_so():
    model = network()
    for ask in (lambda: posattn.generalization_bound(model, samples=10), lambda: posattn.Frozen(model)):
        with pytest.raises(UsageError, match=r"^[^\n]*looped[^\n]*\.$"):
            ask()


def test_its_graph_is_drawn_at_any_length():
    model = network(sharpness=1e4)
    model.layers[0].attention.logits.copy_(torch.eye(5)[[1, 0]][:, None])
    report = looped_report(model, "scan", 0.5, 5)
    graph = report.graph
    back = {(r, i - 2**r, i) for r in range(3) for i in range(2**r, 5)}
    stays = {(r, i, i) for r in range(3) for i in range(5)}
    assert graph.arrows == back | stays and graph.rounds == 3 and len(graph.names) == 5
    assert list(report.patterns()) == ["loop", "earlier", "later", "scan", "tree", "butterfly"]
    own = pretrained_report("median-total", "looped", machines=6)
    assert own.graph.rounds == 6 + 1 + 2 and len(own.graph.names) == 6  # a sort, the mean, two strides
    outwards = {(r, j, i) for r, j, i in own.graph.arrows if r == own.graph.rounds - 1 and i != j}
    assert outwards == {(8, 2, 0), (8, 3, 5)}  # the last stride, 2, reaches the ends


def test_configurations_of_other_networks_are_described_as_before():
    assert set(ModelConfig(n=8).to_dict()) == {
        *("n", "arch", "layers", "heads", "embed", "width", "encoding", "encoding_dim", "d_k", "bias")
    }
    looped = ModelConfig(n=8, arch="looped", stay=False)
    assert ModelConfig(**looped.to_dict()) == looped


def test_a_list_of_one_number_has_no_loop():
    assert network().attention(length=1).shape == (0, 2, 2, 2)
