"""Options of fine-tuning. Defaults are upstream's (Isaac-GR00T at 4af2b622, scripts/gr00t_finetune.py)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vla_common.options import option
from vla_modelkit.training.options import TrainerOptions

WARMUP = 0.05  # of the steps
BASES = ("GR00T-N1.5-3B", "gr00t-tiny")  # default: the first of these on the volume


@dataclass(frozen=True)
class Finetune(TrainerOptions):
    """Fine-tune GR00T N1.5; Ctrl-C saves, and the same command resumes."""

    base: str = option("", default_help="the published one, else the tiny one")
    embodiment: str = option("new_embodiment", "a known robot, or a JSON file", kind="embodiment")
    name: str = option("", default_help="model and data set")
    learning_rate: float = option(
        1e-4, "the highest; it rises for a twentieth of the steps and falls as a cosine", "(0, 1)"
    )
    tune_diffusion_model: bool = option(
        True,
        "train the diffusion transformer as well as the encoders and the decoder",
        negated="train only the encoders, the decoder and other parts of the head",
    )
    lora_rank: int = option(0, "above 0: low-rank adapters in the head's attention instead")
    lora_alpha: float | None = option(
        None,
        "the adapters' output is scaled by alpha / rank",
        "(0, inf)",
        default_help="the rank; a resumed run keeps its own",
    )
    lora_dropout: float = option(0.1, "of the adapters' input", "[0, 1)")
    precision: Literal["auto", "fp32", "bf16"] = option(
        "auto", "bf16: matrix products in bfloat16, trained weights in float32", group="internal"
    )
    seed: int = option(42, "of the order of the data, of noise and of dropout")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lora_rank and not self.tune_diffusion_model:
            raise ValueError("--lora-rank already freezes the diffusion model; remove it or --no-tune-diffusion-model")

    @property
    def output_name(self) -> str:
        return self.name or f"gr00t-{Path(self.dataset).name}"

    @property
    def lora_scale(self) -> float:
        """Factor of the adapters' output."""
        return 1.0 if self.lora_alpha is None else self.lora_alpha / self.lora_rank

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0: linear warm-up from 0, then cosine decay."""
        warmup = math.ceil(WARMUP * self.max_steps)
        if step < warmup:
            return self.learning_rate * step / warmup
        share = (step - warmup) / max(1, self.max_steps - warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * share))

    def identity(self, world: int, **more: str) -> dict[str, Any]:
        """Return the settings that a resumed run must not change. more: digests of the data set and of the base."""
        names = (
            "max_steps", "learning_rate", "tune_diffusion_model", "lora_rank", "lora_alpha", "lora_dropout", "seed",
        )  # fmt: skip
        values = {name: getattr(self, name) for name in names}
        if self.lora_alpha is None:
            # without LoRA upstream's 16, as in runs from when it was the default
            values["lora_alpha"] = float(self.lora_rank or 16)
        return values | {"samples_per_step": self.batch_size * self.accumulate * world} | more


def digest_of(value: Mapping[str, Any]) -> str:
    """Return a short digest of JSON types."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
