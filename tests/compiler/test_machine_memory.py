"""What a compiled program reads, the bounds that it is held to, and the breaches of its machines."""

import pytest
import torch

from posattn import UsageError
from posattn.compiler.machine_memory import BREACHES, breach_code, memory_cells, refuse_breaches, within_bounds


def test_memory_cells_hold_inputs_numbers_and_blanks():
    x = torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    cells = memory_cells(x, torch.arange(4), 2)
    assert cells.tolist() == [[5, 6, 0], [7, 8, 1], [0, 0, 2], [0, 0, 3]]
    assert memory_cells(x[:, 0], torch.arange(3), 1).tolist() == [[5, 0], [7, 1], [0, 2]]


def test_bounds():
    x = torch.tensor([[1.0, -2.0], [0.0, 9.0]])
    assert within_bounds(x, 2, ((0.0, 1.0), (-2.0, 9.0))) is x
    with pytest.raises(UsageError, match="input 1 has numbers from -2 to 9; the program was compiled for -1 to 9"):
        within_bounds(x, 2, ((0.0, 1.0), (-1.0, 9.0)))
    with pytest.raises(UsageError, match="compiled for 0 to 1"):
        within_bounds(torch.tensor([0.5, float("nan")]), 2, ((0.0, 1.0),))
    with pytest.raises(UsageError, match=r"it must be \(..., 2, 3\)"):
        within_bounds(x, 2, ((0.0, 1.0),) * 3)


def test_integers_are_checked_to_be_integers():
    x = torch.tensor([[1.0, 0.5], [2.0, 1.5]])
    assert within_bounds(x, 2, ((0.0, 2.0), (0.0, 2.0)), (0,)) is x
    with pytest.raises(UsageError, match=r"input 1 has the number 0\.5; the program was compiled for whole numbers"):
        within_bounds(x, 2, ((0.0, 2.0), (0.0, 2.0)), (0, 1))


def test_a_single_number_is_no_list(unchecked):
    with pytest.raises(UsageError, match=r"shape \(\); it must be \(..., 2\)"):
        within_bounds(torch.tensor(1.0), 2, ((0.0, 1.0),))
    with pytest.raises(UsageError, match=r"shape \(\); it must be \(..., 2, 3\)"):
        within_bounds(torch.tensor(1.0), 2, ((0.0, 1.0),) * 3)


@pytest.mark.parametrize("kind", range(len(BREACHES)))
@pytest.mark.parametrize(("layers", "r", "count"), [(1, 0, 1), (5, 0, 7), (5, 4, 2), (13, 6, 1000)])
def test_a_lost_number_tells_machine_round_and_count(kind, layers, r, count):
    lost = breach_code(kind, count, layers) - (layers - 1 - r)
    later = breach_code(0, 1, layers)  # in the last round
    z = torch.tensor([[0.0, 1.0, 2.0], [0.0, later, lost]], dtype=torch.float64)[..., None]
    told = BREACHES[kind].format(count)
    told = (
        told if count > 1 else told.replace("words", "word").replace("tuples", "tuple").replace("messages", "message")
    )
    machine, told = (2, told) if r < layers - 1 else (1, "overflows by 1 word")
    with pytest.raises(UsageError) as error:
        refuse_breaches(z, layers)
    assert str(error.value) == f"round {r}: machine {machine} {told}."


def test_machines_that_have_their_numbers_pass():
    z = torch.randn(2, 3, 5)
    z[..., -1] = torch.arange(3)
    assert refuse_breaches(z, 4) is z
