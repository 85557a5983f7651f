"""The model: image and prompt in, logits of the next tokens out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.openvla.checkpoint.config import ModelConfig
from services.openvla.model import attention
from services.openvla.model.action_head import oft_shapes
from services.openvla.model.linear import Dense
from services.openvla.model.llama import KVCache, Llama, TreePositions, llama_shapes, load_llama
from services.openvla.model.vision import VisionBackbone, load_vision_backbone, module_bytes, sizes_of, vision_shapes
from vla_modelkit.weights import WeightSource, check_names


@dataclass(frozen=True)
class OpenVLA:
    """Vision backbone and language model on one device. `patches` embeddings go in after a prompt's first token."""

    config: ModelConfig
    vision: VisionBackbone
    llama: Llama
    patches: int

    def prefill(self, pixels: Tensor, ids: Tensor, last: Tensor, count: int, cache: KVCache) -> Tensor:
        """Return logits [B, count, vocab] after the tokens at last … last + count - 1 of each row; fills the cache.

        pixels  uint8 [B, S, S, 3]
        ids     int64 [B, L], BOS first, padded on the right with anything
        last    int64 [B], where each prompt ends; drafts of the next tokens may follow it
        """
        embeddings = self.llama.embed[ids]
        x = torch.cat((embeddings[:, :1], self.vision(pixels), embeddings[:, 1:]), dim=1)
        hidden = self.llama.prefill(x, cache)
        positions = self.patches + last[:, None] + torch.arange(count, device=ids.device)
        rows = torch.arange(ids.shape[0], device=ids.device)[:, None]
        return self.llama.logits(hidden[rows, positions])

    def decode(self, ids: Tensor, tree: TreePositions, cache: KVCache, filled: int) -> Tensor:
        """Return hidden states [B, N, hidden] of the tokens ids [B, N], for `llama.logits`."""
        return self.llama.decode(self.llama.embed[ids], tree, cache, filled)

    def memory(self) -> dict[str, int]:
        """Return bytes of weights per part."""
        blocks = [weights for b in self.llama.blocks for weights in (b.qkv, b.out, b.gate_up, b.down)]
        rest = [self.llama.embed, self.llama.norm]
        rest += [weights for b in self.llama.blocks for weights in (b.norm_in, b.norm_mlp)]
        return {
            "vision": sum(map(module_bytes, self.vision.towers)),
            "projector": sum(layer.nbytes for layer in self.vision.projector),
            "llama blocks": sum(block.nbytes for block in blocks),
            "embeddings and head": sum(Dense(value).nbytes for value in rest) + self.llama.head.nbytes,
        }


def model_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every tensor of the model's checkpoint."""
    hidden = config.llama.hidden_size
    further = oft_shapes(config.oft, hidden) if config.oft else {}
    return vision_shapes(config.towers, hidden) | llama_shapes(config.llama) | further


def load_model(
    config: ModelConfig,
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    attention_kernel: attention.AttentionFunction,
    capacity: int,
    quant: str = "none",
) -> OpenVLA:
    """Return the model with weights of `source`. Raises CheckpointError if names or shapes differ from the config's."""
    check_names(source.shapes(), model_shapes(config))
    vision = load_vision_backbone(config.towers, source, dtype, device)
    llama = load_llama(config.llama, source, dtype, device, capacity, attention_kernel, quant)
    return OpenVLA(config, vision, llama, vision.towers[0].patch_embed.num_patches)


def weight_bytes(config: ModelConfig, dtype: torch.dtype, quant: str = "none") -> int:
    """Estimate the bytes of the weights on the device."""
    shapes = model_shapes(config)
    size = torch.empty((), dtype=dtype).element_size()
    packed = {"none": float(size), "nf4": 0.53, "fp4": 0.5625, "int8": 1.01}[quant]
    blocks = {name: shape for name, shape in shapes.items() if "_proj.weight" in name}
    return int(sizes_of(blocks) * packed + (sizes_of(shapes) - sizes_of(blocks)) * size)
