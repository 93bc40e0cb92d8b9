"""The losses that ways minimise."""

import pytest
import torch
import torch.nn.functional as F

from posattn.errors import UsageError
from posattn.metrics import cross_entropies
from posattn.training.ways import LOSSES, loss_of


def test_the_loss_of_letters_is_the_cross_entropy():
    out, y = torch.randn(3, 5, 7, 16, dtype=torch.float64), torch.randint(16, (3, 5, 7))
    expected = [F.cross_entropy(a.flatten(0, 1), b.flatten(), reduction="sum") for a, b in zip(out, y, strict=True)]
    torch.testing.assert_close(LOSSES["cross-entropy"](out, y), torch.stack(expected))
    certain = 1e4 * F.one_hot(y, 16).double()
    assert (cross_entropies(certain, y) == 0).all()


def test_an_ensemble_has_one_loss():
    assert loss_of(["sum", "mixed-min"]) is LOSSES["squared-error"]
    with pytest.raises(UsageError, match=r"^the tasks are khop, sum; those of one ensemble must have one loss\.$"):
        loss_of(["khop", "sum"])
