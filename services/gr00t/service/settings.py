"""Flags of the model, whose defaults are VLALAB_GR00T_* variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EXTERNAL_VARIABLES = ("PORT", "MEMORY", "GPU", "SOURCE")  # of the same prefix, read by other programs


@dataclass(frozen=True)
class Settings:
    """The checkpoint and its runtime settings. Every flag's default is the variable VLALAB_GR00T_<FLAG>."""

    checkpoint: str = ""
    """A directory under checkpoints/ on the volume, or a path."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Numbers to compute with; auto: bf16 on a GPU (fp16 before Ampere), fp32 on a CPU."""
    attention: Literal["auto", "sdpa", "flash"] = "auto"
    """auto: torch's SDPA; flash: flash-attn, without CUDA graphs."""
    embodiment: str = ""
    """A name of docs/gr00t.md's table or a JSON file; default: what the checkpoint states."""
    denoising_steps: int = 0
    """Euler steps of the action's flow; 0: as upstream serves the embodiment."""
    prompt: Literal["plain", "upstream"] = "plain"
    """upstream: the instruction in brackets and quotes, as upstream's own clients have it put there."""
    max_batch: int = 16
    """Maximum observations per pass."""
    seed: int = 0
    """Seed of the noise that actions start from."""

    def __post_init__(self):
        if not 1 <= self.max_batch <= 64:
            raise ValueError(f"max_batch must be in [1, 64], got {self.max_batch}")
        if not 0 <= self.denoising_steps <= 1000:
            raise ValueError(
                f"denoising_steps must be in [1, 1000], or 0 for the embodiment's, got {self.denoising_steps}"
            )
