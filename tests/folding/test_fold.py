"""The folded network and the frozen one against the plain network: outputs, and the gradient of every parameter."""

import pytest
import torch

from posattn import ARCHITECTURES, ModelConfig, Transformer
from posattn.folding import Fold, fold, folded_forward, stack_layers
from posattn.model import Architecture, input_features, positions_of
from posattn.network import can

APART = ["input-regularized", "rope-only", "standard-rope"]  # queries and keys do not multiply out
FOLDING = ["positional", "scale-exact", "misaligned", "standard", "positional-input", "no-encoding", *APART]
WITH_AND_WITHOUT_BIASES = [
    (arch, bias) for arch in FOLDING for bias in (True, False) if (arch, bias) != ("scale-exact", True)
]
POSITIONAL = ["positional", "scale-exact", "misaligned"]
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
KEY_BIAS = "attention.W_K.bias"


def run_folded(named, config, P, x):
    """The outputs (M, b, k) for stacked parameters (M, ...) and lists x (M, b, k)."""
    positions = positions_of(x.shape[-1], config)
    p = P[positions]
    folded = fold(stack_layers(named), config, p)
    return folded_forward(folded, input_features(x[..., None], p, positions, config), config)


def compare(models, k, b=23):
    """Runs both networks on lists of their own for every member and compares outputs and gradients."""
    config, dtype = models[0].config, models[0].P.dtype
    x, target = torch.randn(2, len(models), b, k, dtype=dtype)
    named = {
        name: torch.stack([dict(model.named_parameters())[name].detach() for model in models]).requires_grad_()
        for name, _ in models[0].named_parameters()
    }
    ours = run_folded(named, config, models[0].P, x)
    ((ours - target) ** 2).mean(dim=(1, 2)).sum().backward()
    for member, model in enumerate(models):
        plain = model(x[member])
        assert relative(ours[member], plain) < TOLERANCE[dtype]
        ((plain - target[member]) ** 2).mean().backward()
        largest = max(parameter.grad.abs().max() for parameter in model.parameters())
        for name, parameter in model.named_parameters():
            gradient = None if named[name].grad is None else named[name].grad[member]
            if name.endswith(KEY_BIAS) and not config.design.rotary:
                # It shifts whole rows of logits: zero but for rounding, and left out where that is possible.
                assert parameter.grad.abs().max() < 1e-6 * largest, name
                assert gradient is None or gradient.abs().max() < 1e-6 * largest, name
                assert config.design.attends == "position" or gradient is None or gradient.eq(0).all(), name
            else:
                assert parameter.grad.abs().max() > 1e-6 * largest, f"{name} has no gradient to compare"
                assert relative(gradient, parameter.grad) < TOLERANCE[dtype], name


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize(("arch", "bias"), WITH_AND_WITHOUT_BIASES)
def test_folded_equals_plain(lively, arch, bias, members, dtype):
    models = [lively(dtype, n=7, arch=arch, bias=bias, embed=22, width=19) for _ in range(members)]
    compare(models, k=7)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("arch", FOLDING)
def test_folded_equals_plain_on_shorter_lists(lively, arch, k):
    compare([lively(n=7, arch=arch, embed=22, width=19) for _ in range(2)], k=k)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("arch", "bias"), WITH_AND_WITHOUT_BIASES)
def test_folded_equals_plain_with_few_layers(lively, arch, bias, layers):
    compare([lively(n=5, arch=arch, bias=bias, layers=layers, embed=14, width=17)], k=5)


@pytest.mark.parametrize("arch", ["positional", "standard", *APART])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("encoding", ["binary", "sinusoidal"])
def test_folded_equals_plain_with_other_heads_and_encodings(lively, arch, heads, encoding):
    own = {} if arch == "rope-only" else {"encoding": encoding}  # which reads none
    compare([lively(n=7, arch=arch, heads=heads, **own, d_k=5, embed=33, width=13)], k=7)


@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_folded_equals_plain_at_the_published_size(lively, arch):
    compare([lively(torch.float32, n=8, arch=arch) for _ in range(2)], k=8, b=101)


@pytest.mark.parametrize("arch", APART)
def test_folded_equals_plain_where_positions_attend_to_those_before(lively, arch):
    compare([lively(n=6, arch=arch, causal=True, embed=22, width=19) for _ in range(2)], k=4)


def test_positions_that_are_turned_do_not_fold(monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "turned", Architecture("position", rotary=True))
    assert not can(ModelConfig(n=3, arch="turned"), "fold")


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(("arch", "bias"), WITH_AND_WITHOUT_BIASES)
def test_the_adjoint_of_the_fold_is_what_autograd_finds(lively, arch, bias, heads, layers):
    """For any gradients of the folded tensors, at a shorter list than the model's, with widths that all differ."""
    models = [lively(n=6, arch=arch, bias=bias, heads=heads, layers=layers, embed=22, width=19) for _ in range(3)]
    config = models[0].config
    stacked = stack_layers(
        {
            name: torch.stack([model.get_parameter(name).detach() for model in models])
            for name, _ in models[0].named_parameters()
        }
    )
    stacked = {name: value.requires_grad_() for name, value in stacked.items()}
    p = models[0].P[positions_of(4, config)]
    folded = fold(stacked, config, p)
    gradients = {name: torch.randn_like(value) for name, value in folded.items()}
    expected = torch.autograd.grad(
        list(folded.values()), list(stacked.values()), list(gradients.values()), materialize_grads=True
    )
    with torch.no_grad():
        found = Fold(stacked, config, p).adjoint(gradients)
    assert list(found) == list(stacked)
    for (name, value), right in zip(found.items(), expected, strict=True):
        assert value.shape == right.shape, name
        torch.testing.assert_close(value, right, rtol=1e-9, atol=1e-12, msg=name)


def test_members_do_not_mix(lively):
    """Members see neither each other's weights nor each other's lists."""
    models = [lively(n=4, embed=22, width=19) for _ in range(3)]
    named = {name: torch.stack([dict(model.named_parameters())[name] for model in models])
             for name, _ in models[0].named_parameters()}  # fmt: skip
    x = torch.randn(3, 1, 4, dtype=torch.float64)
    y = run_folded(named, models[0].config, models[0].P, x)
    changed = x.clone()
    changed[1] += 1
    named = {name: value.clone() for name, value in named.items()}
    named["decoder.weight"][2] *= 2
    difference = (run_folded(named, models[0].config, models[0].P, changed) - y).abs().amax(dim=(1, 2))
    assert difference[0] == 0
    assert difference[1:].min() > 1e-3


def test_every_architecture_of_the_table_is_tested_here():
    assert set(FOLDING) == set(ARCHITECTURES)


def test_stack_layers_keeps_layers_in_order_beyond_ten():
    model = Transformer(ModelConfig(n=3, layers=12, embed=4, width=5))
    stacked = stack_layers({name: torch.stack([value, 2 * value]) for name, value in model.named_parameters()})
    assert not any(".0." in name for name in stacked)
    for index, layer in enumerate(model.layers):
        assert torch.equal(stacked["layers.attention.W_Q.weight"][index, 0], layer.attention.W_Q.weight)
        assert torch.equal(stacked["layers.W_2.bias"][index, 1], 2 * layer.W_2.bias)
    assert torch.equal(stacked["encoder.weight"][0], model.encoder.weight)
