"""The Transformer on tokens: what it reads, what it answers, what the causal mask keeps from whom."""

import pytest
import torch

import posattn
from posattn.errors import UsageError
from posattn.model import ModelConfig, Transformer
from posattn.tokens import TokenConfig
from posattn.tokens.vocabulary import VOCABULARIES

LETTERS, PROMPTS = VOCABULARIES["letters"], VOCABULARIES["prompts"]


def letters(n=7, **changes):
    return Transformer(TokenConfig(n, tokens="letters", causal=True, embed=6, width=5, layers=3, **changes)).double()


def sequences(count=11, n=7):
    return posattn.task("khop").sample(count, n=n, seed=1)[0]


@pytest.mark.parametrize("arch", ["positional", "standard", "input-regularized", "no-encoding", "rope-only"])
@pytest.mark.parametrize("tied", [False, True])
def test_letters_give_a_logit_for_every_word_and_look_back_only(arch, tied):
    model, x = letters(arch=arch, tied=tied), sequences()
    out = model(x)
    assert out.shape == (11, 7, 16)
    for place in range(7):
        changed = x.clone()
        changed[:, place] = (x[:, place] + 1) % 16
        moved = (model(changed) - out).abs().amax(dim=(0, 2))
        assert (moved[:place] == 0).all() and (moved[place:] > 0).all()
    torch.testing.assert_close(model(x[:, :4]), out[:, :4])  # a shorter sequence is the beginning of a longer one


def test_attention_is_zero_after_a_position_and_sums_to_one():
    a = letters().attention()
    assert a.shape == (3, 2, 8, 8) and (a.triu(1) == 0).all()
    torch.testing.assert_close(a.sum(dim=-1), torch.ones_like(a[..., 0]))
    assert letters(arch="standard").attention(sequences()).shape == (3, 11, 2, 8, 8)


def test_the_encoder_is_an_embedding_layer():
    model, x = letters(arch="no-encoding"), sequences()
    embedding = torch.nn.Embedding.from_pretrained(model.encoder.weight.mT.detach())
    torch.testing.assert_close(model.states(x)[0][:, :-1], embedding(x) + model.encoder.bias)
    # torch.nn.Embedding's law for words and positions, torch.nn.Linear's for a number
    wide = Transformer(TokenConfig(30, "standard", tokens="letters", embed=600)).encoder
    assert wide.weight.std().item() == pytest.approx(1, abs=0.02) and (wide.bias == 0).all()
    number = Transformer(TokenConfig(23, "standard", tokens="prompts", embed=600)).encoder.weight
    column = number[:, len(PROMPTS.characters)]
    assert 0.95 < column.abs().max() <= 1 < number.abs().max()


def test_tied_words_are_decoded_by_the_vectors_that_embed_them():
    model, x = letters(tied=True), sequences()
    state = model.states(x)[-1][:, :-1]
    torch.testing.assert_close(model(x), state @ model.encoder.weight)
    assert not [name for name, _ in model.named_parameters() if name.startswith("decoder")]
    model(x)[..., 4].sum().backward()
    assert model.encoder.weight.grad[:, 4].abs().sum() > 0


def test_untied_networks_cannot_name_letters_that_training_lacks_and_tied_ones_can():
    """No gradient raises the logit of f-j on sequences of a-e; the vectors of a tied network are read as well."""
    model, x = letters(), sequences()
    loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), posattn.task("khop").target(x).flatten())
    loss.backward()
    unseen = slice(9, 14)  # f-j
    assert (model.encoder.weight.grad[:, unseen] == 0).all() and (model.decoder.bias.grad[unseen] > 0).all()


@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_prompts_give_one_number(arch):
    model = Transformer(TokenConfig(5, arch, tokens="prompts", embed=6, width=5)).double()
    x = torch.tensor([[-1.0, 3.2, -5.0, 0.5, -203.0], [-2.0, 0.0, -6.0, 1.5, -201.0]]).double()
    out = model(x)
    assert out.shape == (2, 1)
    for place in range(5):
        changed = x.clone()
        changed[:, place] = 2.0 if place in (1, 3) else -77.0
        assert ((model(changed) - out).abs() > 0).all()


@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_relative_networks_scale_with_their_numbers(arch):
    config = TokenConfig(5, arch, tokens="prompts", embed=6, width=5, relative=True)
    model, plain = Transformer(config).double(), Transformer(TokenConfig(5, arch, tokens="prompts")).double()
    x = torch.tensor([-1.0, 3.2, -5.0, 0.5, -203.0]).double()
    for c in (1e-3, 7.0, 1e4):
        times_c = torch.where(x >= 0, c * x, x)
        torch.testing.assert_close(model(times_c), c * model(x), rtol=1e-9, atol=0)
        assert not torch.allclose(plain(times_c), c * plain(x), rtol=1e-2)
    nothing = torch.where(x >= 0, 0, x)
    assert model(nothing).isfinite().all()


