"""The pool of threads: order, errors, one core an operation, and what it leaves behind."""

import threading

import pytest
import torch

from posattn.training.workers import Workers


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_map_keeps_the_order_of_its_items(threads):
    with Workers(threads) as workers:
        assert workers.map(lambda k: k * k, range(50)) == [k * k for k in range(50)]
        assert workers.map(str, []) == []


def test_two_threads_work_side_by_side():
    meeting = threading.Barrier(2, timeout=30)  # breaks unless two items are in work at once
    with Workers(2) as workers:
        assert len(workers.map(lambda _: meeting.wait(), range(2))) == 2


@pytest.mark.parametrize("threads", [1, 2])
def test_an_operation_has_one_core_in_every_thread(threads):
    with Workers(threads) as workers:
        assert set(workers.map(lambda _: torch.get_num_threads(), range(8))) == {1}


def test_the_callers_threads_come_back_even_after_an_error():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError), Workers(2) as workers:
            assert torch.get_num_threads() == 1
            workers.map(lambda k: 1 // k, range(3))
        assert torch.get_num_threads() == 2
        assert Workers().threads == 2  # by default as many as PyTorch would use
    finally:
        torch.set_num_threads(before)
