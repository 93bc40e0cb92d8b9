"""PositionalAttention as a layer in a stranger's network, frozen, and decoding."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from posattn import LoopedAttention, PositionalAttention, UsageError
from posattn.encodings import ENCODINGS


def lively_layer(*args, dtype=torch.float64, **options):
    """A layer that attends unevenly and whose biases are not zero."""
    layer = PositionalAttention(*args, **options).to(dtype)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("bias"):
                parameter.uniform_(-0.5, 0.5)
            elif "W_Q" in name or "W_K" in name:
                parameter *= 4
    return layer


def padding(*lengths, n):
    """True from each sequence's length on."""
    return torch.arange(n) >= torch.tensor(lengths)[:, None]


# --- the layer's weights ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_layer_is_eq_3(encoding, causal):
    layer = lively_layer(7, 6, 3, encoding=encoding, causal=causal)
    P = ENCODINGS[encoding].matrix(7, ENCODINGS[encoding].dim(7, 7)).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    mask = torch.ones(5, 5, dtype=torch.bool).tril() if causal else None
    A = layer.attention.weights(P[:5], mask=mask)
    torch.testing.assert_close(layer.weights(5), A, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(layer(x), layer.attention.mix(A, x), rtol=1e-12, atol=1e-14)


@given(
    st.integers(1, 11), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.sampled_from(list(ENCODINGS)), st.data()
)
def test_rows_sum_to_one_at_every_length(positions, heads, d_v, causal, encoding, data):
    layer = lively_layer(positions, heads * d_v, heads, causal=causal, encoding=encoding)
    n = data.draw(st.integers(1, positions))
    a = layer.weights(n)
    assert a.shape == (heads, n, n)
    torch.testing.assert_close(a.sum(dim=-1), torch.ones_like(a[..., 0]), rtol=0, atol=1e-12)
    seen = torch.ones(n, n, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    assert a[:, seen].min() > 0
    assert a[:, ~seen].eq(0).all()
    y = layer(torch.randn(2, n, heads * d_v, dtype=torch.float64))
    assert y.isfinite().all()


def test_weights_of_all_positions_by_default():
    layer = lively_layer(7, 6, 3)
    assert torch.equal(layer.weights(), layer.weights(7))
    assert layer.weights().std() > 0.05, "the attention is uneven, or the tests here show little"


@pytest.mark.parametrize("causal", [False, True])
def test_shorter_sequences_use_the_first_positions(causal):
    layer = lively_layer(7, 6, 3, causal=causal)
    full = layer.weights()[:, :4, :4]
    torch.testing.assert_close(layer.weights(4), full / full.sum(dim=-1, keepdim=True), rtol=1e-12, atol=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [(), (1,), (13,), (3, 11), (2, 1, 3)])
def test_any_leading_shape(batch, causal):
    layer = lively_layer(7, 15, 3, causal=causal, d_k=2)
    x = torch.randn(*batch, 5, 15, dtype=torch.float64)
    y = layer(x)
    assert y.shape == x.shape
    alone = torch.stack([layer(sequence) for sequence in x.reshape(-1, 5, 15)])
    torch.testing.assert_close(y.reshape(-1, 5, 15), alone, rtol=1e-12, atol=1e-14)
    mask = torch.rand(*batch, 5) < 0.5
    y = layer(x, mask)
    flat = zip(x.reshape(-1, 5, 15), mask.reshape(-1, 5), strict=True)
    alone = torch.stack([layer(sequence, padded) for sequence, padded in flat])
    torch.testing.assert_close(y.reshape(-1, 5, 15), alone, rtol=1e-12, atol=1e-14)


# --- masks -----------------------------------------------------------------------------------------------------------------


def test_causal_does_not_see_the_future():
    layer = lively_layer(7, 6, 3, causal=True)
    x = torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    for j in range(7):
        changed = x.detach().clone()
        changed[j] += 100
        difference = (layer(changed) - y).abs().amax(dim=-1)
        assert difference[:j].eq(0).all()
        assert difference[j:].min() > 1e-3
    for i in range(7):
        (gradient,) = torch.autograd.grad(y[i].sum(), x, retain_graph=True)
        assert gradient[i + 1 :].eq(0).all()
        assert gradient[: i + 1].abs().amax(dim=-1).min() > 0


@pytest.mark.parametrize("causal", [False, True])
def test_padding_has_no_influence(causal):
    layer, mask = lively_layer(7, 6, 3, causal=causal), padding(7, 4, 1, n=7)
    x = torch.randn(3, 7, 6, dtype=torch.float64, requires_grad=True)
    y = layer(x, mask)
    noisy = layer(torch.where(mask[..., None], 1e6 * torch.randn_like(x), x), mask)
    assert torch.equal(noisy[~mask], y[~mask])
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    assert gradient[mask].eq(0).all()
    assert gradient[~mask].abs().amax(dim=-1).min() > 0
    unmasked = layer(x)
    if not causal:
        assert (unmasked - y)[1].abs().max() > 1e-3, "without the mask the padding would count"


@pytest.mark.parametrize("causal", [False, True])
def test_padding_at_the_end_is_a_shorter_sequence(causal):
    layer = lively_layer(7, 6, 3, causal=causal)
    x = torch.randn(3, 7, 6, dtype=torch.float64)
    y = layer(x, padding(7, 4, 1, n=7))
    for sequence, length in enumerate((7, 4, 1)):
        torch.testing.assert_close(y[sequence, :length], layer(x[sequence, :length]), rtol=1e-12, atol=1e-14)


def test_weights_renormalise_over_what_is_not_padding():
    layer, mask = lively_layer(5, 6, 3), torch.tensor([[0, 1, 0, 1, 0], [1, 1, 1, 0, 1]]).bool()
    a, full = layer.weights(5, mask), layer.weights(5)
    assert a.shape == (2, 3, 5, 5)
    for sequence in range(2):
        kept = full * ~mask[sequence]
        torch.testing.assert_close(a[sequence], kept / kept.sum(dim=-1, keepdim=True), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_a_sequence_of_nothing_but_padding_attends_to_nothing(causal, dtype):
    layer, mask = lively_layer(5, 6, 3, causal=causal, dtype=dtype), padding(0, 3, n=5)
    x = torch.randn(2, 5, 6, dtype=dtype, requires_grad=True)
    y = layer(x, mask)
    assert torch.equal(y[0], layer.attention.W_O.bias.expand(5, 6))
    y.sum().backward()
    for gradient in (x.grad, *(parameter.grad for parameter in layer.parameters())):
        assert gradient.isfinite().all()
    assert x.grad[0].eq(0).all()
    assert x.grad[1].abs().max() > 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lead", [10.0, 20.0, 40.0])
def test_float16_attends_to_what_is_left_when_padding_leads_the_logits(lead, causal):
    """The first position leads every row, and is padding; in a frozen layer the last one leads, and is cut off."""
    layer = PositionalAttention(6, 8, 2, causal=causal, d_k=2)
    with torch.no_grad():
        layer.attention.W_Q.weight.fill_(1)
        layer.attention.W_K.weight.copy_(torch.randn(4, 6).round(decimals=1))
        layer.attention.W_K.weight[:, 0] = layer.attention.W_K.weight[:, -1] = lead / math.sqrt(2)
    x, mask = torch.randn(3, 6, 8).half(), torch.tensor([True, False, False, False, False, True])
    exact, half = copy.deepcopy(layer.double()), layer.half()
    expected = exact(x.double(), mask)
    frozen = half.freeze()
    for one in (half, frozen, exact.freeze().half()):
        torch.testing.assert_close(one(x, mask).double(), expected, rtol=0.01, atol=0.01)
        assert one.weights(6, mask).dtype == one(x).dtype == torch.float16
        shorter = exact(x[:, :5].double(), mask[:5])
        torch.testing.assert_close(one(x[:, :5], mask[:5]).double(), shorter, rtol=0.01, atol=0.01)
    torch.testing.assert_close(frozen(x[:, :5]).double(), exact(x[:, :5].double()), rtol=0.01, atol=0.01)
    torch.testing.assert_close(frozen(x), half(x), rtol=0.01, atol=0.01)


def test_causal_rows_before_the_first_real_token_attend_to_nothing():
    layer = lively_layer(5, 6, 3, causal=True)
    a = layer.weights(5, torch.tensor([True, True, False, False, False]))
    assert a[:, :2].eq(0).all()
    torch.testing.assert_close(a[:, 2:].sum(dim=-1), torch.ones(3, 3, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_empty_batch_may_have_a_padding_mask(dtype):
    layer = lively_layer(5, 6, 3, dtype=dtype)
    x, mask = torch.zeros(0, 5, 6, dtype=dtype), torch.zeros(0, 5, dtype=torch.bool)
    for one in (layer, layer.freeze(), LoopedAttention(6, 3).to(dtype)):
        assert one(x, mask).shape == (0, 5, 6) == one(x, torch.zeros(5, dtype=torch.bool)).shape


# --- dropout ---------------------------------------------------------------------------------------------------------------


def test_dropout_only_while_training_and_in_expectation_nothing():
    layer = lively_layer(5, 6, 3, dropout=0.4, bias=False)
    twin = PositionalAttention(5, 6, 3, bias=False).double()
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(5, 6, dtype=torch.float64).expand(20_000, 5, 6)
    dropped = layer(x)
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    assert torch.equal(layer(x), twin(x))
    standard_error = dropped.std(dim=0) / math.sqrt(len(x))
    assert ((dropped.mean(dim=0) - layer(x[0])).abs() < 5 * standard_error).all()
    assert dropped.std(dim=0).min() > 1e-3


def test_dropout_differs_among_sequences_and_drops_single_weights():
    """With x = 1 and W_V = W_O = I an output is a row's sum of kept weights over 1 - p."""
    layer = PositionalAttention(5, 3, 3, dropout=0.5, bias=False, d_k=1)
    with torch.no_grad():
        for linear in (layer.attention.W_V, layer.attention.W_O):
            linear.weight.copy_(torch.eye(3))
        layer.attention.W_Q.weight.zero_()  # uniform attention
    y = layer(torch.ones(2, 50, 5, 3))
    kept = y * 5 / 2
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-5)
    assert len(kept.round().reshape(100, -1).unique(dim=0)) == 100
    assert kept.mean().item() == pytest.approx(2.5, abs=5 * math.sqrt(5 / 4 / kept.numel()))


def test_dropout_with_padding():
    layer, mask = lively_layer(5, 6, 3, dropout=0.5), padding(5, 2, 0, n=5)
    x = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x, mask).sum(), x)
    assert gradient[mask].eq(0).all()
    assert layer.training


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_nan_in_padding_stays_there(dropout, dtype):
    layer, mask = lively_layer(7, 6, 3, dropout=dropout, dtype=dtype), padding(7, 4, n=7)
    x = torch.randn(2, 7, 6, dtype=dtype).masked_fill(mask[..., None], torch.nan)
    assert layer(x, mask).isfinite().all()
    assert layer.freeze()(x, mask).isfinite().all()


# --- precision, compilation, copies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bfloat16_and_autocast_are_close_to_single_precision(encoding, padded):
    layer = lively_layer(13, 24, 3, causal=True, encoding=encoding, dtype=torch.float32)
    x = torch.randn(5, 11, 24)
    mask = padding(11, 7, 3, 1, 5, n=11) if padded else None
    y = layer(x, mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = layer(x, mask)
    cast.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    half = copy.deepcopy(layer).bfloat16()(x.bfloat16(), mask)
    assert cast.dtype == half.dtype == torch.bfloat16
    for low in (cast, half):
        assert 0 < (low.float() - y).norm() < 0.03 * y.norm()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("padded", [False, True])
def test_compiles_whole(unchecked, encoding, padded):
    layer = lively_layer(11, 6, 3, causal=True, encoding=encoding)
    x = torch.randn(3, 7, 6, dtype=torch.float64)
    arguments = (x, padding(7, 4, 0, n=7)) if padded else (x,)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    gradients = []
    for network in (layer, compiled):
        y = network(*arguments)
        gradients.append([y.detach(), *torch.autograd.grad(y.square().sum(), list(layer.parameters()))])
    for eager, graph in zip(*gradients, strict=True):
        torch.testing.assert_close(graph, eager, rtol=1e-10, atol=1e-12)


def test_compiles_whole_with_dropout(unchecked):
    layer = lively_layer(7, 6, 3, dropout=0.3)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 7, 6, dtype=torch.float64)
    assert not torch.equal(compiled(x), compiled(x))
    layer.eval()
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_state_dict_round_trip_also_to_another_causal_flag(encoding, tmp_path):
    first = lively_layer(7, 6, 3, encoding=encoding)
    torch.save(first.state_dict(), tmp_path / "layer.pt")
    saved = torch.load(tmp_path / "layer.pt", weights_only=True)
    encodings = set() if encoding == "one-hot" else {"P"}
    assert set(saved) == encodings | {name for name, _ in first.named_parameters()}
    same, causal = (PositionalAttention(7, 6, 3, encoding=encoding, causal=flag).double() for flag in (False, True))
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    assert not torch.equal(same(x), first(x))
    same.load_state_dict(saved)
    causal.load_state_dict(saved)
    assert torch.equal(same(x), first(x))
    torch.testing.assert_close(causal(x)[:, -1], first(x)[:, -1], rtol=1e-12, atol=1e-14)
    assert not torch.allclose(causal(x)[:, 0], first(x)[:, 0])


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_layer_made_on_the_meta_device_loads(encoding, assign):
    first, x = lively_layer(7, 6, 3, encoding=encoding), torch.randn(2, 7, 6, dtype=torch.float64)
    with torch.device("meta"):
        other = PositionalAttention(7, 6, 3, encoding=encoding).double()
    other = other if assign else other.to_empty(device="cpu")
    other.load_state_dict(first.state_dict(), assign=assign)
    assert torch.equal(other(x), first(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_other_default_dtypes(encoding, dtype):
    """Encodings are of the default dtype, and no position is lost in half precision."""
    torch.set_default_dtype(dtype)
    try:
        layer = PositionalAttention(1000, 6, 3, encoding=encoding, d_k=4)
        assert layer(torch.randn(2, 5, 6)).dtype == dtype
    finally:
        torch.set_default_dtype(torch.float32)
    if encoding == "sinusoidal":
        right = ENCODINGS[encoding].matrix(1000, layer.P.shape[1])
        torch.testing.assert_close(layer.P.float(), right, rtol=0, atol=4e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lead", [60, 88, 95, 104, 120])
def test_gradients_are_finite_where_padding_leads_the_logits(lead, dtype):
    """Where what is left of a row is too small to divide by, the row is 0, and so is its gradient."""
    layer = PositionalAttention(6, 8, 2, d_k=2)
    with torch.no_grad():
        for linear in (layer.attention.W_Q, layer.attention.W_K):
            linear.weight.zero_()
        layer.attention.W_Q.weight.fill_(1)
        layer.attention.W_K.weight[:, 0] = lead / 2**0.5
    layer, x = layer.to(dtype), torch.randn(2, 6, 8, dtype=dtype)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[:, 0] = True
    y = layer(x, padding)
    found = torch.autograd.grad(y.float().square().sum(), list(layer.parameters()))
    assert y.isfinite().all() and all(gradient.isfinite().all() for gradient in found)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_an_exported_layer_takes_every_length(causal, frozen, unchecked):
    layer = lively_layer(7, 6, 3, causal=causal)
    layer = layer.freeze() if frozen else layer
    sizes = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("n", min=2, max=7)},)
    program = torch.export.export(layer, (torch.randn(3, 5, 6, dtype=torch.float64),), dynamic_shapes=sizes).module()
    for n in (2, 5, 7):
        x = torch.randn(4, n, 6, dtype=torch.float64)
        torch.testing.assert_close(program(x), layer(x), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_deepcopy_is_independent(encoding):
    layer, x = lively_layer(7, 6, 3, encoding=encoding), torch.randn(2, 7, 6, dtype=torch.float64)
    twin = copy.deepcopy(layer)
    before = twin(x)
    assert torch.equal(before, layer(x))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert torch.equal(twin(x), before)


def test_repr_names_what_the_layer_is():
    text = repr(PositionalAttention(7, 6, 3, causal=True, dropout=0.25, encoding="binary"))
    for part in ("n_positions=7", "causal=True", "dropout=0.25", "binary"):
        assert part in text


# --- linearity, size, use ----------------------------------------------------------------------------------------------------


def test_without_biases_the_layer_is_linear():
    layer = lively_layer(7, 6, 3, bias=False)
    x, y = torch.randn(2, 5, 7, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(2 * x - 3 * y), 2 * layer(x) - 3 * layer(y), rtol=1e-10, atol=1e-12)
    biased = lively_layer(7, 6, 3)
    assert (biased(2 * x) - 2 * biased(x)).abs().max() > 1e-2
    # With them it is affine, because the weights do not see x.
    torch.testing.assert_close(biased(2 * x - y), 2 * biased(x) - biased(y), rtol=1e-10, atol=1e-12)


def test_long_sequences_with_a_narrow_model_are_affordable():
    layer = PositionalAttention(2048, 16, 4)
    parameters = sum(parameter.numel() for parameter in layer.parameters())
    assert parameters == 2 * (2048 * 16 + 16) + 2 * (16 * 16 + 16)
    assert not list(layer.buffers()), "no identity matrix of 2048 x 2048 either"
    assert layer(torch.randn(2, 100, 16)).shape == (2, 100, 16)


@pytest.mark.parametrize(("encoding", "d_k"), [("one-hot", 7), ("binary", 3), ("sinusoidal", 4)])
def test_query_width_by_default_is_the_papers_where_it_is_the_smaller(encoding, d_k):
    layer = PositionalAttention(7, 30, 3, encoding=encoding)
    assert layer.attention.W_Q.out_features == 3 * d_k
    assert PositionalAttention(7, 6, 3, encoding=encoding).attention.W_K.out_features == 3 * 2
    assert PositionalAttention(7, 6, 3, encoding=encoding, d_k=5).attention.W_K.out_features == 3 * 5


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_learns_to_copy_the_previous_token_in_a_strangers_network(encoding):
    tokens, n, d = 7, 11, 32
    network = nn.Sequential(
        nn.Embedding(tokens, d),
        PositionalAttention(n, d, n_heads=2, causal=True, encoding=encoding),
        nn.LayerNorm(d),
        nn.Linear(d, tokens),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)

    def loss():
        text = torch.randint(tokens, (64, n))
        logits = network(text)[:, 1:]
        return nn.functional.cross_entropy(logits.flatten(0, 1), text[:, :-1].flatten())

    first = loss().item()
    assert first > 0.9 * math.log(tokens)
    for _ in range(250):
        optimizer.zero_grad()
        last = loss()
        last.backward()
        optimizer.step()
    assert last.item() < 0.1 * first
    # What it has learned can be read off without an input: one head looks one step back.
    previous = network[1].weights().diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1).max()
    assert previous > 0.6


# --- bad arguments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_positions": 0}, "n_positions is 0; it must be a whole number of at least 1"),
        ({"n_positions": 2.5}, "n_positions is 2.5; it must be a whole number"),
        ({"d_model": -6}, "d_model is -6"),
        ({"d_model": 7}, "d_model is 7; it must be a multiple of n_heads, which is 3"),
        ({"n_heads": 0}, "n_heads is 0"),
        ({"d_k": 0}, "d_k is 0"),
        ({"dropout": 1.0}, "dropout is 1.0; it must be a number of at least 0 and less than 1"),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"dropout": float("nan")}, "dropout is nan"),
        ({"encoding": "rotary"}, "encoding is 'rotary'; it must be one of one-hot, binary, sinusoidal"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        PositionalAttention(**{"n_positions": 7, "d_model": 6, "n_heads": 3, **options})


@pytest.mark.parametrize("n", [0, 8])
def test_sequences_of_another_length_are_refused(n):
    layer = PositionalAttention(7, 6, 3)
    with pytest.raises(UsageError, match=f"the sequence has {n} positions; this layer takes 1 to 7"):
        layer(torch.zeros(2, n, 6))
    refused = "n is 0; it must be a whole number of at least 1" if n == 0 else "the sequence has 8 positions"
    with pytest.raises(UsageError, match=refused):
        layer.weights(n)


@pytest.mark.usefixtures("unchecked")
def test_masks_and_sequences_of_the_wrong_kind_are_named():
    layer = PositionalAttention(5, 4, 2)
    with pytest.raises(UsageError, match=r"key_padding_mask is torch\.float32"):
        layer.weights(3, torch.zeros(2, 3))
    with pytest.raises(UsageError, match=r"it must be torch.bool of shape \(\.\.\., 3\)"):
        layer.weights(3, torch.zeros(2, 4, dtype=torch.bool))
    for x in (torch.zeros(2, 3, 6), torch.zeros(4)):
        with pytest.raises(UsageError, match=r"it must be \(\.\.\., n, 4\)"):
            layer(x)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("layer", [PositionalAttention(5, 4, 2), LoopedAttention(4, 2)], ids=["table", "loops"])
@pytest.mark.parametrize("autocast", [False, True])
def test_sequences_of_another_dtype_are_refused_unless_autocast_converts_them(layer, autocast):
    """Autocast leaves float64 as it is, in the sequence and in the layer."""
    single, double, integer = (torch.zeros(2, 3, 4, dtype=d) for d in (torch.float32, torch.float64, torch.int64))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        for one, x in ((layer, double), (layer, integer), (copy.deepcopy(layer).double(), single)):
            wanted = one.W_V.weight.dtype
            with pytest.raises(UsageError, match=f"the input is of {x.dtype}; this network reads {wanted}, which x.to"):
                one(x)
        if autocast:
            assert layer(single.half()).dtype == layer(single).dtype == torch.bfloat16


# --- frozen ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [7, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_frozen_is_the_layer_without_queries_keys_and_softmax(causal, n):
    layer = lively_layer(7, 6, 3, causal=causal, dropout=0.5)
    frozen, x = layer.freeze(), torch.randn(2, n, 6, dtype=torch.float64)
    layer.eval()
    for mask in (None, padding(4, 2, n=n)):
        torch.testing.assert_close(frozen(x, mask), layer(x, mask), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(frozen.weights(n, mask), layer.weights(n, mask), rtol=1e-12, atol=1e-14)
    assert not [name for name in frozen.state_dict() if "W_Q" in name or "W_K" in name]
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    before = frozen(x)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert torch.equal(frozen(x), before), "it owns what it computes with"


def test_frozen_within_autocast_keeps_its_precision():
    layer, x = PositionalAttention(7, 6, 3), torch.randn(2, 7, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        frozen = layer.freeze()
    assert frozen.A.dtype == torch.float32
    torch.testing.assert_close(frozen(x), layer(x))


def test_frozen_on_the_meta_device():
    with torch.device("meta"):
        assert PositionalAttention(7, 6, 3).freeze().A.shape == (3, 7, 7)


def test_frozen_for_fewer_positions():
    frozen = lively_layer(7, 6, 3).freeze(5)
    assert frozen.A.shape == (3, 5, 5)
    with pytest.raises(UsageError, match="the sequence has 6 positions; this layer takes 1 to 5"):
        frozen(torch.zeros(6, 6, dtype=torch.float64))


# --- decoding ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("batch", [(), (5,), (2, 3)])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_decoding_position_by_position_is_the_whole_sequence_at_once(encoding, batch, frozen):
    layer = lively_layer(7, 6, 3, causal=True, encoding=encoding)
    layer = layer.freeze() if frozen else layer
    x = torch.randn(*batch, 7, 6, dtype=torch.float64)
    state, found = layer.start(*batch), []
    for position in range(7):
        y, state = layer.step(x[..., position, :], state)
        found.append(y)
    torch.testing.assert_close(torch.stack(found, dim=-2), layer(x), rtol=1e-12, atol=1e-14)
    assert state.length == 7 and state.values.numel() == x.numel(), "values only"

    prompt, state = layer.step(x[..., :4, :], layer.start(*batch))
    last, state = layer.step(x[..., 4:, :], state)
    torch.testing.assert_close(torch.cat([prompt, last], dim=-2), layer(x), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("batch", [(), (5,)])
def test_a_state_shows_its_shape_and_length_and_no_values(batch):
    layer = lively_layer(7, 6, 3, causal=True)
    state = layer.start(*batch)
    assert repr(state) == f"Values(shape {(*batch, 7, 3, 2)}, length 0)"
    _, state = layer.step(torch.zeros(*batch, 4, 6, dtype=torch.float64), state)
    assert repr(state) == f"Values(shape {(*batch, 7, 3, 2)}, length 4)"


def test_decoding_in_half_precision():
    layer = lively_layer(7, 6, 3, causal=True, dtype=torch.bfloat16)
    x = torch.randn(5, 7, 6, dtype=torch.bfloat16)
    y, state = layer.step(x[:, :6], layer.start(5))
    last, _ = layer.step(x[:, 6], state)
    assert y.dtype == last.dtype == torch.bfloat16
    assert (last - layer(x)[:, 6]).norm() < 0.03 * last.norm()


@pytest.mark.usefixtures("unchecked")
def test_bad_decoding_is_refused():
    with pytest.raises(UsageError, match="this layer is not causal; decoding position by position needs causal=True"):
        PositionalAttention(7, 6, 3).start(5)
    layer = PositionalAttention(7, 6, 3, causal=True)
    with pytest.raises(UsageError, match="batch is -1; it must be a whole number"):
        layer.start(-1)
    state = layer.start(5)
    for shape in ((6,), (4, 6), (5, 2, 2, 6), (5, 7)):
        with pytest.raises(UsageError, match=r"for this state it must be \(5, 6\), or k positions of it"):
            layer.step(torch.zeros(shape), state)
    with pytest.raises(UsageError, match="the sequence has 8 positions; this layer takes 1 to 7"):
        layer.step(torch.zeros(5, 8, 6), state)
    with pytest.raises(UsageError, match="state is None; it must be what start or step returned"):
        layer.step(torch.zeros(5, 6), None)
    x = torch.zeros(5, 6)
    for other in (
        PositionalAttention(7, 12, 3, causal=True),
        PositionalAttention(7, 6, 2, causal=True),
        PositionalAttention(5, 6, 3, causal=True),
        PositionalAttention(7, 6, 3, causal=True).double(),
    ):
        with pytest.raises(
            UsageError, match=r"state is of another layer: torch.float.* it must be torch.float32 of shape"
        ):
            layer.step(x, other.start(5))
    with pytest.raises(UsageError, match="this layer is not causal; decoding position by position needs causal=True"):
        PositionalAttention(7, 6, 3).step(x, state)
    assert layer.freeze(5).step(x, state)[1].length == 1, "room for more positions than the layer takes does no harm"
