"""What the service says about itself: `PolicyInfo`, the same for both engines."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from services.openvla.config import ModelConfig
from services.openvla.record import identity
from services.openvla.suites import keys_of, suites_of
from vla_contract import PolicyInfo
from vla_contract.errors import did_you_mean
from vla_modelkit.devices import device_name

log = logging.getLogger("services.openvla")
CAMERA = "agentview"  # the one picture OpenVLA sees
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
    keys = tuple(keys)
    return PolicyInfo(
        name="openvla",
        checkpoint=identity(folder),
        quantization=quantization,
        device=device_name(device),
        cameras=(CAMERA,),
        action_convention="openvla",
        horizon=1,
        unnorm_keys=keys,
        suites=suites_of(keys),
        max_batch=max_batch,
        lock_hash=lock_hash(),
        details={**details, **versions(), "image_size": str(config.towers[0].image_size)},
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


def versions() -> dict[str, str]:
    """Returns versions of Python and of what computes, as far as it is installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def lock_hash() -> str | None:
    """Returns the sha256 of this environment's lock: $VLALAB_LOCK_HASH in an image, else the file's own."""
    if os.environ.get("VLALAB_LOCK_HASH"):
        return os.environ["VLALAB_LOCK_HASH"]
    lock = Path(__file__).resolve().parents[2] / "images" / "openvla" / "requirements.lock"
    return hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None
