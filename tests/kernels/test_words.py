"""What networks of tokens read and the kernel of their letters, run by Triton's interpreter on the CPU."""

import os

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are defined
pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")

import posattn
from posattn.kernels import words
from posattn.kernels.shapes import ROWS, input_columns, padded, short
from posattn.training.suitability import network_for
from posattn.training.ways import Folded, cross_entropy


@pytest.mark.parametrize(
    ("name", "settings"),
    [("khop", {}), ("khop", {"arch": "standard", "n": 7}), ("mixed-sum", {}), ("mixed-min", {"arch": "standard"})],
)
def test_rows_of_the_table_are_what_the_encoder_reads(name, settings):
    config = network_for(name, **settings)
    program = Folded(config, torch.device("cpu"))
    x, _ = posattn.task(name).sample(5, n=config.n, seed=[0, 1, 2])
    expected = program.features(x)
    table = words.table_of(program.features(words.every_word(config, config.n, x.device)), "fp32")
    states = words.first_states(x, table, config, "fp32")
    assert states.shape[-1] == input_columns(config.input_dim, config.positions)
    assert torch.equal(states[..., : config.input_dim], expected) and not states[..., config.input_dim :].any()


def test_short_numbers_are_rounded_to_the_nearest():
    """TensorFloat-32 has ten digits after the first; cut off instead, numbers would be too small on average."""
    x = torch.linspace(0.5, 1, 5001)[:-1]
    error = short(x, "tf32") - x
    assert error.abs().max() <= 2.0**-12 and abs(error.mean()) < 2.0**-16
    assert not (short(x, "tf32").view(torch.int32) & 0x1FFF).any() and torch.equal(short(x, "fp32"), x)
    assert torch.equal(short(1e6 * x, "fp16"), torch.full((5000,), 65504.0).half())

    prompts = posattn.task("mixed-min")
    config = network_for("mixed-min")
    program = Folded(config, torch.device("cpu"))
    given, _ = prompts.sample(5, seed=[0])
    table = words.table_of(program.features(words.every_word(config, config.n, given.device)), "tf32")
    read = words.first_states(given, table, config, "tf32")[..., : config.input_dim]
    assert torch.equal(read, short(program.features(given), "tf32"))


@pytest.mark.parametrize("bias", [True, False])
def test_letters_have_the_loss_and_gradients_of_autograd(bias):
    """Eleven words in sixteen columns, and rows that do not fill the last tile; two parts of two tiles."""
    members, lists, n, width, count, parts = 3, 29, 7, 16, 11, 2
    draw = torch.Generator().manual_seed(0)
    h = torch.randn(members, lists, n, width, generator=draw).relu().requires_grad_()
    w = torch.randn(members, width, count, generator=draw).requires_grad_()
    b = torch.randn(members, 1, count, generator=draw).requires_grad_()
    y = torch.randint(count, (members, lists, n - 1), generator=draw)
    out = (h.flatten(1, 2) @ w + (b if bias else 0)).unflatten(1, (lists, n))
    expected = cross_entropy(out[:, :, :-1], y)
    dh, dw = torch.autograd.grad(expected.sum(), [h, w], retain_graph=True)

    loss, squares, dz = torch.empty(members, parts), torch.empty(members, parts), torch.empty_like(h)
    found_w, found_b = torch.empty(members, parts, width, count), torch.empty(members, parts, 1, count)

    def read(squares: torch.Tensor, measure: bool) -> None:
        words.read_letters[(parts, members)](
            h.detach(), w.detach(), b.detach(), y, y.stride(0), loss, squares, found_w, found_b, dz, lists * n,
            TILES=2, N=n, W=width, V=count, C=padded(count), R=ROWS, BIAS=bias, MEASURE=measure, PRECISION="fp32",
        )  # fmt: skip

    read(squares, True)
    torch.testing.assert_close(loss.sum(dim=1), expected.detach(), rtol=1e-5, atol=0)
    torch.testing.assert_close(found_w.sum(dim=1), dw, rtol=1e-4, atol=1e-5)
    if bias:
        (db,) = torch.autograd.grad(expected.sum(), [b])
        torch.testing.assert_close(found_b.sum(dim=1), db, rtol=1e-4, atol=1e-5)
    half = torch.where(h > 0, dh, 0).detach() / 2  # what the layers' kernels take for the gradient, but for its unit
    size = squares.sum(dim=1)
    torch.testing.assert_close(size, half.square().sum(dim=(1, 2, 3)), rtol=1e-5, atol=0)
    read(size, False)
    torch.testing.assert_close(dz * 8 * size.sqrt()[:, None, None, None], half, rtol=1e-4, atol=1e-5)
