"""Orders of joining: a network that joins rightly answers the same in all of them, and one that does not is found out."""

import pytest
import torch

import posattn
from posattn.compiler.looped_programs import looped_program
from posattn.training.polish import OrderedScan, random_order

LEFT_TO_RIGHT = tuple((length, 1) for length in range(1, 16))
RIGHT_TO_LEFT = tuple((1, length) for length in range(1, 16))


@pytest.mark.parametrize("task", ["sum", "min", "maxsub"])
@pytest.mark.parametrize("order", [LEFT_TO_RIGHT, RIGHT_TO_LEFT, *(random_order(16, number) for number in range(5))])
def test_an_exact_join_is_right_in_every_order(task, order):
    x = torch.randn(7, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(OrderedScan(looped_program(task))(x, order), posattn.task(task).target(x))


def test_the_loops_are_one_of_the_orders():
    network = posattn.Transformer(posattn.ModelConfig(n=16, arch="looped")).double()
    with torch.no_grad():
        network.layer.attention.logits.copy_(torch.tensor([0.0, 9.0, 0.0, 0.0, 0.0]))  # hardmax at r = -1
    x, doubling = torch.randn(3, 16, dtype=torch.float64), ((1, 1), (2, 2), (4, 4), (8, 8))
    scan = OrderedScan(network)
    torch.testing.assert_close(scan(x, doubling), network(x))
    assert not torch.allclose(scan(x, LEFT_TO_RIGHT), network(x), rtol=0.1)  # what it has at first is no join
    assert torch.equal(scan(x), network(x))


@pytest.mark.parametrize("n", [1, 2, 3, 13, 16])
def test_random_orders_join_what_is_there_until_the_list_is_covered(n):
    for number in range(20):
        lengths = [1]
        for earlier, later in random_order(n, number):
            assert lengths[-1] < n and lengths[-1] in (earlier, later) and {earlier, later} <= set(lengths)
            lengths.append(earlier + later)
        assert lengths[-1] >= n
    assert n < 4 or len({random_order(n, number) for number in range(20)}) > 5
