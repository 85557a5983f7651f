"""How much memory training takes, before anything is loaded.

A trained number costs 16 bytes (itself, its gradient and Adam's two in float32) and 2 more where products are in
bfloat16 (its copy for them); a frozen one what it is stored in. To that come the activations that the backward pass
needs. Counted on the CPU; an H200's peak at batch 8 was 13 to 17 % below the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.gr00t.checkpoint.config import Blocks, ModelConfig
from services.gr00t.model.loading import shapes
from services.gr00t.training.network import counts, one_robot
from services.gr00t.training.settings import Finetune

TRAINED, COPY = 16, 2  # bytes per trained number
PER_TOKEN = 56  # bytes of an attention block and its feed-forward per token and number of its width, in bfloat16
ROOM = 1.0e9  # CUDA's context and libraries' workspaces
BATCHES = (32, 16, 8, 4, 2, 1)
CARD = 24e9  # bytes of the cards that most labs have
KINDS = {  # flags -> what they change
    "": {},
    "--no-tune-diffusion-model ": {"tune_diffusion_model": False},
    "--lora-rank 16 ": {"tune_diffusion_model": True, "lora_rank": 16},
}
TEXT = 48  # tokens of a prompt beside its pictures' and the instruction


@dataclass(frozen=True)
class Estimate:
    """Bytes. weights: with gradients and Adam's moments; activations: of a whole batch, with the weights' copies; room:
    what CUDA takes itself."""

    weights: float
    activations: float
    room: float = 0

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.activations + self.room

    def __str__(self) -> str:
        return f"{_size(self.total)} ({_size(self.weights)} weights, {_size(self.activations)} activations)"


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def weight_bytes(trained: float, frozen: float, frozen_fp32: float = 0) -> float:
    """Returns bytes of weights, gradients and Adam's moments. frozen: numbers kept in bfloat16."""
    return TRAINED * trained + 2 * frozen + 4 * frozen_fp32


def sample_bytes(config: ModelConfig, views: int) -> float:
    """Returns bytes of one sample's activations in bfloat16."""
    head, seen = config.head, views * config.patches + TEXT
    tokens = 1 + head.future_tokens + head.horizon
    mixer = _stack(head.mixer, seen)
    contexts = head.dit.layers // 2 * seen * 4 * (head.features + head.dit.width)  # inputs and outputs of two products
    return mixer + _stack(head.dit, tokens) + contexts


def _stack(blocks: Blocks, tokens: int) -> float:
    return PER_TOKEN * blocks.layers * blocks.width * tokens


class Memory:
    """What training a network on pictures of `views` cameras takes, on a GPU in bfloat16 or elsewhere in float32."""

    def __init__(self, config: ModelConfig, views: int, bf16: bool = True):
        self.config, self.views, self.bf16 = config, views, bf16
        self.tensors = shapes(one_robot(config))

    def estimate(self, settings: Finetune) -> Estimate:
        """Returns what it takes with those settings."""
        trained, frozen = counts(self.tensors, settings)
        sample = sample_bytes(self.config, self.views)
        if not self.bf16:
            return Estimate(weight_bytes(trained, 0, frozen), settings.batch_size * 2 * sample)
        copies = COPY * trained
        return Estimate(weight_bytes(trained, frozen), settings.batch_size * sample + copies, ROOM)

    def ways_out(self, settings: Finetune, free: float) -> list[str]:
        """Returns what would fit into `free` bytes, as flags with an estimate, the nearest to what was asked first."""
        found = []
        for flags, changes in KINDS.items():
            if changes and settings.lora_rank:
                break
            asked = replace(settings, **changes)
            smaller = [replace(asked, batch_size=size) for size in BATCHES if size <= settings.batch_size]
            sizes = {one.batch_size: self.estimate(one) for one in smaller}
            fitting = next((size for size, needed in sizes.items() if needed.total <= free), None)
            if fitting:
                found.append(f"{flags}--batch-size {fitting} ({_size(sizes[fitting].total)})")
        return found

    def refuse(self, settings: Finetune, free: float, where: str) -> None:
        """Raises MemoryError with what would fit, there and on a card of 24 GB, where training does not."""
        needed = self.estimate(settings)
        if needed.total <= free or settings.force:
            return
        here, small = (self.ways_out(settings, size) for size in (free, CARD))
        raise MemoryError(
            f"training would take {needed} and {_size(free)} are free on {where}. What would fit there: "
            f"{'; '.join(here) or 'nothing of it'}. On a card of 24 GB: {'; '.join(small) or 'nothing of it'}. "
            "--force trains in any case"
        )
