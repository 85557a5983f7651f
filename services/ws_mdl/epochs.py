"""Training by epochs that can be stopped at any batch and goes on bit for bit, on one process or several.

A lab's `Training` is an `EpochRun`: it says what a step is and what else its weights file holds.
"""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from services.ws_mdl.settings import RunSettings
from vla_common.volume import Volume, shown
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import Machine
from vla_modelkit.training.progress import Progress
from vla_modelkit.training.stopping import StopSignal
from vla_modelkit.training.weights import State, WeightFiles

LONG = "Ctrl-C saves, and the same command goes on"


@dataclass
class EpochRun(ABC):
    """A run in progress: the network, its averaged twin, and everything the next batch depends on."""

    config: Any  # a lab's settings
    data: Any  # has a length
    machine: Machine
    nn_model: nn.Module
    averaged: nn.Module
    optim: torch.optim.Optimizer
    generator: torch.Generator  # of the order and of all else that is drawn
    epoch: int = 0  # the one that is next or under way
    batches: int = 0  # done in it
    order: Tensor | None = None  # of the data in it
    global_step: int = 0

    unit: ClassVar[str]  # what a batch is made of

    @abstractmethod
    def step(self, index: Tensor) -> Tensor:
        """Trains on those of the data; returns the loss, still on the device."""

    @abstractmethod
    def own_state(self) -> State:
        """Returns what a weights file holds beside what every run's does."""

    def ended_epoch(self) -> None:  # noqa: B027 - most runs do nothing here
        """Is called after each whole epoch, before its weights are saved."""

    def after_epoch(self, directory: Path, curves: Curves) -> None:  # noqa: B027
        """Is called after each whole epoch, when its weights are saved: measures, and shows what it came to."""

    def restore(self, state: State, path: Path) -> None:
        """Puts the run where the state of a weights file was taken. Raises ValueError where it cannot go on from it."""
        put_back(self, state)

    @property
    def about(self) -> str:
        """What is said of the data when the run begins."""
        return f"{len(self.data)} {self.unit}"

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self.data) // self.config.batch_size)

    @property
    def steps(self) -> int:
        return self.config.epochs * self.batches_per_epoch


Run = TypeVar("Run", bound=EpochRun)


def begin(kind: type[Run], config: Any, machine: Machine, data: Any, build: Callable[[], nn.Module]) -> Run:
    """Returns a run before its first batch: AdamW with weight decay of matrices alone.

    The weights that `build` draws depend on the seed alone.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        nn_model = build().to(machine.device)
    matrices = [p for p in nn_model.parameters() if p.dim() > 1]
    others = [p for p in nn_model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return kind(
        config=config,
        data=data,
        machine=machine,
        nn_model=nn_model,
        averaged=copy.deepcopy(nn_model).eval(),
        optim=torch.optim.AdamW(groups, lr=config.lrate, fused=machine.device.type in ("cpu", "cuda")),
        generator=torch.Generator().manual_seed(config.seed),
    )


def rate(step: int, warmup: int, steps: int) -> float:
    """Returns the learning rate's share at a step: up in a line, then down like a cosine."""
    if step < warmup:
        return (step + 1) / warmup
    falling = max(1, steps - warmup)
    return 0.5 * (1 + math.cos(math.pi * min(step - warmup, falling) / falling))


@torch.no_grad()
def average(run: EpochRun) -> None:
    """Moves the averaged weights a little towards the trained ones; in the first steps by more."""
    weight = min(run.config.ema, (1 + run.global_step) / (10 + run.global_step))
    theirs, ours = list(run.averaged.parameters()), list(run.nn_model.parameters())
    torch._foreach_lerp_(theirs, ours, 1 - weight)
    for averaged, current in zip(run.averaged.buffers(), run.nn_model.buffers(), strict=True):
        if averaged.is_floating_point():
            averaged.lerp_(current, 1 - weight)  # the batch norms' own means forget all but the last ten batches
        else:
            averaged.copy_(current)


# --- state --------------------------------------------------------------------------------------------------


def state_of(run: EpochRun) -> State:
    """Returns everything that the rest of the run depends on."""
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
        **run.own_state(),
    }


def put_back(run: EpochRun, state: State) -> None:
    """Puts a run where the state was taken."""
    run.machine.restore_threads(state.get("threads"))
    run.nn_model.load_state_dict(state["model_state_dict"])
    run.averaged.load_state_dict(state["averaged_state_dict"])
    run.optim.load_state_dict(state["optimizer_state_dict"])
    run.generator.set_state(state["generator"].cpu())
    run.epoch, run.batches, run.global_step = state["epoch"], state["batches"], state["global_step"]
    run.order = None if state["order"] is None else state["order"].cpu()


