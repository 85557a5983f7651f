"""Flags of the model, whose defaults are VLALAB_OPENVLA_* variables, and the checkpoint that they name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vla_common.options import Options, option
from vla_common.volume import Volume
from vla_modelkit.checkpoint import find_directory

PREFIX = "VLALAB_OPENVLA_"
INT8 = "int8 is slower than bf16 and loses accuracy (13 points in OpenVLA's paper): 4 bits do better"


@dataclass(frozen=True)
class ModelSettings(Options):
    """The checkpoint and its runtime settings. Every flag's default is the variable VLALAB_OPENVLA_<FLAG>."""

    checkpoint: str = option(
        "",
        "a directory under checkpoints/ on the volume, or a path",
        default_help="from .env or the shell",
        kind="checkpoint",
    )
    quant: Literal["none", "nf4", "fp4", "int8"] = option(
        "none", "weights in 4 or 8 bits, on a GPU; fp4 is what load_in_4bit=True means; int8 loses accuracy and speed"
    )
    unnorm_key: str = option(
        "",
        "statistics that scale the actions, for example bridge_orig of the base model",
        pattern=r"\w[\w.-]*",
        expected="a name",
        metavar="NAME",
    )
    images: int = option(
        0,
        "images per observation that an OpenVLA-OFT checkpoint was trained with: 1 agentview, 2 and the wrist",
        "[0, 2]",
        default_help="as published",
    )
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = option(
        "auto", "numbers to compute with; auto: bf16 on a GPU (fp16 before Ampere), fp32 on a CPU", group="internal"
    )
    device: str = option("auto", "auto, cpu, cuda or cuda:N", group="internal")
    attention: Literal["auto", "sdpa", "flash"] = option(
        "auto", "auto: flash-attn where it is installed and runs, else torch's SDPA", group="internal"
    )
    engine: Literal["vla-lab", "hf"] = option(
        "vla-lab",
        "hf: upstream's own code through transformers (batch 1, remote code), for comparison",
        group="internal",
    )
    max_batch: int = option(16, "maximum observations per pass", "[1, 64]", group="internal")
    drafts: bool = option(
        True,
        "speculative decoding from a session's last actions: the same in fp32; in 16 bits a close call may differ",
        group="internal",
    )

    def __post_init__(self) -> None:
        self.check_options()


def checkpoint_directory(name: str, volume: Volume | None = None) -> Path:
    """Find a checkpoint's directory by name. Raises CheckpointError with the available ones, or how to download one."""
    hint = "get one with `./lab checkpoint openvla --suite libero_goal` (15 GB) or `./lab checkpoint openvla --tiny`"
    return find_directory(name, f"{PREFIX}CHECKPOINT", hint, volume)
