"""Graph networks against PyTorch Geometric's, their symmetries and size, bad configurations, and their training."""

import json

import pytest
import torch
from torch_geometric.nn import GATConv, GCNConv

import posattn
from posattn import GraphConfig, UsageError
from posattn.baselines.gnn import GRAPHS, GraphAttention, GraphConvolution, GraphNetwork
from posattn.training import Member, RunSpec, train_spec
from posattn.training.parameters import Parameters
from posattn.training.recipe import recipe
from posattn.training.ways import way_for

CPU = torch.device("cpu")
NETWORKS = [(arch, graph) for arch in ("gcn", "gat") for graph in ("complete", "star")]
TRAINED = [("gcn", "complete"), ("gat", "star")]  # each convolution and each graph once
TINY = recipe("paper", samples=60, epochs=3, batch=20, lr=1e-2)


def edges(graph, nodes):
    """The pairs (source, target) as Geometric wants them, without self loops, which it adds; the last node is the hub."""
    pairs = [(j, i) for i in range(nodes) for j in range(nodes) if i != j]
    if graph == "star":
        pairs = [pair for pair in pairs if nodes - 1 in pair]
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T


def lively(module):
    """The module in float64 as if trained: attention far from uniform, no bias at zero."""
    module = module.double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.uniform_(-0.5, 0.5)
            else:
                parameter *= 3
    return module


def geometrics(name):
    return name.replace("weight", "lin.weight")


def theirs(ours):
    """Geometric's convolution with the same parameters."""
    d_out, d_in = ours.weight.shape
    if isinstance(ours, GraphConvolution):
        other = GCNConv(d_in, d_out).double()
    else:
        other = GATConv(d_in, d_out // ours.heads, heads=ours.heads).double()
    other.load_state_dict({geometrics(name): value for name, value in ours.state_dict().items()})
    return other


def convolutions(d_in, d_out):
    return [GraphConvolution(d_in, d_out), GraphAttention(d_in, d_out, 1), GraphAttention(d_in, d_out, 2)]


def assert_same(out, other, parameters, others):
    """Two outputs and the gradients of a random function of them, which are given back."""
    torch.testing.assert_close(out, other, rtol=1e-10, atol=1e-12)
    direction = torch.randn_like(out)
    found = torch.autograd.grad((out * direction).sum(), parameters)
    expected = torch.autograd.grad((other * direction).sum(), others)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)
    return expected


# --- Convolutions and networks against Geometric's ------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2, 7])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("kind", range(3), ids=["gcn", "gat of one head", "gat of two heads"])
def test_a_convolution_is_geometrics(kind, graph, nodes):
    ours = lively(convolutions(5, 6)[kind])
    other = theirs(ours)
    x = torch.randn(nodes, 5, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in ours.named_parameters()]
    gradients = assert_same(
        ours(x, GRAPHS[graph](nodes)),
        other(x, edges(graph, nodes)),
        [x, *(ours.get_parameter(name) for name in names)],
        [x, *(other.get_parameter(geometrics(name)) for name in names)],
    )
    if nodes == 7:  # the fewer the nodes, the less there is to attend to
        assert min(gradient.abs().max() for gradient in gradients) > 1e-3


