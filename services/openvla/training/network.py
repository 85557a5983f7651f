"""OpenVLA as torch modules with low-rank adapters, and its losses. Parameter names are the checkpoint's.

Serving's functions (services/openvla/model) join and pack matrices; training needs a module per matrix.

Source: vla-scripts/finetune.py and prismatic/extern/hf/modeling_prismatic.py of openvla (c8f03f48, action tokens) and
of openvla-oft (213c5ff8, L1 head).
"""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from accelerate import init_empty_weights
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from services.openvla.checkpoint.config import ModelConfig
from services.openvla.checkpoint.oft import STATE_SIZE
from services.openvla.checkpoint.statistics import ACTION_TOKENS
from services.openvla.model.action_head import ActionHead
from services.openvla.model.oft import PLACEHOLDERS
from services.openvla.model.vision import PREFIXES, kept_tower, project, published_name
from services.openvla.training.settings import OpenVLAFinetune
from vla_modelkit.checkpoint import CheckpointError
from vla_modelkit.weights import WeightSource

ADAPTED = ("vision_backbone.", "projector.", "language_model.model.")
ADAPTER = "default"  # peft's name of the only adapter


class TrainableOpenVLA(nn.Module):
    """The network without what its loss does not need: each tower's last block, norm and pooling."""

    lora: LoraConfig

    def __init__(self, config: ModelConfig, head: str):
        super().__init__()
        llama, self.has_l1_head = config.llama, head == "l1"
        with init_empty_weights(include_buffers=False):
            self.vision_backbone = nn.ModuleDict(
                {prefix.split(".")[1]: kept_tower(tower) for prefix, tower in zip(PREFIXES, config.towers, strict=True)}
            )
            width = sum(tower.embed_dim for tower in self.vision_backbone.values())
            sizes = (width, 4 * width, llama.hidden_size, llama.hidden_size)
            self.projector = nn.ModuleDict({f"fc{i}": nn.Linear(sizes[i - 1], sizes[i]) for i in (1, 2, 3)})
            self.language_model = LlamaForCausalLM(LlamaConfig(**vars(llama), attn_implementation="sdpa"))
        pixels = torch.tensor([[tower.mean, tower.std] for tower in config.towers])  # [2, 2, 3]
        self.register_buffer("pixels", pixels[..., None, None], persistent=False)
        if self.has_l1_head:
            self.action_head = nn.ModuleDict({"model": ActionHead(llama.hidden_size)})
            first, second = nn.Linear(STATE_SIZE, llama.hidden_size), nn.Linear(llama.hidden_size, llama.hidden_size)
            self.proprio_projector = nn.ModuleDict({"fc1": first, "fc2": second})

    def forward(self, images: Tensor, ids: Tensor, lengths: Tensor, states: Tensor, actions: Tensor) -> Tensor:
        """Return the loss, a scalar: cross entropy of the action tokens and the end, or the L1 head's mean error.

        images   uint8 [B, V, S, S, 3]
        ids      int64 [B, L]: a prompt, its action tokens or placeholders, the end, and anything behind it
        lengths  int64 [B]: of the prompts
        states   float32 [B, 8], normalised; unused with action tokens
        actions  float32 [B, CHUNK, 7], normalised; the L1 head's targets
        """
        rows = torch.arange(len(ids), device=ids.device)[:, None]
        answers = PLACEHOLDERS if self.has_l1_head else ACTION_TOKENS + 1  # predicted positions; the end is one
        text = self.language_model.model.embed_tokens(ids)
        if self.has_l1_head:
            behind = torch.arange(ids.shape[1], device=ids.device) - lengths[:, None]
            text = text.masked_fill(((behind >= 0) & (behind < PLACEHOLDERS))[..., None], 0.0)
        parts = [text[:, :1], self.embed_images(images), text[:, 1:]]
        if self.has_l1_head:
            parts.insert(2, project(states[:, None], (self.proprio_projector["fc1"], self.proprio_projector["fc2"])))
        embeddings = torch.cat([part.to(text.dtype) for part in parts], dim=1)
        prefix = embeddings.shape[1] - ids.shape[1]
        end = prefix + lengths + answers + self.has_l1_head
        visible = torch.arange(embeddings.shape[1], device=ids.device) < end[:, None]
        if self.has_l1_head:  # every token sees all others
            visible = visible[:, None, None].expand(-1, 1, embeddings.shape[1], -1)
        hidden = self.language_model.model(
            inputs_embeds=embeddings, attention_mask=visible.to(embeddings.dtype), use_cache=False
        ).last_hidden_state
        hidden = hidden[rows, prefix + lengths[:, None] - 1 + torch.arange(answers, device=ids.device)]
        if self.has_l1_head:
            return F.l1_loss(self.action_head["model"](hidden).float(), actions)
        labels = ids[rows, lengths[:, None] + torch.arange(answers, device=ids.device)]
        return F.cross_entropy(self.language_model.lm_head(hidden).float().flatten(0, 1), labels.flatten())

    def embed_images(self, images: Tensor) -> Tensor:
        """Return embeddings [B, V · patches, hidden] of uint8 [B, V, S, S, 3]."""
        scaled = images.flatten(0, 1).permute(0, 3, 1, 2).to(torch.float32) / 255
        dtype = self.projector["fc3"].weight.dtype
        features = [
            tower.get_intermediate_layers(((scaled - mean) / std).to(dtype), n=[len(tower.blocks) - 1])[0]
            for tower, (mean, std) in zip(self.vision_backbone.values(), self.pixels, strict=True)
        ]
        seen = project(torch.cat(features, dim=2), tuple(self.projector.values()))
        return seen.unflatten(0, images.shape[:2]).flatten(1, 2)

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """Return name -> parameter of adapters and OpenVLA-OFT's parts."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def merged(self) -> dict[str, Tensor]:
        """Return name -> float32 tensor of all that differs from the base: adapted matrices, OpenVLA-OFT's parts."""
        adapted = {
            f"{name}.weight": module.base_layer.weight.detach().float() + module.get_delta_weight(ADAPTER).detach()
            for name, module in self.named_modules()
            if isinstance(module, LoraLayer)
        }
        return adapted | {
            name: value.detach() for name, value in self.trained_parameters().items() if "lora_" not in name
        }

    def adapter(self) -> dict[str, Tensor]:
        """Return the adapters as peft stores them."""
        return {
            f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}": value.detach().contiguous()
            for name, value in self.trained_parameters().items()
            if "lora_" in name
        }


