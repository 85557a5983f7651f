"""The options of `checkpoint` and `verify`, and the modes that the latter compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.openvla.service.settings import ModelSettings
from vla_common.options import option
from vla_contract.protocol.errors import did_you_mean
from vla_modelkit import checkpoint_options

MODES: Mapping[str, Mapping[str, str]] = {
    "auto": {},
    "bf16-flash": {"dtype": "bf16", "attention": "flash"},
    "bf16-sdpa": {"dtype": "bf16", "attention": "sdpa"},
    "nf4": {"quant": "nf4"},
    "fp4": {"quant": "fp4"},
    "int8": {"quant": "int8"},
    "fp32-cpu": {"dtype": "fp32", "device": "cpu"},
    "hf": {"engine": "hf"},
}


@dataclass(frozen=True)
class CheckpointOptions(checkpoint_options.CheckpointOptions):
    """Get a checkpoint of OpenVLA or OpenVLA-OFT."""

    oft: bool = option(False, "OpenVLA-OFT's checkpoint of the suite, or with --tiny a random one")
    merge: str = option("", "a LoRA adapter to merge into its base, as a new checkpoint", kind="path or repository")
    base: str = option(
        "", "with --merge: what the adapter was trained on", default_help="as it states", kind="path or repository"
    )


@dataclass(frozen=True)
class VerifySettings(ModelSettings):
    """Check a checkpoint: load, warm up, infer, and report latency, memory and actions."""

    modes: str = option(
        "auto",
        f"{', '.join(MODES)}, or several to compare; all: those that this machine can run",
        kind="several",
        keywords=("all", *MODES),
    )
    count: int = option(20, "inferences to time", "[1, inf)")
    image: Path | None = option(None, "input image", default_help="a made-up one", kind="path")
    instruction: str = option("put the bowl on the stove", "instruction for the model")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mode_list:
            raise ValueError(f"--modes {self.modes!r} is empty; expected some of {', '.join(MODES)}")
        for mode in self.mode_list:
            if mode not in MODES:
                raise ValueError(f"mode {mode!r} not found{did_you_mean(mode, MODES)}")

    @property
    def mode_list(self) -> list[str]:
        """The modes to run, in order."""
        return list(MODES) if self.modes == "all" else [mode.strip() for mode in self.modes.split(",") if mode.strip()]
