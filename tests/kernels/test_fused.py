"""The GPU kernels, run by Triton's interpreter on the CPU, equal autograd on the plain folded network."""

import os
from unittest.mock import patch

import pytest
import torch

from posattn.folding import fold, folded_forward, input_encoding, stack_layers
from posattn.model import ModelConfig, Transformer, input_features, positions_of

if "TRITON_INTERPRET" not in os.environ:  # read when the kernels are defined
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")
from posattn.kernels import fused
from posattn.kernels.adam import adam
from posattn.kernels.shapes import ROWS, serves
from posattn.training import Member, Trainer
from posattn.training.parameters import Parameters
from posattn.training.recipe import recipe
from posattn.training.ways import Fused
from posattn.training.workers import Workers

ARCHS = ["positional", "scale-exact", "misaligned", "standard", "no-encoding", "positional-input"]


def problem(arch, n, layer_count, lists, members=2, width=16):
    """Folded tensors of lively random networks, an input and targets."""
    torch.manual_seed(0)
    config = ModelConfig(n, arch, layers=layer_count, embed=16, width=width)
    models = [Transformer(config) for _ in range(members)]
    for model in models:
        for name, value in model.named_parameters():
            if value.ndim == 1:
                torch.nn.init.normal_(value, std=0.3)
            if "W_Q" in name or "W_K" in name:
                value.data *= 3
    names = [name for name, _ in models[0].named_parameters()]
    named = {name: torch.stack([model.get_parameter(name).detach() for model in models]) for name in names}
    x, y = torch.randn(members, lists, n), torch.randn(members, lists, n)
    return config, fold(stack_layers(named), config, models[0].P), x, y, models[0].P


def by_kernels(config, folded, x, y, p, precision, programs):
    encoding = input_encoding(p, positions_of(x.shape[-1], config), config)
    with patch("posattn.kernels.launches.programs", lambda at_once: programs):
        return fused.loss_and_gradients(folded, x, y, encoding, config, precision)


def by_autograd(config, folded, x, y, p):
    features = input_features(x[..., None], p, positions_of(x.shape[-1], config), config)
    leaves = {name: value.detach().requires_grad_() for name, value in folded.items()}
    loss = (folded_forward(leaves, features, config) - y).square().mean(dim=(1, 2))
    found = torch.autograd.grad(loss.sum(), list(leaves.values()), materialize_grads=True)
    return loss.detach(), dict(zip(leaves, found, strict=True))


SIZES = [(4, 2, 13, 2), (8, 1, 9, 64), (6, 3, 16, 1)]


# 13 lists of 5 positions: a last tile that is not full; one layer: first and last at once, and more programs than tiles.
# Architectures differ in what the first layer reads, and the layers between in whether attention is positional.
@pytest.mark.parametrize(
    ("arch", "n", "layer_count", "lists", "programs"),
    [(arch, *size) for arch in ARCHS for size in SIZES if size[1] < 3 or arch in ("positional", "standard")],
)
def test_loss_and_every_gradient_equal_autograd(arch, n, layer_count, lists, programs):
    assert_equal_to_autograd(*problem(arch, n, layer_count, lists), programs=programs)


@pytest.mark.parametrize(("arch", "width"), [("positional", 2), ("standard", 2), ("standard", 19)])
def test_hidden_layers_of_other_widths_are_padded(arch, width):
    assert_equal_to_autograd(*problem(arch, 4, 2, 13, width=width), programs=2)


def assert_equal_to_autograd(config, *given, programs):
    loss, gradients = by_kernels(config, *given, "fp32", programs)
    expected_loss, expected = by_autograd(config, *given)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    assert set(gradients) == set(expected)
    for name, value in expected.items():
        assert gradients[name].shape == value.shape
        if value.numel() and value.norm() > 0:
            assert (gradients[name] - value).norm() / value.norm() < 2e-4, name


