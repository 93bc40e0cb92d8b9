"""Attention over offsets as a layer, against loops, and its manners."""

import pytest
import torch

from posattn import LoopedAttention, UsageError


def lively(*args, **options):
    """A layer that attends unevenly and whose biases are not zero."""
    layer = LoopedAttention(*args, **options).double()
    with torch.no_grad():
        layer.logits.mul_(3)
        for linear in (layer.W_V, layer.W_O):
            if linear.bias is not None:
                linear.bias.uniform_(-0.5, 0.5)
    return layer


def padding(*lengths, n):
    return torch.arange(n) >= torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5, 8, 13])
def test_layer_equals_the_loops(n, causal):
    layer = lively(6, 3, causal=causal)
    a = torch.eye(n, dtype=torch.float64).repeat(3, 1, 1)
    stride = 1
    while stride < n:
        step = torch.zeros(3, n, n, dtype=torch.float64)
        for h in range(3):
            for i in range(n):
                inside = [c for c, r in enumerate(layer.candidates) if 0 <= i + r * stride < n]
                for c, weight in zip(inside, layer.logits[h, inside].softmax(0), strict=True):
                    step[h, i, i + layer.candidates[c] * stride] = weight
        a, stride = step @ a, 2 * stride
    torch.testing.assert_close(layer.weights(n), a, rtol=1e-12, atol=1e-14)
    x = torch.randn(2, n, 6, dtype=torch.float64)
    expected = layer.W_O(torch.einsum("hij,bjhe->bihe", a, layer.values_of(x)).flatten(-2))
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
def test_rows_average_what_they_may_hear(causal):
    a = lively(6, 3, causal=causal).weights(19)
    torch.testing.assert_close(a.sum(-1), torch.ones(3, 19, dtype=torch.float64))
    seen = torch.ones(19, 19, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    assert a[:, ~seen].eq(0).all() and a[:, seen].min() > 0, "every position is heard"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 1, 3)])
