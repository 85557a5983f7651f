"""Choose the backbone's attention: flash-attn if available, else torch's SDPA. The head always uses SDPA."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vla_modelkit.flash import flash_obstacle

KINDS = ("auto", "sdpa", "flash")


@dataclass(frozen=True)
class AttentionKernel:
    """`kind` is "flash" or "sdpa" (torch's own kernels); `reason` says why flash is not used, or is empty."""

    kind: str
    reason: str = ""

    @property
    def implementation(self) -> str:
        """Its name in transformers."""
        return {"flash": "flash_attention_2"}.get(self.kind, self.kind)


def choose(requested: str, device: str, dtype: torch.dtype | None = None) -> AttentionKernel:
    """Return the attention for a device ("cpu", "cuda", "cuda:1"). Raises ValueError if "flash" is not available."""
    if requested not in KINDS:
        raise ValueError(f"attention {requested!r} not found; expected one of {', '.join(KINDS)}")
    if requested == "sdpa":
        return AttentionKernel("sdpa", "requested")
    obstacle = flash_obstacle(device, dtype)
    if obstacle is None:
        return AttentionKernel("flash")
    if requested == "flash":
        raise ValueError(
            f"attention 'flash' is not available: {obstacle}; leave VLALAB_GR00T_ATTENTION at auto, or build the image "
            "with FLASH_ATTN=prebuilt and run it on a GPU"
        )
    return AttentionKernel("sdpa", obstacle)