# Three lists fill a tile. The three tiles go to two programs, the second of which has one past the last; or to one.
@pytest.mark.parametrize(
    ("precision", "tolerance", "programs"), [("fp32", 2e-4, 2), ("fp32", 2e-4, 1), ("fp16", 1e-2, 2)]
)
@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_a_program_takes_several_tiles_and_none_past_the_last(arch, precision, tolerance, programs):
    given = problem(arch, 16, 2, 8, members=1)
    loss, gradients = by_kernels(*given, precision, programs)
    expected_loss, expected = by_autograd(*given)
    torch.testing.assert_close(loss, expected_loss, rtol=tolerance, atol=0)
    for name, value in expected.items():
        assert (gradients[name] - value).norm() <= tolerance * value.norm() > 0, name


@pytest.mark.parametrize("size", [0, 30])
def test_attention_that_is_even_or_all_but_one_hot(size):
    """The backward pass finds the weights again from a number per row, whether logits vanish or reach hundreds."""
    config, folded, *given = problem("standard", 8, 2, 15)
    steep = {name: value * size if name[0] in "Mm" else value for name, value in folded.items()}
    assert_equal_to_autograd(config, steep, *given, programs=2)


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_short_products_round_and_do_not_cut_off(arch, precision):
    """Products with ten binary digits are off by parts in a thousand, to both sides: the loss is hardly moved."""
    config, *given = problem(arch, 8, 2, 14, members=1)
    loss, gradients = by_kernels(config, *given, precision, 1)
    expected_loss, expected = by_autograd(config, *given)
    torch.testing.assert_close(loss, expected_loss, rtol=2e-4, atol=0)
    assert not torch.equal(loss, expected_loss)
    for name in ("U.first", "U", "w"):
        assert (gradients[name] - expected[name]).norm() / expected[name].norm() < 1e-2
        share = (gradients[name] * expected[name]).sum() / expected[name].square().sum()
        assert abs(share - 1) < 2e-4  # cut off, products are too small by parts in a thousand, and so are gradients


@pytest.mark.parametrize("size", [1, 1e6])
@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_half_precision_holds_errors_beyond_its_range(arch, size):
    """Half precision ends at 65504; gradients are kept in units of the error, so they stay far below."""
    config, folded, x, _, p = problem(arch, 8, 2, 14, members=1)
    features = input_features(x[..., None], p, positions_of(8, config), config)
    y = folded_forward(folded, features, config) + size * torch.randn(x.shape)
    leaves = {name: value.double() for name, value in folded.items()}
    _, expected = by_autograd(config, leaves, x.double(), y.double(), p.double())
    _, gradients = by_kernels(config, folded, x, y, p, "fp16", 2)
    for name in ("U.first", "U", "w"):
        # Targets are noise, so sums cancel, and a few ReLUs that are nearly off turn over.
        assert (gradients[name] - expected[name]).norm() / expected[name].norm() < 5e-2


@pytest.mark.parametrize(("readout", "inner"), [(1e7, 1), (4e5, 30)])
@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_gradients_beyond_the_range_of_half_precision_stay_finite(arch, readout, inner):
    """Matrices so steep that a state's gradient cannot be written down: one step goes astray, and the member lives on."""
    config, folded, x, y, p = problem(arch, 8, 2, 14, members=1)
    steep = folded | {"w": readout * folded["w"], "U": inner * folded["U"]}
    _, gradients = by_kernels(config, steep, x, y, p, "fp16", 2)
    assert all(value.isfinite().all() for value in gradients.values())
    assert gradients["U"].norm() > 0


