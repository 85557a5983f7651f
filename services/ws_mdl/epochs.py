"""Training by epochs with bit-exact resume from any batch, on one process or several.

A lab's `Training` subclasses `EpochRun`: it defines a step and the additional content of its weights file.
"""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from services.ws_mdl.settings import RunSettings
from vla_common.volume import Volume, display_path
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.progress import Progress
from vla_modelkit.training.stopping import StopSignal
from vla_modelkit.training.weights import State, WeightFiles

LONG = "Ctrl-C saves; the same command resumes"


@dataclass
class EpochRun(ABC):
    """A run in progress: the network, its averaged weights, and everything the next batch depends on."""

    config: Any  # a lab's settings
    data: Any  # has a length
    machine: TrainingMachine
    nn_model: nn.Module
    averaged: nn.Module
    optim: torch.optim.Optimizer
    generator: torch.Generator  # of the data order and all other random numbers
    epoch: int = 0  # the current one, or the next
    batches: int = 0  # finished ones of this epoch
    order: Tensor | None = None  # of the data in this epoch
    global_step: int = 0

    unit: ClassVar[str]  # what a batch consists of

    @abstractmethod
    def step(self, index: Tensor) -> Tensor:
        """Train on the examples `index`; return the loss, still on the device."""

    def extra_state(self) -> State:
        """Return the lab's additional content of the weights file."""
        return {}

    def on_epoch_end(self) -> None:  # noqa: B027 - most runs do nothing here
        """Called after each epoch, before its weights are saved."""

    def after_save(self, directory: Path, curves: Curves) -> None:  # noqa: B027
        """Called after each epoch, once its weights are saved: measure and show results."""

    def restore(self, state: State, path: Path) -> None:
        """Load the state of a weights file. Raises ValueError if the run cannot resume from it."""
        load_run_state(self, state)

    @property
    def summary(self) -> str:
        """Description of the data, printed at the start."""
        return f"{len(self.data)} {self.unit}"

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self.data) // self.config.batch_size)

    @property
    def epochs(self) -> int:
        return self.config.epochs

    @property
    def steps(self) -> int:
        return self.epochs * self.batches_per_epoch

    def work(self, batches: int) -> float:
        """Return how long the first `batches` batches take, in usual batches; for the estimate of the time left."""
        return batches


Run = TypeVar("Run", bound=EpochRun)


def new_run(kind: type[Run], config: Any, machine: TrainingMachine, data: Any, build: Callable[[], nn.Module]) -> Run:
    """Return a run before its first batch: AdamW with weight decay of matrices alone.

    The initial weights depend on the seed only.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        nn_model = build().to(machine.device)
    matrices = [p for p in nn_model.parameters() if p.dim() > 1]
    vectors = [p for p in nn_model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return kind(
        config=config,
        data=data,
        machine=machine,
        nn_model=nn_model,
        averaged=copy.deepcopy(nn_model).eval(),
        optim=torch.optim.AdamW(groups, lr=config.lrate, fused=machine.device.type in ("cpu", "cuda")),
        generator=torch.Generator().manual_seed(config.seed),
    )


def lr_schedule(step: int, warmup: int, steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up, then cosine decay to 0."""
    if step < warmup:
        return (step + 1) / warmup
    falling = max(1, steps - warmup)
    return 0.5 * (1 + math.cos(math.pi * min(step - warmup, falling) / falling))


@torch.no_grad()
def update_ema(run: EpochRun) -> None:
    """Update the exponential moving average of the weights, with a smaller decay in the first steps."""
    weight = min(run.config.ema, (1 + run.global_step) / (10 + run.global_step))
    ema_weights, weights = list(run.averaged.parameters()), list(run.nn_model.parameters())
    torch._foreach_lerp_(ema_weights, weights, 1 - weight)
    for averaged, current in zip(run.averaged.buffers(), run.nn_model.buffers(), strict=True):
        if averaged.is_floating_point():
            averaged.lerp_(current, 1 - weight)  # batch norm statistics alone cover only about ten batches
        else:
            averaged.copy_(current)


def state_of(run: EpochRun) -> State:
    """Return everything that is needed to resume."""
    return {
        "model_state_dict": run.nn_model.state_dict(),
        "averaged_state_dict": run.averaged.state_dict(),
        "optimizer_state_dict": run.optim.state_dict(),
        "epoch": run.epoch,
        "batches": run.batches,
        "order": run.order,
        "global_step": run.global_step,
        "generator": run.generator.get_state(),
        "threads": run.machine.threads,
        "config": run.config.stored(),
        **run.extra_state(),
    }