@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_relative_networks_obey_the_law_of_scale(arch):
    """MSE(c) = (c² + 1) MSE(1) on prompts of one kind, at any quality of training: here with random weights."""
    config = TokenConfig(23, arch, tokens="prompts", relative=True, layers=1, embed=8, width=8)
    model, task = Transformer(config), posattn.task("mixed-sum")

    def error(scale):
        x, y = task.sample(4000, scale=scale, domain="ood", seed=1)
        with torch.no_grad():
            return (model(x) - y).square().mean().item()

    assert error(3.0) / error(1.0) == pytest.approx(3**2 + 1, rel=0.1)


def test_far_out_every_positional_network_forgets_the_words():
    """f(c v, t) / c tends to the network without biases on the numbers alone, whatever the words t say."""
    model = Transformer(TokenConfig(5, tokens="prompts")).double()
    x = torch.tensor([[-1.0, 3.2, -5.0, 0.5, -203.0], [-9.0, 3.2, -2.0, 0.5, -201.0]]).double()
    near, far = (model(torch.where(x >= 0, c * x, x))[:, 0] / c for c in (1.0, 1e6))
    assert 0 < 1e4 * (far[0] - far[1]).abs() < (near[0] - near[1]).abs() and far.abs().min() > 1e-3


def test_parameter_counts_worked_by_hand():
    def count(model):
        return sum(parameter.numel() for parameter in model.parameters())

    # A layer: Q and K 2 · (31 · 62 + 62), V and O 2 · (60² + 60), MLP 120 · 64 + 64 + 64 · 60 + 60.
    layer = 2 * (31 * 62 + 62) + 2 * (60 * 60 + 60) + 120 * 64 + 64 + 64 * 60 + 60
    outer = 16 * 60 + 60 + 60 * 16 + 16
    khop = posattn.task("khop").NETWORK
    assert count(Transformer(TokenConfig(**khop))) == outer + 8 * layer
    assert count(Transformer(TokenConfig(**khop, tied=True))) == 16 * 60 + 60 + 8 * layer


def test_configurations_of_numbers_say_nothing_of_tokens():
    """A run is known by these fields, and runs from before there were tokens must still be found."""
    config = ModelConfig(8)
    assert not {"tokens", "causal", "tied"} & set(config.to_dict()) and ModelConfig(**config.to_dict()) == config
    config = TokenConfig(30, tokens="letters", causal=True, tied=True)
    assert {"tokens", "causal", "tied"} <= set(config.to_dict()) and TokenConfig(**config.to_dict()) == config


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tokens": "words"}, "tokens is 'words'; it must be one of letters, prompts, elements-shared, characters."),
        ({"tied": True, "tokens": "prompts"}, "tied is True; a network whose tokens are 'prompts' answers no words."),
        ({"tied": "yes"}, "tied is 'yes'; it must be True or False."),
        ({"relative": True}, "relative is True; a network whose tokens are 'letters' reads no numbers among words."),
        ({"arch": "positional-input"}, "tokens is 'letters'; the positional-input architecture reads numbers only."),
        (
            {"family": "dilated"},
            "family is 'dilated', a field of LoopedConfig; TokenConfig has n, arch, layers, heads, embed, width, encoding, "
            "encoding_dim, d_k, bias, causal, tokens, tied, relative.",
        ),
    ],
)
def test_bad_configurations_are_one_sentence(unchecked, changes, sentence):
    with pytest.raises(UsageError) as error:
        TokenConfig(8, **changes)
    assert str(error.value) == sentence


def test_causal_is_true_or_false():
    with pytest.raises(UsageError, match=r"^causal is 1; it must be True or False\.$"):
        ModelConfig(8, causal=1)


def test_a_sequence_that_is_too_long_is_counted_in_tokens():
    with pytest.raises(UsageError, match=r"^the sequence has 41 tokens; this model takes 1 to \d+\.$"):
        letters()(torch.zeros(41, dtype=torch.int64))


@pytest.mark.parametrize("index", [16, -1])
def test_a_word_that_is_not_there_is_refused(index):
    with pytest.raises(UsageError, match=r"^x has a word that is not there; the vocabulary has 16 words\.$"):
        letters()(torch.tensor([0, index]))
    with pytest.raises(UsageError, match=r"^x has a word that is not there; the vocabulary has 203 words\.$"):
        TokenConfig(n=23, tokens="prompts").build()(torch.tensor([3.0, -204.0]))


def test_networks_of_tokens_are_not_frozen():
    with pytest.raises(UsageError, match=r"^the positional network reads letters; only networks trained on lists "):
        posattn.Frozen(letters())
