"""The Transformer against Eq. 1-3 written as loops, its symmetries, its size and its start, and configurations."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posattn import ARCHITECTURES, Frozen, GraphConfig, ModelConfig, TokenConfig, Transformer, UsageError, task
from posattn.encodings import ENCODINGS, Encoding
from posattn.model import Architecture

POSITIONAL = ["positional", "scale-exact", "misaligned"]
# Those with a scratchpad; networks for lists of every length are in test_any_length.py.
PAPER = [arch for arch in ARCHITECTURES if not ModelConfig(n=2, arch=arch).any_length]
INPUT_DEPENDENT = [arch for arch in PAPER if arch not in POSITIONAL]


# --- Eq. 1-3 as loops over positions, heads and coordinates --------------------------------------------------------------


def naive_linear(weights, name, vector):
    matrix = weights[f"{name}.weight"]
    bias = weights.get(f"{name}.bias", [0.0] * len(matrix))
    return [sum(w * v for w, v in zip(row, vector, strict=True)) + b for row, b in zip(matrix, bias, strict=True)]


def naive_rotate(vector, position):
    d, turned = len(vector), list(vector)
    for k in range(d // 2):
        angle = position / 10000 ** (2 * k / d)
        a, b = vector[k], vector[k + d // 2]
        turned[k] = a * math.cos(angle) - b * math.sin(angle)
        turned[k + d // 2] = a * math.sin(angle) + b * math.cos(angle)
    return turned


def naive_transformer(model, numbers):
    """The outputs for one list, and the attention weights [layer][head][i][j]."""
    config, k = model.config, len(numbers)
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    places = [*range(k), config.n]
    values = [*numbers, 0.0]
    P = [model.P[i].tolist() for i in places]

    if config.arch in ("standard", "misaligned", "standard-rope"):
        entries = [[value, *p] for value, p in zip(values, P, strict=True)]
    elif config.arch == "positional-input":
        entries = [[value if i == place else 0.0 for i in range(config.n + 1)]
                   for value, place in zip(values, places, strict=True)]  # fmt: skip
    else:
        entries = [[value] for value in values]
    X = [naive_linear(weights, "encoder", entry) for entry in entries]

    maps = []
    for l in range(config.layers):
        name, d_v = f"layers.{l}", config.embed // config.heads
        if config.arch in POSITIONAL:
            features = P  # Eq. 3
        elif config.arch == "input-regularized":
            features = [x + p for x, p in zip(X, P, strict=True)]
        else:
            features = X  # Eq. 2
        queries = [naive_linear(weights, f"{name}.attention.W_Q", f) for f in features]
        keys = [naive_linear(weights, f"{name}.attention.W_K", f) for f in features]
        content = [naive_linear(weights, f"{name}.attention.W_V", x) for x in X]
        heads, attended = [], [[] for _ in places]
        for h in range(config.heads):
            rows = []
            for i in range(k + 1):
                logits = []
                for j in range(k + 1):
                    q = queries[i][h * config.d_k : (h + 1) * config.d_k]
                    key = keys[j][h * config.d_k : (h + 1) * config.d_k]
                    if config.arch in ("rope-only", "standard-rope"):
                        q, key = naive_rotate(q, places[i]), naive_rotate(key, places[j])
                    logits.append(sum(a * b for a, b in zip(q, key, strict=True)) / math.sqrt(config.d_k))
                total = sum(math.exp(logit) for logit in logits)
                rows.append([math.exp(logit) / total for logit in logits])
                attended[i] += [sum(rows[i][j] * content[j][c] for j in range(k + 1))
                                for c in range(h * d_v, (h + 1) * d_v)]  # fmt: skip
            heads.append(rows)
        maps.append(heads)
        for i in range(k + 1):
            joined = naive_linear(weights, f"{name}.attention.W_O", attended[i]) + X[i]
            hidden = [max(0.0, z) for z in naive_linear(weights, f"{name}.W_1", joined)]
            X[i] = naive_linear(weights, f"{name}.W_2", hidden)
    return [naive_linear(weights, "decoder", x)[0] for x in X[:-1]], maps


@pytest.mark.parametrize("k", [5, 3, 1])
@pytest.mark.parametrize("arch", PAPER)
def test_equals_the_loops(lively, arch, k):
    model = lively(n=5, arch=arch, embed=6, width=7, d_k=3, layers=2)
    x = 2 * torch.randn(2, k, dtype=torch.float64)
    # The angles of the rotary embedding are computed in single precision.
    tolerance = 1e-6 if ARCHITECTURES[arch].rotary else 1e-10
    maps = model.attention(x)
    for index in range(2):
        outputs, weights = naive_transformer(model, x[index].tolist())
        ours = maps if arch in POSITIONAL else maps[:, index]
        torch.testing.assert_close(ours, torch.tensor(weights, dtype=torch.float64), rtol=0, atol=tolerance)
        expected = torch.tensor(outputs, dtype=torch.float64)
        torch.testing.assert_close(model(x)[index], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("arch", ["positional", "standard", "input-regularized"])
@pytest.mark.parametrize("encoding", ["binary", "sinusoidal"])
def test_equals_the_loops_with_other_encodings_and_heads(lively, arch, encoding):
    model = lively(n=5, arch=arch, encoding=encoding, embed=9, width=4, heads=3, layers=2)
    x = torch.randn(5, dtype=torch.float64)
    outputs, _ = naive_transformer(model, x.tolist())
    torch.testing.assert_close(model(x), torch.tensor(outputs, dtype=torch.float64), rtol=1e-10, atol=1e-10)


# --- attention -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", PAPER)
def test_attention_rows_sum_to_one(lively, arch):
    a = lively(n=7, arch=arch).attention(torch.randn(11, 7, dtype=torch.float64))
    assert a.shape == ((3, 2, 8, 8) if arch in POSITIONAL else (3, 11, 2, 8, 8))
    torch.testing.assert_close(a.sum(dim=-1), torch.ones_like(a[..., 0]), rtol=0, atol=1e-12)
    assert a.min() > 0
    assert a.max() < 1
    assert a.std() > 0.01, "the model attends unevenly, or this test shows little"


@pytest.mark.parametrize("arch", POSITIONAL)
def test_positional_attention_does_not_see_the_input(lively, arch):
    model = lively(n=7, arch=arch)
    a = model.attention()
    for x in (torch.zeros(7), torch.randn(7), 1e3 * torch.randn(5, 7), torch.randn(2, 3, 7)):
        assert torch.equal(model.attention(x.double()), a)


@pytest.mark.parametrize("arch", INPUT_DEPENDENT)
def test_input_dependent_attention_does(lively, arch):
    model = lively(n=7, arch=arch)
    first, second = model.attention(torch.randn(2, 7, dtype=torch.float64)).unbind(1)
    for layer in range(model.config.layers):
        assert (first[layer] - second[layer]).abs().max() > 1e-3
    with pytest.raises(UsageError, match=f"{arch} architecture depends on the input"):
        model.attention()


# --- symmetries ------------------------------------------------------------------------------------------------------------

SCALES = [1e-3, 0.1, 1 / 3, 2.0, 7.0, 1e3]


@pytest.mark.parametrize("c", SCALES)
def test_scale_exact_is_homogeneous(lively, c):
    x = torch.randn(31, 8, dtype=torch.float64)
    double, single = (lively(n=8, arch="scale-exact", dtype=dtype) for dtype in (torch.float64, torch.float32))
    y = double(x)
    assert y.abs().max() > 1e-2, "zero is homogeneous too"
    torch.testing.assert_close(double(c * x), c * y, rtol=1e-11, atol=1e-13 * c)
    single.load_state_dict(double.state_dict())
    difference = single(c * x.float()) - c * single(x.float())
    assert difference.norm() < 1e-5 * c * y.norm()


def test_scale_exact_at_powers_of_two_is_exact_to_the_bit(lively):
    model, x = lively(n=8, arch="scale-exact", dtype=torch.float32), torch.randn(31, 8)
    for exponent in range(-10, 11):
        assert torch.equal(model(2.0**exponent * x), 2.0**exponent * model(x))


@pytest.mark.parametrize(
    ("arch", "bias"), [("positional", True), ("misaligned", False), ("standard", False), ("no-encoding", False)]
)
def test_biases_or_encodings_in_the_input_or_self_attention_break_homogeneity(lively, arch, bias):
    model, x = lively(n=8, arch=arch, bias=bias), torch.randn(31, 8, dtype=torch.float64)
    y = model(x)
    assert (model(10 * x) - 10 * y).norm() > 1e-2 * 10 * y.norm()


@pytest.mark.parametrize("arch", PAPER)
def test_only_without_encodings_is_the_model_equivariant_to_permutations(lively, arch):
    model, x = lively(n=7, arch=arch), torch.randn(31, 7, dtype=torch.float64)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    difference = (model(x[:, order]) - model(x)[:, order]).norm() / model(x).norm()
    if arch == "no-encoding":
        assert difference < 1e-12
    else:
        assert difference > 1e-3


def test_rotary_is_all_that_tells_positions_apart_in_rope_only(lively):
    rope, x = lively(n=7, arch="rope-only"), torch.randn(31, 7, dtype=torch.float64)
    bare = Transformer(ModelConfig(n=7, arch="no-encoding")).double()
    bare.load_state_dict(rope.state_dict())
    assert (rope.attention(x) - bare.attention(x)).abs().max() > 1e-2
    equal = torch.full((7,), 0.5, dtype=torch.float64)
    assert bare(equal).std() < 1e-12, "equal numbers cannot be told apart"
    assert rope(equal).std() > 1e-6


# --- size and start --------------------------------------------------------------------------------------------------------


def count(config):
    return sum(parameter.numel() for parameter in Transformer(config).parameters())


def test_published_parameter_counts():
    assert count(ModelConfig(n=8)) == 84_577
    assert count(ModelConfig(n=8, arch="standard")) == 150_273


@pytest.mark.parametrize("n", [1, 2, 5, 16, 32])
def test_parameter_counts_by_hand(n):
    N, d = n + 1, 64
    values_and_mlp = 2 * (d * d + d) + (2 * d * d + d) + (d * d + d)
    layers = math.floor(math.log2(n)) + 1
    positional = layers * (2 * (N * 2 * N + 2 * N) + values_and_mlp) + (d + d) + (d + 1)
    standard = layers * (2 * (d * 2 * d + 2 * d) + values_and_mlp) + ((n + 2) * d + d) + (d + 1)
    assert count(ModelConfig(n=n)) == positional
    assert count(ModelConfig(n=n, arch="standard")) == standard
    biases = layers * (2 * 2 * N + 4 * d) + d + 1
    assert count(ModelConfig(n=n, arch="scale-exact")) == positional - biases


@pytest.mark.parametrize(("n", "layers"), [(1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (9, 4), (32, 6)])
def test_layers_by_default(n, layers):
    assert ModelConfig(n=n).layers == layers
    assert len(Transformer(ModelConfig(n=n)).layers) == layers


@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_initialisation(arch):
    model = Transformer(ModelConfig(n=16, arch=arch))
    d_features, d_k = (17, 17) if arch == "positional" else (64, 64)
    bounds = {  # of Xavier's uniform distribution, with Q and K of both heads stacked, and of PyTorch's for Linear
        "W_Q.weight": math.sqrt(6 / (d_features + 2 * 2 * d_k)),
        "W_K.weight": math.sqrt(6 / (d_features + 2 * 2 * d_k)),
        "W_V.weight": math.sqrt(6 / (64 + 64)),
        "W_O.weight": math.sqrt(6 / (64 + 64)),
        "W_1.weight": 1 / math.sqrt(128),
        "W_1.bias": 1 / math.sqrt(128),
        "W_2.weight": 1 / math.sqrt(64),
        "W_2.bias": 1 / math.sqrt(64),
        "encoder.weight": 1 / math.sqrt(1 if arch == "positional" else 18),
        "encoder.bias": 1 / math.sqrt(1 if arch == "positional" else 18),
        "decoder.weight": 1 / math.sqrt(64),
        "decoder.bias": 1 / math.sqrt(64),
    }
    for name, parameter in model.named_parameters():
        short = ".".join(name.split(".")[-2:])
        if short in ("W_Q.bias", "W_K.bias", "W_V.bias", "W_O.bias"):
            assert parameter.eq(0).all(), name
            continue
        bound = bounds.pop(short) if name.startswith(("encoder", "decoder")) else bounds[short]
        assert parameter.abs().max() <= bound, name
        if parameter.numel() > 256:
            assert parameter.abs().max() > 0.9 * bound, name
        if parameter.numel() > 32:
            spread = parameter.std().item() / (bound / math.sqrt(3))
            assert spread == pytest.approx(1, abs=3 / math.sqrt(parameter.numel())), name
    assert not any(name.startswith(("encoder", "decoder")) for name in bounds), "every parameter was met"


@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_a_deeper_network_of_letters_can_be_any_shallower_one(lively, arch):
    """Biases lift bounded states over the ReLU, and 60 of the 64 hidden units pass them on, the others and attention unread."""
    letters = {"n": 30, "arch": arch, "tokens": "letters", "causal": True, "embed": 60}
    shallow, deep = lively(layers=1, **letters), Transformer(TokenConfig(layers=3, **letters)).double()
    deep.load_state_dict(deep.state_dict() | shallow.state_dict())
    for layer in deep.layers[1:]:
        for map_, bias in ((layer.W_1, 1000.0), (layer.W_2, -1000.0)):
            torch.nn.init.zeros_(map_.weight)
            torch.nn.init.constant_(map_.bias, bias)
        with torch.no_grad():
            layer.W_1.weight[:60, -60:] = torch.eye(60)
            layer.W_2.weight[:, :60] = torch.eye(60)
    x, _ = task("khop").sample(20, n=30, seed=0)
    torch.testing.assert_close(deep(x), shallow(x))


def test_layers_and_members_start_apart():
    model, other = Transformer(ModelConfig(n=8)), Transformer(ModelConfig(n=8))
    first, second = model.layers[0].attention, model.layers[1].attention
    assert not torch.equal(first.W_Q.weight, first.W_K.weight)
    assert not torch.equal(first.W_Q.weight, second.W_Q.weight)
    assert not torch.equal(first.W_Q.weight, other.layers[0].attention.W_Q.weight)


# --- lengths and shapes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 7])
def test_a_shorter_list_attends_to_its_own_positions_and_the_scratchpads(lively, k):
    """Softmax over fewer logits is the full softmax at those positions, made to sum to one again."""
    model = lively(n=8, embed=6, width=5)
    full, here = model.attention(), torch.tensor([*range(k), 8])
    restricted = full[..., here[:, None], here]
    restricted = restricted / restricted.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(model.attention(length=k), restricted, rtol=1e-12, atol=0)
    torch.testing.assert_close(model.attention(torch.randn(k).double()), restricted, rtol=1e-12, atol=0)
    padded = torch.cat([full[..., :k, :k], full[..., :k, -1:]], dim=-1)
    assert (restricted[..., :k, :] - padded).abs().max() > 1e-3, "what was cut off had weight"


@pytest.mark.parametrize("arch", ["positional", "standard", "looped"])
def test_what_is_no_tensor_of_the_networks_numbers_is_refused_in_a_sentence(unchecked, arch):
    model = Transformer(ModelConfig(4, arch))
    for x, what in (
        ([1.0, 2.0], r"is a list; it must be a tensor, such as torch\.tensor\(\[3\.0, 1\.0\]\)"),
        (torch.tensor(3.0), r"is a single number; it must be a list of them, \(\.\.\., n\)"),
        (torch.tensor([3, 1]), r"is of torch\.int64; this network reads torch\.float32, which x\.to\(.*\) gives"),
        (torch.zeros(2).double(), r"is of torch\.float64; this network reads torch\.float32, which x\.to\(.*\) gives"),
    ):
        for ask in (model, model.attention, model.states, *([Frozen(model)] if arch == "positional" else [])):
            with pytest.raises(UsageError, match=rf"^the input {what}\.$"):
                ask(x)
    assert model.double()(torch.zeros(2).double()).dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):  # which casts by itself
        assert model.float()(torch.zeros(2).bfloat16()).shape == (2,)


def test_words_are_int64():
    model = Transformer(TokenConfig(5, tokens="letters", causal=True, layers=1))
    assert model(torch.zeros(5, dtype=torch.int64)).ndim == 2
    with pytest.raises(UsageError, match=r"^the input is of torch\.float32; this network reads torch\.int64, "):
        model(torch.zeros(5))


@pytest.mark.parametrize("arch", ["positional", "standard"])
@pytest.mark.parametrize("k", [0, 9])
def test_lists_of_another_length_are_refused(arch, k):
    model = Transformer(ModelConfig(n=8, arch=arch))
    for call in (model, model.attention):
        with pytest.raises(UsageError, match=f"the list has {k} numbers; this model takes 1 to 8"):
            call(torch.zeros(2, k))
    with pytest.raises(UsageError, match=f"the list has {k} numbers"):
        Transformer(ModelConfig(n=8)).attention(length=k)


@pytest.mark.parametrize("arch", ["positional", "standard", "positional-input"])
def test_the_scratchpad_enters_as_zero_and_leaves_without_a_trace(lively, arch):
    model, x = lively(n=7, arch=arch), torch.randn(5, 4, dtype=torch.float64)
    seen = {}
    for name in ("encoder", "decoder"):
        module = getattr(model, name)
        module.register_forward_hook(lambda _, given, out, name=name: seen.update({name: (given[0], out)}))
    y = model(x)
    entries = seen["encoder"][0]
    assert entries.shape[-2] == 5
    if arch == "positional-input":
        assert torch.equal(entries.sum(dim=-1)[:, :4], x)
        assert entries[:, 4].eq(0).all()
    else:
        assert torch.equal(entries[..., 0], torch.cat([x, torch.zeros(5, 1)], dim=-1))
    assert torch.equal(y, seen["decoder"][1][:, :4, 0])
    # The scratchpad does take part: what the others read from it reaches the outputs.
    assert model.attention(x)[..., :-1, -1].min() > 0


@pytest.mark.parametrize("arch", PAPER)
@pytest.mark.parametrize("batch", [(), (1,), (13,), (3, 11), (2, 1, 3), (0,)])
def test_any_leading_shape_of_prime_sizes(arch, batch):
    model = Transformer(ModelConfig(n=7, arch=arch, layers=2, heads=3, embed=33, width=19, d_k=17)).double()
    x = torch.randn(*batch, 5, dtype=torch.float64)
    y = model(x)
    assert y.shape == x.shape
    assert model.attention(x).shape == ((2, 3, 6, 6) if arch in POSITIONAL else (2, *batch, 3, 6, 6))
    alone = [model(row) for row in x.reshape(-1, 5)]
    if alone:
        torch.testing.assert_close(y.reshape(-1, 5), torch.stack(alone), rtol=1e-10, atol=1e-12)


def test_the_state_dict_holds_parameters_only_and_restores_the_model():
    first, second = Transformer(ModelConfig(n=7)), Transformer(ModelConfig(n=7))
    x = torch.randn(3, 7)
    assert not torch.equal(first(x), second(x))
    assert set(first.state_dict()) == {name for name, _ in first.named_parameters()}
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))


# --- configurations --------------------------------------------------------------------------------------------------------


def test_networks_are_described_and_named_as_ever():
    """A run's identity is a hash of this description, and its weights are stored by these names."""
    names = ["n", "arch", "layers", "heads", "embed", "width", "encoding", "encoding_dim", "d_k", "bias"]
    assert list(ModelConfig(8).to_dict()) == names and list(ModelConfig(8, causal=True).to_dict()) == [*names, "causal"]
    parts = {name.split(".", 2)[2] for name in Transformer(ModelConfig(4)).state_dict() if name.startswith("layers.")}
    assert parts == {f"{linear}.{kind}" for kind in ("weight", "bias") for linear in
                     ("attention.W_Q", "attention.W_K", "attention.W_V", "attention.W_O", "W_1", "W_2")}  # fmt: skip


