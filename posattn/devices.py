"""Where networks compute: a CPU or a GPU, by name and in words."""

import platform

import torch

from posattn.errors import UsageError


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
