"""Load a policy: device, memory, weights, warm-up, canary, and what `/v1/info` says of it."""

from __future__ import annotations

import logging
import time

import torch

from services.gr00t.checkpoint import tokenizer
from services.gr00t.checkpoint.config import ModelConfig, load_config
from services.gr00t.checkpoint.directory import CheckpointDirectory
from services.gr00t.model.attention import choose
from services.gr00t.model.engine import TEXT_TOKENS, Engine
from services.gr00t.model.loading import load_model, row_bytes, weight_bytes
from services.gr00t.processing.prompt import Prompts
from services.gr00t.service.layout import Layout
from services.gr00t.service.policy import INSTRUCTION, Gr00tPolicy
from services.gr00t.service.settings import Settings
from vla_common.versions import lock_hash, variant, versions
from vla_contract import Policy, PolicyInfo
from vla_modelkit.canary import check_sees
from vla_modelkit.checkpoint import CheckpointError, identity
from vla_modelkit.devices import NAMES, choose_device, choose_dtype, device_name
from vla_modelkit.memory import fitting_batch, require_memory
from vla_modelkit.weights import Safetensors

log = logging.getLogger("services.gr00t")

SMALLER = "set VLALAB_GR00T_DTYPE=bf16 (5 GB for GR00T N1.5), stop other programs, or use a tiny checkpoint"
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "flash-attn")
UPSTREAM_TORCH = "2.5.1"


def load_policy(settings: Settings, checkpoint: CheckpointDirectory, layout: Layout) -> Policy:
    """Load and warm up the policy, and check that its actions depend on the images.

    Raises CheckpointError (a ValueError), ValueError or MemoryError with the error and its fix.
    """
    log.info("embodiment %s by %s", layout.embodiment.name, checkpoint.embodiment_from(settings.embodiment))
    try:
        policy = load_own_policy(settings, checkpoint, layout)
        check_sees(policy, policy.example)
    except torch.cuda.OutOfMemoryError as error:
        raise MemoryError(f"out of GPU memory: {error}; {SMALLER}") from error
    return policy


def load_own_policy(settings: Settings, checkpoint: CheckpointDirectory, layout: Layout) -> Gr00tPolicy:
    directory, embodiment = checkpoint.directory, layout.embodiment
    config, views = load_config(directory), len(embodiment.cameras)
    require_room(layout, config)
    prompts = Prompts(tokenizer.load(directory), views, config.patches, settings.prompt)
    prompt, start = prompts.ids(INSTRUCTION), time.perf_counter()

    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device, torch.float32)
    attention, size = choose(settings.attention, str(device), dtype), weight_bytes(config, dtype)
    reason = f" since {attention.reason}" if attention.reason else ""
    log.info("loading %s on %s, attention %s%s", directory, device, attention.kind, reason)
    require_memory(size, device, SMALLER)
    model = load_model(config, Safetensors(directory), device, dtype, attention.implementation)
    max_batch = fitting_batch(settings.max_batch, row_bytes(config, len(prompt) + TEXT_TOKENS, views, dtype), device)
    if max_batch < settings.max_batch:
        log.warning("max_batch is %d instead of %d: the GPU's memory is too small", max_batch, settings.max_batch)
    steps = settings.denoising_steps or embodiment.denoising_steps
    engine = Engine(model, embodiment.projector, prompts.image_positions, steps, max_batch, attention.fixed_shapes)
    engine.warm_up(prompt)
    log.info("weights of %s loaded and warm after %.1f s", directory.name, time.perf_counter() - start)

    details = {
        **layout.details(),
        "embodiment_from": checkpoint.embodiment_from(settings.embodiment),
        "assumed": checkpoint.assumed,
        "engine": "vla-lab",
        "attention": attention.kind,
        "attention_reason": attention.reason,
        "denoising_steps": str(steps),
        "prompt": settings.prompt,
        "seed": str(settings.seed),
        "dtype": NAMES[dtype],
        "graphs": engine.runner.name,
        "weights_mb": f"{size / 1e6:.0f}",
        **versions(PACKAGES),
        **variant(UPSTREAM_TORCH),
    }
    info = PolicyInfo(
        name="gr00t-n1.5",
        action=layout.action_parts,
        state=layout.state_parts,
        checkpoint=identity(directory, checkpoint.record),
        quantization=NAMES[dtype],
        device=device_name(device),
        cameras=tuple(embodiment.cameras),
        image_hw=layout.image_hw,
        horizon=config.head.horizon,
        profile=embodiment.profile,
        suites=checkpoint.suites,
        max_batch=max_batch,
        lock_hash=lock_hash(),
        details={name: value for name, value in details.items() if value},
    )
    return Gr00tPolicy(engine, prompts, layout, info, settings.seed)


def require_room(layout: Layout, config: ModelConfig) -> None:
    """Raise CheckpointError if the robot's state or action is larger than the network's."""
    for kind, limit in (("state", config.head.state_dim), ("action", config.head.action_dim)):
        width = sum(part.width for part in getattr(layout, kind))
        if width > limit:
            raise CheckpointError(
                f"embodiment {layout.embodiment.name!r} has a {kind} of {width} numbers for the network, which takes "
                f"{limit}; leave parts out of its JSON file"
            )
