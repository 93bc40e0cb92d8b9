"""The looped network: its answers at every length, what stays, its graph, and what it refuses."""

import pytest
import torch

import posattn
from posattn import ModelConfig, Transformer, UsageError
from posattn.export import to_torch
from posattn.graphs.reports import looped_report, trained_report
from posattn.looped import LoopedConfig
from posattn.looped.families import FAMILIES

KINDS = {
    "scan": {},
    "blank": {"stay": False},
    "sorter": {"family": "butterfly", "heads": 4},
    "selector": {"family": "selector"},
    "deeper": {"mlp": ((12, 10),)},
    "narrow values": {"d_v": 3},
}


def network(sharpness=2.0, **settings):
    """Weights large enough for every path to matter."""
    torch.manual_seed(0)
    config = LoopedConfig(**{"n": 8, "embed": 8, "width": 9, "sharpness": sharpness} | settings)
    model = Transformer(config).double().requires_grad_(False)
    model.layer.W_2.weight.mul_(3)
    return model


def lists(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("settings", [{}, {"embed": 3}, {"mlp": ((9, 7),)}, {"embed": 3, "mlp": ((9, 7, 8),)}])
def test_a_new_sorter_hands_the_list_on_but_for_what_the_other_hidden_units_add(settings):
    torch.manual_seed(0)
    model = Transformer(LoopedConfig(8, family="butterfly", **settings)).double().requires_grad_(False)
    x, layer, own = lists(5, 13), model.layer, 2 * model.config.embed
    assert not torch.allclose(model(x), x, rtol=1e-3)
    layer.W_2.weight[:, own:] = 0
    torch.testing.assert_close(model(x), x)


def test_a_layer_too_narrow_to_hand_the_list_on_is_left_as_it_is():
    torch.manual_seed(0)
    layer = Transformer(LoopedConfig(8, family="butterfly", embed=3, width=5)).layer
    before = [weight.clone() for weight in layer.parameters()]
    layer.carry()
    assert all(torch.equal(*pair) for pair in zip(before, layer.parameters(), strict=True))
    assert layer.W_1.weight[:, -3:].abs().min() > 0


def test_the_first_state_has_positions_without_encodings():
    model, x = network(), lists(2, 5)
    state, p, positions = model.encode(x)
    assert torch.equal(state, model.states(x)[0]) and p.shape == (5, 0) and positions.tolist() == [0, 1, 2, 3, 4]


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
        model.layer.attention.logits.copy_(torch.eye(5)[[1, 0]][:, None])
        same = [torch.allclose(model(x[:, :k]), model(x)[:, :k], rtol=1e-10) for k in (1, 2, 3, 5, 8, 16)]
        assert all(same) if stay else not any(same[:5])


def test_what_stays_is_the_state_and_the_rest_is_the_layers():
    model, loop = network(), FAMILIES["dilated"].loops(9)[2]
    layer, z = model.layer, lists(9, 8)
    a, m = layer.attention.weights(9, loop)
    fresh = layer.update(layer.attention.mix(a, layer.attention.W_V(z), loop), z)
    torch.testing.assert_close(layer(z, loop), m[:, None] * fresh + (1 - m[:, None]) * z)
    assert m[-1] < 1 and m[0] < m[5] < m[8] + 1e-12


def test_long_lists_go_in_tiles_with_the_same_answers(monkeypatch):
    model, x = network(), lists(2, 300)
    whole = model.requires_grad_()(x).detach()
    monkeypatch.setattr("posattn.looped.looped_model._TILE", 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x), whole)


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
    monkeypatch.setattr("posattn.devices.free_bytes", lambda device: 1e6)
    with pytest.raises(
        UsageError,
        match=r"^the list has 1048576 numbers, which need .* are free on the CPU; this .* up to \d+\.$",
    ):
        model(torch.zeros(1 << 20).double())


