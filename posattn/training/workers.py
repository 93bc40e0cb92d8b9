"""A pool of threads that shares one step of training among the CPU's cores.

Each thread computes with one core, so a unit of work gives the same bits however many threads there are: results depend
neither on the number of cores nor on what else is in the ensemble. PyTorch releases the interpreter lock inside its
operations, which take most of the time at the sizes trained here.
"""

import ctypes
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """``with Workers() as workers: workers.map(f, items)``. While open, PyTorch itself uses one thread per operation."""

    def __init__(self, threads: int | None = None):
        self.threads = torch.get_num_threads() if threads is None else threads

    def __enter__(self) -> Self:
        _keep_freed_memory()
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        # In each thread as well: OpenMP keeps a limit per thread.
        self._pool = ThreadPoolExecutor(self.threads, initializer=torch.set_num_threads, initargs=(1,))
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        torch.set_num_threads(self._threads_before)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """``[function(item) for item in items]``, in order, side by side where there is more than one."""
        todo = list(items)
        if len(todo) == 1 or self.threads == 1:
            return [function(item) for item in todo]
        return list(self._pool.map(function, todo))


def _keep_freed_memory() -> None:
    """Asks glibc to hold on to freed memory, once for the process; elsewhere it does nothing.

    Every step frees and takes again tensors of a few megabytes. Handed back to the system and faulted in anew each time,
    they cost a sixth of a step.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # names of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for option, value in ((mmap_threshold, 1 << 30), (trim_threshold, 1 << 30), (top_pad, 1 << 26)):
        mallopt(option, value)
