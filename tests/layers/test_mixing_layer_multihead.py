"""Positional attention in the place of nn.MultiheadAttention, in networks that were written for that."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from posattn import PositionalAttention, UsageError
from posattn.layers.mixing_layer import Masks, as_boolean

N, D, H = 7, 12, 3
HIDDEN = torch.ones(N, N, dtype=torch.bool).triu(1)


def replaced(batch_first=True, **options):
    """An adapter whose layer attends unevenly."""
    layer = PositionalAttention(N, D, H, **options).double()
    with torch.no_grad():
        layer.attention.W_Q.weight.mul_(4)
        layer.attention.W_K.weight.mul_(4)
    return layer.as_multihead(batch_first)


def lowered(mask):
    """As PyTorch's layers pass masks on: -inf where nobody may attend."""
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, -torch.inf)


@pytest.mark.parametrize("batch_first", [True, False])
def test_arguments_and_results_are_those_of_multihead_attention(batch_first):
    attention, theirs = replaced(batch_first), nn.MultiheadAttention(D, H, batch_first=batch_first).double()
    x = torch.randn(5, N, D, dtype=torch.float64)
    given = x if batch_first else x.transpose(0, 1)
    padding = torch.arange(N) >= torch.tensor([7, 3, 5, 1, 6])[:, None]
    for options in (
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"key_padding_mask": padding},
        {"key_padding_mask": padding, "average_attn_weights": False},
        {"attn_mask": HIDDEN},
        {"attn_mask": HIDDEN, "is_causal": True, "key_padding_mask": padding},
    ):
        ours, expected = attention(given, given, given, **options), theirs(given, given, given, **options)
        for one, other in zip(ours, expected, strict=True):
            assert (one is None and other is None) or one.shape == other.shape, options
    alone = attention(x[0], x[0], x[0], average_attn_weights=False)
    assert alone[0].shape == (N, D) and alone[1].shape == (H, N, N)
    y = attention(given, given, given, key_padding_mask=padding)[0]
    expected = attention.layer(x, padding)
    assert torch.equal(y if batch_first else y.transpose(0, 1), expected)


@pytest.mark.parametrize("which", [slice(None), slice(0, 1), slice(1, None, 2)])
@pytest.mark.parametrize("gradients", [False, True])
def test_an_encoder_whose_attention_is_replaced_later_takes_padding(which, gradients, unchecked):
    """In evaluation nn.TransformerEncoder would hand its layers nested tensors; training and evaluation must agree."""
    block = nn.TransformerEncoderLayer(D, 4, 8, dropout=0.0, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(block, 4)
    for layer in encoder.layers[which]:
        layer.self_attn = PositionalAttention(N, D, 4).double().as_multihead(batch_first=True)
    x = torch.randn(3, N, D, dtype=torch.float64)
    padding = torch.arange(N) >= torch.tensor([N, 4, 1])[:, None]
    with torch.set_grad_enabled(gradients):
        training = encoder.train()(x, src_key_padding_mask=padding)
        evaluated = encoder.eval()(x, src_key_padding_mask=padding)
    torch.testing.assert_close(evaluated[~padding], training[~padding], rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_self_attention_with_the_batch_first():
    """Another key or value has no part in a result of nested queries: it is refused, not left out."""
    attention, other = replaced().float(), torch.randn(2, 4, D)
    nested = torch.nested.nested_tensor([torch.randn(3, D), torch.randn(N, D)])
    y, _ = attention(nested, nested, nested, need_weights=False)
    torch.testing.assert_close(y.unbind()[0], attention.layer(nested.unbind()[0]))
    for one, given in (
        (attention, (nested, other, other)),
        (attention, (nested, nested, other)),
        (replaced(batch_first=False).float(), (nested, nested, nested)),
    ):
        with pytest.raises(UsageError, match="query is a nested tensor; key and value must be the same one"):
            one(*given)
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.randn(3, D), torch.randn(N, D)], layout=layout)
        with pytest.raises(UsageError, match="x is a nested tensor; pad it with"):
            attention.layer(nested)


def test_shapes_are_found_on_the_meta_device_with_float_masks():
    with torch.device("meta"):
        attention, x = replaced(), torch.zeros(2, N, D, dtype=torch.float64)
        mask = torch.zeros(2, N, dtype=torch.float64)
        y, a = attention(x, x, x, mask, attn_mask=torch.zeros(N, N))
    assert y.shape == (2, N, D) and a.shape == (2, N, N)


