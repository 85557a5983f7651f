"""From settings to a policy that is ready: device, memory, weights, warm-up, canary."""

from __future__ import annotations

import logging
import time

import torch

from services.gr00t.checkpoint import tokenizer
from services.gr00t.checkpoint.config import ModelConfig, load_config
from services.gr00t.checkpoint.directory import CheckpointDirectory
from services.gr00t.model.attention import Attention, choose
from services.gr00t.model.engine import Engine
from services.gr00t.model.loading import load_model, weight_bytes
from services.gr00t.processing.prompt import Prompts
from services.gr00t.service.info import INSTRUCTION, policy_info, steps_of
from services.gr00t.service.layout import Layout
from services.gr00t.service.policy import Gr00tPolicy
from services.gr00t.service.settings import Settings
from vla_contract import Policy
from vla_modelkit.canary import check_sees
from vla_modelkit.checkpoint import CheckpointError
from vla_modelkit.devices import NAMES, choose_device, choose_dtype
from vla_modelkit.memory import require_memory
from vla_modelkit.weights import Safetensors

log = logging.getLogger("services.gr00t")


def load_policy(settings: Settings, found: CheckpointDirectory, layout: Layout) -> Policy:
    """Returns the policy, warmed, which has been seen to look at its pictures.

    Raises CheckpointError (a ValueError), ValueError or MemoryError saying what is wrong and what to do.
    """
    log.info("embodiment %s by %s", layout.embodiment.name, found.embodiment_from(settings.embodiment))
    policy = load_own_policy(settings, found, layout)
    check_sees(policy, policy.example)
    return policy


def load_own_policy(settings: Settings, found: CheckpointDirectory, layout: Layout) -> Gr00tPolicy:
    """Returns the policy that runs on the lab's own engine."""
    config = load_config(found.directory)
    require_room(layout, config)
    prompts = prompts_of(settings, found, layout, config)
    start = time.perf_counter()
    engine, attention = load_engine(settings, found, layout, config, prompts)
    engine.warm_up(prompts.ids(INSTRUCTION))
    log.info("weights of %s loaded and warm after %.1f s", found.directory.name, time.perf_counter() - start)
    dtype = engine.model.action_head.vlln.weight.dtype
    details = {
        "dtype": NAMES[dtype],
        "graphs": engine.runner.name,
        "weights_mb": f"{weight_bytes(config, dtype) / 1e6:.0f}",
    }
    info = policy_info(found, layout, settings, attention, engine.device, NAMES[dtype], config.head.horizon, details)
    return Gr00tPolicy(engine, prompts, layout, info, settings.seed)


def load_engine(
    settings: Settings, found: CheckpointDirectory, layout: Layout, config: ModelConfig, prompts: Prompts
) -> tuple[Engine, Attention]:
    """Returns the engine, and the attention that its backbone runs."""
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device, torch.float32)
    attention = choose(settings.attention, str(device), dtype)
    log.info(
        "loading %s on %s, attention %s",
        found.directory,
        device,
        " since ".join(filter(None, vars(attention).values())),
    )
    smaller = (
        "set VLALAB_GR00T_DTYPE=bf16 (5 GB for GR00T N1.5), stop what else uses the memory, or take a tiny checkpoint"
    )
    require_memory(weight_bytes(config, dtype), device, smaller)
    model = load_model(config, Safetensors(found.directory), device, dtype, attention.implementation)
    steps = steps_of(layout, settings)
    return Engine(model, layout.embodiment.projector, prompts.places, steps, settings.max_batch), attention


def prompts_of(settings: Settings, found: CheckpointDirectory, layout: Layout, config: ModelConfig) -> Prompts:
    """Returns what makes token ids of instructions."""
    encode = tokenizer.load(found.directory)
    return Prompts(encode, len(layout.embodiment.cameras), config.patches, settings.prompt)


def require_room(layout: Layout, config: ModelConfig) -> None:
    """Raises CheckpointError where the robot has more numbers than the network has places for."""
    for kind, most in (("state", config.head.state_dim), ("action", config.head.action_dim)):
        width = sum(part.width for part in getattr(layout, kind))
        if width > most:
            raise CheckpointError(
                f"embodiment {layout.embodiment.name!r} has a {kind} of {width} numbers for the network, which takes "
                f"{most}; leave parts out of its JSON file"
            )