@given(st.integers(1, 40))
def test_positional_without_biases_is_scale_exact(n):
    config = ModelConfig(n=n, arch="positional", bias=False)
    assert config == ModelConfig(n=n, arch="scale-exact")
    assert config.arch == "scale-exact"
    assert config != ModelConfig(n=n)


@pytest.mark.parametrize("field", ["n", "layers", "heads", "embed", "width", "d_k", "encoding_dim"])
@pytest.mark.parametrize("value", [0, -5, 2.5, "8", True, float("nan"), [8]])
def test_counts_that_are_no_whole_numbers_above_0_are_refused(field, value):
    with pytest.raises(UsageError) as caught:
        ModelConfig(**{"n": 8, "encoding": "binary", field: value})
    assert str(caught.value) == f"{field} is {value!r}; it must be a whole number of at least 1."


@pytest.mark.parametrize("field", ["arch", "encoding"])
@pytest.mark.parametrize("value", ["", "Standard", "transformer"])
def test_unknown_names_are_refused_with_those_known(field, value):
    with pytest.raises(UsageError, match=f"{field} is '{value}'") as caught:
        ModelConfig(**{"n": 8, field: value})
    for name in {"arch": ARCHITECTURES, "encoding": ENCODINGS}[field]:
        assert name in str(caught.value)