def load_run_state(run: EpochRun, state: State) -> None:
    """Load a state into a run."""
    run.machine.restore_threads(state.get("threads"))
    run.nn_model.load_state_dict(state["model_state_dict"])
    run.averaged.load_state_dict(state["averaged_state_dict"])
    run.optim.load_state_dict(state["optimizer_state_dict"])
    run.generator.set_state(state["generator"].cpu())
    run.epoch, run.batches, run.global_step = state["epoch"], state["batches"], state["global_step"]
    run.order = None if state["order"] is None else state["order"].cpu()


def save(run: EpochRun, files: WeightFiles) -> None:
    """Save the run's current state."""
    if run.machine.is_main:
        path = files.path(run.epoch - 1) if run.batches == 0 else files.path(run.epoch, run.batches)
        files.save(path, state_of(run), run.config.keep)


def run_files(kind: type[RunSettings], prefix: str, volume: Volume, name: str | None) -> WeightFiles:
    """Return the weight files of a lab's run; None: of the newest. Raises ValueError if there is none."""
    runs = kind.runs_directory(volume)
    paths = sorted(runs.glob(f"*/{prefix}_*.pt"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise ValueError(f"no trained run in {runs}; train one: ./lab train {kind.LAB}")
    names = sorted({path.parent.name for path in paths})
    if name is not None and name not in names:
        raise ValueError(f"run {name!r} not found in {runs}; known: {', '.join(names)}")
    return WeightFiles(runs / (name or paths[-1].parent.name), prefix)


def train_run(
    config: Any, machine: TrainingMachine, volume: Volume, prefix: str, get_training: Callable[[], Run]
) -> Run:
    """Train a run until it is complete or stopped, resuming from its weights if there are any; save and return it.

    prefix: of its weight files. get_training: creates a new run. Raises ValueError if the weights belong to other
    settings or data.
    """
    files = WeightFiles(config.run_directory(volume), prefix)
    checkpoint = files.load_for_resume(config.preload)
    if checkpoint:
        config.check_same_settings(checkpoint[1]["config"], checkpoint[0])
    run = get_training()
    if checkpoint:
        run.restore(checkpoint[1], checkpoint[0])
        print(f"resuming from {checkpoint[0].name}: epoch {run.epoch}, step {run.global_step}", flush=True)
    print(f"{config.name}: {run.summary}, {machine}, weights in {display_path(files.directory)}", flush=True)
    train_to_end(run, files, Curves(config.tensorboard_directory(volume), run.global_step))
    return run


def train_to_end(run: EpochRun, files: WeightFiles, curves: Curves) -> bool:
    """Train to the last epoch or until stopped, and save; return whether the run is complete.

    Every tenth batch and the last of an epoch show loss and speed; reading the loss synchronizes with the device.
    """
    started, first = time.monotonic(), run.global_step
    progress = Progress(run.work(run.steps), run.work(run.global_step), LONG, enabled=run.machine.is_main)

    def on_batch(loss: Tensor) -> None:
        progress.total = run.work(run.steps)
        work = run.work(run.global_step) - run.work(run.global_step - 1)
        end_of_epoch = run.batches == run.batches_per_epoch
        if run.global_step % 10 and not end_of_epoch:
            return progress.advance(steps=work)
        value = loss.item()
        pace = (run.global_step - first) * run.config.batch_size / (time.monotonic() - started)
        figures = f"loss {value:.4f}", f"{pace:.0f} {run.unit}/s"
        progress.advance(f"epoch {run.epoch}", *figures, steps=work)
        curves.scalars("train", {"loss": value, "rate": run.optim.param_groups[0]["lr"]}, run.global_step)
        if progress.enabled and not progress.live and end_of_epoch:
            print(f"epoch {run.epoch}: {', '.join(figures)}", flush=True)

    with StopSignal() as stop, curves, progress:
        while run.epoch < run.epochs and not stop_requested(run, stop):
            complete = train_epoch(run, stop, on_batch)
            if complete:
                run.on_epoch_end()
            is_due = run.epoch % run.config.save_every == 0 or run.epoch == run.epochs
            if is_due or not complete or stop.requested:
                save(run, files)
            if complete:
                run.after_save(files.directory, curves)
    return run.epoch >= run.epochs


def train_epoch(run: EpochRun, stop: StopSignal, on_batch: Callable[[Tensor], None] = lambda loss: None) -> bool:
    """Train to the end of the epoch, or of the batch in which a stop is requested; return whether it is complete."""
    if run.order is None:
        run.order = torch.randperm(len(run.data), generator=run.generator)
    for index in run.order.split(run.config.batch_size)[run.batches :]:
        loss = run.step(index)
        run.batches += 1
        on_batch(loss)
        if stop_requested(run, stop) and run.batches < run.batches_per_epoch:
            return False
    run.epoch, run.batches, run.order = run.epoch + 1, 0, None
    return True


def stop_requested(run: EpochRun, stop: StopSignal) -> bool:
    """Return whether a stop is requested on any process, so that all stop after the same batch."""
    return any(run.machine.all_reduce(int(stop.requested)))
