"""Check whether flash-attn can run. Imports torch only when called."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def flash_obstacle(device: torch.device | str, dtype: torch.dtype | None = None) -> str | None:
    """Return why flash-attn cannot run on `device` in `dtype` (None: 16 bits), None if it can."""
    if not str(device).startswith("cuda"):
        return f"flash-attn needs a GPU, the device is {device}"
    if dtype is not None and dtype.itemsize != 2:
        return f"flash-attn computes in bf16 or fp16, not in {dtype}"
    if importlib.util.find_spec("flash_attn") is None:
        return "flash-attn is not installed"
    try:
        importlib.import_module("flash_attn")
    except Exception as error:  # a wheel for another torch fails with ImportError, or with undefined symbols
        return f"importing flash_attn failed with {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return None if major >= 8 else f"flash-attn 2 needs compute capability 8.0, the GPU has {major}.{minor}"
