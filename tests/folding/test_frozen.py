"""One network frozen for lists of one length gives the answers of the module."""

import pytest
import torch

from posattn import ARCHITECTURES, Frozen, ModelConfig, Transformer, UsageError

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("k", [7, 4, 1])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(
    ("arch", "bias"), [("positional", True), ("scale-exact", False), ("misaligned", True), ("misaligned", False)]
)
def test_frozen_equals_the_module(lively, arch, bias, layers, k, dtype):
    model = lively(dtype, n=7, arch=arch, bias=bias, layers=layers, embed=22, width=19)
    frozen = Frozen(model) if k == 7 else Frozen(model, length=k)
    for batch in [(), (1,), (13,), (3, 5)]:
        x = torch.randn(*batch, k, dtype=dtype)
        before = x.clone()
        y = frozen(x)
        assert y.shape == x.shape
        assert relative(y, model(x)) < TOLERANCE[dtype]
        assert torch.equal(x, before), "the input is left as it was"
    assert frozen(torch.zeros(0, k, dtype=dtype)).shape == (0, k)


@pytest.mark.parametrize("encoding", ["binary", "sinusoidal"])
def test_frozen_equals_the_module_with_other_encodings(lively, encoding):
    model, x = lively(n=7, arch="misaligned", encoding=encoding, heads=1), torch.randn(5, 7, dtype=torch.float64)
    assert relative(Frozen(model)(x), model(x)) < 1e-10


def test_frozen_passes_gradients_to_its_input(lively):
    model, x = lively(n=7), torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    gradients = [torch.autograd.grad(network(x).square().sum(), x)[0] for network in (model, Frozen(model))]
    assert relative(*gradients) < 1e-10


def test_frozen_is_a_copy_without_parameters(lively):
    model, x = lively(n=7), torch.randn(5, 7, dtype=torch.float64)
    frozen = Frozen(model)
    assert not list(frozen.parameters())
    before = frozen(x)
    assert not before.requires_grad
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.P.zero_()
    assert torch.equal(frozen(x), before)


@pytest.mark.parametrize("arch", ["positional", "scale-exact"])
def test_frozen_state_dict_round_trip(lively, arch, tmp_path):
    first, second = (Frozen(lively(n=7, arch=arch), length=5) for _ in range(2))
    x = torch.randn(5, 5, dtype=torch.float64)
    assert not torch.equal(first(x), second(x))
    torch.save(first.state_dict(), tmp_path / "frozen.pt")
    second.load_state_dict(torch.load(tmp_path / "frozen.pt", weights_only=True))
    assert torch.equal(first(x), second(x))


@pytest.mark.parametrize("arch", [arch for arch in ARCHITECTURES if ARCHITECTURES[arch].attends != "position"])
def test_frozen_self_attention_keeps_its_softmax_and_gives_the_same_answers(lively, arch):
    model = lively(n=7, arch=arch, layers=2, embed=22, width=19)
    for k, batch in [(7, (13,)), (4, (3, 5)), (7, ())]:
        x = torch.randn(*batch, k, dtype=torch.float64)
        assert relative(Frozen(model, length=k)(x), model(x)) < 1e-10


def test_frozen_takes_lists_of_its_own_length_only():
    model = Transformer(ModelConfig(n=7))
    for length, k in [(7, 5), (5, 7), (5, 4)]:
        with pytest.raises(UsageError, match=f"the list has {k} numbers; this model was frozen for {length}"):
            Frozen(model, length=length)(torch.zeros(2, k))
    for length in (0, 8):
        with pytest.raises(UsageError, match=f"the list has {length} numbers"):
            Frozen(model, length=length)
