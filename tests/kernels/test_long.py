"""The GPU kernels on lists longer than 64 positions, run by Triton's interpreter on the CPU, equal the plain path."""

import os

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are defined
pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")

import posattn
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
    layout = {"n": 101} if config.tokens == "characters" else {"n": n}
    x, y = (value[:, 1:-1] for value in posattn.task("mixed-min").sample(lists + 2, **layout, seed=[0, 1]))
    return config, Parameters(config, flat), x, y, Fused(config, CPU, squared_error)


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


@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_half_precision_is_off_by_parts_in_a_thousand(arch):
    compare(*prompts(arch), "fp16", 3e-3)


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
