"""Flags of the service, with defaults from VLALAB_OPENVLA_* variables, and what they mean on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from services.openvla.errors import CheckpointError
from vla_contract import Volume
from vla_contract.errors import did_you_mean

PREFIX = "VLALAB_OPENVLA_"
INT8 = "int8 is slower than bf16 and loses accuracy (13 points in OpenVLA's paper): 4 bits do better"
NUMBERS = {"int": (int, "a whole number"), "float": (float, "a number")}


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
    """Guess actions from a session's last ones and verify: the same in fp32; in 16 bits a close call may differ."""

    def __post_init__(self):
        if not 1 <= self.max_batch <= 64:
            raise ValueError(f"max_batch is {self.max_batch}; expected 1 to 64")


def from_environment(kind: type, environ: Mapping[str, str] = os.environ):
    """Returns settings of dataclass `kind` with what VLALAB_OPENVLA_* variables say; empty ones count as unset.

    Raises ValueError naming a variable whose value does not fit.
    """
    given = {}
    for one in fields(kind):
        text = environ.get(PREFIX + one.name.upper(), "")
        if text:
            given[one.name] = _read(one, text)
    return kind(**given)


def _read(one, text: str):
    choices = [part.strip(" '\"") for part in str(one.type).removeprefix("Literal[").removesuffix("]").split(",")]
    if str(one.type).startswith("Literal") and text not in choices:
        raise ValueError(f"{PREFIX}{one.name.upper()}={text!r}{did_you_mean(text, choices)}")
    if one.type == "bool":
        if text.lower() not in ("0", "1", "true", "false"):
            raise ValueError(f"{PREFIX}{one.name.upper()}={text!r}; expected 0 or 1")
        return text.lower() in ("1", "true")
    if one.type in NUMBERS:
        kind, expected = NUMBERS[one.type]
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"{PREFIX}{one.name.upper()}={text!r}; expected {expected}") from None
    return Path(text) if one.type == "Path | None" else text


def checkpoint_folder(name: str, volume: Volume | None = None) -> Path:
    """Returns the folder that `name` means: a path, else a folder under checkpoints/ on the volume.

    Raises CheckpointError with the checkpoints there are, or how to get one.
    """
    if name and Path(name).expanduser().is_dir():
        return Path(name).expanduser().absolute()
    there = (volume or Volume()).path("checkpoints")
    known = sorted(path.parent.name for path in there.glob("*/config.json"))
    how = "get one with `./lab checkpoint openvla --suite libero_goal` (15 GB) or `./lab checkpoint openvla --tiny`"
    if not name:
        found = f"on the volume: {', '.join(known)}" if known else f"none is on the volume; {how}"
        raise CheckpointError(f"no checkpoint named: give --checkpoint or set {PREFIX}CHECKPOINT; {found}")
    if (there / name).is_dir() and Path(name).name == name:
        return there / name
    listed = did_you_mean(name, known) if known else f"; {there} holds no checkpoint"
    raise CheckpointError(f"checkpoint {name!r} not found{listed}; {how}")
