"""The service's `PolicyInfo`, and the observation of its warm-up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from services.gr00t.checkpoint.directory import CheckpointDirectory
from services.gr00t.model.attention import AttentionKernel
from services.gr00t.service.layout import Layout
from services.gr00t.service.settings import Settings
from vla_common.versions import lock_hash, variant, versions
from vla_contract import Observation, PolicyInfo
from vla_modelkit.checkpoint import identity
from vla_modelkit.devices import device_name

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "flash-attn")
UPSTREAM_TORCH = "2.5.1"
INSTRUCTION = "pick up the cup"  # of the canary


def policy_info(
    checkpoint: CheckpointDirectory,
    layout: Layout,
    settings: Settings,
    attention: AttentionKernel,
    device: torch.device,
    numbers: str,
    horizon: int,
    details: Mapping[str, str],
) -> PolicyInfo:
    """Return the info of a policy. numbers: "fp32", "bf16" or "fp16"; horizon: actions in a chunk."""
    embodiment = layout.embodiment
    reason = {"attention_reason": attention.reason} if attention.reason else {}
    return PolicyInfo(
        name="gr00t-n1.5",
        action=layout.action_parts,
        state=layout.state_parts,
        checkpoint=identity(checkpoint.directory, checkpoint.record),
        quantization=numbers,
        device=device_name(device),
        cameras=tuple(embodiment.cameras),
        image_hw=layout.image_hw,
        horizon=horizon,
        profile=embodiment.profile,
        suites=checkpoint.suites,
        max_batch=settings.max_batch,
        lock_hash=lock_hash(),
        details={
            **layout.details(),
            "embodiment_from": checkpoint.embodiment_from(settings.embodiment),
            **({"assumed": checkpoint.assumed} if checkpoint.assumed else {}),
            "engine": "vla-lab",
            "attention": attention.kind,
            **reason,
            "denoising_steps": str(steps_of(layout, settings)),
            "prompt": settings.prompt,
            "seed": str(settings.seed),
            **details,
            **versions(PACKAGES),
            **variant(UPSTREAM_TORCH),
        },
    )


def steps_of(layout: Layout, settings: Settings) -> int:
    """Return the Euler steps to take."""
    return settings.denoising_steps or layout.embodiment.denoising_steps


def example(layout: Layout, level: int = 0) -> Observation:
    """Return an observation of grey images (level 0 to 255), for the first inference."""
    image = np.full((*layout.image_hw, 3), level, np.uint8)
    state = np.zeros(layout.state_size, np.float32)
    return Observation(dict.fromkeys(layout.embodiment.cameras, image), state, INSTRUCTION, "warm-up", 0)