@pytest.mark.parametrize("arch", ["positional", "standard"])
def test_what_is_no_number_shows_in_the_norm_of_its_own_member_alone(arch):
    """By the norm the trainer stops a member: not where numbers exceed half precision's range, but where there are none."""
    config, cpu = ModelConfig(4, arch, layers=2, embed=16, width=16), torch.device("cpu")
    parameters = Parameters.initial(config, [0, 1], cpu)
    way, x, y = Fused(config, cpu, precision="fp16"), *torch.randn(2, 2, 5, 4)
    *_, norm = way.step(parameters, slice(0, 2), x, y)
    y[0, 0, 0] = torch.nan
    _, rows, of_target = way.step(parameters, slice(0, 2), x, y)
    assert Parameters(config, rows).named()["layers.0.W_1.weight"][0].isnan().any()  # it went back through every layer
    y[0, 0, 0] = 0
    parameters.named()["layers.0.attention.W_V.weight"][0, 0, 0] = torch.nan
    *_, of_weight = way.step(parameters, slice(0, 2), x, y)
    assert norm.isfinite().all() and of_target[0].isnan() and of_weight[0].isnan()
    assert of_target[1] == of_weight[1] == norm[1]


@pytest.mark.parametrize("clip", [None, 0.1])
def test_the_fused_optimiser_is_the_trainer_s(clip):
    """Two steps of three members, one of which has died, and one whose gradient is clipped."""
    generator = torch.Generator().manual_seed(0)
    plan = (
        recipe("tuned", samples=4, batch=2, epochs=3, clip=clip)
        if clip
        else recipe("paper", samples=4, batch=2, epochs=3)
    )
    team = [Member("sum", seed, 1e-3 * (seed + 1)) for seed in range(3)]
    with Workers(1) as workers:
        plain, ours = (
            Trainer(ModelConfig(2, embed=4, width=4), plan, team, torch.device("cpu"), workers) for _ in "ab"
        )
    plain.alive[1] = ours.alive[1] = False
    for _ in range(2):
        gradient = torch.randn(plain.parameters.flat.shape, generator=generator)
        gradient[1, 0] = torch.nan
        norm = torch.linalg.vector_norm(gradient, dim=1)
        plain.step += 1
        state = (ours.parameters.flat, gradient, ours.first_moment, ours.second_moment)
        ours.step += 1
        schedule = (ours.step, ours.rates, ours.spreads)
        adam(state, (ours.lr, ours.alive, norm), schedule, (0.9, 0.999), 1e-8, clip)
        plain._adam(slice(0, 3), gradient.clone(), norm)
    torch.testing.assert_close(ours.parameters.flat, plain.parameters.flat, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(ours.first_moment, plain.first_moment, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(ours.second_moment, plain.second_moment, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize(
    ("arch", "folds"), [("positional", True), ("scale-exact", True), ("standard", True), ("positional", False)]
)
def test_the_whole_fused_step_is_the_plain_one(arch, folds):
    """From the parameters' rows to their gradients' rows, for some of the members; PyTorch folds, or kernels do."""
    config, cpu = ModelConfig(5, arch, layers=2, embed=32, width=16), torch.device("cpu")
    parameters = Parameters.initial(config, [0, 1, 2], cpu)
    x, y = torch.randn(2, 2, 11, 5)
    members = slice(1, 3)
    program = Fused(config, cpu)
    program.folds_in_kernels &= folds
    prepared = program.prepare(parameters, members, 5)
    loss, found = program.gradient(prepared.tensors, x, y, 11)
    expected = prepared.adjoint(found)
    ours, gradient, norm = program.step(parameters, members, x, y)
    torch.testing.assert_close(ours, loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(norm, torch.linalg.vector_norm(expected, dim=1), rtol=1e-4, atol=0)
    assert (gradient - expected).norm() / expected.norm() < 1e-4


def test_what_the_kernels_serve():
    assert serves(ModelConfig(8), "tf32") and serves(ModelConfig(8, "standard"), "tf32")
    assert serves(ModelConfig(8), "fp16") and serves(ModelConfig(8), "fp32")
    assert not serves(ModelConfig(8, "standard"), "fp32")
    assert not serves(ModelConfig(8, heads=4), "tf32")
    assert not serves(ModelConfig(ROWS), "tf32")
    assert serves(ModelConfig(8, "standard", width=2), "tf32")
    assert not serves(ModelConfig(8, width=65), "tf32")
