"""The GPU kernels, run by Triton's interpreter on the CPU, equal autograd on the plain folded network."""

import os

import pytest
import torch

from posattn.folding import fold, folded_forward, stack_layers
from posattn.model import ModelConfig, Transformer, input_features, positions_of

if "TRITON_INTERPRET" not in os.environ:  # read when the kernels are defined
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")
from posattn.kernels import fused, layers

ARCHS = ["positional", "scale-exact", "misaligned", "standard", "no-encoding", "positional-input"]


def problem(arch, n, layer_count, lists, members=2):
    """Folded tensors of lively random networks, an input and targets."""
    torch.manual_seed(0)
    config = ModelConfig(n, arch, layers=layer_count, embed=16, width=16)
    models = [Transformer(config) for _ in range(members)]
    for model in models:
        for name, value in model.named_parameters():
            if value.ndim == 1:
                torch.nn.init.normal_(value, std=0.3)
            if "W_Q" in name or "W_K" in name:
                value.data *= 3
    names = [name for name, _ in models[0].named_parameters()]
    named = {name: torch.stack([model.get_parameter(name).detach() for model in models]) for name in names}
    x, y = torch.randn(members, lists, n), torch.randn(members, lists, n)
    positions = positions_of(n, config)
    features = input_features(x, models[0].P, positions, config)
    return config, fold(stack_layers(named), config, models[0].P), features, y


def by_autograd(config, folded, features, y):
    leaves = {name: value.detach().requires_grad_() for name, value in folded.items()}
    loss = (folded_forward(leaves, features, config) - y).square().mean(dim=(1, 2))
    found = torch.autograd.grad(loss.sum(), list(leaves.values()), materialize_grads=True)
    return loss.detach(), dict(zip(leaves, found, strict=True))


# 29 lists of 5 positions: a last tile that is not full; one layer: first and last at once; more programs than tiles.
@pytest.mark.parametrize(("n", "layer_count", "lists", "programs"), [(4, 2, 29, 4), (8, 1, 9, 64), (6, 3, 16, 1)])
@pytest.mark.parametrize("arch", ARCHS)
def test_loss_and_every_gradient_equal_autograd(arch, n, layer_count, lists, programs):
    config, folded, features, y = problem(arch, n, layer_count, lists)
    loss, gradients = fused.loss_and_gradients(folded, features, y, config, "ieee", programs)
    expected_loss, expected = by_autograd(config, folded, features, y)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    assert set(gradients) == set(expected)
    for name, value in expected.items():
        assert gradients[name].shape == value.shape
        if value.numel() and value.norm() > 0:
            assert (gradients[name] - value).norm() / value.norm() < 2e-4, name


@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_tensorfloat_rounds_and_does_not_cut_off(arch):
    """Products with ten binary digits are off by parts in a thousand, to both sides: the loss is hardly moved."""
    config, folded, features, y = problem(arch, 8, 3, 30)
    loss, gradients = fused.loss_and_gradients(folded, features, y, config, "tf32", 4)
    expected_loss, expected = by_autograd(config, folded, features, y)
    torch.testing.assert_close(loss, expected_loss, rtol=2e-4, atol=0)
    assert not torch.equal(loss, expected_loss)
    for name in ("U.first", "U", "w"):
        assert (gradients[name] - expected[name]).norm() / expected[name].norm() < 1e-2


def test_what_the_kernels_serve():
    assert fused.supported(ModelConfig(8), "tf32") and fused.supported(ModelConfig(8, "standard"), "tf32")
    assert not fused.supported(ModelConfig(8), "fp32")
    assert not fused.supported(ModelConfig(8, "rope-only"), "tf32")
    assert not fused.supported(ModelConfig(8, heads=4), "tf32")
    assert not fused.supported(ModelConfig(layers.ROWS), "tf32")
    assert not fused.supported(ModelConfig(8, width=48), "tf32")
