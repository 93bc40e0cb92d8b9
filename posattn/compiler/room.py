"""How many numbers a compiled network holds, counted before it is built, and whether this machine has room for them."""

import os
import resource
from itertools import pairwise
from pathlib import Path

from posattn.compiler.compiled_model import CompiledConfig
from posattn.errors import UsageError

_NUMBER = 8  # bytes: weights are float64
_KEPT = 0.95  # of what is free; the rest is for what is not weights


def attention_parameters(n: int, heads: int, embed: int, d_v: int) -> int:
    """Of one layer on n positions: W_Q and W_K (d_P = d_k = n), W_V and W_O, with biases."""
    return 2 * heads * n * (n + 1) + heads * d_v * (embed + 1) + embed * (heads * d_v + 1)


def mlp_parameters(embed: int, hidden: tuple[int, ...]) -> int:
    return sum((a + 1) * b for a, b in pairwise((2 * embed, *hidden, embed)))


def parameters(config: CompiledConfig) -> int:
    """Of a compiled network, without building it."""
    layer = attention_parameters(config.positions, config.heads, config.embed, config.d_v)
    ends = (config.input_dim + 1) * config.embed + (config.embed + 1) * config.outputs
    return ends + sum(layer + mlp_parameters(config.embed, hidden) for hidden in config.mlp)


def require_room(name: str, count: int, least: bool = False) -> None:
    """Raises if ``count`` numbers, or at ``least`` so many, are more than the memory that is free."""
    needed, free = count * _NUMBER, free_memory()
    if needed > _KEPT * free:
        raise UsageError(
            f"{name} would hold {'at least ' * least}{count:.3g} numbers, {needed / 2**30:.3g} GiB, and "
            f"{free / 2**30:.3g} GiB are free; take fewer machines, or a SelectionNetwork, which holds no large matrices."
        )


def free_memory() -> float:
    """Bytes that this process can still have: of the machine, and of the limits that are set on it."""
    limits = [_machine()]
    for limit, used in _CONTROL_GROUPS:
        held = _read(limit)
        if held is not None:
            limits.append(held - (_read(used) or 0.0))
    limits.append(_address_space())
    return max(0.0, min(limits))


# Version 2 and version 1. Without a limit the first says "max" and the second a number beyond any memory.
_CONTROL_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def _read(path: str) -> float | None:
    try:
        return float(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _machine() -> float:
    try:
        rows = Path("/proc/meminfo").read_text().splitlines()
        return next(1024.0 * float(row.split()[1]) for row in rows if row.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux: all there is
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _address_space() -> float:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    try:
        used = float(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        used = 0.0
    return float("inf") if limit == resource.RLIM_INFINITY else limit - used
