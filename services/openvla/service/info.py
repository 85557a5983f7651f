"""The service's `PolicyInfo`, the same for both engines."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch

from services.openvla.checkpoint.config import ModelConfig
from services.openvla.checkpoint.oft import CHUNK
from services.openvla.checkpoint.published import OFT_IMAGES, REPOSITORIES
from services.openvla.checkpoint.statistics import FILE
from services.openvla.checkpoint.suites import keys_of, suites_of
from vla_common.versions import lock_hash, variant, versions
from vla_contract import Observation, PolicyInfo
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import GRIPPER_OPENS, HAND_STATE, OSC_POSE
from vla_modelkit.checkpoint import identity
from vla_modelkit.checkpoint_program import RANDOM
from vla_modelkit.devices import device_name

log = logging.getLogger("services.openvla")
CAMERA = "agentview"  # OpenVLA's only camera
WRIST = "robot0_eye_in_hand"  # OpenVLA-OFT's second one
INSTRUCTION = "pick up the bowl and place it on the plate"  # of the canary
PACKAGES = ("torch", "timm", "transformers", "tokenizers", "safetensors", "bitsandbytes", "flash-attn")
UPSTREAM_TORCH = "2.2.0"


def policy_info(
    config: ModelConfig,
    directory: Path,
    keys: Iterable[str],
    device: torch.device,
    quantization: str,
    max_batch: int,
    details: Mapping[str, str],
    images: int = 1,
) -> PolicyInfo:
    """Return the info of a policy that serves the checkpoint in `directory` with the statistics `keys`.

    images: of an observation of OpenVLA-OFT.
    """
    keys, cuda = tuple(keys), {"cuda": torch.version.cuda} if torch.version.cuda else {}
    checkpoint = identity(directory)
    assumed = assumptions(config, checkpoint.repo, keys)
    if assumed:
        log.warning("assumed, since the checkpoint does not state it: %s", assumed)
    return PolicyInfo(
        name="openvla",
        checkpoint=checkpoint,
        quantization=quantization,
        device=device_name(device),
        cameras=(CAMERA, WRIST)[:images],
        action=(*OSC_POSE, GRIPPER_OPENS),
        state=HAND_STATE if config.oft and config.oft.proprio else (),
        profile="openvla-oft" if images == 2 else "openvla",
        horizon=CHUNK if config.oft else 1,
        unnorm_keys=keys,
        suites=suites_of(keys),
        max_batch=max_batch,
        lock_hash=lock_hash(),
        details={
            **details,
            **versions(PACKAGES),
            **variant(UPSTREAM_TORCH),
            **cuda,
            "image_size": str(config.towers[0].image_size),
            "statistics_from": FILE if (directory / FILE).is_file() else "norm_stats in config.json",
            **({"assumed": assumed} if assumed else {}),
        },
    )


def assumptions(config: ModelConfig, repo: str, keys: Iterable[str]) -> str:
    """Return assumptions about a checkpoint that neither its files nor the published table state.

    Empty for a published fine-tuned checkpoint and for a random one.
    """
    if repo.startswith(RANDOM) or repo in {name for name, _ in REPOSITORIES.values()} | OFT_IMAGES.keys():
        return ""
    assumed = ["training with image augmentation, so that the profile crops the centre (area 0.9)"]
    if config.oft:
        assumed.append(f"chunks of {CHUNK} actions, as upstream trains on LIBERO")
        if not config.oft.l1_head:
            assumed.append("actions decoded from action tokens, since there is no action_head--*_checkpoint.pt")
    if unlisted := [key for key in keys if not suites_of([key])]:
        listed = f"{', '.join(unlisted[:4])} and {len(unlisted) - 4} more" if len(unlisted) > 4 else ", ".join(unlisted)
        assumed.append(f"actions of {listed} in LIBERO's units (0.05 m, 0.5 rad), gripper 0 closed and 1 open")
    if below := [key for key in keys if config.norm_stats[key]["q01"][-1] < 0]:
        assumed.append(
            f"a gripper of 0 closed and 1 open, although that of {', '.join(below[:4])} goes below 0 in its statistics"
        )
    return "; ".join(assumed)


def served_keys(config: ModelConfig, requested: str) -> tuple[str, ...]:
    """Return the keys of the statistics to serve: the requested one, or a suite's under its usual names, else all.

    Raises ValueError with the known keys, or with the error of the requested one.
    """
    if not requested:
        for reason in config.unusable.values():
            log.warning("%s; these statistics are not served", reason)
        return tuple(config.norm_stats)
    for key in keys_of(requested):
        if key in config.norm_stats:
            return (key,)
        if key in config.unusable:
            raise ValueError(f"unnorm key {key!r} cannot be used: {config.unusable[key]}")
    raise ValueError(f"unnorm key {requested!r} not found{did_you_mean(requested, config.norm_stats)}")


def example(info: PolicyInfo, level: int) -> Observation:
    """Return an observation with grey images (level 0 to 255), a state of zeros and the first statistics."""
    side = int(info.details["image_size"])
    images = {camera: np.full((side, side, 3), level, np.uint8) for camera in info.cameras}
    state = np.zeros(info.state_size, np.float32) if info.needs_state else None
    return Observation(images, state, INSTRUCTION, "canary", 0, unnorm_key=info.unnorm_keys[0])
