"""How much memory there is, asked before weights are read."""

from __future__ import annotations

import resource
from pathlib import Path

import torch

ROOM = 600 * 10**6  # bytes beside the weights: activations of one row, libraries' workspaces


def require_memory(needed: int, device: torch.device, hint: str) -> None:
    """Raises MemoryError with a way out where `needed` bytes of weights will not fit."""
    free = free_bytes(device)
    if free is not None and needed + ROOM > free:
        raise MemoryError(
            f"the model takes {(needed + ROOM) / 1e9:.1f} GB and {free / 1e9:.1f} GB are free on {device}; {hint}"
        )


def fitting_batch(asked: int, row: int, device: torch.device) -> int:
    """Returns the largest batch up to `asked` whose rows of `row` bytes fit beside the weights; on a CPU `asked`."""
    if device.type != "cuda":
        return asked
    return max(1, min(asked, (torch.cuda.mem_get_info(device)[0] - ROOM) // row))


def free_bytes(device: torch.device) -> int | None:
    """Returns free bytes on a GPU, or available ones of this machine (or container), None where nothing tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = [value for value in (_proc_bytes("/proc/meminfo", "MemAvailable"), _left_in_cgroup()) if value is not None]
    return min(found) if found else None


def used_bytes(device: torch.device) -> int:
    """Returns the most bytes that tensors took on a GPU, or this program's peak resident size.

    That is VmHWM of proc(5): getrusage's ru_maxrss begins with what the process that started this one held.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _proc_bytes("/proc/self/status", "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak(device: torch.device) -> None:
    """Counts a GPU's `used_bytes` from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _proc_bytes(file: str, name: str) -> int | None:
    """Returns bytes of a line `name: N kB` of a file of /proc, None where there is none."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def _left_in_cgroup(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    try:
        limit, used = ((root / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return None
    return None if limit == "max" else int(limit) - int(used)
