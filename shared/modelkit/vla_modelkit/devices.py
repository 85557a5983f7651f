"""Which device a model runs on here, with which numbers, and what both are called."""

from __future__ import annotations

import torch

from vla_modelkit.builds import require_built_for

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def choose_device(asked: str, rank: int = 0) -> torch.device:
    """Returns the device of that name; "auto" is a GPU where there is one, `rank` the GPU that "cuda" and "auto" mean.

    Raises ValueError for one that is not here, and for a GPU that this torch has no code for.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = [*(f"cuda:{index}" for index in range(count)), "cpu"]
    wanted = {"auto": f"cuda:{rank}" if count else "cpu", "cuda": f"cuda:{rank}"}.get(asked, asked)
    if wanted not in here:
        raise ValueError(
            f"device {asked!r} not found on this machine: torch sees {', '.join(here)}; choose one of these, or auto"
        )
    require_built_for(torch, wanted)
    return torch.device(wanted)


def choose_dtype(asked: str, device: torch.device, on_cpu: torch.dtype = torch.float32) -> torch.dtype:
    """Returns the numbers to compute with: "auto" is bf16 on a GPU (fp16 before Ampere), `on_cpu` on a CPU.

    Raises ValueError for fp16 on a CPU.
    """
    if asked == "fp16" and device.type == "cpu":
        raise ValueError("--dtype fp16 needs a GPU: torch 2.2 lacks half of its CPU kernels; use bf16 or fp32")
    if asked != "auto":
        return DTYPES[asked]
    if device.type == "cpu":
        return on_cpu
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16


def device_name(device: torch.device | str) -> str:
    """Returns the device in words: "cpu", or "cuda:0 (NVIDIA H100)"."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if str(device).startswith("cuda") else str(device)
