"""Load a policy: device, memory, weights, warm-up, canary, and what `/v1/info` says of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from services.openvla.checkpoint.config import ModelConfig, load_config
from services.openvla.checkpoint.oft import CHUNK, images_of
from services.openvla.checkpoint.published import OFT_IMAGES, REPOSITORIES, keys_of, suites_of
from services.openvla.checkpoint.statistics import FILE
from services.openvla.checkpoint.tokenizer import PromptTokenizer
from services.openvla.checkpoint.weights import CheckpointWeights
from services.openvla.decoding import parallel
from services.openvla.decoding.engine import Engine, capacity, row_bytes
from services.openvla.decoding.parallel import ParallelEngine
from services.openvla.decoding.speculative import DRAFT_LENGTH
from services.openvla.model import attention
from services.openvla.model.oft import load_oft
from services.openvla.model.openvla import load_model, weight_bytes
from services.openvla.model.vision import patch_count
from services.openvla.service.policy import OftPolicy, OpenVLAPolicy
from services.openvla.service.settings import INT8, ModelSettings, checkpoint_directory
from vla_common.versions import lock_hash, variant, versions
from vla_contract import Observation, Policy, PolicyInfo
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import GRIPPER_OPENS, HAND_STATE, OSC_POSE
from vla_modelkit.canary import check_sees
from vla_modelkit.checkpoint import identity
from vla_modelkit.checkpoint_program import RANDOM
from vla_modelkit.devices import NAMES, choose_device, choose_dtype, device_name
from vla_modelkit.memory import fitting_batch, require_memory

log = logging.getLogger("services.openvla")
CAMERA = "agentview"  # OpenVLA's only camera
WRIST = "robot0_eye_in_hand"  # OpenVLA-OFT's second one
INSTRUCTION = "pick up the bowl and place it on the plate"  # of the canary
PACKAGES = ("torch", "timm", "transformers", "tokenizers", "safetensors", "bitsandbytes", "flash-attn")
UPSTREAM_TORCH = "2.2.0"


def load_policy(settings: ModelSettings) -> Policy:
    """Load, warm up and check the policy.

    Raises CheckpointError (a ValueError), ValueError or MemoryError with the error and its fix.
    """
    directory = checkpoint_directory(settings.checkpoint)
    try:
        if settings.engine == "vla-lab":
            return load_own_policy(settings, directory)
        from services.openvla.service.hf import load_hf_policy

        return load_hf_policy(settings, directory)
    except torch.cuda.OutOfMemoryError as error:
        device = choose_device(settings.device)
        raise MemoryError(f"out of GPU memory: {error}; {smaller(settings, device)}") from error


def load_own_policy(settings: ModelSettings, directory: Path) -> OpenVLAPolicy | OftPolicy:
    """Load the policy on the lab's engine."""
    start = time.perf_counter()
    config = load_config(directory)
    keys = served_keys(config, settings.unnorm_key)
    tokenizer = PromptTokenizer(directory)
    if config.oft:
        images = images_of(directory, config.oft, settings.images, OFT_IMAGES)
    elif settings.images:
        raise ValueError(
            f"--images {settings.images} is for OpenVLA-OFT, but {directory.name} is a checkpoint of OpenVLA: remove "
            "--images (VLALAB_OPENVLA_IMAGES)"
        )
    else:
        images = 1
    engine, details = load_engine(settings, directory, config, images)
    log.info("weights of %s loaded in %.1f s", directory.name, time.perf_counter() - start)
    precision = settings.quant if settings.quant != "none" else details["dtype"]
    info = policy_info(config, directory, keys, engine.device, precision, engine.max_batch, details, images)
    start = time.perf_counter()
    policy: OpenVLAPolicy | OftPolicy
    if isinstance(engine, ParallelEngine):
        policy = OftPolicy(engine, tokenizer, info)
        engine.warm_up()
    else:
        policy = OpenVLAPolicy(engine, tokenizer, info, settings.drafts)
        engine.warm_up(drafts=settings.drafts)
    check_sees(policy, partial(example, info))
    if not config.oft:
        engine.runner.seal()
    log.info("warm after %.1f s; the canary passed", time.perf_counter() - start)
    return policy


