"""Which device and which numbers a model runs with on this machine."""

from __future__ import annotations

import torch

from services.openvla.model import DTYPES
from vla_contract.builds import require_built_for


def choose_device(asked: str) -> torch.device:
    """Returns the device. Raises ValueError where it does not exist, or this torch has no code for it."""
    device = _named(asked)
    require_built_for(torch, device)
    return device


def _named(asked: str) -> torch.device:
    if asked == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {asked!r} not found; expected auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ValueError(
                f"device {asked!r}: torch sees {count} GPUs here; use --device cpu, or look at `./lab doctor`"
            )
        device = torch.device("cuda", device.index or 0)
    return device


def choose_dtype(asked: str, device: torch.device, quant: str = "none") -> torch.dtype:
    """Returns the numbers to compute with. Raises ValueError for fp16 on a CPU."""
    if asked == "fp16" and device.type == "cpu":
        raise ValueError("--dtype fp16 needs a GPU: torch 2.2 lacks half of its CPU kernels; use bf16 or fp32")
    if asked != "auto":
        return DTYPES[asked]
    if device.type == "cpu":
        return torch.float32 if quant == "none" else torch.bfloat16  # what stays plain should not be the largest part
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