def save(run: EpochRun, files: WeightFiles) -> None:
    """Writes the weights file of where the run is."""
    if run.machine.is_main:
        path = files.path(run.epoch - 1) if run.batches == 0 else files.path(run.epoch, run.batches)
        files.save(path, state_of(run), run.config.keep)


def run_files(kind: type[RunSettings], prefix: str, volume: Volume, name: str | None) -> WeightFiles:
    """Return the weight files of a lab's run, without a name of the one trained last. Raises ValueError for none."""
    runs = kind.runs_directory(volume)
    paths = sorted(runs.glob(f"*/{prefix}_*.pt"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise ValueError(f"{runs} holds no trained run; train one: ./lab train {kind.LAB}")
    names = sorted({path.parent.name for path in paths})
    if name is not None and name not in names:
        raise ValueError(f"run {name!r} not found in {runs}; there are {', '.join(names)}")
    return WeightFiles(runs / (name or paths[-1].parent.name), prefix)


# --- the whole run ------------------------------------------------------------------------------------------


def train_run(config: Any, machine: Machine, volume: Volume, prefix: str, get_training: Callable[[], Run]) -> Run:
    """Return a run, trained until it ended or was stopped, from its newest weights on, and saved.

    prefix: of its weight files. get_training: returns it before its first batch. Raises ValueError where the weights
    are of other settings or data.
    """
    files = WeightFiles(config.run_directory(volume), prefix)
    found = files.load_chosen(config.preload)
    if found:
        config.refuse_drift(found[1]["config"], found[0])
    run = get_training()
    if found:
        run.restore(found[1], found[0])
        print(f"going on from {found[0].name}: epoch {run.epoch}, step {run.global_step}", flush=True)
    print(f"{config.name}: {run.about}, {machine}, weights in {shown(files.directory)}", flush=True)
    train_to_end(run, files, Curves(config.tensorboard_directory(volume), run.global_step))
    return run


def train_to_end(run: EpochRun, files: WeightFiles, curves: Curves) -> bool:
    """Trains to the last epoch or until it is stopped, and saves; returns whether the run is complete."""
    with StopSignal() as stop, curves, progress_of(run, curves) as advance:
        while run.epoch < run.config.epochs and not asked(run, stop):
            whole = train_epoch(run, stop, advance)
            if whole:
                run.ended_epoch()
            if not whole or stop.asked or run.epoch % run.config.save_every == 0 or run.epoch == run.config.epochs:
                save(run, files)
            if whole:
                run.after_epoch(files.directory, curves)
    return run.epoch >= run.config.epochs


def train_epoch(run: EpochRun, stop: StopSignal, on_batch: Callable[[Tensor], None] = lambda loss: None) -> bool:
    """Trains to the end of the epoch, or of the batch in which a stop was asked for; returns whether it is whole."""
    if run.order is None:
        run.order = torch.randperm(len(run.data), generator=run.generator)
    for index in run.order.split(run.config.batch_size)[run.batches :]:
        loss = run.step(index)
        run.batches += 1
        on_batch(loss)
        if asked(run, stop) and run.batches < run.batches_per_epoch:
            return False
    run.epoch, run.batches, run.order = run.epoch + 1, 0, None
    return True


def asked(run: EpochRun, stop: StopSignal) -> bool:
    """Returns whether any process was asked to stop: all of them stop after the same batch."""
    return any(run.machine.sums(int(stop.asked)))


@contextmanager
def progress_of(run: EpochRun, curves: Curves, every: int = 10) -> Iterator[Callable[[Tensor], None]]:
    """Yields a function to call with each batch's loss: shows the way to the end, with the loss and the pace."""
    started, first = time.monotonic(), run.global_step
    progress = Progress(run.steps, run.global_step, LONG, enabled=run.machine.is_main)

    def advance(loss: Tensor) -> None:
        progress.total = run.steps
        end_of_epoch = run.batches == run.batches_per_epoch
        if run.global_step % every and not end_of_epoch:
            return progress.advance()  # reading the loss waits for the device
        value = loss.item()
        pace = (run.global_step - first) * run.config.batch_size / (time.monotonic() - started)
        figures = f"loss {value:.4f}", f"{pace:.0f} {run.unit}/s"
        progress.advance(f"epoch {run.epoch}", *figures)
        curves.scalars("train", {"loss": value, "rate": run.optim.param_groups[0]["lr"]}, run.global_step)
        if progress.enabled and not progress.live and end_of_epoch:
            print(f"epoch {run.epoch}: {', '.join(figures)}", flush=True)

    with progress:
        yield advance
