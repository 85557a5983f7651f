"""The same training twice: by transformers' Trainer, and as a bare loop with accelerate.

With the same seed both draw the same order of rows and take the same steps: AdamW without decay, a rate that climbs for
`warmup_steps` and then falls to zero in a straight line, gradients no longer than 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    get_linear_schedule_with_warmup,
    set_seed,
)

from vla_common.counts import plural
from vla_modelkit.threads import choose_threads

Collate = Callable[[Sequence[Any]], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Plan:
    """What a training is told."""

    steps: int
    batch_size: int = 32
    lr: float = 1e-3
    warmup_steps: int = 0
    seed: int = 0
    cpu: bool = False  # also where there is a GPU
    say_every: int = 0  # steps between two lines that are printed; 0: none


@functools.cache
def choose_threads_once() -> None:
    """Compute in as many threads as cores are idle at the first training; both loops then have the same sums."""
    print(f"computing in {plural(choose_threads(), 'thread')}", flush=True)


class Recorded(Trainer):
    """A Trainer that keeps every step's loss: its own log rounds them, and means over several steps."""

    def __init__(self, *arguments: Any, plan: Plan, **options: Any):
        super().__init__(*arguments, **options)
        self.losses, self.plan = Losses(plan), plan

    def compute_loss(self, model: Any, inputs: dict, *arguments: Any, **options: Any) -> Any:
        """Returns the loss as the library computes it."""
        found = super().compute_loss(model, inputs, *arguments, **options)
        self.losses.add(found[0] if isinstance(found, tuple) else found)
        return found


class Losses(list):
    """Every step's loss; says one now and then."""

    def __init__(self, plan: Plan):
        super().__init__()
        self.plan = plan

    def add(self, loss: torch.Tensor) -> None:
        """Appends one."""
        self.append(loss.item())
        if self.plan.say_every and (len(self) % self.plan.say_every == 0 or len(self) == 1):
            print(f"step {len(self)} of {self.plan.steps}: loss {self[-1]:.3f}", flush=True)


def by_trainer(model: PreTrainedModel, rows: Sequence[Any], collate: Collate, plan: Plan, folder: Path) -> list[float]:
    """Trains a model in place by Trainer; returns each step's loss. Its own files go to `folder`."""
    choose_threads_once()
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=plan.steps, per_device_train_batch_size=plan.batch_size,
        learning_rate=plan.lr, warmup_steps=plan.warmup_steps, lr_scheduler_type="linear", optim="adamw_torch",
        weight_decay=0.0, max_grad_norm=1.0, seed=plan.seed, use_cpu=plan.cpu, dataloader_pin_memory=False,
        remove_unused_columns=False, save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = Recorded(model, arguments, train_dataset=rows, data_collator=collate, plan=plan)
    trainer.remove_callback(PrinterCallback)  # its summary line
    trainer.train()
    model.eval()
    return list(trainer.losses)


def by_hand(
    model: PreTrainedModel, rows: Sequence[Any], collate: Collate, plan: Plan, folder: object = None
) -> list[float]:
    """Trains a model in place by a loop that can be read; returns each step's loss."""
    choose_threads_once()
    set_seed(plan.seed)
    # A sampler whose order follows from the seed and the epoch, as Trainer's does, and not from what was drawn before.
    accelerator = Accelerator(cpu=plan.cpu, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    loader = DataLoader(rows, batch_size=plan.batch_size, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, plan.warmup_steps, plan.steps)
    model.train()
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = Losses(plan)
    for batch in islice(chain.from_iterable(repeat(loader)), plan.steps):
        loss = wrapped(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.add(loss.detach())
    model.eval()
    return list(losses)


LOOPS = {"trainer": by_trainer, "loop": by_hand}
