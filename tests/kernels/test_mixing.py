"""The kernels of positional attention, run by Triton's interpreter on the CPU, against autograd in float64."""

import os

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are defined
pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")

from posattn.attention import attention_weights, causal_mask
from posattn.kernels import mixing


def plain(q, k, v, causal):
    mask = causal_mask(torch.arange(q.shape[1])) if causal else None
    return torch.einsum("hij,bjhe->bihe", attention_weights(q, k, mask), v)


def drawn(heads, n, d_k, batch, e):
    q, k = 2 * torch.randn(2, heads, n, d_k)
    return q, k, torch.randn(batch, n, heads, e)


@pytest.fixture
def small(monkeypatch):
    """Tiles of 16 by 32, so that small sizes have several of them, whole and not."""
    monkeypatch.setattr(mixing, "FILL", 32)
    monkeypatch.setattr(mixing, "columns_of", lambda width: max(16, 2 ** (width - 1).bit_length()))
    tilings = {name: mixing.Tiling(16, 32, 16, 4, 1) for name in mixing.TILINGS}
    monkeypatch.setattr(mixing, "TILINGS", tilings | {"narrow": mixing.Tiling(16, 16, 32, 4, 1)})


SIZES = [
    (2, 64, 16, 5, 16),  # even, stored
    (2, 128, 16, 1, 32),  # even, not stored: dS in two parts of rows
    (3, 37, 5, 3, 7),  # odd, not stored
    (2, 23, 5, 11, 3),  # odd, stored
    (1, 103, 3, 2, 5),  # odd: dS in two parts, the last one shorter
    (2, 1, 1, 1, 1),
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_kernels_equal_autograd(sizes, causal):
    leaves = [x.requires_grad_() for x in drawn(*sizes)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    y, expected = mixing.mixed(*leaves, causal)[0], plain(*exact, causal)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    dy = torch.randn_like(y)
    found, wanted = torch.autograd.grad(y, leaves, dy), torch.autograd.grad(expected, exact, dy.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5 * max(float(other.abs().max()), 1))
