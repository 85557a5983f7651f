"""Options of fine-tuning. Defaults are upstream's (Isaac-GR00T at 4af2b622, scripts/gr00t_finetune.py)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vla_common.options import Options, device_option, option

BASES = ("GR00T-N1.5-3B", "gr00t-tiny")  # the first of these on the volume is trained where none is named


@dataclass(frozen=True)
class Finetune(Options):
    """Fine-tune GR00T N1.5; Ctrl-C saves, and the same command goes on."""

    dataset: str = option(help="its name under datasets/ on the volume, or a path", kind="dataset")
    base: str = option(
        "",
        "the checkpoint to begin with",
        default_help="the published one, else the tiny one",
        kind="path or checkpoint",
    )
    embodiment: str = option("new_embodiment", "a robot that is known, or a JSON file", kind="embodiment")
    name: str = option(
        "",
        "of the result, a folder under checkpoints/",
        default_help="made of model and data set",
        kind="directory name",
    )
    max_steps: int = option(10000, "how many in all", "[1, inf)")
    batch_size: int = option(32, "samples per step and GPU", "[1, inf)")
    learning_rate: float = option(
        1e-4, "the highest; it rises for a twentieth of the steps and falls as a cosine", "(0, 1)"
    )
    tune_diffusion_model: bool = option(
        True,
        "train the diffusion transformer too, and not only what lies around it",
        negated="train only what lies around the diffusion transformer",
    )
    lora_rank: int = option(0, "above 0: low-rank adapters in the head's attention instead", "[0, inf)")
    lora_alpha: float | None = option(
        None,
        "what the adapters add is scaled by alpha / rank",
        "(0, inf)",
        default_help="the rank; a run that goes on keeps its own",
    )
    lora_dropout: float = option(0.1, "of the adapters' input", "[0, 1)")
    save_steps: int = option(1000, "a state to go on from is saved so often", "[1, inf)")
    keep: int = option(2, "how many of these states stay", "[1, inf)")
    frames_gb: float = option(
        -1.0, "memory for films that were decoded once; 0: none, -1: half of what is free", "[-1, inf)"
    )
    resume: bool = option(False, "refuse to begin anew; the same command goes on in any case")
    force: bool = option(False, "train although it is not expected to fit into memory")
    device: str = device_option()
    log_every: int = option(10, "steps between two points of a curve", "[1, inf)", group="internal")
    workers: int = option(
        -1,
        "processes that read data, per training process; -1: four with a GPU, none on a CPU",
        "[-1, inf)",
        group="internal",
    )
    precision: Literal["auto", "fp32", "bf16"] = option(
        "auto", "bf16: matrix products in bfloat16, trained weights in float32", group="internal"
    )
    seed: int = option(42, "of the order of the data, of noise and of dropout", group="internal")

    def __post_init__(self) -> None:
        self.check_options()
        if self.lora_rank and not self.tune_diffusion_model:
            raise ValueError("with --lora-rank the diffusion model is frozen anyway; leave one of the two out")
        if self.name and (Path(self.name).name != self.name or self.name.startswith(".")):
            raise ValueError(f"--name {self.name!r} is not a folder name")

    @property
    def chosen_name(self) -> str:
        """The result's name."""
        return self.name or f"gr00t-{Path(self.dataset).name}"

    @property
    def lora_scale(self) -> float:
        """What the adapters add is multiplied by this."""
        return 1.0 if self.lora_alpha is None else self.lora_alpha / self.lora_rank

    def identity(self, world: int, **more: str) -> dict[str, Any]:
        """Returns what a run must not change in its middle. more: digests of the data set and of the base."""
        own = ("max_steps", "learning_rate", "tune_diffusion_model", "lora_rank", "lora_alpha", "lora_dropout", "seed")
        found = {name: getattr(self, name) for name in own}
        if self.lora_alpha is None:
            # upstream's 16 without LoRA, as runs have recorded that were begun when it was the default
            found["lora_alpha"] = float(self.lora_rank or 16)
        return found | {"samples_per_step": self.batch_size * world} | more


def digest_of(value: Mapping[str, Any]) -> str:
    """Returns a short digest of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
