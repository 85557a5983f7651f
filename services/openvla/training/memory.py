"""Estimate the memory of training before anything is loaded.

A trained number costs 18 bytes (itself, its gradient and Adam's two in float32, its copy in bfloat16), a frozen one its
stored size; activations grow with tokens, layers and widths. The constants fit upstream's published needs within 15 %
(LoRA at batch 1: 27 GB, at 16: 72 GB; OpenVLA-OFT at 8: 62 GB). This engine's own were not measured on a GPU.
"""

from __future__ import annotations

import torch

from services.openvla.checkpoint.config import ModelConfig
from services.openvla.checkpoint.oft import Oft
from services.openvla.model.action_head import oft_shapes
from services.openvla.model.openvla import model_shapes
from services.openvla.model.vision import build_tower, patch_count
from services.openvla.training.network import ADAPTED
from services.openvla.training.settings import OpenVLAFinetune

TRAINED, TRAINED_BF16 = 16, 18  # bytes per number
PER_TOKEN = 50  # bytes per token and number of a layer's width, in bfloat16
TEXT = 32  # tokens of a prompt
ROOM = 7.5e9  # besides: CUDA's context, workspaces, fragments
BATCHES = (16, 8, 4, 2, 1)


def needed_bytes(config: ModelConfig, settings: OpenVLAFinetune, bf16: bool) -> float:
    """Return the bytes that training needs."""
    shapes = model_shapes(config)
    frozen = sum(torch.Size(shape).numel() for shape in shapes.values())
    linear = [shape for name, shape in shapes.items() if name.startswith(ADAPTED) and len(shape) == 2]
    trained = settings.lora_rank * sum(map(sum, linear))
    patches, answer = patch_count(config.towers) * settings.image_count, 8
    if settings.head == "l1":
        parts = oft_shapes(Oft(), config.llama.hidden_size)
        trained += sum(torch.Size(shape).numel() for shape in parts.values())
        answer = 58
    towers = [build_tower(tower) for tower in config.towers]
    numbers = patches * sum(len(tower.blocks) * tower.embed_dim for tower in towers)
    numbers += (patches + TEXT + answer) * config.llama.num_hidden_layers * config.llama.hidden_size
    sample = numbers * PER_TOKEN * (1 if bf16 else 2)
    weights = 2 * frozen + TRAINED_BF16 * trained + ROOM if bf16 else 4 * frozen + TRAINED * trained
    return float(weights + settings.batch_size * sample)
