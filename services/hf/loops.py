"""The same training twice: with transformers' Trainer, and as a plain loop with accelerate.

With the same seed both see the rows in the same order and take the same steps: AdamW without weight decay, linear
warm-up over `warmup_steps` and linear decay to 0, gradient norm clipped to 1.
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
class Hyperparameters:
    """Hyperparameters of a training."""

    steps: int
    batch_size: int = 32
    lr: float = 1e-3
    warmup_steps: int = 0
    seed: int = 0
    cpu: bool = False  # even if there is a GPU
    log_every: int = 0  # steps between two log lines; 0: none


@functools.cache
def choose_threads_once() -> None:
    """Use one thread per idle core, decided at the first training so that both loops give the same sums."""
    print(f"computing in {plural(choose_threads(), 'thread')}", flush=True)


def record(losses: list[float], loss: torch.Tensor, params: Hyperparameters) -> None:
    """Append a step's loss; print the first and every `log_every`-th."""
    losses.append(loss.item())
    if params.log_every and (len(losses) % params.log_every == 0 or len(losses) == 1):
        print(f"step {len(losses)} of {params.steps}: loss {losses[-1]:.3f}", flush=True)


def by_trainer(
    model: PreTrainedModel, rows: Sequence[Any], collate: Collate, params: Hyperparameters, directory: Path
) -> list[float]:
    """Train a model in place with Trainer, which writes to `directory`; return the loss of each step."""
    choose_threads_once()
    losses: list[float] = []

    class Recorded(Trainer):
        """Records every step's loss; Trainer's own log rounds and averages them."""

        def compute_loss(self, *arguments: Any, **options: Any) -> Any:
            result = super().compute_loss(*arguments, **options)
            record(losses, result[0] if isinstance(result, tuple) else result, params)
            return result

    arguments = TrainingArguments(
        output_dir=str(directory), max_steps=params.steps, per_device_train_batch_size=params.batch_size,
        learning_rate=params.lr, warmup_steps=params.warmup_steps, lr_scheduler_type="linear", optim="adamw_torch",
        weight_decay=0.0, max_grad_norm=1.0, seed=params.seed, use_cpu=params.cpu, dataloader_pin_memory=False,
        remove_unused_columns=False, save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = Recorded(model, arguments, train_dataset=rows, data_collator=collate)
    trainer.remove_callback(PrinterCallback)  # prints a summary line
    trainer.train()
    model.eval()
    return losses


def by_hand(
    model: PreTrainedModel, rows: Sequence[Any], collate: Collate, params: Hyperparameters, directory: object = None
) -> list[float]:
    """Train a model in place with an explicit loop; return the loss of each step."""
    choose_threads_once()
    set_seed(params.seed)
    # As in Trainer, the data order depends on seed and epoch only.
    accelerator = Accelerator(cpu=params.cpu, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    loader = DataLoader(rows, batch_size=params.batch_size, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=params.lr, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, params.warmup_steps, params.steps)
    model.train()
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses: list[float] = []
    for batch in islice(chain.from_iterable(repeat(loader)), params.steps):
        loss = wrapped(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        record(losses, loss.detach(), params)
    model.eval()
    return losses


LOOPS = {"trainer": by_trainer, "loop": by_hand}
