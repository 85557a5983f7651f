"""What the service says about itself: `PolicyInfo`, the same for both engines."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch

from services.openvla.checkpoint.config import ModelConfig
from services.openvla.checkpoint.suites import keys_of, suites_of
from vla_common.versions import lock_hash, versions
from vla_contract import Observation, PolicyInfo
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import GRIPPER_OPENS, OSC_POSE
from vla_modelkit.checkpoint import identity
from vla_modelkit.devices import device_name

log = logging.getLogger("services.openvla")
CAMERA = "agentview"  # the one picture OpenVLA sees
INSTRUCTION = "pick up the bowl and place it on the plate"  # of the canary
PACKAGES = ("torch", "timm", "transformers", "tokenizers", "safetensors", "bitsandbytes", "flash-attn")


def policy_info(
    config: ModelConfig,
    folder: Path,
    keys: Iterable[str],
    device: torch.device,
    quantization: str,
    max_batch: int,
    details: Mapping[str, str],
) -> PolicyInfo:
    """Returns the info of a policy that serves the checkpoint in `folder` with the statistics `keys`."""
    keys, cuda = tuple(keys), {"cuda": torch.version.cuda} if torch.version.cuda else {}
    return PolicyInfo(
        name="openvla",
        checkpoint=identity(folder),
        quantization=quantization,
        device=device_name(device),
        cameras=(CAMERA,),
        action=(*OSC_POSE, GRIPPER_OPENS),
        profile="openvla",
        horizon=1,
        unnorm_keys=keys,
        suites=suites_of(keys),
        max_batch=max_batch,
        lock_hash=lock_hash(),
        details={**details, **versions(PACKAGES), **cuda, "image_size": str(config.towers[0].image_size)},
    )


def served_keys(config: ModelConfig, asked: str) -> tuple[str, ...]:
    """Returns the statistics to serve: the one asked for, or a suite's under its usual names, else all that are usable.

    Raises ValueError listing them, or saying what is wrong with the one asked for.
    """
    if not asked:
        for reason in config.unusable.values():
            log.warning("%s: not served, the others are", reason)
        return tuple(config.norm_stats)
    for key in keys_of(asked):
        if key in config.norm_stats:
            return (key,)
        if key in config.unusable:
            raise ValueError(f"unnorm key {key!r} cannot be used: {config.unusable[key]}")
    raise ValueError(f"unnorm key {asked!r} not found{did_you_mean(asked, config.norm_stats)}")


def example(info: PolicyInfo, level: int) -> Observation:
    """Returns an observation whose picture has one grey level (0 to 255), with the first statistics."""
    side = int(info.details["image_size"])
    picture = np.full((side, side, 3), level, np.uint8)
    return Observation({CAMERA: picture}, None, INSTRUCTION, "canary", 0, unnorm_key=info.unnorm_keys[0])
