"""The minimum by one self-attention layer errs as its bound says, and less for larger numbers; the tree is exact."""

import math

import pytest
import torch

from posattn import UsageError
from posattn.compiler.remarks.minimum import attention_minimum, compare_minima


@pytest.mark.parametrize(("n", "temperature"), [(2, 1.0), (5, 10.0), (16, 100.0)])
def test_self_attention_exceeds_the_minimum_by_no_more_than_its_bound(n, temperature):
    x = torch.randn(200, n, dtype=torch.float64)
    network = attention_minimum(n, temperature)
    excess = network(x) - x.amin(dim=-1, keepdim=True)
    assert (excess >= -1e-14).all() and (excess <= (n - 1) / (math.e * temperature)).all()
    # Every position gives the same answer, Σ softmax(-T x) x; the scratchpad's 0 takes no part.
    direct = ((-temperature * x).softmax(dim=-1) * x).sum(dim=-1, keepdim=True)
    torch.testing.assert_close(network(x), direct.expand_as(x))


def test_one_is_exact_at_every_magnitude_and_the_other_is_not():
    table = compare_minima(lengths=(4, 16), magnitudes=(0.1, 1.0, 10.0), samples=50)
    assert (table["positional"] < 1e-15).all()
    assert (table["self-attention"] < table["its bound"]).all()
    for _, own in table.groupby("n"):
        assert own["self-attention"].is_monotonic_decreasing  # relative to the numbers
    assert (table[table["n"] == 16]["self-attention"].values > table[table["n"] == 4]["self-attention"].values).all()
    assert table["positional layers"].tolist() == [2] * 3 + [4] * 3


def test_the_temperature_must_be_positive():
    with pytest.raises(UsageError, match="temperature is 0"):
        attention_minimum(4, 0)
