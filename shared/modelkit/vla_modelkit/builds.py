"""Check what this build of torch supports on a GPU, before anything is loaded. Does not import torch."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from typing import Any

_NAME = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def runs_on(architectures: Iterable[str], capability: tuple[int, int]) -> bool:
    """Return whether code for these architectures runs on a GPU of that compute capability, as CUDA's guide says.

    architectures: as torch.cuda.get_arch_list() has them. `sm_86` is machine code for 8.6 and later
    minor versions; `compute_90` is PTX, which the driver compiles for 9.0 and later; a suffix (`sm_90a`) restricts
    it to that version (`f`: to its family).
    """
    for match in filter(None, map(_NAME.fullmatch, architectures)):
        kind, bound, made_for = match[1], match[4], (int(match[2]), int(match[3]))
        is_later = capability >= made_for and (capability[0] == made_for[0] or (kind == "compute" and not bound))
        if capability == made_for or (is_later and bound != "a"):
            return True
    return False


def require_built_for(torch: Any, device: Any) -> None:
    """Raise ValueError if `device` is a GPU that this torch was not built for; the CPU is always supported.

    torch: the module. device: "cuda", "cuda:1" or a torch.device. Without this, the first kernel fails minutes later.
    """
    if not str(device).startswith("cuda"):
        return
    capability, architectures = torch.cuda.get_device_capability(device), torch.cuda.get_arch_list()
    if architectures and not runs_on(architectures, capability):
        raise ValueError(
            f"torch {torch.__version__} has no code for this {torch.cuda.get_device_name(device)} (compute capability "
            f"{'.'.join(map(str, capability))}; it has {', '.join(architectures)}): use another GPU or the CPU "
            "(--gpu none), or a newer torch (openvla, gr00t: --variant cu130)"
        )


def flash_obstacle(device: Any, dtype: Any = None) -> str | None:
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
