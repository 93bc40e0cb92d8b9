"""The identity of a run: what determines its numbers."""

import pytest
import torch

import posattn
from posattn.training import Member, Recipe, RunSpec

SMALL = posattn.ModelConfig(3, embed=8, width=8)


def spec(**changes):
    settings = {"model": SMALL, "recipe": Recipe(), "members": (Member("sum", 0, 5e-4),)}
    return RunSpec(**settings | changes)


def test_identity_is_the_members_own_whatever_it_trains_beside():
    alone = spec().identity(0)
    company = spec(members=(Member("min", 3, 1e-3), Member("sum", 0, 5e-4), Member("sum", 1, 5e-4)))
    assert company.identity(1) == alone
    assert len({company.identity(k) for k in range(3)}) == 3


def test_identity_does_not_depend_on_how_the_learning_rate_was_given():
    settings = {"samples": 20, "epochs": 1, "batch": 10, "device": "cpu"}
    alone = posattn.train("sum", SMALL, lr=1e-3, **settings)
    company = posattn.train("sum", SMALL, members=2, lr=[1e-3, 2e-3], **settings)
    assert torch.equal(alone.parameters.flat[0], company.parameters.flat[0])
    assert alone.spec.identity(0) == company.spec.identity(0)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": posattn.ModelConfig(4, embed=8, width=8)},
        {"model": posattn.ModelConfig(3, "standard", embed=8, width=8)},
        {"model": posattn.ModelConfig(3, embed=8, width=8, bias=False)},
        {"model": posattn.ModelConfig(3, embed=8, width=8, encoding="binary")},
        {"recipe": Recipe(epochs=5)},
        {"recipe": Recipe(samples=5)},
        {"recipe": Recipe(patience=5)},
        {"recipe": Recipe(beta_2=0.99)},
        {"variable_length": True},
        {"precision": "tf32"},
        {"members": (Member("min", 0, 5e-4),)},
        {"members": (Member("sum", 1, 5e-4),)},
        {"members": (Member("sum", 0, 6e-4),)},
    ],
    ids=str,
)
def test_identity_differs_when_any_setting_does(changes):
    assert spec(**changes).identity(0) != spec().identity(0)
