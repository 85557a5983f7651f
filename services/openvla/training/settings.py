"""Options of fine-tuning. Defaults are upstream's (openvla and openvla-oft, vla-scripts/finetune.py)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vla_common.options import option
from vla_modelkit.training.options import TrainerOptions

IMAGES = {"tokens": 1, "l1": 2}  # per observation, where --images is not given


@dataclass(frozen=True)
class OpenVLAFinetune(TrainerOptions):
    """Fine-tune OpenVLA with LoRA; Ctrl-C saves, and the same command resumes."""

    base: str = option("", "the checkpoint to start from", default_help="openvla-7b, else openvla-tiny")
    name: str = option("", default_help="model and data set")
    head: Literal["tokens", "l1"] = option(
        "tokens", "tokens: OpenVLA's action tokens; l1: OpenVLA-OFT's regression of 8 actions at once"
    )
    images: int = option(
        0,
        "with --head l1: 1 agentview, 2 and the wrist",
        "[0, 2]",
        default_help="2 with --head l1",
    )
    batch_size: int = option(8)
    learning_rate: float = option(5e-4, "constant", "(0, 1)")
    decay_after: int = option(100_000, "a tenth of the learning rate after so many steps", "[1, inf)")
    lora_rank: int = option(32, "of the adapters of all linear layers", "[1, inf)")
    lora_dropout: float = option(0.0, "of the adapters' input", "[0, 1)")
    augment: bool = option(
        True, "crop and recolour images at random", negated="train on images as they are; serving still crops them"
    )
    precision: Literal["auto", "fp32", "bf16"] = option(
        "auto", "bf16: frozen weights and products in bfloat16, adapters in float32", group="internal"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.images and self.head == "tokens":
            raise ValueError("--images is for --head l1: OpenVLA with action tokens sees one image")

    @property
    def output_name(self) -> str:
        """The result's name."""
        return self.name or f"openvla-{'oft-' if self.head == 'l1' else ''}{Path(self.dataset).name}"

    @property
    def image_count(self) -> int:
        """Images per observation."""
        return self.images or IMAGES[self.head]

    @property
    def lora_alpha(self) -> int:
        """The adapters' output is scaled by alpha / rank."""
        return min(self.lora_rank, 16)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return self.learning_rate * (0.1 if step >= self.decay_after else 1.0)

    def identity(self, world: int, **more: str) -> dict[str, Any]:
        """Return the settings that a resumed run must not change. more: digests of the data set and of the base."""
        names = ("max_steps", "head", "learning_rate", "decay_after", "lora_rank", "lora_dropout", "augment", "seed")
        values = {name: getattr(self, name) for name in names} | {"images": self.image_count}
        return values | {"samples_per_step": self.batch_size * self.accumulate * world} | more