@pytest.mark.parametrize("length", [7, 3, 1])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(("arch", "heads"), [("gcn", 1), ("gat", 1), ("gat", 2)])
def test_a_network_of_two_layers_is_geometrics(arch, graph, heads, length):
    ours = lively(GraphNetwork(GraphConfig(7, arch, graph, layers=2, width=10, heads=heads)))
    layers = [theirs(layer) for layer in ours.layers]
    x = torch.randn(11, length, dtype=torch.float64, requires_grad=True)

    def one_list(numbers):
        value = torch.cat([numbers, numbers.new_zeros(1)])
        position = torch.eye(8, dtype=torch.float64)[[*range(length), 7]]
        z = ours.encoder(torch.cat([value[:, None], position], dim=1))
        for layer in layers:
            z = layer(z, edges(graph, length + 1)).relu()
        return ours.decoder(z)[:-1, 0]

    parameters = dict(ours.named_parameters())
    others = parameters | {
        f"layers.{index}.{name}": layer.get_parameter(geometrics(name))
        for index, layer in enumerate(layers)
        for name, _ in ours.layers[index].named_parameters()
    }
    assert list(others) == list(parameters)
    other = torch.stack([one_list(numbers) for numbers in x])
    gradients = assert_same(ours(x), other, [x, *parameters.values()], [x, *others.values()])
    # Attention smooths the states of nodes until the next layer has nothing to choose from: its vectors may have no gradient.
    strength = dict(zip(["x", *parameters], (gradient.abs().max() for gradient in gradients), strict=True))
    assert min(value for name, value in strength.items() if "att_" not in name) > 1e-3


@pytest.mark.parametrize("kind", range(3), ids=["gcn", "gat of one head", "gat of two heads"])
def test_the_start_is_geometrics(kind):
    """Equal spread of every parameter, over many draws."""
    many = [convolutions(11, 6)[kind] for _ in range(300)]
    other = [theirs(module.double()) for module in many]
    for module in other:
        module.reset_parameters()
    for name, parameter in many[0].named_parameters():
        own = torch.stack([module.get_parameter(name) for module in many])
        his = torch.stack([module.get_parameter(geometrics(name)) for module in other])
        assert own.abs().max().item() == pytest.approx(his.abs().max().item(), rel=0.02), name
        assert own.std().item() == pytest.approx(his.std().item(), rel=0.05), name
        assert parameter.any() == (name != "bias")


# --- Properties -----------------------------------------------------------------------------------------------------------


def test_graphs():
    assert GRAPHS["complete"](3).tolist() == [[True] * 3] * 3
    assert GRAPHS["star"](4).int().tolist() == [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1]]


@pytest.mark.parametrize("graph", GRAPHS)
def test_attention_is_a_distribution_over_the_neighbours(graph):
    layer, neighbours = lively(GraphAttention(5, 6, 2)), GRAPHS[graph](7)
    a = layer.weights(torch.randn(11, 2, 7, 3, dtype=torch.float64), neighbours)
    assert a.shape == (11, 2, 7, 7)
    torch.testing.assert_close(a.sum(dim=-1), torch.ones(11, 2, 7, dtype=torch.float64))
    assert torch.equal(a > 0, neighbours.expand_as(a))


def test_gcn_on_the_complete_graph_knows_the_mean_alone():
    """One layer gives every node the same state, so all outputs are one function of the list's mean."""
    layer, x = lively(GraphConvolution(5, 6)), torch.randn(11, 7, 5, dtype=torch.float64)
    state = layer(x, GRAPHS["complete"](7))
    torch.testing.assert_close(state, state[:, :1].expand_as(state))

    model = lively(GraphConfig(7).build())
    x = torch.randn(11, 7, dtype=torch.float64)
    y = model(x)
    torch.testing.assert_close(y, y[:, :1].expand_as(y))
    torch.testing.assert_close(y, model(x.mean(dim=1, keepdim=True).expand_as(x)))
    assert y.std(dim=0).min() > 1e-3


@pytest.mark.parametrize(("arch", "graph"), NETWORKS)
def test_convolutions_do_not_see_the_order_of_nodes(arch, graph):
    """The hub's place aside: permuted nodes give permuted states."""
    layer = lively(GraphConvolution(5, 6) if arch == "gcn" else GraphAttention(5, 6, 2))
    x, order = torch.randn(11, 7, 5, dtype=torch.float64), torch.tensor([3, 0, 5, 1, 4, 2, 6])
    neighbours = GRAPHS[graph](7)
    torch.testing.assert_close(layer(x[:, order], neighbours), layer(x, neighbours)[:, order])


