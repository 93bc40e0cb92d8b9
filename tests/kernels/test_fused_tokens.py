"""The GPU kernels on networks of tokens, run by Triton's interpreter on the CPU, equal the plain path."""

import os

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are defined
pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")

import posattn
from posattn.kernels import layers, queries
from posattn.kernels.shapes import serves
from posattn.training.parameters import Parameters
from posattn.training.suitability import network_for
from posattn.training.ways import Fused, loss_of

CPU = torch.device("cpu")


def problem(name, **settings):
    """Two lively networks of a task, and sequences for each, which do not fill the last tile: part of more, as batches are."""
    task = posattn.task(name)
    network = task.NETWORK | {"embed": 16, "width": 16, "layers": 2} | ({"n": 10} if name == "khop" else {}) | settings
    config = network_for(name, **network)
    flat = Parameters.initial(config, [0, 1], CPU).flat
    flat += 0.1 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(0))  # no bias at zero
    count = 6 if name == "khop" else 3
    x, y = (value[:, 1:-1] for value in task.sample(count + 2, n=config.n, seed=[0, 1]))
    return config, Parameters(config, flat), x, y, Fused(config, CPU, loss_of([name]))


def plain(parameters, x, y, program):
    prepared = program.prepare(parameters, slice(0, 2), x.shape[-1])
    loss, gradients = program.gradient(prepared.tensors, x, y, x.shape[1])
    return loss, prepared.adjoint(gradients)


def by_kernels(parameters, x, y, program, precision):
    program.precision = precision
    loss, rows, norm = program.step(parameters, slice(0, 2), x, y)
    torch.testing.assert_close(norm, rows.norm(dim=1))
    return loss, rows


CASES = [
    ("khop", {"layers": 3}),
    ("khop", {"arch": "standard"}),
    ("khop", {"arch": "standard", "tied": True, "layers": 1}),
    ("khop", {"bias": False, "tied": True, "layers": 3}),
    ("khop", {"arch": "rope-only"}),
    ("mixed-sum", {"arch": "standard"}),
    ("mixed-sum", {"tokens": "elements-shared"}),
    ("mixed-multitask", {"relative": True, "width": 10}),  # padded to 16
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_loss_and_gradients_equal_the_plain_path(name, settings):
    config, *given = problem(name, **settings)
    expected_loss, expected = plain(*given)
    loss, rows = by_kernels(*given, "fp32")
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    for key, found in Parameters(config, rows).named().items():
        right = Parameters(config, expected).named()[key]
        if key.endswith("W_K.bias"):  # zero but for rounding
            continue
        assert (found - right).norm() <= 2e-4 * right.norm() and right.norm() > 0, key


class Launches:
    """A kernel that notes what it is launched with."""

    def __init__(self, kernel):
        self.kernel, self.settings = kernel, []

    def __getitem__(self, grid):
        def launch(**settings):
            self.settings.append(settings)
            self.kernel[grid](**settings)

        return launch


@pytest.mark.parametrize(
    ("arch", "module", "kernel"),
    [
        ("positional", layers, "positional_back"),
        ("standard", layers, "attention_backward"),
        ("rope-only", queries, "queries_state"),
    ],
)
def test_nothing_asks_for_the_gradient_of_what_the_first_layer_reads(monkeypatch, arch, module, kernel):
    _, *given = problem("khop", arch=arch, layers=2)
    noted = Launches(getattr(module, kernel))
    monkeypatch.setattr(module, kernel, noted)
    by_kernels(*given, "fp16")
    assert [each["D_IN"] for each in noted.settings if each["STATE"]] == [64]  # of the second layer alone


@pytest.mark.parametrize(
    ("name", "settings", "precision"), [(*CASES[0], "fp16"), (*CASES[1], "fp16"), (*CASES[1], "tf32"), (*CASES[5], "tf32")]
)
def test_short_precision_is_off_by_parts_in_a_thousand(name, settings, precision):
    _, *given = problem(name, **settings)
    expected_loss, expected = plain(*given)
    loss, rows = by_kernels(*given, precision)
    torch.testing.assert_close(loss, expected_loss, rtol=2e-3, atol=0)
    assert 0 < (rows - expected).norm() / expected.norm() < 2e-2


@pytest.mark.parametrize("name", ["khop", "mixed-min"])
def test_a_readout_of_zeros_sends_zeros_back(name):
    """dz then has no size to be measured by."""
    config, parameters, *given = problem(name)
    parameters.named()["decoder.weight"].zero_()
    _, rows = by_kernels(parameters, *given, "fp16")
    found = Parameters(config, rows).named()
    assert rows.isfinite().all() and found["decoder.weight"].any()
    assert not any(value.any() for key, value in found.items() if not key.startswith("decoder"))


def test_which_networks_the_kernels_serve():
    for arch in ("positional", "standard"):
        for tied in (False, True):
            config = network_for("khop", arch=arch, tied=tied)
            assert [serves(config, precision) for precision in ("fp16", "tf32", "fp32")] == [True, True, False]
    assert serves(network_for("mixed-min", arch="standard"), "fp16")
    assert not serves(posattn.TokenConfig(64, tokens="letters", causal=True), "fp16")  # longer than a tile


def test_lists_of_numbers_may_be_causal_too():
    """The layers' kernels see the mask; a fold of self-attention does not depend on it."""
    config = posattn.ModelConfig(5, "standard", causal=True, embed=32, width=16, layers=2)
    parameters, program = Parameters.initial(config, [0, 1], CPU), Fused(config, CPU)
    x, y = posattn.task("sum").sample(7, n=5, seed=[0, 1])
    expected_loss, expected = plain(parameters, x, y, program)
    loss, rows = by_kernels(parameters, x, y, program, "fp32")
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    assert (rows - expected).norm() <= 2e-4 * expected.norm()
