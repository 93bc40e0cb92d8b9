"""Programs in the looped network: no error but rounding, at every length, against the tasks' own answers."""

import pytest
import torch

import posattn
from posattn import UsageError
from posattn.compiler.looped_programs import LOOPED_PROGRAMS, looped_program
from posattn.looped import FAMILIES

SCALES = torch.tensor([[1e-3], [1.0], [1e6]], dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 1000, 4096])
@pytest.mark.parametrize("task", LOOPED_PROGRAMS)
def test_answers_are_exact_at_every_length_and_scale(task, n):
    x = SCALES * torch.randn(3, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    x[:, ::3] -= SCALES  # all kinds of signs: maxsub of negative numbers is where a blank would show
    for lists in (x, -x.abs()):
        y = posattn.task(task).target(lists)
        error = (looped_program(task)(lists) - y).abs().amax(dim=-1) / y.abs().amax(dim=-1)
        assert error.max() < 1e-13


def test_families_name_the_tasks_that_their_programs_solve():
    assert {name: row.family for name, row in LOOPED_PROGRAMS.items()} == {
        name: family for family, row in FAMILIES.items() for name in row.solves
    }


@pytest.mark.parametrize("task", LOOPED_PROGRAMS)
def test_every_head_gives_all_its_weight_to_one_place(task):
    model = looped_program(task)
    assert (model.attention(length=13).amax(dim=-1) == 1).all()
    assert not model.config.bias


def test_a_million_numbers_on_the_cpu():
    n = 1 << 20
    x = torch.randn(1, n, generator=torch.Generator().manual_seed(0))
    model = looped_program("min").float()
    assert torch.allclose(model(x), x.cummin(dim=-1).values, rtol=1e-5)


def test_one_hidden_layer_is_not_enough_for_maxsub():
    """A stretch's best part is the largest of three sums, which takes two."""
    assert [len(looped_program(task).config.mlp[0]) for task in ("sum", "min", "maxsub", "sort")] == [1, 1, 2, 1]


def test_medians_of_lists_with_ties_and_of_every_short_length():
    model, target = looped_program("median-total"), posattn.task("median-total").target
    for n in range(1, 35):
        x = torch.randint(-2, 3, (50, n), generator=torch.Generator().manual_seed(n)).double()
        torch.testing.assert_close(model(x), target(x), rtol=0, atol=1e-14)
    sorter = looped_program("sort")
    assert all(  # nothing but where the middle two look is new
        torch.equal(value, model.state_dict()[name])
        for name, value in sorter.state_dict().items()
        if not name.endswith("logits")
    )
    assert torch.equal(model.layer.attention.table()[:, :4], sorter.layer.attention.table())
    assert model.attention(length=6).unique().tolist() == [0.0, 0.5, 1.0]


def test_an_exchange_takes_two_heads_and_four_hidden_units():
    config = looped_program("sort").config
    assert (config.heads, config.embed, config.mlp) == (2, 1, ((4,),))


def test_tasks_without_a_program_are_refused():
    with pytest.raises(
        UsageError, match=r"^task is 'median'; it must be one of sum, min, maxsub, sort, median-total\.$"
    ):
        looped_program("median")
