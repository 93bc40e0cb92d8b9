"""The device that networks compute on: which one, what it is called, and how much memory it has free.

What would not fit raises an error before it is allocated, so that no process is killed for its memory.
"""

import math
import os
import platform
from pathlib import Path

import torch

from posattn.errors import UsageError

_SMALL = 1 << 28  # bytes: smaller needs are not checked


def pick_device(name: str | torch.device | None) -> torch.device:
    """``cpu`` or ``cuda``; by default a GPU if there is one."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UsageError(f"device is {str(name)!r}; it must be cpu or cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("device is 'cuda'; this machine has no GPU that PyTorch can use, so give cpu.")
    return device


def hardware(device: torch.device) -> str:
    """The device in words, for results."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def check_fits(lists: int, n: int, numbers: int, size: int, device: torch.device, gradients: bool = False) -> None:
    """Raises if ``lists`` of n positions, each with ``numbers`` numbers of ``size`` bytes, do not fit on a device."""
    each = max(1, lists) * numbers * size
    if n * each < _SMALL or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return
    free = free_bytes(device)
    if n * each > free:
        longest = f"with {free / 1e9:.1f} GB of memory free this model takes up to {int(free / each)}"
        more = ", and more under torch.no_grad()" if gradients else ""
        raise UsageError(f"the list has {n} numbers; {longest}{more}.")


def free_bytes(device: torch.device) -> float:
    """The bytes that a new tensor may take: what is free, within the limits on the process. Infinite where unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(free + reserved)
    if device.type != "cpu":
        return math.inf
    groups = [_read(limit) - _read(used, 0.0) for limit, used in _CONTROL_GROUPS]
    return max(0.0, min(_machine(), _address_space(), *groups))


# Version 2 and version 1. Without a limit the first says "max" and the second a number beyond any memory.
_CONTROL_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def _read(path: str, otherwise: float = math.inf) -> float:
    """The first number of a file."""
    try:
        return float(Path(path).read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return otherwise


def _machine() -> float:
    """MemAvailable of Linux, or all the memory that another Unix has."""
    try:
        rows = Path("/proc/meminfo").read_text().splitlines()
        return next(1024.0 * float(row.split()[1]) for row in rows if row.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) if hasattr(os, "sysconf") else math.inf


def _address_space() -> float:
    """What RLIMIT_AS leaves of the process's addresses."""
    try:
        import resource
    except ImportError:  # not a Unix
        return math.inf
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _read("/proc/self/statm", 0.0) * os.sysconf("SC_PAGE_SIZE")
    return math.inf if limit == resource.RLIM_INFINITY else limit - used
