"""Parts of bench/gpu.py in the environment gr00t."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.common import figure
from bench.parts.gpu_plan import Plan, synchronize
from services.gr00t.checkpoint.config import N1_5
from services.gr00t.checkpoint.tiny import TINY
from services.gr00t.model.attention import choose
from services.gr00t.model.engine import TEXT_TOKENS, Engine, Prepared
from services.gr00t.model.loading import load_model, row_bytes, shapes, weight_bytes
from services.gr00t.training.memory import TrainingMemory
from services.gr00t.training.network import FlowLoss, load, new_trainer
from services.gr00t.training.samples import Batch
from services.gr00t.training.settings import Finetune
from vla_modelkit.memory import reset_peak, used_bytes
from vla_modelkit.training.machine import choose_machine
from vla_modelkit.training.trainer import Trainer
from vla_modelkit.weights import MadeUp

VIEWS, STEPS, ROBOT, BATCH = 2, 4, 31, 16  # two cameras, Euler steps, the embodiment "new_embodiment"


def gr00t(plan: Plan, attention_name: str = "sdpa") -> None:
    """GR00T N1.5: a chunk of two cameras, CUDA graphs against none, a batch of 16, memory against its estimate."""
    device, dtype = plan.device_and_dtype()
    config = TINY.model() if plan.tiny else N1_5
    attention = choose(attention_name, str(device), dtype)
    model = load_model(config, MadeUp(shapes(config), device), device, dtype, attention.implementation)
    reset_peak(device)
    rows, slots = random_rows(config, BATCH)
    engine = Engine(model, ROBOT, slots, STEPS, BATCH, attention.fixed_shapes)
    engine.warm_up(rows[0].ids)
    eager = Engine(model, ROBOT, slots, STEPS, 1, fixed_shapes=False)
    noise = random_noise(config, BATCH)
    sides = {
        "one chunk": lambda: engine.infer(rows[:1], noise[:1]),
        "one chunk, no CUDA graphs": lambda: eager.infer(rows[:1], noise[:1]),
        "batch of 16": lambda: engine.infer(rows, noise),
    }
    chunk, without_graphs, batch = plan.timed(sides).values()
    prefix = f"gpu_gr00t{'' if attention_name == 'sdpa' else '_' + attention_name}"
    plan.figure(f"{prefix}_chunk", chunk, "ms", "<=20")
    plan.figure(f"{prefix}_graphs_over_none", without_graphs / chunk, "ratio")
    plan.figure(f"{prefix}_batch_16", 16e3 / batch, "chunks/s")
    if device.type == "cuda":
        row = row_bytes(config, len(rows[0].ids) + TEXT_TOKENS, VIEWS, dtype)
        estimate = weight_bytes(config, dtype) + BATCH * row
        plan.memory_figure(f"{prefix}_memory_error", used_bytes(device), estimate)


def gr00t_flash(plan: Plan) -> None:
    """The same with the package flash-attn."""
    plan.require_flash()
    gr00t(plan, "flash")


def gr00t_fp32(plan: Plan) -> None:
    """Actions of a tiny GR00T in fp32: the GPU's with CUDA graphs against the CPU's."""
    device, _ = plan.device_and_dtype()
    config, cpu = TINY.model(), torch.device("cpu")
    source = MadeUp(shapes(config), cpu)
    rows, slots = random_rows(config, 4)
    noise = random_noise(config, 4)

    def actions(where: torch.device) -> np.ndarray:
        engine = Engine(load_model(config, source, where, torch.float32, "sdpa"), ROBOT, slots, STEPS, 4)
        engine.warm_up(rows[0].ids)
        return engine.infer(rows, noise)

    apart = np.abs(actions(device) - actions(cpu)).max()
    figure("gpu_gr00t_fp32_apart", float(apart), "action", "<=1e-4", quick=True)


def gr00t_training(plan: Plan) -> None:
    """Fine-tuning of GR00T N1.5 on random batches: steps per second, and peak memory against the estimate."""
    device, _ = plan.device_and_dtype()
    machine = choose_machine(str(device), "bf16" if device.type == "cuda" else "fp32")
    config, count = (TINY.model(), 2) if plan.tiny else (N1_5, 8)
    for kind, changes in (("whole", {}), ("around", {"tune_diffusion_model": False}), ("lora", {"lora_rank": 16})):
        settings = Finetune("random", batch_size=count, **changes)
        reset_peak(device)
        model = load(config, MadeUp(shapes(config), device), ROBOT, settings, device, machine.dtype or torch.float32)
        rows, slots = random_rows(config, count)
        batch = Batch(
            pictures=torch.from_numpy(np.stack([row.pictures for row in rows])),
            ids=torch.tensor([row.ids for row in rows]),
            lengths=torch.full((count,), len(rows[0].ids)),
            state=torch.zeros(count, config.head.state_dim),
            actions=random_noise(config, count) / 3,
            noise=random_noise(config, count),
            times=torch.linspace(0, 0.99, count),
        )
        with tempfile.TemporaryDirectory() as directory:
            loss = FlowLoss(model, torch.as_tensor(slots, device=device), 7)
            trainer = new_trainer(settings, machine, loss, Path(directory), {})

            def step(trainer: Trainer = trainer, batch: Batch = batch) -> None:
                trainer.learn(batch)
                synchronize(device)

            (ms,) = plan.timed({f"a step of {count}, {kind}": step}).values()
        plan.figure(f"gpu_gr00t_training_{kind}", 1e3 * count / ms, "samples/s")
        if device.type == "cuda":
            estimate, peak = TrainingMemory(config, VIEWS).estimate(settings).total, used_bytes(device)
            free, total = torch.cuda.mem_get_info()
            peak += total - free - torch.cuda.memory_reserved()  # CUDA's own
            plan.memory_figure(f"gpu_gr00t_training_{kind}_memory_error", peak, estimate)
        del trainer, loss, model, step
        torch.cuda.empty_cache()


def random_noise(config: Any, count: int) -> torch.Tensor:
    """Return float32 noise [count, horizon, action] on the CPU, from which GR00T's actions start."""
    shape = (count, config.head.horizon, config.head.action_dim)
    return torch.from_numpy(np.random.default_rng(1).normal(size=shape).astype(np.float32))


def random_rows(config: Any, count: int) -> tuple[Sequence[Prepared], np.ndarray]:
    """Return random observations of two cameras as GR00T's engine takes them, and where their image tokens lie."""
    draw, side, patches = np.random.default_rng(0), config.vision["image_size"], config.patches
    slots = np.concatenate([20 + view * (patches + 4) + np.arange(patches) for view in range(VIEWS)])
    ids = draw.integers(0, 1000, slots[-1] + 24).tolist()
    images = draw.integers(0, 256, (count, VIEWS, side, side, 3), np.uint8)
    states = draw.normal(size=(count, 8)).astype(np.float32)
    return [Prepared(image, ids, state) for image, state in zip(images, states, strict=True)], slots