@pytest.mark.parametrize("name", ["attn_mask", "key_padding_mask"])
def test_compiled_too_refuses_masks_that_add_to_the_logits(name, unchecked):
    attention, x = replaced(), torch.randn(2, N, D, dtype=torch.float64)
    torch.compiler.reset()
    compiled = torch.compile(attention, backend="aot_eager")
    mask = torch.zeros(N, N, dtype=torch.float64) if name == "attn_mask" else torch.zeros(2, N, dtype=torch.float64)
    mask[:, -1] = -torch.inf
    expected = attention(x, x, x, **{name: mask})[0]
    torch.testing.assert_close(compiled(x, x, x, **{name: mask})[0], expected, rtol=1e-10, atol=1e-12)
    mask[:, -1] = -1e9
    with pytest.raises((UsageError, RuntimeError), match=f"{name} adds to the logits"):
        compiled(x, x, x, **{name: mask})


def test_a_cuda_graph_may_record_float_masks(monkeypatch):
    """A stream that is recorded must not wait for the entries; fake tensors of a GPU refuse to tell them, too."""
    with FakeTensorMode():
        mask = torch.zeros(2, N, device="cuda")
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        with pytest.raises(DataDependentOutputException):
            as_boolean("key_padding_mask", mask)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert as_boolean("key_padding_mask", mask).dtype == torch.bool


def test_masks_are_what_the_layer_itself_does():
    attention, x = replaced(), torch.randn(5, N, D, dtype=torch.float64)
    causal = PositionalAttention(N, D, H, causal=True).double()
    causal.load_state_dict(attention.layer.state_dict())
    assert not torch.allclose(attention.layer(x), causal(x))
    for options in ({"attn_mask": HIDDEN}, {"attn_mask": lowered(HIDDEN)}, {"is_causal": True}):
        y, a = attention(x, x, x, average_attn_weights=False, **options)
        torch.testing.assert_close(y, causal(x), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(a, causal.weights(N).expand(5, H, N, N), rtol=1e-12, atol=1e-14)
    frozen = attention.layer.freeze().as_multihead(batch_first=True)
    torch.testing.assert_close(frozen(x, x, x, attn_mask=HIDDEN)[0], causal(x), rtol=1e-12, atol=1e-14)
    window = (torch.arange(N)[:, None] - torch.arange(N)).abs() > 1
    padding = torch.arange(N) >= torch.tensor([7, 3, 5, 1, 6])[:, None]
    y, a = attention(x, x, x, attn_mask=window, key_padding_mask=lowered(padding), average_attn_weights=False)
    assert a[:, :, window].eq(0).all() and (a * padding[:, None, None]).eq(0).all()
    v = attention.layer.values_of(x)
    expected = attention.layer.W_O(torch.einsum("bhij,bjhe->bihe", a, v).flatten(-2))
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-14)


def test_a_padding_mask_for_all_sequences_gives_weights_for_each():
    attention, x = replaced(), torch.randn(5, N, D, dtype=torch.float64)
    padding = torch.arange(N) >= 4
    for averaged, heads in ((True, ()), (False, (H,))):
        expected = attention(x, x, x, padding.expand(5, N), average_attn_weights=averaged)[1]
        assert expected.shape == (5, *heads, N, N)
        for mask in (padding, padding[None]):
            assert torch.equal(attention(x, x, x, mask, average_attn_weights=averaged)[1], expected)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_in_a_transformer_encoder(batch_first, norm_first, training):
    """The fast path of nn.TransformerEncoderLayer in evaluation would compute self-attention: it must not be taken."""
    block = nn.TransformerEncoderLayer(
        D, H, 16, dropout=0.0, batch_first=batch_first, norm_first=norm_first, dtype=torch.float64
    )
    block.self_attn = replaced(batch_first)
    encoder = nn.TransformerEncoder(block, 2).train(training)
    x = torch.randn(5, N, D, dtype=torch.float64)
    padding = torch.arange(N) >= torch.tensor([7, 3, 5, 1, 6])[:, None]
    for mask, pads in ((None, None), (None, padding), (HIDDEN, None), (HIDDEN, padding)):
        with torch.set_grad_enabled(training):
            y = encoder(x if batch_first else x.transpose(0, 1), mask=mask, src_key_padding_mask=pads)
        y = y if batch_first else y.transpose(0, 1)
        expected, masks = x, Masks(pads, causal=mask is not None)
        for layer in encoder.layers:
            attention = layer.self_attn.layer
            if norm_first:
                expected = expected + attention.attend(layer.norm1(expected), masks)
                expected = expected + layer._ff_block(layer.norm2(expected))
            else:
                expected = layer.norm1(expected + attention.attend(expected, masks))
                expected = layer.norm2(expected + layer._ff_block(expected))
        torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-12)


