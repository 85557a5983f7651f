"""The network split into seven modules, with the names and shapes of upstream's deployment scripts.

The operations between them stay in torch: token embeddings, the linear layer after the vision tower, position and
future tokens, the Euler steps. Source: Isaac-GR00T at 4af2b622, deployment_scripts/export_onnx.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from services.gr00t.model.gr00t import Gr00t
from services.gr00t.model.head import ActionHead
from vla_modelkit.devices import NAMES


class VitExport(nn.Module):
    def __init__(self, model: Gr00t):
        super().__init__()
        self.tower = model.backbone["eagle_model"].vision_model.vision_model

    def forward(self, pixel_values: Tensor, position_ids: Tensor) -> Tensor:  # [V, 3, S, S], [V, P] -> [V, P, D]
        first, positions = self.tower.embeddings.patch_embedding, self.tower.embeddings.position_embedding
        patches = first(pixel_values).flatten(2).transpose(1, 2) + positions(position_ids)
        return self.tower.post_layernorm(self.tower.encoder(inputs_embeds=patches).last_hidden_state)


class Llm(nn.Module):
    def __init__(self, model: Gr00t):
        super().__init__()
        self.text = model.backbone["eagle_model"].language_model["model"]

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor) -> Tensor:  # [B, S, C], [B, S] -> [B, S, C]
        made = self.text(inputs_embeds=inputs_embeds, attention_mask=attention_mask, use_cache=False)
        return made.last_hidden_state


class Head(nn.Module):
    """One part of the action head."""

    def __init__(self, model: Gr00t):
        super().__init__()
        self.head: ActionHead = model.action_head


class VllnVlSelfAttention(Head):
    def forward(self, backbone_features: Tensor) -> Tensor:  # [B, S, C] -> [B, S, C]
        return self.head.mix(backbone_features)


class StateEncoder(Head):
    def forward(self, state: Tensor, embodiment_id: Tensor) -> Tensor:  # [B, 1, 64], [B] -> [B, 1, width]
        return self.head.state_encoder(state, embodiment_id)


class ActionEncoderExport(Head):
    def forward(self, actions: Tensor, timesteps_tensor: Tensor, embodiment_id: Tensor) -> Tensor:
        wave = self.head.moment(timesteps_tensor[:, None]).wave  # [B, 1, width]
        return self.head.action_encoder(actions, wave, embodiment_id)  # [B, H, A], [B], [B] -> [B, H, width]


class DiT(Head):
    def forward(self, sa_embs: Tensor, vl_embs: Tensor, timesteps_tensor: Tensor) -> Tensor:
        moment = self.head.moment(timesteps_tensor[:, None])
        return self.head.model(sa_embs, moment, self.head.contexts(vl_embs), None)  # [B, 49, width] … -> [B, 49, out]


class ActionDecoder(Head):
    def forward(self, model_output: Tensor, embodiment_id: Tensor) -> Tensor:  # [B, 49, out], [B] -> [B, 49, A]
        return self.head.action_decoder(model_output, embodiment_id)


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
    tokens = 1 + head.future_tokens + head.horizon
    features = head.features

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    robot_id, timestep = torch.tensor([robot]), torch.tensor([head.time_buckets // 2])
    position_ids = torch.arange(config.patches).expand(views, -1)
    batch, sequence = {0: "batch_size"}, {0: "batch_size", 1: "sequence_length"}
    suffix = f"_{NAMES[dtype]}"
    specs = (
        (f"eagle2/vit{suffix}", VitExport, {"pixel_values": noise(views, 3, side, side), "position_ids": position_ids},
         "vit_embeds", {}),
        (f"eagle2/llm{suffix}", Llm, {"inputs_embeds": noise(1, text, features),
         "attention_mask": torch.ones(1, text, dtype=torch.int64)}, "embeddings",
         {"inputs_embeds": sequence, "attention_mask": sequence, "embeddings": sequence}),
        ("action_head/vlln_vl_self_attention", VllnVlSelfAttention, {"backbone_features": noise(1, text, features)},
         "output", {"backbone_features": sequence, "output": sequence}),
        ("action_head/state_encoder", StateEncoder, {"state": noise(1, 1, head.state_dim), "embodiment_id": robot_id},
         "output", {}),
        ("action_head/action_encoder", ActionEncoderExport, {"actions": noise(1, head.horizon, head.action_dim),
         "timesteps_tensor": timestep, "embodiment_id": robot_id}, "output", {}),
        (f"action_head/DiT{suffix}", DiT, {"sa_embs": noise(1, tokens, head.width),
         "vl_embs": noise(1, text, features), "timesteps_tensor": timestep}, "output", {"vl_embs": sequence}),
        ("action_head/action_decoder", ActionDecoder, {"model_output": noise(1, tokens, head.dit_out),
         "embodiment_id": robot_id}, "output", {}),
    )  # fmt: skip
    return tuple(
        Exported(file, kind(model).eval(), inputs, out, {name: axes.get(name, batch) for name in (*inputs, out)})
        for file, kind, inputs, out, axes in specs
    )
