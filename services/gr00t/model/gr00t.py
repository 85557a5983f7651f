"""The network: images and a prompt through the Eagle backbone to features, features through the head to actions.

    images uint8 [B, V, S, S, 3] -> SigLIP -> a linear layer -> 256 tokens each
    prompt ids [B, T], image tokens inserted -> the first 12 layers of Qwen3 -> features [B, T, C]

SigLIP and Qwen3 are transformers' own classes. Attribute names are the published checkpoint's keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, Qwen3Config, SiglipVisionConfig

from services.gr00t.checkpoint.config import ModelConfig
from services.gr00t.model.head import ActionHead, FlowInputs

HALF = 127.5  # (pixel / 255 - 0.5) / 0.5 = (pixel - 127.5) / 127.5
# Keys of published checkpoints that features do not depend on: the language model's head, SigLIP's pooling.
UNUSED = ("backbone.eagle_model.language_model.lm_head.", "backbone.eagle_model.vision_model.vision_model.head.")


class Eagle(nn.Module):
    """SigLIP, a linear layer, Qwen3.

    attention: "sdpa" or "flash_attention_2", as transformers calls them.
    """

    def __init__(self, config: ModelConfig, attention: str):
        super().__init__()
        vision = SiglipVisionConfig(**config.vision, vision_use_head=False)
        self.vision_model = AutoModel.from_config(vision, attn_implementation=attention)
        self.mlp1 = nn.Sequential(nn.Linear(config.vision["hidden_size"], config.text["hidden_size"]))
        text = AutoModel.from_config(Qwen3Config(**config.text), attn_implementation=attention)
        self.language_model = nn.ModuleDict({"model": text})

    def forward(self, images: Tensor, ids: Tensor, image_positions: Tensor) -> Tensor:
        """Return features [B, T, C]. image_positions: int [V * patches], indices of image tokens in every prompt."""
        language = self.language_model["model"]
        embedded = language.embed_tokens(ids)
        seen = self.mlp1(self.see(images.flatten(0, 1))).view(len(ids), -1, embedded.shape[-1])
        return language(inputs_embeds=embedded.index_copy(1, image_positions, seen), use_cache=False).last_hidden_state

    def see(self, images: Tensor) -> Tensor:
        """Return SigLIP's features [N, patches, D] of images uint8 [N, S, S, 3].

        Its first layer is a convolution whose stride is its size: a linear layer over each patch's pixels, which a CPU
        does a hundred times as fast in bfloat16. In float32 the bits of the convolution are kept.
        """
        tower = self.vision_model.vision_model
        first, positions = tower.embeddings.patch_embedding, tower.embeddings.position_embedding.weight
        pixels = ((images.permute(0, 3, 1, 2).float() - HALF) / HALF).to(first.weight.dtype)
        if pixels.dtype == torch.float32:
            patches = first(pixels).flatten(2).transpose(1, 2)
        else:
            cut = F.unfold(pixels, first.kernel_size, stride=first.stride).transpose(1, 2)
            patches = F.linear(cut, first.weight.flatten(1), first.bias)
        return tower.post_layernorm(tower.encoder(inputs_embeds=patches + positions).last_hidden_state)


class Gr00t(nn.Module):
    def __init__(self, config: ModelConfig, attention: str = "sdpa"):
        super().__init__()
        self.config = config
        self.backbone = nn.ModuleDict({"eagle_model": Eagle(config, attention)})
        self.action_head = ActionHead(config.head)

    def features(self, images: Tensor, ids: Tensor, image_positions: Tensor) -> Tensor:
        return self.backbone["eagle_model"](images, ids, image_positions)

    def forward(
        self, images: Tensor, ids: Tensor, lengths: Tensor | None, image_positions: Tensor, state: Tensor,
        noise: Tensor, robot: int, moments: list[FlowInputs],
    ) -> Tensor:  # fmt: skip
        """Return normalised actions float32 [B, H, A].

        lengths: int [B], how much of each row of `ids` is prompt; what follows is padding, which causal attention
        does not attend to and which is masked in the head's. None: no row is padded.
        """
        visible = None
        if lengths is not None:
            visible = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None])[:, None, None]
        seen = self.action_head.mix(self.features(images, ids, image_positions), visible)
        return self.action_head.act(seen, state.to(seen.dtype), noise, robot, moments, visible)