def test_in_a_transformer_decoder_beside_cross_attention():
    block = nn.TransformerDecoderLayer(D, H, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    block.self_attn = replaced()
    decoder, memory = nn.TransformerDecoder(block, 2), torch.randn(5, 4, D, dtype=torch.float64)
    x = torch.randn(5, N, D, dtype=torch.float64)
    y = decoder(x, memory, tgt_mask=lowered(HIDDEN), tgt_is_causal=True)
    changed = x.clone()
    changed[:, 4:] += 1
    assert torch.equal(decoder(changed, memory, tgt_mask=HIDDEN)[:, :4], decoder(x, memory, tgt_mask=HIDDEN)[:, :4])
    torch.testing.assert_close(y, decoder(x, memory, tgt_mask=HIDDEN), rtol=1e-12, atol=1e-14)
    y.sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in decoder.layers[0].self_attn.layer.W_V.parameters())
    block.multihead_attn = replaced()
    with pytest.raises(UsageError, match=r"key has shape \(5, 4, 12\) and query \(5, 7, 12\); positional attention is self"):
        block(x, memory)


def test_in_gpt2_in_every_other_layer():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed, which has GPT-2")

    class Replaced(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.layer = PositionalAttention(config.n_positions, config.n_embd, config.n_head, causal=True)

        def forward(self, hidden_states, past_key_values=None, *_, **__):  # as in docs/layer.md
            assert past_key_values is None, "call the model with use_cache=False"
            return self.layer(hidden_states), None

    config = transformers.GPT2Config(
        vocab_size=11, n_positions=N, n_embd=D, n_layer=4, n_head=H, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0
    )
    model = transformers.GPT2LMHeadModel(config)
    for block in model.transformer.h[::2]:
        block.attn = Replaced(config)
    tokens = torch.randint(11, (5, N))
    output = model(tokens, labels=tokens, use_cache=False)
    output.loss.backward()
    for block in model.transformer.h[::2]:
        assert all(p.grad.abs().max() > 0 for name, p in block.attn.named_parameters() if "W_K.bias" not in name)
    other = tokens.clone()
    other[:, 4:] = (other[:, 4:] + 1) % 11
    torch.testing.assert_close(model(other, use_cache=False).logits[:, :4], output.logits[:, :4])
    assert not torch.allclose(model(other, use_cache=False).logits[:, 4:], output.logits[:, 4:])
    with pytest.raises(AssertionError, match="call the model with use_cache=False"):
        model(tokens)


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_meant_is_refused():
    attention, x = replaced(), torch.randn(5, N, D, dtype=torch.float64)
    with pytest.raises(UsageError, match=r"value has shape .* positional attention is self-attention, of a sequence to its"):
        attention(x, x, x[:, :3])
    slope = torch.randn(N, N, dtype=torch.float64)
    with pytest.raises(UsageError, match="attn_mask adds to the logits; it must be boolean, or 0 where attention is all"):
        attention(x, x, x, attn_mask=slope)
    with pytest.raises(UsageError, match="key_padding_mask adds to the logits"):
        attention(x, x, x, key_padding_mask=slope[:5])
    with pytest.raises(UsageError, match=r"attn_mask has shape \(7, 3\); it must be"):
        attention(x, x, x, attn_mask=HIDDEN[:, :3], is_causal=True)
    with pytest.raises(UsageError, match=r"attn_mask has shape \(15, 7, 7\); it must be \(7, 7\), as all sequences and"):
        attention(x, x, x, attn_mask=HIDDEN.expand(5 * H, N, N))
    with pytest.raises(UsageError, match="it must have two axes, or three with a batch"):
        attention(x[None], x[None], x[None])
    with pytest.raises(UsageError, match="batch_first is 1; it must be True or False"):
        attention.layer.as_multihead(1)
    for options in ({"query": None}, {"key": [0]}, {"value": None}, {"key_padding_mask": [True]}, {"attn_mask": [[True]]}):
        (name,) = options
        with pytest.raises(UsageError, match=f"^{name} is .*; it must be a tensor"):
            attention(**{"query": x, "key": x, "value": x, **options})
