"""The same training twice: by transformers' Trainer, and as a bare loop with accelerate.

With the same seed both take the rows in the same order and the same steps: AdamW without decay, a rate that climbs for
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
    """Settings of a training."""

    steps: int
    batch_size: int = 32
    lr: float = 1e-3
    warmup_steps: int = 0
    seed: int = 0
    cpu: bool = False  # also where there is a GPU
    say_every: int = 0  # steps between two printed lines; 0: none


@functools.cache
def choose_threads_once() -> None:
    """Compute in as many threads as cores are idle at the first training; both loops then have the same sums."""
    print(f"computing in {plural(choose_threads(), 'thread')}", flush=True)


class Losses(list[float]):
    """Every step's loss; prints one now and then."""

    def add(self, loss: torch.Tensor, plan: Plan) -> None:
        """Append one."""
        self.append(loss.item())
        if plan.say_every and (len(self) % plan.say_every == 0 or len(self) == 1):
            print(f"step {len(self)} of {plan.steps}: loss {self[-1]:.3f}", flush=True)


def by_trainer(
    model: PreTrainedModel, rows: Sequence[Any], collate: Collate, plan: Plan, directory: Path
) -> list[float]:
    """Train a model in place by Trainer; return each step's loss. Its own files go to `folder`."""
    choose_threads_once()
    losses = Losses()

    class Recorded(Trainer):
        """Stores every step's loss: Trainer's own log rounds them, and means over several steps."""

        def compute_loss(self, *arguments: Any, **options: Any) -> Any:
            result = super().compute_loss(*arguments, **options)
            losses.add(result[0] if isinstance(result, tuple) else result, plan)
            return result

    arguments = TrainingArguments(
        output_dir=str(directory), max_steps=plan.steps, per_device_train_batch_size=plan.batch_size,
        learning_rate=plan.lr, warmup_steps=plan.warmup_steps, lr_scheduler_type="linear", optim="adamw_torch",
        weight_decay=0.0, max_grad_norm=1.0, seed=plan.seed, use_cpu=plan.cpu, dataloader_pin_memory=False,
        remove_unused_columns=False, save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = Recorded(model, arguments, train_dataset=rows, data_collator=collate)
    trainer.remove_callback(PrinterCallback)  # its summary line
    trainer.train()
    model.eval()
    return losses


def by_hand(
    model: PreTrainedModel, rows: Sequence[Any], collate: Collate, plan: Plan, directory: object = None
) -> list[float]:
    """Train a model in place by a loop that can be read; return each step's loss."""
    choose_threads_once()
    set_seed(plan.seed)
    # A sampler whose order follows from the seed and the epoch, as Trainer's does, and not from earlier random numbers.
    accelerator = Accelerator(cpu=plan.cpu, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    loader = DataLoader(rows, batch_size=plan.batch_size, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, plan.warmup_steps, plan.steps)
    model.train()
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = Losses()
    for batch in islice(chain.from_iterable(repeat(loader)), plan.steps):
        loss = wrapped(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.add(loss.detach(), plan)
    model.eval()
    return losses


LOOPS = {"trainer": by_trainer, "loop": by_hand}
