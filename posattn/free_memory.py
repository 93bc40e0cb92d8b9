"""How much memory there is, so that a list or a network that does not fit is refused in a sentence and not killed."""

import math
import os
from pathlib import Path

import torch

from posattn.errors import UsageError

try:
    import resource
except ImportError:  # not a Unix
    resource = None  # type: ignore[assignment]

_SMALL = 1 << 28  # bytes that are not worth a look
# Limit and use in version 2 and in version 1. Without a limit the first says "max", the second a number beyond any memory.
_CONTROL_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def check_fits(lists: int, n: int, numbers: int, size: int, device: torch.device, gradients: bool = False) -> None:
    """Raises if ``lists`` of n positions, each with so many numbers of ``size`` bytes, do not fit on a device."""
    each = max(1, lists) * numbers * size
    if n * each < _SMALL or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return
    free = free_bytes(device)
    if n * each > free:
        longest = f"with {free / 1e9:.1f} GB of memory free this model takes up to {int(free / each)}"
        more = ", and more under torch.no_grad()" if gradients else ""
        raise UsageError(f"the list has {n} numbers; {longest}{more}.")


def free_bytes(device: torch.device) -> float:
    """What new tensors may take on a device: of its memory, and of the limits on this process. inf where nothing says."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(free + reserved)
    if device.type != "cpu":
        return math.inf
    groups = (_number(limit, math.inf) - _number(used, 0.0) for limit, used in _CONTROL_GROUPS)
    return max(0.0, min(_machine(), _address_space(), *groups))


def _number(path: str, otherwise: float) -> float:
    """The number in a file of the system; ``otherwise`` if there is none."""
    try:
        return float(Path(path).read_text())
    except (OSError, ValueError):
        return otherwise


def _machine() -> float:
    """MemAvailable of Linux; elsewhere all the memory there is."""
    try:
        rows = Path("/proc/meminfo").read_text().splitlines()
        return next(1024.0 * float(row.split()[1]) for row in rows if row.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return math.inf if resource is None else float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _address_space() -> float:
    """What ``ulimit -v`` leaves."""
    if resource is None or (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) == resource.RLIM_INFINITY:
        return math.inf
    try:
        return limit - float(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return float(limit)
