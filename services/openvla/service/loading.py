"""Load a policy: device, memory, weights, warm-up, canary."""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path

import torch

from services.openvla.checkpoint.config import ModelConfig, load_config
from services.openvla.checkpoint.tokenizer import PromptTokenizer
from services.openvla.decoding.actions import codec_of
from services.openvla.decoding.engine import Engine, capacity, row_bytes
from services.openvla.decoding.speculative import DRAFT_LENGTH
from services.openvla.model import attention
from services.openvla.model.openvla import OpenVLA, load_model, weight_bytes
from services.openvla.model.vision import patch_count
from services.openvla.service.info import example, policy_info, served_keys
from services.openvla.service.policy import OpenVLAPolicy
from services.openvla.service.settings import INT8, ModelSettings, checkpoint_directory
from vla_contract import Policy
from vla_modelkit.canary import check_sees
from vla_modelkit.devices import NAMES, choose_device, choose_dtype
from vla_modelkit.memory import fitting_batch, require_memory
from vla_modelkit.weights import Safetensors

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


def load_own_policy(settings: ModelSettings, directory: Path) -> OpenVLAPolicy:
    """Load the policy on the lab's engine."""
    start = time.perf_counter()
    config = load_config(directory)
    keys = served_keys(config, settings.unnorm_key)
    tokenizer = PromptTokenizer(directory)
    engine, details = load_engine(settings, directory, config)
    log.info("weights of %s loaded in %.1f s", directory.name, time.perf_counter() - start)
    precision = quantization(settings, engine.model)
    info = policy_info(config, directory, keys, engine.device, precision, engine.max_batch, details)
    policy = OpenVLAPolicy(engine, tokenizer, codec_of(config), info, settings.drafts)
    start = time.perf_counter()
    engine.warm_up(drafts=settings.drafts)
    check_sees(policy, partial(example, info))
    engine.runner.seal()
    log.info("warm after %.1f s; the canary passed", time.perf_counter() - start)
    return policy


def load_engine(settings: ModelSettings, directory: Path, config: ModelConfig) -> tuple[Engine, dict[str, str]]:
    """Return the engine and its entries of `/v1/info`."""
    device, dtype, attention_kernel, reason = placement(settings)
    require_memory(weight_bytes(config, dtype, settings.quant), device, smaller(settings, device))
    if settings.quant == "int8":
        log.warning("%s", INT8)
    slots = capacity(patch_count(config.towers))
    model = load_model(config, Safetensors(directory), dtype, device, attention_kernel, slots, settings.quant)
    max_batch = fitting_batch(settings.max_batch, row_bytes(model), device)
    if max_batch < settings.max_batch:
        log.warning("max_batch is %d instead of %d: the GPU's memory is too small", max_batch, settings.max_batch)
    engine = Engine(model, max_batch, width_for(settings.quant), fixed_shapes_for(settings.quant, device))
    if reason.startswith("instead of"):
        log.info("attention by %s, %s", attention_kernel.name, reason)
    return engine, details_of(engine, reason, settings)


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


def details_of(engine: Engine, reason: str, settings: ModelSettings) -> dict[str, str]:
    """Return the engine's entries of `/v1/info`."""
    return {
        "engine": "vla-lab", "dtype": NAMES[engine.model.llama.embed.dtype],
        "attention": engine.model.llama.attention.name, "attention_reason": reason,
        "graphs": engine.runner.name, "drafts": "previous actions" if settings.drafts else "none",
        "weights_mb": f"{sum(engine.model.memory().values()) / 1e6:.0f}",
    }  # fmt: skip


def smaller(settings: ModelSettings, device: torch.device) -> str:
    """Return how to reduce memory."""
    if settings.quant == "none" and device.type == "cuda":
        return "stop other programs on the GPU, or set VLALAB_OPENVLA_QUANT=nf4 (7 GB for OpenVLA-7B)"
    if device.type == "cpu" and settings.dtype in ("auto", "fp32"):
        return "set VLALAB_OPENVLA_DTYPE=bf16 (15 GB for OpenVLA-7B), or use a tiny checkpoint"
    return "stop other programs, or use a smaller checkpoint"