def lora_config(model: nn.Module, settings: OpenVLAFinetune) -> LoraConfig:
    """Return peft's configuration: all linear layers but the language model's head and OpenVLA-OFT's parts."""
    linear = [
        name for name, module in model.named_modules() if name.startswith(ADAPTED) and isinstance(module, nn.Linear)
    ]
    return LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=linear,
        init_lora_weights="gaussian",
    )


def load_trainable(
    config: ModelConfig, source: WeightSource, settings: OpenVLAFinetune, device: torch.device, dtype: torch.dtype
) -> TrainableOpenVLA:
    """Return the network on the device, with adapters. dtype: of frozen weights; trained ones are float32.

    OpenVLA-OFT's parts are the base's if it has them, else new. Raises CheckpointError for a missing tensor.
    """
    torch.manual_seed(settings.seed)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # peft imports it; it warns on a CPU, and is not used
    model = TrainableOpenVLA(config, settings.head)
    stored = source.shapes()
    state = {}
    for name, parameter in model.named_parameters():
        if (published := published_name(name)) in stored:
            is_part = name.startswith(("action_head.", "proprio_projector."))
            state[name] = source.read(published).to(device, torch.float32 if is_part else dtype)
        elif parameter.is_meta:
            raise CheckpointError(f"the base has no tensor {published}; download it again")
    model.load_state_dict(state, strict=False, assign=True)
    model.to(device)
    model.lora = lora_config(model, settings)
    inject_adapter_in_model(model.lora, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name or name.startswith(("action_head.", "proprio_projector.")))
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.train()
    return model