def test_padding_at_the_end_is_a_shorter_sequence(batch, causal):
    layer, n = lively(6, 3, causal=causal), 9
    x = torch.randn(*batch, n, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(n) >= 5
    y = layer(x, mask)
    torch.testing.assert_close(y[..., :5, :], layer(x[..., :5, :]), rtol=1e-12, atol=1e-14)
    (gradient,) = torch.autograd.grad(y[..., :5, :].square().sum(), x)
    assert gradient[..., 5:, :].eq(0).all() and gradient[..., :5, :].abs().max() > 0
    torch.testing.assert_close(layer.weights(n, mask)[:, :5, :5], layer.weights(5), rtol=1e-12, atol=1e-14)


def test_padding_anywhere_has_no_influence_and_differs_by_sequence():
    layer, mask = lively(6, 3), torch.rand(4, 11) < 0.4
    mask[0], mask[1] = False, True
    x = torch.randn(4, 11, 6, dtype=torch.float64)
    y = layer(x, mask)
    noisy = layer(torch.where(mask[..., None], 1e6 * torch.randn_like(x), x), mask)
    assert torch.equal(noisy[~mask], y[~mask]) and y.isfinite().all()
    torch.testing.assert_close(y[0], layer(x[0]), rtol=1e-12, atol=1e-14)
    a = layer.weights(11, mask)
    assert a.shape == (4, 3, 11, 11) and (a * mask[:, None, None]).eq(0).all()
    torch.testing.assert_close(
        layer.W_O(torch.einsum("bhij,bjhe->bihe", a, layer.values_of(x)).flatten(-2)), y, rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("causal", [False, True])
def test_nan_in_padding_stays_there(causal):
    layer, mask = lively(6, 3, causal=causal), padding(9, 5, n=9)
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    spoiled = x.masked_fill(mask[..., None], torch.nan)
    assert torch.equal(layer(spoiled, mask)[~mask], layer(x, mask)[~mask])


def test_a_sequence_of_one_padded_position_attends_to_nothing():
    layer = LoopedAttention(6, 3)
    padding = torch.ones(2, 1, dtype=torch.bool)
    assert torch.equal(layer.weights(1, padding), torch.zeros(2, 3, 1, 1))
    assert layer(torch.full((2, 1, 6), torch.nan), padding).isfinite().all()


def test_compiles_once_for_lengths_of_the_same_loops(unchecked):
    """A graph where other shifts reach into the sequence, not for each length."""
    layer, graphs = LoopedAttention(6, 3, causal=True).double(), []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(layer, backend=counted, dynamic=True, fullgraph=True)
    for n in range(17, 32):
        x = torch.randn(2, n, 6, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-10, atol=1e-12)
    assert len(graphs) <= 2


def test_an_exported_layer_has_the_length_that_it_was_exported_with(unchecked):
    """It decides the number of loops. Batches stay open."""
    layer, batch = lively(6, 3, causal=True), {0: torch.export.Dim("batch")}
    given = (torch.randn(2, 9, 6, dtype=torch.float64), padding(9, 5, n=9))
    program = torch.export.export(layer, given, dynamic_shapes=(batch, batch)).module()
    x, mask = torch.randn(3, 9, 6, dtype=torch.float64), padding(4, 9, 0, n=9)
    torch.testing.assert_close(program(x, mask), layer(x, mask), rtol=1e-12, atol=1e-14)


def test_autocast_is_close_to_single_precision():
    layer, x, mask = lively(6, 3, causal=True).float(), torch.randn(2, 33, 6), padding(33, 20, n=33)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x, mask)
    assert y.dtype == torch.bfloat16
    assert 0 < (y.float() - layer(x, mask)).norm() < 0.03 * y.norm()


def test_one_layer_takes_every_length_and_learns_from_it():
    layer = LoopedAttention(6, 3, causal=True)
    assert sum(p.numel() for p in layer.parameters()) == 3 * 4 + 2 * (36 + 6), "nothing grows with the length"
    y = layer(torch.randn(5000, 6))
    y.sum().backward()
    assert layer.logits.grad.abs().max() > 0
    assert layer.bfloat16()(torch.randn(2, 33, 6).bfloat16()).dtype == torch.bfloat16


def test_float16_keeps_small_weights_where_no_others_are_inside():
    layer = lively(6, 3, causal=True)
    with torch.no_grad():
        layer.logits.copy_(torch.tensor([-20.0, 20, 0, 0]))  # nearly all attention goes one step back
    layer, x = layer.half(), torch.randn(2, 9, 6).half()
    y = layer(x)
    torch.testing.assert_close(y.double(), layer.double()(x.double()), rtol=0.01, atol=0.01)


def test_in_the_place_of_multihead_attention():
    attention, x = lively(6, 3, causal=True).as_multihead(batch_first=True), torch.randn(2, 7, 6, dtype=torch.float64)
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    y, a = attention(x, x, x, attn_mask=hidden, is_causal=True, average_attn_weights=False)
    assert torch.equal(y, attention.layer(x)) and a.shape == (2, 3, 7, 7)
    assert torch.equal(attention(x, x, x)[0], y), "causal without a mask, too"


def test_masks_other_than_the_causal_one_are_refused_with_what_to_do():
    x, hidden = torch.randn(2, 7, 6, dtype=torch.float64), torch.ones(7, 7, dtype=torch.bool).triu(1)
    causal, everywhere = (lively(6, 3, causal=causal).as_multihead(batch_first=True) for causal in (True, False))
    only = "attn_mask is given; this layer takes only the causal mask, by is_causal=True"
    built = "is_causal is True; this layer was built with causal=False: build it with causal=True."
    for attention, masks, sentence in (
        (causal, {"attn_mask": hidden}, f"{only}."),
        (everywhere, {"attn_mask": hidden}, f"{only} when built with causal=True."),
        (everywhere, {"is_causal": True}, built),
        (everywhere, {"attn_mask": hidden, "is_causal": True}, built),
    ):
        with pytest.raises(UsageError) as caught:
            attention(x, x, x, **masks)
        assert str(caught.value) == sentence


@pytest.mark.usefixtures("unchecked")
def test_bad_arguments_are_refused():
    for options, message in (
        ({"d_model": 7}, "d_model is 7; it must be a multiple of n_heads, which is 3"),
        ({"n_heads": 0}, "n_heads is 0"),
        ({"causal": 1}, "causal is 1; it must be True or False"),
        ({"bias": None}, "bias is None"),
    ):
        with pytest.raises(UsageError, match=message):
            LoopedAttention(**{"d_model": 6, "n_heads": 3, **options})
    layer = LoopedAttention(6, 3)
    with pytest.raises(UsageError, match="the sequence has 0 positions; this layer takes 1 or more"):
        layer(torch.zeros(2, 0, 6))
    with pytest.raises(UsageError, match="n is None; it must be a whole number"):
        layer.weights()
    with pytest.raises(UsageError, match=r"it must be \(\.\.\., n, 6\)"):
        layer(torch.zeros(2, 3, 5))
