"""The lists of the last steps: no longer and no larger than the training lists, and in directions that those lack."""

import pytest
import torch

import posattn
from posattn.training.varied import varied


@pytest.fixture(scope="module")
def lists() -> torch.Tensor:
    return posattn.task("maxsub").sample(400, n=16)[0].double()


def _varied(x: torch.Tensor, step: int = 0) -> torch.Tensor:
    return varied(x, torch.tensor(step))


def _beside(x: torch.Tensor) -> torch.Tensor:
    """The size of a list's best part beside that of its sum."""
    return posattn.task("maxsub").target(x)[:, -1].abs() / x.sum(dim=1).abs()


def test_they_stay_in_the_range_of_the_training_lists(lists):
    out = _varied(lists)
    assert out.shape == lists.shape and out.dtype == lists.dtype
    torch.testing.assert_close(out.abs().amax(dim=1), lists.abs().max().expand(len(lists)))


def test_half_of_them_keep_their_direction(lists):
    out = _varied(lists)
    drawn = lists[200:]
    torch.testing.assert_close(out[200:] / out[200:, :1], drawn / drawn[:, :1])
    assert not torch.allclose(out[:200] / out[:200, :1], lists[:200] / lists[:200, :1])


def test_they_reach_directions_of_long_stretches(lists):
    """Sums far below the best part, and sums that are nearly none: of 400 lists more than the training lists have."""
    before, after = _beside(lists), _beside(_varied(lists))
    assert (after < 1e-3).sum() >= 10 > 2 * (before < 1e-3).sum()
    drift = [x.mean(dim=1).abs() / x.std(dim=1) for x in (lists[:100], _varied(lists)[:100])]
    assert drift[1].median() < drift[0].median() / 2


def test_a_step_has_its_own_and_a_list_of_zeros_stays_one(lists):
    assert torch.equal(_varied(lists), _varied(lists)) and not torch.equal(_varied(lists), _varied(lists, 1))
    zeros = torch.zeros(8, 4, dtype=torch.float64)
    assert torch.equal(_varied(zeros), zeros)
