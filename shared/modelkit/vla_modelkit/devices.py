"""Select the device and number format of a model."""

from __future__ import annotations

import torch

from vla_modelkit.builds import require_built_for

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def choose_device(requested: str, rank: int = 0) -> torch.device:
    """Return a device by name; a GPU becomes torch's current one.

    "auto" is a GPU if there is one; `rank` is the index of the GPU for "cuda" and "auto".

    Raises ValueError for a device that does not exist, and for a GPU that this torch does not support.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    available = [*(f"cuda:{index}" for index in range(count)), "cpu"]
    name = {"auto": f"cuda:{rank}" if count else "cpu", "cuda": f"cuda:{rank}"}.get(requested, requested)
    if name not in available:
        raise ValueError(
            f"device {requested!r} not found on this machine: choose auto, or one of {', '.join(available)}"
        )
    require_built_for(torch, name)
    device = torch.device(name)
    if device.type == "cuda":  # streams and captures without a device use the current one, which is GPU 0 otherwise
        torch.cuda.set_device(device)
    return device


def choose_dtype(requested: str, device: torch.device, on_cpu: torch.dtype = torch.float32) -> torch.dtype:
    """Return the number format: "auto" is bf16 on a GPU (fp16 before Ampere), `on_cpu` on a CPU.

    Raises ValueError for fp16 on a CPU.
    """
    if requested == "fp16" and device.type == "cpu":
        raise ValueError("--dtype fp16 needs a GPU: torch 2.2 lacks half of its CPU kernels; use bf16 or fp32")
    if requested != "auto":
        return DTYPES[requested]
    if device.type == "cpu":
        return on_cpu
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16


def device_name(device: torch.device | str) -> str:
    """Return the device as text: "cpu", or "cuda:0 (NVIDIA H100)"."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if str(device).startswith("cuda") else str(device)
