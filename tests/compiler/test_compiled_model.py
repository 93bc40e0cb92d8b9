"""The network of a compiled program: vectors, spare machines, deeper MLPs, hardmax, what it refuses, and its size."""

import re

import pytest
import torch

from posattn import Transformer, UsageError
from posattn.attention import hardmax
from posattn.compiler import PCOC, PROGRAMS, Known, compile_program
from posattn.compiler.compiled_model import CompiledConfig, CompiledTransformer, attention_parameters
from posattn.compiler.machine_memory import RECEIVES, breach_code, refuse_breaches

WIDE = {"n": 3, "layers": 2, "heads": 2, "embed": 5, "d_v": 7, "mlp": ((11, 13), (17,)), "bounds": ((-9.0, 9.0),) * 2}
WIDE |= {"inputs": 2, "outputs": 3, "spare": 1, "hardmax": False}


def test_a_layer_of_a_deeper_mlp_by_hand():
    model = Transformer(CompiledConfig(**WIDE)).double()
    assert isinstance(model, CompiledTransformer)
    x = torch.randn(19, 3, 2, dtype=torch.float64)
    before, after, last = model.states(x)
    layer = model.layers[0]
    a = layer.weights(before, model.P, torch.arange(5))
    values = layer.attention.W_V(before).unflatten(-1, (2, 7))
    mixed = torch.cat([a[h] @ values[..., h, :] for h in range(2)], dim=-1)
    z = torch.cat([layer.attention.W_O(mixed), before], dim=-1)
    z = layer.between[0](layer.W_1(z).relu()).relu()
    torch.testing.assert_close(layer.W_2(z), after)
    assert len(model.layers[1].between) == 0
    last = last.abs()  # negative numbers of machines are breaches
    torch.testing.assert_close(model.decoder(last)[:, :3], model.decode(last))
    assert model.decode(last).shape == (19, 3, 3)


def test_hardmax_is_one_at_every_largest_entry():
    assert hardmax(torch.tensor([[1.0, 3.0, 2.0], [4.0, 0.0, 4.0]])).tolist() == [[0, 1, 0], [1, 0, 1]]
    model = Transformer(CompiledConfig(**WIDE | {"hardmax": True}))
    assert set(model.attention().unique().tolist()) == {0.0, 1.0}


def test_attention_needs_no_input_whatever_the_bounds_are():
    model = Transformer(CompiledConfig(**WIDE | {"bounds": ((2.0, 9.0), (0.5, 1.5)), "integers": (1,)}))
    assert model.attention().shape == (2, 2, 5, 5)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"inputs": 0}, "inputs is 0; it must be a whole number of at least 1."),
        ({"outputs": 1.5}, "outputs is 1.5; it must be a whole number of at least 1."),
        ({"spare": -3}, "spare is -3; it must be a whole number of at least 0."),
        ({"hardmax": "yes"}, "hardmax is 'yes'; it must be True or False."),
        ({"mlp": ((3,),)}, "mlp has 1 rows; it must have hidden widths for each of 2 layers."),
        ({"mlp": ((3,), ())}, "mlp has 2 rows; it must have hidden widths for each of 2 layers."),
        ({"bounds": ((0.0, 1.0),)}, "bounds has 1 rows; it must have one for each of 2 inputs."),
        (
            {"bounds": ((0.0, 1.0), (1.0, 0.0))},
            "bounds is ((0.0, 1.0), (1.0, 0.0)); it must be a tuple of smallest and largest numbers, such as ((-1.0, 1.0),).",
        ),
        (
            {"bounds": None},
            "bounds is None; it must be a tuple of smallest and largest numbers, such as ((-1.0, 1.0),).",
        ),
        ({"integers": (0, 2)}, "integers is (0, 2); it must be a tuple of inputs, from 0 to 1."),
        ({"integers": 1}, "integers is 1; it must be a tuple of inputs, from 0 to 1."),
        ({"d_v": None}, "d_v is None; it must be a whole number of at least 1."),
    ],
)
def test_bad_configurations(unchecked, fields, sentence):
    with pytest.raises(UsageError) as error:
        CompiledConfig(**WIDE | fields)
    assert str(error.value) == sentence


def test_a_field_that_is_missing_or_of_another_kind_is_named():
    with pytest.raises(UsageError, match=r"^mlp is missing; CompiledConfig has no default for it\.$"):
        CompiledConfig(**{name: value for name, value in WIDE.items() if name != "mlp"})
    with pytest.raises(
        UsageError, match=r"^tokens is 'letters', a field of TokenConfig; CompiledConfig has n, layers, "
    ):
        CompiledConfig(**WIDE, tokens="letters")


def test_a_compiled_program_takes_lists_of_one_length():
    with pytest.raises(UsageError, match=r"^the list has 2 numbers; this compiled program takes 3\.$"):
        Transformer(CompiledConfig(**WIDE))(torch.zeros(2, 2))


@pytest.mark.usefixtures("unchecked")
def test_under_torch_compile_a_program_refuses_as_before():
    program = PCOC(2, 1, (Known(0, 1),), (), start=lambda memory: [memory[0] * 2])
    model = torch.compile(compile_program(program).model, backend="eager")
    assert model(torch.tensor([1.0, 0.5])).tolist() == [2, 1]
    with pytest.raises(UsageError, match="input 0 has numbers from 0 to 2; the program was compiled for 0 to 1"):
        model(torch.tensor([0.0, 2.0]))
    with pytest.raises(UsageError, match="round 1: machine 1 receives 1 word more than its memory holds"):
        torch.compile(refuse_breaches, backend="eager")(torch.tensor([[0.0], [breach_code(RECEIVES, 1, 2)]]), 2)


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
