"""Kernels of attention whose queries and keys do not multiply out, by Triton's interpreter, equal autograd on the module."""

import os
from unittest.mock import patch

import pytest
import torch
from torch.func import functional_call

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are defined
pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")

from posattn.kernels.shapes import _halved, _joined, folds_rows, serves
from posattn.model import ModelConfig, Transformer
from posattn.training.parameters import Parameters
from posattn.training.ways import Fused

ARCHS = ["input-regularized", "rope-only", "standard-rope"]
CPU = torch.device("cpu")


def problem(config, lists, members=2, k=None, targets=1.0):
    """Lively random networks, with attention far from uniform, and lists and targets for each."""
    generator = torch.Generator().manual_seed(0)
    parameters = Parameters.initial(config, list(range(members)), CPU)
    for name, value in parameters.named().items():
        if value.ndim == 2:
            value += 0.3 * torch.randn(value.shape, generator=generator)
        if "W_Q" in name or "W_K" in name:
            value *= 2
    x, y = torch.randn(2, members, lists, config.n if k is None else k, generator=generator)
    return parameters, x, targets * y


def by_kernels(parameters, x, y, precision, members=None):
    """Losses, and gradients by the parameters' names."""
    way = Fused(parameters.config, CPU, precision=precision)
    if members is not None:
        x, y = x[members], y[members]
    loss, rows, _ = way.step(parameters, members or slice(0, len(x)), x, y)
    return loss, rows


def by_autograd(parameters, x, y):
    """The same through the module, in float64."""
    model, losses, rows = Transformer(parameters.config).double(), [], []
    for member in range(len(x)):
        own = {name: value[member].double().requires_grad_() for name, value in parameters.named().items()}
        loss = (functional_call(model, own, (x[member].double(),)) - y[member]).square().mean()
        losses.append(loss.detach())
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(own.values()))]))
    return torch.stack(losses), torch.stack(rows)


def assert_equal(config, found, expected, tolerance):
    torch.testing.assert_close(found[0].double(), expected[0], rtol=tolerance, atol=0)
    ours, right = (Parameters(config, rows).named() for rows in (found[1], expected[1]))
    largest = max(value.norm() for value in right.values())
    for name, value in right.items():
        difference = (ours[name] - value).norm()
        if name.endswith("W_K.bias") and not config.design.rotary:  # zero but for rounding
            assert value.norm() < 1e-9 * largest and ours[name].eq(0).all()
        else:
            assert 0 < difference <= 3 * tolerance * value.norm(), name


# Lists that do not fill the last tile; one layer: first and last at once; 17 positions, of which three lists fill 51 rows.
# The last is asked of attention with rotation and without.
@pytest.mark.parametrize(
    ("arch", "n", "layer_count", "lists"),
    [(arch, *size) for arch in ARCHS for size in ((2, 2, 23), (8, 1, 9))]
    + [("input-regularized", 16, 2, 4), ("rope-only", 16, 2, 4)],
)
def test_loss_and_every_gradient_equal_autograd(arch, n, layer_count, lists):
    config = ModelConfig(n, arch, layers=layer_count, embed=16, width=16, causal=n == 8)
    given = problem(config, lists, members=1 if n == 16 else 2)
    assert_equal(config, by_kernels(*given, "fp32"), by_autograd(*given), 1e-4)


# A list fills a tile. Five go to two programs, three and two of them; or three to one.
@pytest.mark.parametrize(("arch", "lists", "programs"), [("input-regularized", 5, 2), ("rope-only", 3, 1)])
def test_a_program_takes_several_tiles_and_none_past_the_last(arch, lists, programs):
    config = ModelConfig(32, arch, layers=2, embed=16, width=16)
    given = problem(config, lists, members=1)
    with patch("posattn.kernels.launches.programs", lambda at_once: programs):
        found = by_kernels(*given, "fp32")
    assert_equal(config, found, by_autograd(*given), 1e-4)


@pytest.mark.parametrize(
    ("arch", "settings"),
    [
        ("rope-only", {"d_k": 7, "width": 5}),  # an odd entry is not turned; both are padded
        ("rope-only", {"bias": False, "d_k": 34}),  # no table
        ("input-regularized", {"bias": False, "encoding": "binary"}),
        ("input-regularized", {"causal": True, "d_k": 3}),
    ],
)
def test_other_shapes_on_shorter_lists(arch, settings):
    """The scratchpad's position is the last of the longest list's, and so is its angle."""
    config = ModelConfig(6, arch, **{"layers": 2, "embed": 16, "width": 16} | settings)
    given = problem(config, 9, members=1, k=4)
    assert_equal(config, by_kernels(*given, "fp32"), by_autograd(*given), 1e-4)


@pytest.mark.parametrize(("arch", "precision"), [*((arch, "fp16") for arch in ARCHS), ("standard-rope", "tf32")])
def test_short_products_are_off_by_parts_in_a_thousand(arch, precision):
    config = ModelConfig(8, arch, layers=2, embed=16, width=16)
    given = problem(config, 7, members=1, targets=1e6 if precision == "fp16" else 1.0)  # half precision ends at 65504
    (loss, rows), (expected_loss, expected) = by_kernels(*given, precision), by_autograd(*given)
    torch.testing.assert_close(loss.double(), expected_loss, rtol=2e-3, atol=0)
    assert 1e-5 < (rows - expected).norm() / expected.norm() < 3e-2


@pytest.mark.parametrize("arch", ["input-regularized", "standard-rope"])
def test_gradients_beyond_the_range_of_half_precision_stay_finite(arch):
    config = ModelConfig(8, arch, layers=2, embed=16, width=16)
    parameters, x, y = problem(config, 7, members=1)
    parameters.named()["decoder.weight"][:] *= 1e7
    _, rows = by_kernels(parameters, x, y, "fp16")
    assert rows.isfinite().all() and rows.norm() > 0


def test_a_member_alone_is_the_member_among_others():
    """Up to the rounding of the fold, whose products are of one batch."""
    given = problem(ModelConfig(5, "standard-rope", layers=1, embed=16, width=16), 8, members=3)
    loss, rows = by_kernels(*given, "fp16")
    alone_loss, alone = by_kernels(*given, "fp16", slice(1, 2))
    torch.testing.assert_close(alone_loss[0], loss[1], rtol=1e-6, atol=0)
    assert (alone[0] - rows[1]).norm() <= 1e-5 * rows[1].norm()


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
@pytest.mark.parametrize("d_k", [1, 2, 7, 32, 33, 64])
def test_halves_hold_every_entry_once(d_k, precision):
    value = torch.randn(3, d_k)
    halves = _halved(value, precision)
    assert halves.shape[-1] >= (64 if precision == "fp16" else 16) and halves.shape[-1].bit_count() == 1
    assert torch.equal(_joined(halves, d_k), value)
    assert torch.isclose(halves.norm(), value.norm())


def test_what_the_kernels_serve():
    for arch in ARCHS:
        for n, settings in ((2, {}), (8, {}), (16, {"causal": True}), (8, {"width": 32, "d_k": 20})):
            config = ModelConfig(n, arch, **settings)
            assert serves(config, "fp16") and serves(config, "tf32")
            assert not serves(config, "fp32") and not folds_rows(config)
        for n, settings in ((8, {"d_k": 65}), (8, {"heads": 4}), (8, {"width": 65}), (64, {})):
            assert not serves(ModelConfig(n, arch, **settings), "fp16")
