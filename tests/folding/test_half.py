"""The folded network in half precision gives the answers and gradients of the exact one, up to float16's rounding."""

import pytest
import torch

import posattn
from posattn.tokens import TokenConfig
from posattn.training.parameters import Parameters
from posattn.training.ways import Folded, Half, squared_error, way_for


@pytest.mark.parametrize("arch", ["positional", "standard", "misaligned", "no-encoding"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"layers": 1, "n": 101, "tokens": "characters"}, {"bias": False}, {"relative": True, "causal": True, "width": 12}],
)
@pytest.mark.parametrize("lists", [40, 37])  # which do and do not split into parts
def test_loss_and_gradients_are_those_of_the_exact_way(arch, changes, lists):
    config = TokenConfig(**{"n": 23, "arch": arch, "tokens": "prompts", "layers": 3, "embed": 16, "width": 16} | changes)
    device = torch.device("cpu")
    parameters = Parameters.initial(config, [0, 1], device)
    x, y = posattn.task("mixed-min").sample(lists, n=config.n, seed=[3, 4])
    y[1] *= 1e4  # members whose errors have other sizes
    found = {}
    for kind in (Folded, Half):
        way = kind(config, device, squared_error)
        prepared = way.prepare(parameters, slice(0, 2), config.n)
        loss, gradients = way.gradient(prepared.tensors, x, y, lists)
        found[kind] = loss, prepared.adjoint(gradients)
    (exact, wanted), (loss, gradient) = found[Folded], found[Half]
    torch.testing.assert_close(loss, exact, rtol=5e-3, atol=0)
    difference = (gradient - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert (difference < 0.01).all() and (difference > 1e-6).all()  # it is half precision


def test_prompts_take_it_where_the_kernels_do_not_serve():
    long = TokenConfig(101, tokens="characters", layers=1, embed=8, width=8)
    assert type(way_for(long, torch.device("cpu"), precision="fp16")) is Half
    assert type(way_for(long, torch.device("cpu"), precision="fp32")) is Folded
