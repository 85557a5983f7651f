"""Load a policy: device, memory, weights, warm-up, canary."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import torch

from services.gr00t.checkpoint import tokenizer
from services.gr00t.checkpoint.config import ModelConfig, load_config
from services.gr00t.checkpoint.directory import CheckpointDirectory
from services.gr00t.model.attention import AttentionKernel, choose
from services.gr00t.model.engine import TEXT_TOKENS, Engine
from services.gr00t.model.loading import load_model, row_bytes, weight_bytes
from services.gr00t.processing.prompt import Prompts
from services.gr00t.service.info import INSTRUCTION, policy_info, steps_of
from services.gr00t.service.layout import Layout
from services.gr00t.service.policy import Gr00tPolicy
from services.gr00t.service.settings import Settings
from vla_contract import Policy
from vla_modelkit.canary import check_sees
from vla_modelkit.checkpoint import CheckpointError
from vla_modelkit.devices import NAMES, choose_device, choose_dtype
from vla_modelkit.memory import fitting_batch, require_memory
from vla_modelkit.weights import Safetensors

log = logging.getLogger("services.gr00t")

SMALLER = "set VLALAB_GR00T_DTYPE=bf16 (5 GB for GR00T N1.5), stop other programs, or use a tiny checkpoint"


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
    """Load the policy on the lab's engine."""
    config = load_config(checkpoint.directory)
    require_room(layout, config)
    prompts = prompts_of(settings, checkpoint, layout, config)
    start = time.perf_counter()
    engine, attention = load_engine(settings, checkpoint, layout, config, prompts)
    engine.warm_up(prompts.ids(INSTRUCTION))
    log.info("weights of %s loaded and warm after %.1f s", checkpoint.directory.name, time.perf_counter() - start)
    dtype = engine.model.action_head.vlln.weight.dtype
    settings = replace(settings, max_batch=engine.max_batch)
    details = {
        "dtype": NAMES[dtype],
        "graphs": engine.runner.name,
        "weights_mb": f"{weight_bytes(config, dtype) / 1e6:.0f}",
    }
    info = policy_info(
        checkpoint, layout, settings, attention, engine.device, NAMES[dtype], config.head.horizon, details
    )
    return Gr00tPolicy(engine, prompts, layout, info, settings.seed)


def load_engine(
    settings: Settings, checkpoint: CheckpointDirectory, layout: Layout, config: ModelConfig, prompts: Prompts
) -> tuple[Engine, AttentionKernel]:
    """Return the engine, and the attention of its backbone."""
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device, torch.float32)
    attention = choose(settings.attention, str(device), dtype)
    log.info(
        "loading %s on %s, attention %s",
        checkpoint.directory,
        device,
        " since ".join(filter(None, vars(attention).values())),
    )
    require_memory(weight_bytes(config, dtype), device, SMALLER)
    model = load_model(config, Safetensors(checkpoint.directory), device, dtype, attention.implementation)
    tokens = len(prompts.ids(INSTRUCTION)) + TEXT_TOKENS
    row = row_bytes(config, tokens, len(layout.embodiment.cameras), dtype)
    max_batch = fitting_batch(settings.max_batch, row, device)
    if max_batch < settings.max_batch:
        log.warning("max_batch is %d instead of %d: the GPU's memory is too small", max_batch, settings.max_batch)
    positions, steps = prompts.image_positions, steps_of(layout, settings)
    robot = layout.embodiment.projector
    return Engine(model, robot, positions, steps, max_batch, attention.fixed_shapes), attention


def prompts_of(settings: Settings, checkpoint: CheckpointDirectory, layout: Layout, config: ModelConfig) -> Prompts:
    """Return the converter from instructions to token ids."""
    encode = tokenizer.load(checkpoint.directory)
    return Prompts(encode, len(layout.embodiment.cameras), config.patches, settings.prompt)


def require_room(layout: Layout, config: ModelConfig) -> None:
    """Raise CheckpointError if the robot's state or action is larger than the network's."""
    for kind, limit in (("state", config.head.state_dim), ("action", config.head.action_dim)):
        width = sum(part.width for part in getattr(layout, kind))
        if width > limit:
            raise CheckpointError(
                f"embodiment {layout.embodiment.name!r} has a {kind} of {width} numbers for the network, which takes "
                f"{limit}; leave parts out of its JSON file"
            )