def test_fields_that_contradict_each_other_are_refused():
    with pytest.raises(UsageError, match="embed is 10; it must be a multiple of heads, which is 4"):
        ModelConfig(n=8, embed=10, heads=4)
    with pytest.raises(UsageError, match="bias is True; the scale-exact architecture has no biases"):
        ModelConfig(n=8, arch="scale-exact", bias=True)


def test_an_architecture_attends_to_what_there_is():
    with pytest.raises(UsageError, match=r"^attends is 'positions' \(did you mean position\?\); it must be one of position, "):
        Architecture("positions")


def test_the_matrix_of_an_encoding_of_ones_own_is_cast_or_refused_in_a_sentence(unchecked, monkeypatch):
    def with_matrix(matrix):
        monkeypatch.setitem(ENCODINGS, "own", Encoding(lambda n, positions: 2, matrix))
        return Transformer(ModelConfig(n=3, encoding="own"))

    for dtype in (torch.float64, torch.int64, torch.bool):
        assert with_matrix(lambda *size, dtype=dtype: torch.ones(size, dtype=dtype)).P.dtype == torch.float32
    for matrix, told in (
        (lambda *size: torch.ones(size).T, r"is a tensor of torch.float32, \(2, 4\); it must be .* \(4, 2\): positions and"),
        (lambda *size: torch.ones(size, dtype=torch.complex64), r"is a tensor of torch.complex64, \(4, 2\); it must be "),
        (lambda *size: [[1.0, 2.0]] * 4, "is a list; it must be a tensor of real numbers"),
        (lambda *size: torch.ones(size) / 0, "has a number that is not finite in torch.float32; all must be."),
        (lambda *size: torch.full(size, 1e300, dtype=torch.float64), "has a number that is not finite in "),
    ):
        with pytest.raises(UsageError, match=f"^the matrix of the encoding 'own' {told}"):
            with_matrix(matrix)


def test_a_network_of_ones_own_may_take_more_than_a_configuration():
    class Scaled(Transformer):
        def __init__(self, config, factor):
            super().__init__(config)
            self.factor = factor

    assert Scaled(ModelConfig(3, layers=1), 2.0).factor == 2.0
    with pytest.raises(UsageError, match=r"^config is a GraphConfig, whose network is no Transformer: "):
        Transformer(GraphConfig(3))


def test_shapes_are_found_without_numbers():
    assert Transformer(ModelConfig(4)).to("meta")(torch.ones(3, 4, device="meta")).shape == (3, 4)
