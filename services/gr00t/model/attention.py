"""Choose the backbone's attention: torch's SDPA, or flash-attn on request. The head always uses SDPA.

transformers' path to flash-attn reads position ids on the host in every layer, which a CUDA graph cannot capture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vla_modelkit.builds import flash_obstacle

KINDS = ("auto", "sdpa", "flash")


@dataclass(frozen=True)
class AttentionKernel:
    """`kind` is "flash" or "sdpa" (torch's own kernels); `reason` says why flash is not used, or is empty."""

    kind: str
    reason: str = ""

    @property
    def implementation(self) -> str:
        return "flash_attention_2" if self.kind == "flash" else self.kind

    @property
    def fixed_shapes(self) -> bool | None:
        """The engine's argument: False where its passes cannot be captured, else None for its own default."""
        return False if self.kind == "flash" else None


def choose(requested: str, device: str, dtype: torch.dtype | None = None) -> AttentionKernel:
    """Return the attention for a device ("cpu", "cuda", "cuda:1"). Raises ValueError if "flash" is not available."""
    if requested not in KINDS:
        raise ValueError(f"attention {requested!r} not found; expected one of {', '.join(KINDS)}")
    if requested == "sdpa":
        return AttentionKernel("sdpa", "requested")
    obstacle = flash_obstacle(device, dtype)
    if requested == "auto":
        return AttentionKernel("sdpa", obstacle or "CUDA graphs cannot capture flash-attn")
    if obstacle:
        raise ValueError(
            f"attention 'flash' is not available: {obstacle}; leave VLALAB_GR00T_ATTENTION at auto, or build the image "
            "with FLASH_ATTN=prebuilt and run it on a GPU"
        )
    return AttentionKernel("flash")
