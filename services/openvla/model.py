"""The whole model: picture and prompt in, scores of the next tokens out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.openvla import attention
from services.openvla.config import ModelConfig
from services.openvla.linear import Dense
from services.openvla.llama import Cache, Llama, Window, llama_shapes, load_llama
from services.openvla.vision import Eyes, load_eyes, sizes_of, tower_bytes, vision_shapes
from services.openvla.weights import Source, check_names


@dataclass(frozen=True)
class OpenVLA:
    """Eyes and language model on one device. `patches` embeddings go in after the first token of a prompt."""

    config: ModelConfig
    eyes: Eyes
    llama: Llama
    patches: int

    def prompt_pass(self, pixels: Tensor, ids: Tensor, last: Tensor, count: int, cache: Cache) -> Tensor:
        """Returns scores [B, count, vocab] after the tokens at last … last + count - 1 of every row.

        pixels  uint8 [B, S, S, 3]
        ids     int64 [B, L], BOS first, padded on the right with anything
        last    int64 [B], where each prompt ends; drafts of the next tokens may follow it
        """
        words = self.llama.embed[ids]
        x = torch.cat((words[:, :1], self.eyes(pixels), words[:, 1:]), dim=1)
        hidden = self.llama.read_prompts(x, cache)
        where = self.patches + last[:, None] + torch.arange(count, device=ids.device)
        rows = torch.arange(ids.shape[0], device=ids.device)[:, None]
        return self.llama.logits(hidden[rows, where])

    def window_pass(self, ids: Tensor, window: Window, cache: Cache, filled: int) -> Tensor:
        """Returns hidden states [B, N, hidden] of the tokens ids [B, N]; `llama.logits` scores what follows them."""
        return self.llama.read_window(self.llama.embed[ids], window, cache, filled)

    def memory(self) -> dict[str, int]:
        """Returns bytes of weights per part."""
        blocks = [one for b in self.llama.blocks for one in (b.qkv, b.out, b.gate_up, b.down)]
        rest = [self.llama.embed, self.llama.norm]
        rest += [one for b in self.llama.blocks for one in (b.norm_in, b.norm_mlp)]
        return {
            "vision": sum(map(tower_bytes, self.eyes.towers)),
            "projector": sum(layer.nbytes for layer in self.eyes.projector),
            "llama blocks": sum(one.nbytes for one in blocks),
            "embeddings and head": sum(Dense(value).nbytes for value in rest) + self.llama.head.nbytes,
        }


def model_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns name -> shape of every tensor a checkpoint of this model holds."""
    return vision_shapes(config.towers, config.llama.hidden_size) | llama_shapes(config.llama)


def load_model(
    config: ModelConfig,
    source: Source,
    dtype: torch.dtype,
    device: torch.device,
    how: attention.Attention,
    capacity: int,
    quant: str = "none",
) -> OpenVLA:
    """Returns the model with weights of `source`. Raises CheckpointError where they are not the config's."""
    check_names(source.shapes(), model_shapes(config))
    eyes = load_eyes(config.towers, source, dtype, device)
    llama = load_llama(config.llama, source, dtype, device, capacity, how, quant)
    return OpenVLA(config, eyes, llama, eyes.towers[0].patch_embed.num_patches)


def weight_bytes(config: ModelConfig, dtype: torch.dtype, quant: str = "none") -> int:
    """Returns about how many bytes the weights will take on the device."""
    shapes = model_shapes(config)
    size = torch.empty((), dtype=dtype).element_size()
    packed = {"none": float(size), "nf4": 0.53, "fp4": 0.5625, "int8": 1.01}[quant]
    blocks = {name: shape for name, shape in shapes.items() if "_proj.weight" in name}
    return int(sizes_of(blocks) * packed + (sizes_of(shapes) - sizes_of(blocks)) * size)
