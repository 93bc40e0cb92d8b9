"""How much memory there is for a long list, so that one that does not fit is refused in a sentence and not killed."""

import math
from pathlib import Path

import torch

from posattn.errors import UsageError

_SMALL = 1 << 28  # bytes that are not worth a look


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
    """What a new tensor may take; without end where the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(free + reserved)
    if device.type != "cpu":
        return math.inf
    return min(_available(), _within_group())


def _available() -> float:
    """MemAvailable of Linux."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return math.inf


def _within_group() -> float:
    """What a container's limit leaves."""
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return math.inf if limit == "max" else float(int(limit) - int(used))
    except (OSError, ValueError):
        return math.inf
