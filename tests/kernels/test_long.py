"""The GPU kernels on lists longer than 64 positions, run by Triton's interpreter on the CPU, equal the plain path."""

import os
from unittest.mock import patch

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are defined
pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")

import posattn
from posattn.kernels import words
from posattn.kernels.shapes import LONG_ROWS, ROWS, enters, rows_of, serves
from posattn.tokens import TokenConfig
from posattn.training.parameters import Parameters
from posattn.training.ways import Fused, squared_error

CPU = torch.device("cpu")


def prompts(arch, n=101, lists=3, **changes):
    """Two lively networks of prompts spelled in characters, and lists for each, which do not begin a batch."""
    settings = {"tokens": "characters", "layers": 2, "embed": 16, "width": 16} | changes
    config = TokenConfig(n, arch, **settings)
    flat = Parameters.initial(config, [0, 1], CPU).flat
    flat += 0.1 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(0))  # no bias at zero
    x, y = (value[:, 1:-1] for value in posattn.task("mixed-min").sample(lists + 2, n=101, seed=[0, 1]))
    return config, Parameters(config, flat), x[..., :n], y, Fused(config, CPU, squared_error)


def compare(config, parameters, x, y, program, precision, tolerance):
    prepared = program.prepare(parameters, slice(0, 2), x.shape[-1])
    expected_loss, gradients = program.gradient(prepared.tensors, x, y, x.shape[1])
    expected = Parameters(config, prepared.adjoint(gradients)).named()
    program.precision = precision
    loss, rows, norm = program.step(parameters, slice(0, 2), x, y)
    torch.testing.assert_close(norm, rows.norm(dim=1))
    torch.testing.assert_close(loss, expected_loss, rtol=tolerance, atol=0)
    for key, found in Parameters(config, rows).named().items():
        if not key.endswith("W_K.bias"):  # zero but for rounding
            assert (found - expected[key]).norm() <= 10 * tolerance * expected[key].norm() > 0, key


@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        ("positional", {}),
        ("positional", {"bias": False, "relative": True, "layers": 1}),
        ("standard", {}),
        ("standard", {"layers": 1}),
        ("standard", {"bias": False, "causal": True, "embed": 10, "width": 6}),
        ("misaligned", {}),
    ],
)
def test_loss_and_gradients_of_long_prompts_equal_the_plain_path(arch, changes):
    compare(*prompts(arch, **changes), "fp32", 2e-5)


# A member's five lists go to two programs, three and two of them; or two lists to one, with a layer in the middle.
@pytest.mark.parametrize(
    ("arch", "lists", "programs", "layers"), [("positional", 5, 4, 2), ("standard", 5, 4, 2), ("positional", 2, 1, 3)]
)
def test_a_program_takes_several_lists_and_none_past_the_last(arch, lists, programs, layers):
    with patch("posattn.kernels.launches.programs", lambda at_once: programs):
        compare(*prompts(arch, n=66, lists=lists, layers=layers), "fp32", 2e-5)


@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_half_precision_is_off_by_parts_in_a_thousand(arch):
    compare(*prompts(arch), "fp16", 3e-3)


@pytest.mark.parametrize(("arch", "layers"), [("positional", 3), ("standard", 2)])
def test_gradients_beyond_the_range_of_half_precision_stay_finite(arch, layers):
    """Values so steep in the last layer that the gradient of the state before it cannot be written down."""
    _, parameters, x, y, program = prompts(arch, n=66, lists=1, layers=layers)
    parameters.named()[f"layers.{layers - 1}.W_1.weight"][:] *= 1e7
    program.precision = "fp16"
    _, rows, _ = program.step(parameters, slice(0, 2), x, y)
    assert rows.isfinite().all() and rows.norm(dim=1).all()


@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_what_is_no_number_shows_in_the_norm_of_its_own_member_alone(arch):
    config, parameters, x, y, program = prompts(arch, n=66, lists=1)
    program.precision = "fp16"
    *_, norm = program.step(parameters, slice(0, 2), x, y)
    right = y[0, 0].clone()
    y[0, 0] = torch.nan
    _, rows, of_target = program.step(parameters, slice(0, 2), x, y)
    assert Parameters(config, rows).named()["layers.0.W_1.weight"][0].isnan().any()  # it went back through every layer
    y[0, 0] = right
    parameters.named()["layers.0.attention.W_V.weight"][0, 0, 0] = torch.nan
    *_, of_weight = program.step(parameters, slice(0, 2), x, y)
    assert norm.isfinite().all() and of_target[0].isnan() and of_weight[0].isnan()
    assert of_target[1] == of_weight[1] == norm[1]


def test_short_prompts_do_not_enter_apart():
    """The kernel writes as many columns as the layers of long prompts read."""
    _, _, x, *_ = prompts("standard", n=63, lists=1)
    with pytest.raises(AssertionError, match="63 tokens"):
        words.Entrance(x, torch.zeros(2, 16), {"T": torch.zeros(2, 16, 16), "t": torch.zeros(2, 64, 16)}, "fp16")


def test_which_long_lists_the_kernels_serve():
    assert rows_of(64) == ROWS and rows_of(65) == rows_of(128) == LONG_ROWS
    for arch in ("positional", "standard", "misaligned"):
        config = posattn.training.network_for("mixed-min", arch=arch, layout="characters")
        assert [serves(config, precision) for precision in ("fp16", "tf32", "fp32")] == [True, False, False]
        assert enters(config) == (arch != "positional")
    assert not enters(posattn.training.network_for("mixed-min", arch="standard", layout="elements"))
    assert serves(TokenConfig(127, tokens="prompts", width=32, embed=32), "fp16")
    assert not serves(TokenConfig(128, tokens="prompts", width=32, embed=32), "fp16")
    assert not serves(TokenConfig(100, tokens="prompts", width=33, embed=32), "fp16")
    for arch in ("positional", "standard"):  # lists of numbers, and of letters, are short
        assert not serves(posattn.ModelConfig(100, arch, width=32), "fp16")
        assert not serves(TokenConfig(100, arch, tokens="letters", embed=16, width=16), "fp16")