@pytest.mark.parametrize("task", ["maxsub", "sort", "median-total"])
def test_what_gradients_keep_is_counted(task, monkeypatch):
    """What autograd stores of a list is what the check assumes, within a factor of two."""
    model, n, stored = posattn.pretrained(task, arch="looped"), 3000, {}

    def store(value):
        stored[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(store, lambda value: value):
        answers = model(torch.randn(1, n))  # kept, so that no storage is used twice
    assumed = 4 * n * model.config.numbers_per_position(n, gradients=True)
    assert answers.requires_grad and assumed / 2 < sum(stored.values()) <= assumed
    free = 4 * n * model.config.numbers_per_position(n, gradients=False)  # enough without
    monkeypatch.setattr("posattn.devices.free_bytes", lambda device: free)
    monkeypatch.setattr("posattn.devices._SMALL", 0)
    with pytest.raises(
        UsageError, match=rf"^the list has {n} .* takes up to \d+, and more under torch\.no_grad\(\)\.$"
    ):
        model(torch.zeros(1, n))
    with torch.no_grad():
        assert model(torch.zeros(1, n)).shape == (1, n)


FIELDS = "LoopedConfig has n, arch, family, heads, embed, width, d_v, mlp, sharpness, stay."


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"family": "star"}, "family is 'star'; it must be one of dilated, butterfly, selector."),
        ({"sharpness": 0}, "sharpness is 0; it must be a finite number above 0."),
        ({"stay": 2}, "stay is 2; it must be True or False."),
        ({"d_v": 0}, "d_v is 0; it must be a whole number of at least 1."),
        ({"mlp": ((0,),)}, "mlp is 0; it must be a whole number of at least 1."),
        ({"mlp": 24}, "mlp is 24; it must have a tuple of hidden widths for each layer, such as ((24, 24),)."),
        ({"layers": 3}, "layers is 3; for a looped network it must be 1."),
        ({"bias": True}, "bias is True; for a looped network it must be False."),
        ({"encoding": "binary"}, "encoding is 'binary'; for a looped network it must be 'one-hot'."),
        ({"d_k": 7}, "d_k is 7; for this looped network it must be 4."),
        ({"causal": True}, f"causal is True, a field of ModelConfig; {FIELDS}"),
        ({"inputs": 2}, f"inputs is 2, a field of CompiledConfig; {FIELDS}"),
        ({"colour": "red"}, f"colour is 'red', which is no field; {FIELDS}"),
    ],
)
def test_settings_that_do_not_fit_are_refused(unchecked, settings, sentence):
    with pytest.raises(UsageError) as error:
        ModelConfig(n=8, arch="looped", **settings)
    assert str(error.value) == sentence


def test_what_is_not_for_looped_networks_says_so():
    model = network()
    for ask in (lambda: posattn.generalization_bound(model, samples=10), lambda: posattn.Frozen(model)):
        with pytest.raises(UsageError, match=r"^[^\n]*looped[^\n]*\.$"):
            ask()


def test_its_graph_is_drawn_at_any_length():
    model = network(sharpness=1e4)
    model.layer.attention.logits.copy_(torch.eye(5)[[1, 0]][:, None])
    report = looped_report(model, "scan", 0.5, 5)
    graph = report.graph
    back = {(r, i - 2**r, i) for r in range(3) for i in range(2**r, 5)}
    stays = {(r, i, i) for r in range(3) for i in range(5)}
    assert graph.arrows == back | stays and graph.rounds == 3 and len(graph.names) == 5
    assert list(report.patterns()) == ["loop", "earlier", "later", "scan", "tree", "butterfly"]
    own = trained_report(posattn.pretrained("median-total", "looped"), "median-total", "", machines=6)
    assert own.graph.rounds == 6 + 1 + 2 and len(own.graph.names) == 6  # a sort, the mean, two strides
    outwards = {(r, j, i) for r, j, i in own.graph.arrows if r == own.graph.rounds - 1 and i != j}
    assert outwards == {(8, 2, 0), (8, 3, 5)}  # the last stride, 2, reaches the ends


def test_it_is_described_by_its_fields_and_by_what_all_looped_networks_share():
    looped = ModelConfig(n=8, arch="looped", stay=False)
    assert isinstance(looped, LoopedConfig) and LoopedConfig.from_dict(looped.to_dict()) == looped
    shared = {"any_length": True, "looped": True, "layers": 1, "bias": False, "encoding": "one-hot"}
    assert looped.to_dict().items() >= (shared | {"encoding_dim": 8, "d_k": 4, "stay": False}).items()


def test_a_list_of_one_number_has_no_loop():
    assert network().attention(length=1).shape == (0, 2, 2, 2)
