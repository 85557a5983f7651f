"""Flags of the model, whose defaults are VLALAB_OPENVLA_* variables, and the checkpoint that they name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vla_common.volume import Volume
from vla_modelkit.checkpoint import find_folder

PREFIX = "VLALAB_OPENVLA_"
INT8 = "int8 is slower than bf16 and loses accuracy (13 points in OpenVLA's paper): 4 bits do better"


@dataclass(frozen=True)
class ModelSettings:
    """Which checkpoint, and how it is run. Every flag's default is the variable VLALAB_OPENVLA_<FLAG>."""

    checkpoint: str = ""
    """A folder under checkpoints/ on the volume, or a path."""
    unnorm_key: str = ""
    """Statistics that un-normalise actions; default: the checkpoint's own, or what each request names."""
    quant: Literal["none", "nf4", "fp4", "int8"] = "none"
    """Weights in 4 or 8 bits (bitsandbytes); fp4: without double quantisation; int8 loses accuracy and speed."""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Numbers to compute with; auto: bf16 on a GPU (fp16 before Ampere), fp32 on a CPU."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    attention: Literal["auto", "sdpa", "flash"] = "auto"
    """auto: flash-attn where it is installed and runs, else torch's SDPA."""
    engine: Literal["vla-lab", "hf"] = "vla-lab"
    """hf: upstream's own code through transformers (batch 1, remote code), for comparison."""
    max_batch: int = 16
    """Most observations in one pass."""
    drafts: bool = True
    """Speculative decoding from a session's last actions: the same in fp32; in 16 bits a close call may differ."""

    def __post_init__(self):
        if not 1 <= self.max_batch <= 64:
            raise ValueError(f"max_batch is {self.max_batch}; expected 1 to 64")


def checkpoint_folder(name: str, volume: Volume | None = None) -> Path:
    """Returns the folder that `name` means. Raises CheckpointError with those there are, or how to get one."""
    how = "get one with `./lab checkpoint openvla --suite libero_goal` (15 GB) or `./lab checkpoint openvla --tiny`"
    return find_folder(name, f"{PREFIX}CHECKPOINT", how, volume)