@pytest.mark.parametrize(("arch", "graph"), NETWORKS)
def test_networks_without_positions_do_not_see_the_order_of_numbers(arch, graph):
    x, order = torch.randn(11, 7, dtype=torch.float64), torch.tensor([3, 0, 5, 1, 6, 4, 2])
    blind = lively(GraphConfig(7, arch, graph, encoded_input=False).build())
    torch.testing.assert_close(blind(x[:, order]), blind(x)[:, order])
    sighted = lively(GraphConfig(7, arch, graph).build())
    if (arch, graph) != ("gcn", "complete"):
        assert not torch.allclose(sighted(x[:, order]), sighted(x)[:, order], rtol=1e-3)


def test_leaves_of_a_star_reach_each_other_in_two_layers():
    x = torch.randn(7, dtype=torch.float64)
    for layers, reach in ((1, torch.eye(7).bool()), (2, torch.ones(7, 7).bool())):
        model = lively(GraphNetwork(GraphConfig(7, "gat", "star", layers=layers)))
        jacobian = torch.autograd.functional.jacobian(model, x)
        assert torch.equal(jacobian != 0, reach)


@pytest.mark.parametrize(("arch", "graph"), NETWORKS)
def test_any_leading_shape_and_any_length(arch, graph):
    model = GraphConfig(7, arch, graph).build()
    x = torch.randn(3, 5, 7)
    assert model(x).shape == (3, 5, 7)
    torch.testing.assert_close(model(x)[2, 4], model(x[2, 4]))
    for length in (1, 4):
        assert model(x[..., :length]).shape == (3, 5, length)
    for length in (0, 8):
        with pytest.raises(UsageError, match=f"the list has {length} numbers; this model takes 1 to 7"):
            model(torch.randn(3, length))


def test_number_of_parameters():
    # Encoder, four layers, decoder, by hand.
    ends = 64 * 10 + 64 + 64 + 1
    for arch, layer in (("gcn", 64 * 64 + 64), ("gat", 64 * 64 + 64 + 2 * 64)):
        model = GraphConfig(8, arch).build()
        assert sum(p.numel() for p in model.parameters()) == ends + 4 * layer
    assert GraphConfig(8, encoded_input=False).build().encoder.weight.shape == (64, 1)


# --- Configurations -------------------------------------------------------------------------------------------------------


def test_defaults():
    assert GraphConfig(8) == GraphConfig(8, "gcn", "complete", layers=4, width=64, heads=1, encoded_input=True)
    assert GraphConfig(8, "gat").heads == 2
    assert [GraphConfig(n).layers for n in (1, 2, 7, 9)] == [1, 2, 3, 4]
    fields = GraphConfig(8, "gat", "star").to_dict()
    assert fields.pop("kind") == "graph" and GraphConfig(**fields) == GraphConfig(8, "gat", "star")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"n": 0}, "n is 0; it must be a whole number of at least 1."),
        ({"arch": "gin"}, "arch is 'gin'; it must be one of gcn, gat."),
        ({"graph": "ring"}, "graph is 'ring'; it must be one of complete, star."),
        ({"layers": 0}, "layers is 0; it must be a whole number of at least 1."),
        ({"width": 6.0}, "width is 6.0; it must be a whole number of at least 1."),
        ({"arch": "gat", "heads": True}, "heads is True; it must be a whole number of at least 1."),
        ({"heads": 2}, "heads is 2; it must be 1 for gcn, which has no attention."),
        ({"arch": "gat", "heads": 3}, "width is 64; it must be a multiple of heads, which is 3."),
        ({"encoded_input": 1}, "encoded_input is 1; it must be True or False."),
    ],
)
def test_bad_configurations(fields, sentence):
    with pytest.raises(UsageError) as error:
        GraphConfig(**{"n": 8} | fields)
    assert str(error.value) == sentence


