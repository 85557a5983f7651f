"""Which attention the backbone runs: flash-attn where it can, else torch's SDPA. The head's is SDPA always."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vla_modelkit.flash import flash_obstacle

KINDS = ("auto", "sdpa", "flash")


@dataclass(frozen=True)
class Attention:
    """`kind` is "flash" or "sdpa" (torch's own kernels); `reason` says why not flash, in words, or is empty."""

    kind: str
    reason: str = ""

    @property
    def implementation(self) -> str:
        """What transformers calls it."""
        return {"flash": "flash_attention_2"}.get(self.kind, self.kind)


def choose(wanted: str, device: str, dtype: torch.dtype | None = None) -> Attention:
    """Returns the attention for a device ("cpu", "cuda", "cuda:1"). Raises ValueError where `wanted` cannot be had."""
    if wanted not in KINDS:
        raise ValueError(f"attention {wanted!r} is unknown; expected one of {', '.join(KINDS)}")
    if wanted == "sdpa":
        return Attention("sdpa", "asked for")
    obstacle = flash_obstacle(device, dtype)
    if obstacle is None:
        return Attention("flash")
    if wanted == "flash":
        raise ValueError(
            f"attention 'flash' cannot be had: {obstacle}; leave VLALAB_GR00T_ATTENTION at auto, or build the image "
            "with FLASH_ATTN=prebuilt and run it on a GPU"
        )
    return Attention("sdpa", obstacle)