def load_engine(
    settings: ModelSettings, directory: Path, config: ModelConfig, images: int = 1
) -> tuple[Engine | ParallelEngine, dict[str, str]]:
    """Return the engine and its entries of `/v1/info`. Raises MemoryError if the model does not fit."""
    if config.oft and settings.attention == "flash":
        raise ValueError(
            "attention 'flash' is not available for OpenVLA-OFT, whose batches need a mask; set "
            "VLALAB_OPENVLA_ATTENTION=sdpa (or auto)"
        )
    device, dtype, kernel, reason = placement(settings)
    if config.oft:
        kernel, reason = attention.sdpa, "OpenVLA-OFT's attention has a mask"
    quant, patches, source = settings.quant, patch_count(config.towers), CheckpointWeights(directory)
    require_memory(weight_bytes(config, dtype, quant), device, smaller(settings, device))
    if quant == "int8":
        log.warning("%s", INT8)
    if reason.startswith("instead of"):
        log.info("attention by %s, %s", kernel.__name__, reason)
    slots = parallel.capacity(patches, images) if config.oft else capacity(patches)
    model = load_model(config, source, dtype, device, kernel, slots, quant)
    oft = load_oft(model, source, images) if config.oft else None
    max_batch = fitting_batch(settings.max_batch, parallel.row_bytes(oft) if oft else row_bytes(model), device)
    if max_batch < settings.max_batch:
        log.warning("max_batch is %d instead of %d: the GPU's memory is too small", max_batch, settings.max_batch)
    fixed_shapes = device.type == "cuda" and quant != "int8"  # which reads its numbers in between: a graph cannot
    if oft:
        engine = ParallelEngine(oft, max_batch, fixed_shapes)
        details = {"head": "l1" if oft.head is not None else "tokens", "images": str(images), "drafts": "none"}
    else:
        width = 1 if quant in ("nf4", "fp4") else DRAFT_LENGTH  # 4-bit kernels are fast for one token only
        engine = Engine(model, max_batch, width, fixed_shapes)
        details = {"drafts": "previous actions" if settings.drafts else "none"}
    memory = sum((oft or model).memory().values())
    return engine, {
        "engine": "vla-lab", "dtype": NAMES[dtype], "attention": kernel.__name__, "attention_reason": reason,
        "graphs": engine.runner.name, "weights_mb": f"{memory / 1e6:.0f}", **details,
    }  # fmt: skip


def placement(settings: ModelSettings) -> tuple[torch.device, torch.dtype, attention.AttentionFunction, str]:
    """Return device, dtype, attention and the reason for this attention."""
    device = choose_device(settings.device)
    on_cpu = torch.float32 if settings.quant == "none" else torch.bfloat16  # else unquantised weights take most memory
    dtype = choose_dtype(settings.dtype, device, on_cpu)
    return device, dtype, *attention.choose(settings.attention, device, dtype)


def smaller(settings: ModelSettings, device: torch.device) -> str:
    """Return how to reduce memory."""
    if settings.quant == "none" and device.type == "cuda":
        return "stop other programs on the GPU, or set VLALAB_OPENVLA_QUANT=nf4 (7 GB for OpenVLA-7B)"
    if device.type == "cpu" and settings.dtype in ("auto", "fp32"):
        return "set VLALAB_OPENVLA_DTYPE=bf16 (15 GB for OpenVLA-7B), or use a tiny checkpoint"
    return "stop other programs, or use a smaller checkpoint"


def policy_info(
    config: ModelConfig, directory: Path, keys: tuple[str, ...], device: torch.device, quantization: str,
    max_batch: int, details: Mapping[str, str], images: int = 1,
) -> PolicyInfo:  # fmt: skip
    """Return the info of a policy that serves the checkpoint in `directory` with the statistics `keys`.

    images: of an observation of OpenVLA-OFT.
    """
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
            **({"cuda": torch.version.cuda} if torch.version.cuda else {}),
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
