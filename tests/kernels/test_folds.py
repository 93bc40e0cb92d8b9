"""The kernels that fold, run by Triton's interpreter on the CPU, equal ``posattn.folding.Fold`` and its adjoint."""

import os

import pytest
import torch

from posattn.folding import Fold
from posattn.model import ModelConfig, positions_of
from posattn.training import network_for

if "TRITON_INTERPRET" not in os.environ:  # read when the kernels are defined
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")
from posattn.kernels.folds import RowsFold
from posattn.kernels.shapes import folds_rows
from posattn.training.parameters import Parameters

MEMBERS = slice(1, 3)  # of three


def problem(config, length):
    """Random rows, large enough for attention far from uniform, and the encodings at ``length``."""
    model = config.build()
    count = sum(value.numel() for value in model.parameters())
    parameters = Parameters(config, 0.4 * torch.randn(3, count))
    return parameters, model.P[positions_of(length, config)]


def assert_fold_and_adjoint_agree(config, length):
    parameters, p = problem(config, length)
    plain = Fold(parameters.by_layer(parameters.flat[MEMBERS]), config, p)
    ours = RowsFold(parameters.flat[MEMBERS], parameters.starts, config, p)
    assert ours.folded.keys() == plain.folded.keys()
    for name, value in plain.folded.items():
        torch.testing.assert_close(
            ours.folded[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )

    given = {name: torch.randn_like(value) for name, value in plain.folded.items()}
    found = plain.adjoint(given)
    expected = Parameters(config, parameters.flatten(found, parameters.by_layer))
    gradient, norm = ours.adjoint(given)
    for name, value in Parameters(config, gradient).named().items():
        wanted = expected.named()[name]
        assert (value - wanted).norm() <= 1e-5 * wanted.norm() + 1e-5, (
            name
        )  # that of a key bias is zero but for rounding
    torch.testing.assert_close(norm, torch.linalg.vector_norm(expected.flat, dim=1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("layer_count", [1, 3])
@pytest.mark.parametrize(
    ("arch", "bias"),
    [
        ("positional", True),
        ("scale-exact", False),
        ("misaligned", True),
        ("misaligned", False),
        ("standard", True),
        ("standard", False),
        ("no-encoding", True),
        ("positional-input", True),
    ],
)
def test_folded_tensors_and_gradients_are_those_of_the_plain_fold(arch, bias, layer_count):
    assert_fold_and_adjoint_agree(ModelConfig(4, arch, layers=layer_count, embed=32, width=16, bias=bias), 4)


@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_short_lists_and_other_widths(arch):
    """Six of nine positions; d_k fills no tile; the encoder reads more features than the hidden layer has."""
    config = ModelConfig(8, arch, layers=2, embed=64, width=32, encoding="sinusoidal", encoding_dim=40, d_k=19)
    assert_fold_and_adjoint_agree(config, 5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("arch", ["positional", "standard"])
@pytest.mark.parametrize(("name", "tied"), [("khop", False), ("khop", True), ("mixed-min", False)])
def test_networks_of_tokens(name, tied, arch, bias):
    """Letters: causal, a readout of 16 words, an embedding that fills no tile. Prompts: many features, one answer."""
    own = {"n": 6, "embed": 22, "tied": tied} if name == "khop" else {}
    config = network_for(name, arch=arch, layers=2, width=16, bias=bias, **own)
    assert folds_rows(config)
    assert_fold_and_adjoint_agree(config, config.n)


def test_causal_lists():
    assert_fold_and_adjoint_agree(ModelConfig(6, layers=2, embed=16, width=16, causal=True), 4)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_gradient_that_is_not_finite_shows_in_the_norm_of_its_member():
    config = ModelConfig(4, layers=1, embed=32, width=16)
    parameters, p = problem(config, 4)
    ours = RowsFold(parameters.flat[MEMBERS], parameters.starts, config, p)
    given = {name: torch.randn_like(value) for name, value in ours.folded.items()}
    given["c"][0, 1, 0, 3] = torch.inf
    _, norm = ours.adjoint(given)
    assert norm.isfinite().tolist() == [True, False]


def test_what_the_kernels_serve():
    for served in ({}, {"arch": "standard"}, {"embed": 16}, {"embed": 48}, {"causal": True}):
        assert folds_rows(ModelConfig(8, **served)), served
    for other in ({"width": 48}, {"arch": "standard", "d_k": 65}, {"embed": 128}, {"arch": "rope-only"}):
        assert not folds_rows(ModelConfig(8, **other)), other
    assert folds_rows(network_for("khop")) and folds_rows(network_for("mixed-min", layout="elements", arch="standard"))
    # Matrices per place, and too many positions.
    assert not folds_rows(network_for("mixed-min", layout="elements-shared"))
    assert not folds_rows(network_for("mixed-min", layout="characters"))
