"""Estimate the memory of training, before anything is loaded.

A trained number costs 16 bytes (itself, its gradient and Adam's two in float32) and 2 more where products are in
bfloat16 (its copy for them); a frozen one costs its stored size. Add the activations that the backward pass
needs. An H200's peak at batch 8 was 13 to 17 % below the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.gr00t.checkpoint.config import Blocks, ModelConfig
from services.gr00t.model.loading import shapes
from services.gr00t.training.network import counts, single_robot
from services.gr00t.training.settings import Finetune

TRAINED, COPY = 16, 2  # bytes per trained number
PER_TOKEN = 56  # bytes of an attention block and its feed-forward per token and number of its width, in bfloat16
ROOM = 1.0e9  # CUDA's context and libraries' workspaces
BATCHES = (32, 16, 8, 4, 2, 1)
CARD = 24e9  # bytes of the cards that most labs have
KINDS = {  # flags -> the settings they change
    "": {},
    "--no-tune-diffusion-model ": {"tune_diffusion_model": False},
    "--lora-rank 16 ": {"tune_diffusion_model": True, "lora_rank": 16},
}
TEXT = 48  # tokens of a prompt without its images


@dataclass(frozen=True)
class Estimate:
    """Bytes of weights with gradients and Adam's moments; of a batch's activations; of CUDA's own memory."""

    weights: float
    activations: float
    room: float = 0

    @property
    def total(self) -> float:
        return self.weights + self.activations + self.room

    def __str__(self) -> str:
        return f"{_size(self.total)} ({_size(self.weights)} weights, {_size(self.activations)} activations)"


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def weight_bytes(trained: float, frozen: float, frozen_fp32: float = 0) -> float:
    """Return bytes of weights, gradients and Adam's moments. frozen: numbers kept in bfloat16."""
    return TRAINED * trained + 2 * frozen + 4 * frozen_fp32


def sample_bytes(config: ModelConfig, views: int) -> float:
    """Return bytes of one sample's activations in bfloat16."""

    def stack(blocks: Blocks, tokens: int) -> float:
        return PER_TOKEN * blocks.layers * blocks.width * tokens

    head, seen = config.head, views * config.patches + TEXT
    contexts = head.dit.layers // 2 * seen * 4 * (head.features + head.dit.width)  # inputs and outputs of two products
    return stack(head.mixer, seen) + stack(head.dit, 1 + head.future_tokens + head.horizon) + contexts


class TrainingMemory:
    """Memory of training a network on images of `views` cameras, on a GPU in bfloat16 or elsewhere in float32."""

    def __init__(self, config: ModelConfig, views: int, bf16: bool = True):
        self.bf16, self.sample = bf16, sample_bytes(config, views)
        self.tensors = shapes(single_robot(config))

    def estimate(self, settings: Finetune) -> Estimate:
        trained, frozen = counts(self.tensors, settings)
        if not self.bf16:
            return Estimate(weight_bytes(trained, 0, frozen), settings.batch_size * 2 * self.sample)
        return Estimate(weight_bytes(trained, frozen), settings.batch_size * self.sample + COPY * trained, ROOM)

    def fitting_flags(self, settings: Finetune, free: float) -> str:
        """Return flags that fit into `free` bytes, each with its estimate, the closest to `settings` first."""
        options = []
        for flags, changes in KINDS.items():
            if changes and settings.lora_rank:
                break
            for size in (size for size in BATCHES if size <= settings.batch_size):
                total = self.estimate(replace(settings, batch_size=size, **changes)).total
                if total <= free:
                    options.append(f"{flags}--batch-size {size} ({_size(total)})")
                    break
        return "; ".join(options) or "none"

    def require(self, settings: Finetune, free: float, device: str) -> None:
        """Raise MemoryError if training does not fit, with flags that fit there and on a card of 24 GB."""
        needed = self.estimate(settings)
        if needed.total > free and not settings.force:
            raise MemoryError(
                f"training needs {needed}, but {device} has {_size(free)} free. Options that fit there: "
                f"{self.fitting_flags(settings, free)}. On a card of 24 GB: {self.fitting_flags(settings, CARD)}. "
                "--force trains anyway"
            )
