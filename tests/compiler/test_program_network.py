"""Compiled networks whose weights training may change."""

import pytest
import torch

import posattn
from posattn import UsageError
from posattn.compiler.compiled_model import CompiledConfig
from posattn.compiler.program_network import ProgramConfig, trainable
from posattn.network import from_dict

FIELDS = {"layers": 1, "heads": 1, "embed": 2, "d_v": 1, "mlp": ((2,),), "bounds": ((-1.0, 1.0),)}


@pytest.fixture(scope="module")
def sorter():
    return posattn.compile("odd-even-sort", machines=3, epsilon=1e-3, bound=20.0)


def test_it_computes_what_the_compiled_network_does(sorter):
    network, x = trainable(sorter), 20 * torch.rand(5, 3) - 10
    assert network.input_dtype == torch.float32 and all(p.requires_grad for p in network.parameters())
    torch.testing.assert_close(network(x), sorter(x).float(), rtol=0, atol=1e-3)
    torch.testing.assert_close(network(x), x.sort().values, rtol=0, atol=2e-3)
    before = [p.clone() for p in sorter.parameters()]
    with torch.no_grad():
        for p in network.parameters():
            p.add_(1.0)
    assert all(map(torch.equal, before, sorter.parameters())) and sorter.input_dtype == torch.float64


def test_it_refuses_other_lengths_and_no_numbers(sorter):
    network = trainable(sorter)
    with pytest.raises(UsageError, match=r"^input 0 has numbers from 0 to 100; "):
        sorter(torch.tensor([0.0, 100.0, 1.0]))
    assert network(torch.tensor([0.0, 100.0, 1.0])).shape == (3,)
    with pytest.raises(UsageError, match=r"^the list has 2 numbers; this network takes 3\.$"):
        network(torch.zeros(2))
    with pytest.raises(UsageError, match=r"^the input is of torch\.int64; "):
        network(torch.zeros(3, dtype=torch.int64))


def test_its_gradient_is_that_of_the_float64_network(sorter):
    network, x = trainable(sorter), torch.tensor([[3.0, 1.0, 2.0]])
    network(x)[0, 0].backward()
    exact = trainable(sorter).double()
    exact(x.double())[0, 0].backward()
    for found, wanted in zip(network.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad.float(), rtol=1e-3, atol=1e-3)
    assert exact.decoder.weight.grad.abs().max() > 0.5


def test_what_cannot_be_trained_on_is_refused():
    assert from_dict(ProgramConfig(4, **FIELDS).to_dict()) == ProgramConfig(4, **FIELDS) != CompiledConfig(4, **FIELDS)
    with pytest.raises(UsageError, match=r"^hardmax is True; "):
        ProgramConfig(4, **FIELDS, hardmax=True)
    with pytest.raises(UsageError, match=r"^outputs is 2; tasks of lists have 1 number per position\.$"):
        ProgramConfig(4, **FIELDS, outputs=2)
