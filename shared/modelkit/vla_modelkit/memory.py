"""Free and used memory of a device, checked before weights are loaded."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

import torch

ROOM = 600 * 10**6  # bytes besides the weights: activations of one row, workspaces of libraries


def require_memory(needed: int, device: torch.device, hint: str) -> None:
    """Raise MemoryError with `hint` if `needed` bytes of weights do not fit."""
    free = free_bytes(device)
    if free is not None and needed + ROOM > free:
        raise MemoryError(
            f"the model needs {(needed + ROOM) / 1e9:.1f} GB and {free / 1e9:.1f} GB are free on {device}; {hint}"
        )


def fitting_batch(requested: int, row: int, device: torch.device) -> int:
    """Return the largest batch up to `requested` whose rows of `row` bytes fit; on a CPU `requested`."""
    if device.type != "cuda":
        return requested
    return max(1, min(requested, (torch.cuda.mem_get_info(device)[0] - ROOM) // row))


def free_bytes(device: torch.device) -> int | None:
    """Return free bytes of a GPU, or of this machine or container; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [_proc_bytes("/proc/meminfo", "MemAvailable")]
    with suppress(OSError):
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
        limits.append(None if limit == "max" else int(limit) - int(used))
    return min((limit for limit in limits if limit is not None), default=None)


def used_bytes(device: torch.device) -> int:
    """Return the peak bytes of tensors on a GPU, or this program's peak resident size.

    The latter is VmHWM of proc(5): getrusage's ru_maxrss includes the parent process's size.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _proc_bytes("/proc/self/status", "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak(device: torch.device) -> None:
    """Reset the peak that `used_bytes` returns for a GPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _proc_bytes(file: str, name: str) -> int | None:
    """Return bytes of a line `name: N kB` of a file of /proc, None if it is missing."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
