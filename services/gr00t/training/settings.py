"""Flags of fine-tuning. Defaults are upstream's (Isaac-GR00T at 4af2b622, scripts/gr00t_finetune.py)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

BASES = ("GR00T-N1.5-3B", "gr00t-tiny")  # the first of these on the volume is trained where none is named


@dataclass(frozen=True)
class Finetune:
    """Fine-tune GR00T N1.5; Ctrl-C saves, and the same command goes on."""

    dataset: str
    """A data set in LeRobot's layout: a name under datasets/ on the volume, or a path."""
    base: str = ""
    """The checkpoint to begin with: a folder under checkpoints/, or a path."""
    embodiment: str = "new_embodiment"
    """new_embodiment: what the data set's modality.json says; else a name of docs/gr00t.md's table, or a JSON file."""
    name: str = ""
    """Of the result, a folder under checkpoints/; default: gr00t-DATASET."""
    max_steps: int = 10000
    """Steps in all."""
    batch_size: int = 32
    """Samples per step and process."""
    learning_rate: float = 1e-4
    """The highest; it rises for a twentieth of the steps and falls as a cosine."""
    tune_diffusion_model: bool = True
    """Train the diffusion transformer too, and not only what lies around it."""
    lora_rank: int = 0
    """Above 0: low-rank adapters in the head's attention instead, and this robot's encoders and decoder."""
    lora_alpha: float | None = None
    """What the adapters add is scaled by alpha / rank; default: the rank, and a run that goes on keeps its own."""
    lora_dropout: float = 0.1
    """Of the adapters' input."""
    save_steps: int = 1000
    """A training state is saved so often."""
    keep: int = 2
    """How many of them stay."""
    log_every: int = 10
    """Steps between two points of a curve."""
    workers: int = -1
    """Processes that read data, per training process; -1: four with a GPU, none on a CPU."""
    frames_gb: float = -1.0
    """Memory for films that were decoded once; -1: half of what is free; 0: none."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16: matrix products in bfloat16, trained weights in float32."""
    seed: int = 42
    """Of the order of the data, of noise and of dropout."""
    resume: bool = False
    """Refuse to begin anew: there must be a state to go on from."""
    force: bool = False
    """Train although it is not expected to fit into memory."""

    def __post_init__(self):
        for name in ("max_steps", "batch_size", "save_steps", "keep", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if not 0 < self.learning_rate < 1:
            raise ValueError(f"learning_rate is {self.learning_rate}; expected a number between 0 and 1, as 1e-4")
        no_alpha = self.lora_alpha is not None and self.lora_alpha <= 0
        if not 0 <= self.lora_dropout < 1 or self.lora_rank < 0 or no_alpha:
            raise ValueError("LoRA takes a rank of 1 or more, an alpha above 0 and a dropout of 0 to 1")
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
