"""One product per head for the whole batch against a product for each sequence."""

import pytest
import torch

from posattn.layers import products


@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3), (0,)])
def test_one_product_equals_one_for_each_sequence(batch):
    a, v = torch.rand(3, 4, 7, dtype=torch.float64), torch.randn(*batch, 7, 3, 2, dtype=torch.float64)
    y = products.product(a, v)
    assert y.shape == (*batch, 4, 3, 2)
    torch.testing.assert_close(y, torch.einsum("hkn,...nhe->...khe", a, v), rtol=1e-12, atol=1e-14)


def test_padding_is_a_column_of_the_product():
    """Weights far below the largest of a row count, if they are all that is left."""
    logits = torch.randn(3, 5, 5, dtype=torch.float64)
    logits[:, :, -1] += 300
    v, mask = torch.randn(2, 5, 3, 2, dtype=torch.float64), torch.tensor([[False] * 5, [False] * 4 + [True]])
    y = products.over_padding(lambda v: products.product(logits.softmax(-1), v), v, mask)
    torch.testing.assert_close(y[1], products.product(logits[..., :4].softmax(-1), v[1, :4]), rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(y[0], products.product(logits.softmax(-1), v[0]), rtol=1e-12, atol=1e-14)


def test_a_cpu_never_asks_for_the_kernels():
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert not products.served(torch.zeros(2, 5, 4, dtype=dtype), torch.zeros(3, 5, 2, 16, dtype=dtype))
