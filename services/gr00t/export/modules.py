"""The network split into seven modules, with the names and shapes of upstream's deployment scripts.

The operations between them stay in torch: token embeddings, the linear layer after the vision tower, position and
future tokens, the Euler steps. Source: Isaac-GR00T at 4af2b622, deployment_scripts/export_onnx.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from services.gr00t.model.gr00t import Gr00t
from vla_modelkit.devices import NAMES


class Part(nn.Module):
    """A function of the network and tensors as a module, for torch's exporter."""

    def __init__(self, model: Gr00t, function: Callable[..., Tensor]):
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self.model, *inputs)


def see(model: Gr00t, pixel_values: Tensor, position_ids: Tensor) -> Tensor:  # [V, 3, S, S], [V, P] -> [V, P, D]
    tower = model.backbone["eagle_model"].vision_model.vision_model
    first, positions = tower.embeddings.patch_embedding, tower.embeddings.position_embedding
    patches = first(pixel_values).flatten(2).transpose(1, 2) + positions(position_ids)
    return tower.post_layernorm(tower.encoder(inputs_embeds=patches).last_hidden_state)


def read(model: Gr00t, inputs_embeds: Tensor, attention_mask: Tensor) -> Tensor:  # [B, S, C], [B, S] -> [B, S, C]
    text = model.backbone["eagle_model"].language_model["model"]
    return text(inputs_embeds=inputs_embeds, attention_mask=attention_mask, use_cache=False).last_hidden_state


def mix(model: Gr00t, backbone_features: Tensor) -> Tensor:  # [B, S, C] -> [B, S, C]
    return model.action_head.mix(backbone_features)


def encode_state(model: Gr00t, state: Tensor, embodiment_id: Tensor) -> Tensor:  # [B, 1, 64], [B] -> [B, 1, width]
    return model.action_head.state_encoder(state, embodiment_id)


def encode_actions(model: Gr00t, actions: Tensor, timesteps: Tensor, embodiment_id: Tensor) -> Tensor:
    wave = model.action_head.moment(timesteps[:, None]).wave  # [B, 1, width]
    return model.action_head.action_encoder(actions, wave, embodiment_id)  # [B, H, A], [B], [B] -> [B, H, width]


def denoise(model: Gr00t, sa_embs: Tensor, vl_embs: Tensor, timesteps: Tensor) -> Tensor:
    head = model.action_head
    moment = head.moment(timesteps[:, None])
    return head.model(sa_embs, moment, head.contexts(vl_embs), None)  # [B, 49, width] … -> [B, 49, out]


def decode_actions(model: Gr00t, model_output: Tensor, embodiment_id: Tensor) -> Tensor:  # [B, 49, out] -> [B, 49, A]
    return model.action_head.action_decoder(model_output, embodiment_id)


@dataclass(frozen=True)
class Exported:
    """A module to export."""

    file: str  # without suffix
    module: nn.Module
    inputs: Mapping[str, Tensor]  # examples, in order
    output: str
    axes: Mapping[str, Mapping[int, str]]  # of variable size: input or output -> axis -> its name in the file


def modules(model: Gr00t, views: int, text: int, dtype: torch.dtype, robot: int = 0) -> tuple[Exported, ...]:
    """Return the seven modules with random inputs for one observation of `views` images and `text` prompt tokens."""
    config, head = model.config, model.config.head
    side, generator = config.vision["image_size"], torch.Generator().manual_seed(0)
    tokens, features = 1 + head.future_tokens + head.horizon, head.features

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    robot_id, timestep = torch.tensor([robot]), torch.tensor([head.time_buckets // 2])
    position_ids = torch.arange(config.patches).expand(views, -1)
    batch, sequence = {0: "batch_size"}, {0: "batch_size", 1: "sequence_length"}
    suffix = f"_{NAMES[dtype]}"
    specs = (
        (f"eagle2/vit{suffix}", see, {"pixel_values": noise(views, 3, side, side), "position_ids": position_ids},
         "vit_embeds", {}),
        (f"eagle2/llm{suffix}", read, {"inputs_embeds": noise(1, text, features),
         "attention_mask": torch.ones(1, text, dtype=torch.int64)}, "embeddings",
         {"inputs_embeds": sequence, "attention_mask": sequence, "embeddings": sequence}),
        ("action_head/vlln_vl_self_attention", mix, {"backbone_features": noise(1, text, features)},
         "output", {"backbone_features": sequence, "output": sequence}),
        ("action_head/state_encoder", encode_state, {"state": noise(1, 1, head.state_dim), "embodiment_id": robot_id},
         "output", {}),
        ("action_head/action_encoder", encode_actions, {"actions": noise(1, head.horizon, head.action_dim),
         "timesteps_tensor": timestep, "embodiment_id": robot_id}, "output", {}),
        (f"action_head/DiT{suffix}", denoise, {"sa_embs": noise(1, tokens, head.width),
         "vl_embs": noise(1, text, features), "timesteps_tensor": timestep}, "output", {"vl_embs": sequence}),
        ("action_head/action_decoder", decode_actions, {"model_output": noise(1, tokens, head.dit_out),
         "embodiment_id": robot_id}, "output", {}),
    )  # fmt: skip
    return tuple(
        Exported(file, Part(model, call).eval(), inputs, out, {name: axes.get(name, batch) for name in (*inputs, out)})
        for file, call, inputs, out, axes in specs
    )