# --- Training -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable_length", [False, True], ids=["one length", "all lengths"])
@pytest.mark.parametrize(("arch", "graph"), TRAINED)
def test_members_do_not_notice_each_other(arch, graph, variable_length):
    config = GraphConfig(5, arch, graph, width=8)
    team = (Member("sum", 3, 1e-2), Member("sort", 4, 1e-3), Member("min", 5, 1e-2))
    together = train_spec(RunSpec(config, TINY, team, variable_length), CPU)
    for index, member in enumerate(team):
        alone = train_spec(RunSpec(config, TINY, (member,), variable_length), CPU)
        assert torch.equal(alone.parameters.flat[0], together.parameters.flat[index])
        assert alone.status == ["ok"]
    moved = together.parameters.flat - Parameters.initial(config, [3, 4, 5], CPU).flat
    assert moved.abs().amax(dim=1).min() > 1e-3


@pytest.mark.parametrize(("arch", "graph"), TRAINED)
def test_one_batched_unit_computes_what_single_members_do(arch, graph):
    """All members through vmap, as on a GPU, against each module by itself."""
    config = GraphConfig(5, arch, graph, width=8)
    parameters, program = Parameters.initial(config, [0, 1, 2], CPU), way_for(config, CPU)
    x, y = torch.randn(3, 11, 5), torch.randn(3, 11, 5)
    tensors = program.prepare(parameters, slice(0, 3), 5).tensors
    losses, found = program.gradient(tensors, x, y, 11)
    for member in range(3):
        model = parameters.model(member)
        loss = (model(x[member]) - y[member]).square().mean()
        torch.testing.assert_close(losses[member], loss.detach())
        expected = torch.autograd.grad(loss, list(model.parameters()))
        for one, two in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(one[member], two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("arch", "graph"), TRAINED)
def test_training_lowers_the_loss(arch, graph):
    run = posattn.train("sum", GraphConfig(3, arch, graph, width=16), samples=300, epochs=30, batch=50, lr=5e-3)
    loss = run.history["loss"]
    assert loss.iloc[-1] < 0.7 * loss.iloc[0]


@pytest.mark.parametrize(("arch", "graph"), TRAINED)
def test_a_run_is_saved_and_read_back(tmp_path, arch, graph):
    config = GraphConfig(5, arch, graph, width=8)
    spec = RunSpec(config, TINY, (Member("sum", 3, 1e-2), Member("sort", 4, 1e-2)))
    run = train_spec(spec, CPU, tmp_path / "run")
    described = json.loads((tmp_path / "run" / "run.json").read_text())["model"]
    assert described["kind"] == "graph" and described["graph"] == graph

    again = posattn.load(tmp_path / "run")
    assert again.spec == spec and isinstance(again.model(0), GraphNetwork)
    assert torch.equal(again.parameters.flat, run.parameters.flat)
    x = torch.randn(4, 5)
    assert torch.equal(again.predict(x), run.predict(x))
    rows = again.rows(again.evaluate([1, 3], samples=10))
    assert set(rows["arch"]) == {arch} and set(rows["layers"]) == {3} and set(rows["encoding"]) == {"one-hot"}
    assert train_spec(spec, CPU, tmp_path / "run").result == again.result  # done: read, not trained again


def test_graphs_have_runs_of_their_own(tmp_path):
    team = (Member("sum", 3, 1e-2),)
    complete, star = (RunSpec(GraphConfig(5, graph=graph, width=8), TINY, team) for graph in GRAPHS)
    assert complete.identity(0) != star.identity(0)
    train_spec(complete, CPU, tmp_path / "run")
    with pytest.raises(UsageError, match=r"its model.graph is complete, not star"):
        train_spec(star, CPU, tmp_path / "run")


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(UsageError, match="d_out is 8; it must be a multiple of heads, which is 3"):
        GraphAttention(5, 8, 3)
