"""The device that networks compute on: which one, what it is called, and how much memory it has free.

What would not fit raises an error before it is allocated, so that no process is killed for its memory.
"""

import math
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path

import torch

from posattn.errors import UsageError, counted, shown

CPU = torch.device("cpu")
_SMALL = 1 << 28  # bytes: smaller needs are not checked
_TRITON = find_spec("triton") is not None


def pick_device(name: str | torch.device | None) -> torch.device:
    """``cpu`` or ``cuda``; by default a GPU if there is one."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UsageError(f"device is {shown(name if isinstance(name, str) else str(name))}; it must be cpu or cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("device is 'cuda'; this machine has no GPU that PyTorch can use, so give cpu.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        there = counted(torch.cuda.device_count(), "GPU")
        raise UsageError(f"device is {str(device)!r}; this machine has {there}, counted from 0.")
    return device


def runs_kernels(device: torch.device) -> bool:
    """Whether Triton is there, and a GPU whose matrix units it serves: NVIDIA's, of compute capability 8.0 (Ampere) or more."""
    if device.type != "cuda" or torch.version.hip is not None or not _TRITON:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def current(device: torch.device) -> AbstractContextManager[object]:
    """While open, a GPU is the current one: Triton launches there, and graphs are recorded there. PyTorch looks for itself."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def hardware(device: torch.device) -> str:
    """The device in words, for results."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {counted(torch.get_num_threads(), 'thread')})"


def require_room(what: str, needed: float, device: torch.device = CPU, instead: str = "") -> None:
    """Raises if ``needed`` bytes are more than a device has free. Pass a lower bound, so that nothing that fits is refused.

    ``what`` is the subject of the sentence, in the plural, and names what is too large; ``instead`` says what would fit.
    """
    if needed >= _SMALL and needed > (free := free_bytes(device)):
        place = "CPU" if device.type == "cpu" else "GPU"
        raise UsageError(
            f"{what} need at least {_gigabytes(needed)} of memory, and {_gigabytes(free)} are free on the {place}{instead}."
        )


def _gigabytes(size: float) -> str:
    return f"{min(size, 1e300) / 1e9:.3g} GB"  # sizes are products of whole numbers, which no float need hold


def check_fits(lists: int, n: int, numbers: int, size: int, device: torch.device, gradients: bool = False) -> None:
    """Raises if ``lists`` of n positions, each with ``numbers`` numbers of ``size`` bytes, do not fit on a device."""
    each = max(1, lists) * numbers * size
    if n * each >= _SMALL and not (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        longest = f"; this model takes up to {int(min(free_bytes(device), 1e18) / each)}"
        more = ", and more under torch.no_grad()" if gradients else ""
        require_room(f"the list has {n} numbers, which", n * each, device, longest + more)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, which PyTorch tells on a CPU by a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    reasons = ("can't allocate memory", "Storage size calculation overflowed", "CUDA out of memory")
    return isinstance(error, RuntimeError) and any(reason in str(error) for reason in reasons)


def free_bytes(device: torch.device) -> float:
    """The bytes that a new tensor may take: what is free, within the limits on the process. Infinite where unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(free + reserved)
    if device.type != "cpu":
        return math.inf
    return max(0.0, min(_machine(), _address_space(), *_control_groups()))


# Per version of control groups: its line in /proc/self/cgroup, its folder, and the files of the limit and of what is used.
# Without a limit version 2 says "max", and version 1 a number beyond any memory.
_CONTROL_GROUPS = (
    ("0::", "/sys/fs/cgroup", "memory.max", "memory.current"),
    (":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def _control_groups() -> Iterator[float]:
    """What the limits on the process's control group, and on the groups around it, leave."""
    for mark, root, limit, used in _CONTROL_GROUPS:
        own = next((line.partition(mark)[2] for line in _lines("/proc/self/cgroup") if mark in line), "/")
        for inner in (Path(own), *Path(own).parents):
            group = f"{root}{inner}".rstrip("/")
            yield _read(f"{group}/{limit}") - max(0.0, _read(f"{group}/{used}", 0.0) - _cached(group))


def _cached(group: str) -> float:
    """The bytes of files that a control group holds, which the system frees when memory is asked for."""
    sizes = dict(line.split(maxsplit=1) for line in _lines(f"{group}/memory.stat"))
    return sum(float(sizes.get(f"total_{kind}", sizes.get(kind, 0))) for kind in ("active_file", "inactive_file"))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _read(path: str, otherwise: float = math.inf) -> float:
    """The first number of a file."""
    try:
        return float(_lines(path)[0].split()[0])
    except (ValueError, IndexError):
        return otherwise


def _machine() -> float:
    """MemAvailable of Linux, or all the memory that another Unix has."""
    for row in _lines("/proc/meminfo"):
        if row.startswith("MemAvailable"):
            return 1024.0 * float(row.split()[1])
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
