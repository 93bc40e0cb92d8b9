"""The looped network, folded for an ensemble, against the network itself."""

import pytest
import torch

from posattn.folding import looped_forward
from posattn.looped import LoopedConfig
from posattn.training.parameters import Parameters
from posattn.training.ways import way_for

CPU = torch.device("cpu")
KINDS = {
    "scan": {},
    "blank": {"stay": False},
    "sorter": {"family": "butterfly", "heads": 4},
    "selector": {"family": "selector"},
    "deeper": {"mlp": ((12, 10),)},
    "narrow values": {"d_v": 3},
}


def configured(kind):
    return LoopedConfig(8, embed=8, width=9, sharpness=2.0, **KINDS[kind])


def lists(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 70, 131])
def test_the_folded_loop_of_an_ensemble_is_the_network(kind, n):
    config = configured(kind)
    parameters = Parameters.initial(config, [0, 1, 2], CPU)
    parameters.flat = 2 * parameters.flat.double()
    x = lists(3, 5, n)
    expected = torch.stack([parameters.model(k).double()(own) for k, own in enumerate(x)])
    torch.testing.assert_close(looped_forward(parameters.named(), x, config), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(way_for(config, CPU).predict(parameters.named(), x), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["scan", "sorter"])
def test_the_folded_loop_has_the_networks_gradients(kind):
    model = configured(kind).build().double()
    with torch.no_grad():
        model.layer.W_2.weight.mul_(3)  # large enough for every path to matter
    x, y = lists(4, 6), lists(4, 6, seed=2)
    expected = torch.autograd.grad((model(x) - y).square().sum(), list(model.parameters()))
    named = {name: value.detach()[None].requires_grad_() for name, value in model.named_parameters()}
    out = looped_forward(named, x[None], model.config)
    found = torch.autograd.grad((out - y).square().sum(), list(named.values()))
    for name, one, two in zip(named, found, expected, strict=True):
        torch.testing.assert_close(one[0], two, rtol=1e-8, atol=1e-10, msg=name)
        assert two.abs().max() > 0, name
