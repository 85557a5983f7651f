"""The part of bench/gpu.py in the environment ws_mdl."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bench.parts.gpu_plan import Plan, synchronize
from services.minivla import train
from services.minivla.config import Config
from services.minivla.data import LIBERO, DatasetStats, Scaling, TrainingSteps, encode
from services.ws_mdl.transformer.tokenization import train_tokenizer
from vla_modelkit.training.machine import choose_machine


def minivla(plan: Plan) -> None:
    """Training steps per second of mini-VLA, batches of 64."""
    device, _ = plan.device_and_dtype()
    count, generator = 2 if plan.tiny else 20, np.random.default_rng(0)
    for size in ("tiny",) if plan.tiny else ("small", "base"):
        config = Config(data="made-up", size=size, device=str(device))
        run = train.get_training(config, choose_machine(config.device), random_demonstrations(config))

        def steps(run: Any = run, batch_size: int = config.batch_size) -> None:
            for _ in range(count):
                train.train_step(run, torch.from_numpy(generator.integers(0, len(run.data), batch_size)))
            synchronize(device)

        (ms,) = plan.timed({f"{size}, {count} steps": steps}).values()
        plan.figure(f"gpu_minivla_{size}", 1e3 * count / ms, "steps/s")


def random_demonstrations(config: Config) -> TrainingSteps:
    """Return 2,000 steps of noise, of the shapes that a LIBERO data set gives mini-VLA."""
    sentence, steps, generator = "pick up the alphabet soup and place it in the basket", 2000, torch.Generator()
    tokenizer = train_tokenizer([sentence], "word", 1, 8000)
    learned = DatasetStats(
        "random", "none", 1, "", tuple(LIBERO.cameras), action=Scaling((0.0,) * 7, (1.0,) * 7),
        state=Scaling((0.0,) * 8, (1.0,) * 8), tokenizer=tokenizer.to_str(),
    )  # fmt: skip
    size = (steps, 2, 3, config.side, config.side)
    images = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
    state, action = torch.randn(steps, 8, generator=generator), torch.rand(steps, 7, generator=generator) * 2 - 1
    tasks, ends = torch.zeros(steps, dtype=torch.long), torch.full((steps,), steps)
    tokens, pad = encode(tokenizer, [sentence]), tokenizer.token_to_id("[PAD]")
    common = torch.zeros(tokenizer.get_vocab_size())
    return TrainingSteps(learned, images, state, action, tokens, tasks, ends, pad, common)
