"""Sizes are counted before a network is built, and one that no memory holds is refused in a sentence."""

import re

import pytest

from posattn import UsageError
from posattn.compiler import PROGRAMS, compile_program
from posattn.compiler.room import attention_parameters, mlp_parameters


@pytest.mark.parametrize("route", ["theorem", "lean"])
@pytest.mark.parametrize(
    ("name", "machines"), [("prefix-min", 5), ("median", 3), ("word-count", 3), ("self-attention", 2)]
)
def test_the_count_is_that_of_the_network(name, machines, route):
    model = compile_program(name, machines, route=route).model
    assert model.config.least_numbers == sum(p.numel() for p in model.parameters())
    layer, config = model.layers[0], model.config
    own = attention_parameters(config.positions, config.heads, config.embed, config.d_v)
    assert own == sum(p.numel() for p in layer.attention.parameters())
    mlp = [p.numel() for part in (layer.W_1, *layer.between, layer.W_2) for p in part.parameters()]
    assert mlp_parameters(config.embed, config.mlp[0]) == sum(mlp)


def test_what_does_not_fit_is_refused_before_it_is_built(posattn_command):
    for name in PROGRAMS.keys() - {"mixed"}:  # which takes two sizes, both small
        code, _, told = posattn_command("compile", name, "--machines", 100_000)
        assert code == 2 and told.count("\n") == 1
        assert told.startswith(f"posattn: {name} on 100000 machines compiles to ") and "GB are free" in told


def test_what_does_not_fit_is_refused_as_soon_as_that_is_known(monkeypatch):
    config = compile_program("median", 4).model.config
    one = attention_parameters(config.positions, 1, 2, 1)
    attention = config.layers * attention_parameters(config.positions, config.heads, config.embed, config.d_v)
    every = config.least_numbers
    monkeypatch.setattr("posattn.devices._SMALL", 0)
    for free, told in (
        (one - 1, "median on 4 machines compiles to "),
        (attention - 1, "median compiles to "),
        (every - 1, f"median compiles to {every:.3g} numbers"),
    ):
        monkeypatch.setattr("posattn.devices.free_bytes", lambda _, free=free: 8 * free / 0.95)
        with pytest.raises(UsageError, match="^" + re.escape(told)):
            compile_program("median", 4)
    monkeypatch.setattr("posattn.devices.free_bytes", lambda _: 8 * (every + 1) / 0.95)
    assert compile_program("median", 4).model.config == config
