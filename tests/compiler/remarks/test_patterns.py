"""Patterns become parameters: any softmax pattern on any invertible encodings, and hardmax patterns of all lengths."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posattn import UsageError
from posattn.attention import attention_weights
from posattn.compiler.remarks.patterns import all_lengths, softmax_pattern


@given(n=st.integers(1, 11), seed=st.integers(0, 1000))
def test_any_softmax_pattern_comes_out(n, seed):
    generator = torch.Generator().manual_seed(seed)
    wanted = (3 * torch.randn(n, n, generator=generator, dtype=torch.float64)).softmax(dim=-1)
    orthogonal, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    stretched = orthogonal * torch.linspace(0.5, 2, n, dtype=torch.float64)
    for p in (torch.eye(n), orthogonal, stretched):
        w_q, w_k = softmax_pattern(wanted, p)
        found = attention_weights(p.double() @ w_q, p.double() @ w_k)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("pattern", "encodings", "message"),
    [
        (torch.full((2, 3), 0.5), torch.eye(2), "must be square"),
        (torch.eye(2), torch.eye(2), "entries above 0"),
        (torch.full((2, 2), 0.4), torch.eye(2), "sum to 1"),
        (torch.full((2, 2), 0.5), torch.ones(2, 2), "invertible"),
        (torch.full((2, 2), 0.5), torch.eye(3), "of 2 rows"),
    ],
)
def test_what_is_no_softmax_pattern_is_refused(pattern, encodings, message):
    with pytest.raises(UsageError, match=message):
        softmax_pattern(pattern, encodings)


@given(n=st.integers(1, 9), seed=st.integers(0, 1000), epsilon=st.sampled_from([0.3, 1e-2, 1e-5]))
def test_one_set_of_parameters_holds_a_pattern_for_every_length(n, seed, epsilon):
    generator = torch.Generator().manual_seed(seed)
    wanted = [torch.eye(k)[torch.randint(0, k, (k,), generator=generator)] for k in range(1, n + 1)]
    found = all_lengths(wanted, epsilon)
    assert found.dimension == 3 * n
    for k, pattern in enumerate(wanted, start=1):
        assert found.encodings[k - 1].shape == (k, 3 * n)
        assert (found.weights(k) - pattern).abs().max() <= epsilon


def test_encodings_do_not_depend_on_the_patterns():
    a, b = (all_lengths([torch.eye(1), torch.eye(2), torch.eye(3)[order]], 0.1) for order in ([0, 1, 2], [2, 2, 0]))
    for one, other in zip(a.encodings, b.encodings, strict=True):
        assert (one == other).all()


def test_patterns_of_lengths_must_be_unique_hardmax_patterns():
    for wrong in (torch.ones(2, 2), torch.zeros(2, 2), torch.eye(3)):
        with pytest.raises(UsageError, match="pattern 2 must be 2 by 2"):
            all_lengths([torch.eye(1), wrong], 0.1)


def test_there_must_be_a_pattern_for_each_length(unchecked):
    with pytest.raises(UsageError, match="no patterns are given"):
        all_lengths([], 0.1)
    with pytest.raises(UsageError, match="pattern 1 must be 1 by 1"):
        all_lengths([torch.tensor(1.0)], 0.1)
    with pytest.raises(UsageError, match="epsilon is 0"):
        all_lengths([torch.eye(1)], 0)
    with pytest.raises(UsageError, match="length is 2; there are patterns of lengths 1 to 1"):
        all_lengths([torch.eye(1)], 0.1).weights(2)
