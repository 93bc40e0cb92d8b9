"""Eq. 2 and Eq. 3 against loops."""

import math

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import nn

from posattn.attention import Attention, attention_weights, merge_heads, split_heads


def test_shapes_are_checked_while_these_tests_run():
    pytest.importorskip("beartype", reason="beartype is not installed, which checks the shapes")
    with pytest.raises(TypeCheckError):
        attention_weights(torch.zeros(2, 3, 5), torch.zeros(2, 3, 7))


# --- the equations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
def test_attention_equals_the_loops(bias):
    """A_h[i, j] = softmax_j(q_i · k_j / sqrt(d_k)), then sum_j A_h[i, j] v_j, heads side by side, times W_O."""
    H, n, d, d_f, d_k, d_v = 3, 5, 6, 7, 4, 2
    attention = Attention(d_model=d, d_features=d_f, d_k=d_k, heads=H, bias=bias).double()
    features, x = torch.randn(n, d_f, dtype=torch.float64), torch.randn(n, d, dtype=torch.float64)
    Q, K, V = attention.W_Q(features), attention.W_K(features), attention.W_V(x)
    A, joined = torch.zeros(H, n, n, dtype=torch.float64), torch.zeros(n, d, dtype=torch.float64)
    for h in range(H):
        for i in range(n):
            logits = [sum(Q[i, h * d_k + c].item() * K[j, h * d_k + c].item() for c in range(d_k)) for j in range(n)]
            scores = [math.exp(logit / math.sqrt(d_k)) for logit in logits]
            for j in range(n):
                A[h, i, j] = scores[j] / sum(scores)
                for c in range(d_v):
                    joined[i, h * d_v + c] += A[h, i, j] * V[j, h * d_v + c].item()
    weights = attention.weights(features)
    torch.testing.assert_close(weights, A, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(attention.mix(weights, x), attention.W_O(joined), rtol=1e-10, atol=1e-12)


def test_attention_agrees_with_torchs_own():
    q, k, v = torch.randn(3, 2, 5, 7, 4, dtype=torch.float64)
    expected = nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(attention_weights(q, k) @ v, expected, rtol=1e-10, atol=1e-12)


def test_masked_weights_are_the_softmax_over_what_is_left():
    q, k = torch.randn(2, 5, 4, dtype=torch.float64)
    mask = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 0, 1, 0]]).bool()
    a = attention_weights(q, k, mask)
    logits = q @ k.mT / 2
    for i in range(5):
        expected = torch.zeros(5, dtype=torch.float64)
        expected[mask[i]] = logits[i, mask[i]].softmax(dim=0)
        torch.testing.assert_close(a[i], expected, rtol=1e-12, atol=0)


def test_heads_split_and_merge():
    x = torch.arange(2 * 3 * 10.0).reshape(2, 3, 10)
    heads = split_heads(x, 5)
    assert heads.shape == (2, 5, 3, 2)
    assert torch.equal(heads[1, 4, 2], x[1, 2, 8:10])
    assert torch.equal(merge_heads(heads), x)
