"""A network without its large matrices computes what the Transformer does, and refuses what it refuses."""

import numpy as np
import pytest
import torch

import posattn
from posattn import UsageError
from posattn.compiler import PROGRAMS, compile_program
from posattn.compiler.selection import SelectionNetwork


@pytest.mark.parametrize(("name", "machines"), [("prefix-min", 7), ("bitonic-sort", 6), ("word-count", 3)])
def test_it_equals_the_transformer(name, machines):
    compiled = compile_program(name, machines, bound=9.0)
    small = SelectionNetwork(compiled.program)
    x = torch.from_numpy(PROGRAMS[name].sample(np.random.default_rng(0), 10, machines, 9.0))
    x = x if x.shape[-1] > 1 else x[..., 0]
    torch.testing.assert_close(small(x), compiled.model(x), rtol=1e-14, atol=1e-14)
    assert small.stored < sum(p.numel() for p in compiled.model.parameters())


def test_large_sums_of_integers_are_exact():
    network = SelectionNetwork(PROGRAMS["prefix-sum"].build(1024, 1e6))
    x = torch.from_numpy(np.random.default_rng(0).integers(-1000, 1000, (3, 1024)).astype(float))
    assert (network(x) == x.cumsum(dim=-1)).all()


def test_it_refuses_numbers_beyond_the_bounds():
    with pytest.raises(UsageError, match="compiled for -1 to 1"):
        SelectionNetwork(PROGRAMS["prefix-sum"].build(4, 1.0))(torch.tensor([1.0, 2.0, 0.0, 0.0]))


def test_the_transformer_of_many_machines_is_exact_too():
    x = torch.from_numpy(np.random.default_rng(0).integers(-1000, 1000, (2, 100)).astype(float))
    assert (posattn.compile("prefix-sum", machines=100)(x) == x.cumsum(dim=-1)).all()


def test_lists_are_taken_in_tiles_that_change_nothing(monkeypatch):
    network = SelectionNetwork(PROGRAMS["prefix-min"].build(5, 9.0))
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    whole = network(x)
    monkeypatch.setattr("posattn.compiler.selection._TILE", 1)
    assert (network(x) == whole).all() and whole.shape == (2, 7, 5)


def test_it_takes_lists_of_one_length():
    network = SelectionNetwork(PROGRAMS["prefix-min"].build(5, 9.0))
    for x, said in (
        (torch.zeros(4), r"the list has 4 numbers; this compiled program takes 5\."),
        (torch.tensor(1.0), r"the input is a single number; it must be a list of them"),
        (torch.zeros(2, 6), r"the list has 6 numbers; this compiled program takes 5\."),
    ):
        with pytest.raises(UsageError, match=said):
            network(x)


def test_it_takes_a_program_with_messages():
    program = PROGRAMS["list-ranking"].build(4, 1.0, "theorem")
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert SelectionNetwork(program)(x).tolist() == [3, 2, 1, 0]
    with pytest.raises(UsageError, match="it must be a PCOC or an MPC program"):
        SelectionNetwork("list-ranking")
