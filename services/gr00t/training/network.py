"""The network to train: one robot's encoders and decoder, frozen parts, low-rank adapters, and the loss.

Only this robot's rows of the encoders and the decoder are loaded; the others take no memory.
Source: Isaac-GR00T at 4af2b622, gr00t/model/action_head/flow_matching_action_head.py, gr00t/utils/peft.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.gr00t.checkpoint.config import ModelConfig
from services.gr00t.model.gr00t import Gr00t
from services.gr00t.model.loading import load_model
from services.gr00t.training.settings import Finetune
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.trainer import Trainer
from vla_modelkit.weights import WeightSource

HEAD = "action_head."
ROWS = tuple(f"{HEAD}{name}." for name in ("state_encoder", "action_encoder", "action_decoder"))
AROUND = (*ROWS, *(f"{HEAD}{name}." for name in ("position_embedding", "future_tokens", "vlln", "vl_self_attention")))
DIFFUSION = f"{HEAD}model."
ADAPTED = ("to_q", "to_k", "to_v")
BETAS, DECAY, CLIP = (0.95, 0.999), 1e-5, 1.0  # upstream's; the clip is its Trainer's default
ROBOT_ROW = 0  # index of the robot in a network of one robot


def is_trained(name: str, settings: Finetune) -> bool:
    """Return whether a tensor of the checkpoint is trained itself, not through an adapter."""
    if settings.lora_rank:
        return name.startswith(ROWS)
    return name.startswith(AROUND) or (settings.tune_diffusion_model and name.startswith(DIFFUSION))


def is_adapted(name: str, settings: Finetune) -> bool:
    """Return whether a tensor gets a low-rank adapter: queries, keys and values of the head's attention."""
    *_, layer, kind = name.split(".")
    return bool(settings.lora_rank) and name.startswith(HEAD) and layer in ADAPTED and kind == "weight"


class SingleRobot:
    """A checkpoint's weights with one robot's rows alone."""

    def __init__(self, source: WeightSource, robot: int):
        self.source, self.robot = source, robot

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes = self.source.shapes().items()
        return {name: (1, *shape[1:]) if name.startswith(ROWS) else tuple(shape) for name, shape in shapes}

    def read(self, name: str) -> Tensor:
        tensor = self.source.read(name)
        return tensor[self.robot : self.robot + 1].clone() if name.startswith(ROWS) else tensor


class LowRank(nn.Module):
    """A frozen linear layer with a low-rank adapter: adds x @ down @ up, times `scale`; zero at the start."""

    def __init__(self, base: nn.Linear, rank: int, scale: float, dropout: float):
        super().__init__()
        self.base, self.scale, self.dropout = base, scale, dropout
        like = {"device": base.weight.device, "dtype": torch.float32}
        self.down = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(rank, base.in_features, **like), math.sqrt(5)))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, **like))

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.dropout(x, self.dropout, self.training).to(self.down.dtype), self.down)
        return self.base(x) + F.linear(low, self.up) * self.scale

    def merged(self) -> Tensor:
        """Return the weight, float32, of an equivalent linear layer."""
        return self.base.weight.float() + self.scale * (self.up @ self.down)


def single_robot(config: ModelConfig) -> ModelConfig:
    """Return the network with encoders and a decoder for one robot."""
    return replace(config, head=replace(config.head, robots=1))


def counts(tensors: Mapping[str, tuple[int, ...]], settings: Finetune) -> tuple[int, int]:
    """Count trained and frozen numbers. tensors: name -> shape."""
    trained = frozen = 0
    for name, shape in tensors.items():
        if is_trained(name, settings):
            trained += math.prod(shape)
        else:
            frozen += math.prod(shape)
        if is_adapted(name, settings):
            trained += settings.lora_rank * sum(shape)
    return trained, frozen


def load(
    config: ModelConfig, source: WeightSource, robot: int, settings: Finetune, device: torch.device, dtype: torch.dtype
) -> Gr00t:
    """Return the network to train. dtype: of frozen tensors; trained ones are float32."""
    model = load_model(single_robot(config), SingleRobot(source, robot), device, dtype, "sdpa")
    if settings.lora_rank:
        torch.manual_seed(settings.seed)
        for name in [name for name, _ in model.named_parameters() if is_adapted(name, settings)]:
            parent, _, leaf = name.removesuffix(".weight").rpartition(".")
            owner = model.get_submodule(parent)
            base = getattr(owner, leaf)
            setattr(owner, leaf, LowRank(base, settings.lora_rank, settings.lora_scale, settings.lora_dropout))
    for name, parameter in model.named_parameters():
        if is_trained(name, settings):
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
    return model


def set_training(model: Gr00t, settings: Finetune) -> None:
    """Turn dropout on in trained modules, and off elsewhere."""
    model.eval()
    model.action_head.train()
    model.action_head.model.train(settings.tune_diffusion_model)


def new_trainer(
    settings: Finetune, machine: TrainingMachine, loss: FlowLoss, directory: Path, identity: Mapping[str, Any]
) -> Trainer:
    """Return a trainer with upstream's optimizer; biases and norms have no weight decay, as in its Trainer."""
    model, device = loss.model, machine.device
    set_training(model, settings)
    trained = trained_parameters(model)
    norms = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    plain = [name for name in trained if "bias" in name or name.rpartition(".")[0] in norms]
    groups = [
        {"params": [value for name, value in trained.items() if name not in plain], "weight_decay": DECAY},
        {"params": [trained[name] for name in plain], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, fused=device.type in ("cpu", "cuda"))
    return Trainer(settings, machine, loss, trained, optimizer, settings.rate, directory, identity, CLIP)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return name -> parameter of trained tensors and adapters."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def merged(model: Gr00t) -> dict[str, Tensor]:
    """Return name -> float32 tensor, as in the checkpoint, of all that differs from the base; rows: [1, …]."""
    trained = trained_parameters(model).items()
    tensors = {name: parameter.detach() for name, parameter in trained if not name.endswith((".down", ".up"))}
    for name, module in model.named_modules():
        if isinstance(module, LowRank):
            tensors[f"{name}.weight"] = module.merged().detach()
    return tensors


class FlowLoss(nn.Module):
    """The mean square error of the flow's velocity, over the numbers that the robot has.

    image_positions: indices of the image tokens in every prompt; width: numbers of an action.
    """

    def __init__(self, model: Gr00t, image_positions: Tensor, width: int):
        super().__init__()
        self.model, self.image_positions, self.width = model, image_positions, width

    def forward(
        self, images: Tensor, ids: Tensor, lengths: Tensor, state: Tensor, actions: Tensor, noise: Tensor, times: Tensor
    ) -> Tensor:
        """Return a scalar. times: float [B] in [0, 1], 1 means no noise; see `samples.Batch`."""
        head = self.model.action_head
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            features = self.model.features(images, ids, self.image_positions)
        visible = None
        if bool((lengths != ids.shape[1]).any()):
            visible = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None])[:, None, None]
        seen = head.mix(features.to(head.vlln.weight.dtype), visible)
        share = times[:, None, None]
        noisy = (1 - share) * noise + share * actions
        moment = head.moment((times * head.config.time_buckets).long()[:, None])
        state_token = head.state_encoder(state[:, None], ROBOT_ROW)
        velocity = head.velocity(noisy, state_token, ROBOT_ROW, moment, head.contexts(seen), visible)
        error = velocity.float() - (actions - noise)
        return error[..., : self.width].square().mean()
