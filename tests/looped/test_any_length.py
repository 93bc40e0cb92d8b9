"""Self-attention for lists of every length, which the looped networks are compared with."""

import pytest
import torch

from posattn import ModelConfig, Transformer, UsageError
from posattn.looped import AnyLengthConfig

OTHERS = [(arch, looped) for arch in ("no-encoding", "rope-only", "alibi", "randomized") for looped in (False, True)]


def other(arch, **settings):
    torch.manual_seed(0)
    return Transformer(AnyLengthConfig(8, arch, embed=8, width=9, **settings)).double().requires_grad_(False)


def lists(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(("arch", "looped"), OTHERS)
def test_they_take_lists_of_every_length(arch, looped):
    model = other(arch, looped=looped, causal=True)
    assert len(model.layers) == (1 if looped else 4)
    for n in (1, 2, 8, 33):
        assert model(lists(3, n)).shape == (3, n)
    states = model.states(lists(33))
    assert len(states) == 1 + (6 if looped else 4) and states[0].shape == (33, 8)
    a = model.attention(lists(5))
    torch.testing.assert_close(a.sum(dim=-1), torch.ones_like(a[..., 0]))
    assert (a.triu(1) == 0).all()  # causal


def test_alibi_is_a_penalty_on_distance():
    """With no queries the weights are those of the distances alone, and the slopes those of the paper for two heads."""
    model = other("alibi")
    model.layers[0].attention.W_Q.weight.zero_(), model.layers[0].attention.W_Q.bias.zero_()
    distance = (torch.arange(6)[:, None] - torch.arange(6)).abs().double()
    for head, slope in enumerate((2**-4, 2**-8)):
        torch.testing.assert_close(model.attention(lists(6))[0, head], (-slope * distance).softmax(dim=-1))


def test_bad_input_is_one_sentence():
    with pytest.raises(UsageError, match=r"^the list is empty; this model takes lists of 1 number or more\.$"):
        other("alibi")(torch.zeros(3, 0).double())
    with pytest.raises(UsageError, match=r"^the list has 2049 numbers; randomized encodings have 2048 places\.$"):
        other("randomized")(torch.zeros(2049).double())


def test_two_architectures_are_of_this_kind_by_their_name():
    for arch in ("alibi", "randomized"):
        assert (
            ModelConfig(8, arch, layers=2) == AnyLengthConfig(8, arch, layers=2) == ModelConfig(8, arch=arch, layers=2)
        )
        assert isinstance(ModelConfig(8, arch), AnyLengthConfig)
    assert not isinstance(ModelConfig(8, "rope-only"), AnyLengthConfig)  # the paper's, with a scratchpad


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "arch is 'positional'; it must be one of no-encoding, rope-only, alibi, randomized."),
        ({"arch": "alibi", "looped": 1}, "looped is 1; it must be True or False."),
        ({"arch": "alibi", "looped": True, "layers": 2}, "layers is 2; a looped network has 1, which is tied."),
        ({"arch": "rope-only", "encoding": "binary"}, "encoding is 'binary'; the rope-only architecture takes none."),
        (
            {"arch": "alibi", "tokens": "letters"},
            "tokens is 'letters', a field of TokenConfig; AnyLengthConfig has n, arch, layers, heads, embed, width, encoding, "
            "encoding_dim, d_k, bias, causal, looped.",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(unchecked, settings, sentence):
    with pytest.raises(UsageError) as error:
        AnyLengthConfig(8, **settings)
    assert str(error.value) == sentence
