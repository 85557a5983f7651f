"""Load a policy: device, memory, weights, warm-up, canary."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from services.openvla.checkpoint.config import ModelConfig, load_config
from services.openvla.checkpoint.oft import images_of
from services.openvla.checkpoint.published import OFT_IMAGES
from services.openvla.checkpoint.tokenizer import PromptTokenizer
from services.openvla.checkpoint.weights import CheckpointWeights
from services.openvla.decoding import parallel
from services.openvla.decoding.actions import codec_of
from services.openvla.decoding.engine import BatchEngine, Engine, capacity, row_bytes
from services.openvla.decoding.parallel import ParallelEngine
from services.openvla.decoding.speculative import DRAFT_LENGTH
from services.openvla.model import attention
from services.openvla.model.oft import load_oft
from services.openvla.model.openvla import OpenVLA, load_model, weight_bytes
from services.openvla.model.vision import patch_count
from services.openvla.service.info import example, policy_info, served_keys
from services.openvla.service.oft_policy import OftPolicy
from services.openvla.service.policy import OpenVLAPolicy
from services.openvla.service.settings import INT8, ModelSettings, checkpoint_directory
from vla_contract import Policy
from vla_modelkit.canary import check_sees
from vla_modelkit.devices import NAMES, choose_device, choose_dtype
from vla_modelkit.memory import fitting_batch, require_memory

log = logging.getLogger("services.openvla")


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
        return load_oft_policy(settings, directory, config, keys, tokenizer)
    require_no_images(settings, directory)
    engine, details = load_engine(settings, directory, config)
    log.info("weights of %s loaded in %.1f s", directory.name, time.perf_counter() - start)
    precision = quantization(settings, engine.model)
    info = policy_info(config, directory, keys, engine.device, precision, engine.max_batch, details)
    policy = OpenVLAPolicy(engine, tokenizer, codec_of(config), info, settings.drafts)
    start = time.perf_counter()
    engine.warm_up(drafts=settings.drafts)
    check_sees(policy, partial(example, info))
    log.info("warm after %.1f s; the canary passed", time.perf_counter() - start)
    return policy


def load_oft_policy(
    settings: ModelSettings, directory: Path, config: ModelConfig, keys: tuple[str, ...], tokenizer: PromptTokenizer
) -> OftPolicy:
    """Load the policy of an OpenVLA-OFT checkpoint."""
    start = time.perf_counter()
    assert config.oft is not None
    images = images_of(directory, config.oft, settings.images, OFT_IMAGES)
    engine, details = load_oft_engine(settings, directory, config, images)
    log.info("weights of %s loaded in %.1f s", directory.name, time.perf_counter() - start)
    precision = quantization(settings, engine.model)
    info = policy_info(config, directory, keys, engine.device, precision, engine.max_batch, details, images)
    policy = OftPolicy(engine, tokenizer, info)
    start = time.perf_counter()
    engine.warm_up()
    check_sees(policy, partial(example, info))
    log.info("warm after %.1f s; the canary passed", time.perf_counter() - start)
    return policy


def load_oft_engine(
    settings: ModelSettings, directory: Path, config: ModelConfig, images: int
) -> tuple[ParallelEngine, dict[str, str]]:
    """Return the engine of an OpenVLA-OFT checkpoint and its entries of `/v1/info`."""
    if settings.attention == "flash":
        raise ValueError(
            "attention 'flash' is not available for OpenVLA-OFT, whose batches need a mask; set "
            "VLALAB_OPENVLA_ATTENTION=sdpa (or auto)"
        )
    device, dtype, attention_kernel, _ = placement(replace(settings, attention="sdpa"))
    slots = parallel.capacity(patch_count(config.towers), images)
    source = CheckpointWeights(directory)
    model = load_oft(load_base(settings, source, config, device, dtype, attention_kernel, slots), source, images)
    max_batch = batch_for(settings, parallel.row_bytes(model), device)
    engine = ParallelEngine(model, max_batch, fixed_shapes_for(settings.quant, device))
    reason = "OpenVLA-OFT's attention has a mask"
    further = {"head": "l1" if model.head is not None else "tokens", "images": str(images), "drafts": "none"}
    return engine, {**details_of(engine, reason, model.memory()), **further}


def require_no_images(settings: ModelSettings, directory: Path) -> None:
    """Raise ValueError if --images is set for OpenVLA, which sees one."""
    if settings.images:
        raise ValueError(
            f"--images {settings.images} is for OpenVLA-OFT, but {directory.name} is a checkpoint of OpenVLA: remove "
            "--images (VLALAB_OPENVLA_IMAGES)"
        )


def load_base(
    settings: ModelSettings, source: CheckpointWeights, config: ModelConfig, device: torch.device, dtype: torch.dtype,
    attention_kernel: attention.AttentionFunction, slots: int,
) -> OpenVLA:  # fmt: skip
    """Return the model that OpenVLA and OpenVLA-OFT share. Raises MemoryError if it does not fit."""
    require_memory(weight_bytes(config, dtype, settings.quant), device, smaller(settings, device))
    if settings.quant == "int8":
        log.warning("%s", INT8)
    return load_model(config, source, dtype, device, attention_kernel, slots, settings.quant)


def batch_for(settings: ModelSettings, row: int, device: torch.device) -> int:
    """Return the largest batch whose rows of `row` bytes fit; a smaller one than requested is logged."""
    max_batch = fitting_batch(settings.max_batch, row, device)
    if max_batch < settings.max_batch:
        log.warning("max_batch is %d instead of %d: the GPU's memory is too small", max_batch, settings.max_batch)
    return max_batch


def load_engine(settings: ModelSettings, directory: Path, config: ModelConfig) -> tuple[Engine, dict[str, str]]:
    """Return the engine and its entries of `/v1/info`."""
    device, dtype, attention_kernel, reason = placement(settings)
    slots = capacity(patch_count(config.towers))
    model = load_base(settings, CheckpointWeights(directory), config, device, dtype, attention_kernel, slots)
    max_batch = batch_for(settings, row_bytes(model), device)
    engine = Engine(model, max_batch, width_for(settings.quant), fixed_shapes_for(settings.quant, device))
    if reason.startswith("instead of"):
        log.info("attention by %s, %s", attention_kernel.name, reason)
    drafts = {"drafts": "previous actions" if settings.drafts else "none"}
    return engine, {**details_of(engine, reason, model.memory()), **drafts}


def placement(settings: ModelSettings) -> tuple[torch.device, torch.dtype, attention.AttentionFunction, str]:
    """Return device, dtype, attention and the reason for this attention."""
    device = choose_device(settings.device)
    on_cpu = torch.float32 if settings.quant == "none" else torch.bfloat16  # else unquantised weights take most memory
    dtype = choose_dtype(settings.dtype, device, on_cpu)
    return device, dtype, *attention.choose(settings.attention, device, dtype)


def width_for(quant: str) -> int:
    """Return the draft tokens that a decoding pass verifies: 4-bit kernels are fast for one token only."""
    return 1 if quant in ("nf4", "fp4") else DRAFT_LENGTH


def fixed_shapes_for(quant: str, device: torch.device) -> bool:
    """Return whether passes are captured as graphs: int8 reads its numbers in between, which a graph cannot."""
    return device.type == "cuda" and quant != "int8"


def quantization(settings: ModelSettings, model: OpenVLA) -> str:
    """Return the weights' format: "fp32", "bf16", "fp16", "nf4", "fp4" or "int8"."""
    return settings.quant if settings.quant != "none" else NAMES[model.llama.embed.dtype]


def details_of(engine: BatchEngine, reason: str, memory: Mapping[str, int]) -> dict[str, str]:
    """Return an engine's entries of `/v1/info`. memory: bytes of the weights per part."""
    return {
        "engine": "vla-lab", "dtype": NAMES[engine.model.llama.embed.dtype],
        "attention": engine.model.llama.attention.name, "attention_reason": reason,
        "graphs": engine.runner.name, "weights_mb": f"{sum(memory.values()) / 1e6:.0f}",
    }  # fmt: skip


def smaller(settings: ModelSettings, device: torch.device) -> str:
    """Return how to reduce memory."""
    if settings.quant == "none" and device.type == "cuda":
        return "stop other programs on the GPU, or set VLALAB_OPENVLA_QUANT=nf4 (7 GB for OpenVLA-7B)"
    if device.type == "cpu" and settings.dtype in ("auto", "fp32"):
        return "set VLALAB_OPENVLA_DTYPE=bf16 (15 GB for OpenVLA-7B), or use a tiny checkpoint"
    return "stop other programs, or use a smaller checkpoint"
