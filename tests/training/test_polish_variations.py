"""The lists of the last steps: no longer and no larger than the training lists, and in directions that those lack."""

import pytest
import torch

import posattn
from posattn.training.polish import vary_lists


@pytest.fixture(scope="module")
def lists() -> torch.Tensor:
    return posattn.task("maxsub").sample(400, n=16)[0].double()


def _varied(x: torch.Tensor, step: int = 0) -> torch.Tensor:
    return vary_lists(x, torch.tensor(step))


def _beside(x: torch.Tensor) -> torch.Tensor:
    """The size of a list's best part beside that of its sum."""
    return posattn.task("maxsub").target(x)[:, -1].abs() / x.sum(dim=1).abs()


def test_they_stay_in_the_range_of_the_training_lists(lists):
    out = _varied(lists)
    assert out.shape == lists.shape and out.dtype == lists.dtype
    torch.testing.assert_close(out.abs().amax(dim=1), lists.abs().max().expand(len(lists)))


def test_every_fourth_keeps_its_direction(lists):
    out = _varied(lists)
    ratios = [x / x[:, :1] for x in (out, lists)]
    torch.testing.assert_close(ratios[0][::4], ratios[1][::4])
    assert not any(torch.allclose(ratios[0][kind::4], ratios[1][kind::4]) for kind in (1, 2, 3))


def test_they_reach_directions_of_long_stretches(lists):
    """Means that are small beside the spread, best parts that are small beside the sum, and signs that seldom change."""
    out = _varied(lists)
    drift = [(x.mean(dim=1).abs() / x.std(dim=1))[1::4].median() for x in (lists, out)]
    assert drift[1] < drift[0] / 2
    assert (_beside(out) < 1e-3).sum() >= 10 > 2 * (_beside(lists) < 1e-3).sum()
    changes = []
    for x in (lists[3::4], out[3::4]):
        mixed = (x > 0).any(dim=1) & (x < 0).any(dim=1)
        changes.append((x[mixed].sign().diff(dim=1) != 0).sum(dim=1).double().mean())
    assert 1 <= changes[1] < changes[0]


def test_a_step_has_its_own_and_a_list_of_zeros_stays_one(lists):
    assert torch.equal(_varied(lists), _varied(lists)) and not torch.equal(_varied(lists), _varied(lists, 1))
    zeros = torch.zeros(8, 4, dtype=torch.float64)
    assert torch.equal(_varied(zeros), zeros)
