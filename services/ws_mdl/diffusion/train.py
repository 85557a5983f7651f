"""Trains the noise predictor: `python -m services.ws_mdl.diffusion.train --data digits --epochs 32`.

A run can be stopped at any time and goes on with the same command, bit for bit as if it had not been stopped.
"""

from __future__ import annotations

import copy
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import tyro
from torch import Tensor
from torch.nn import functional

from services.ws_mdl.diffusion import visualize
from services.ws_mdl.diffusion.config import (
    Config,
    config_from,
    refuse_drift,
    run_folder,
    stored_form,
    tensorboard_folder,
)
from services.ws_mdl.diffusion.data import Pictures, load
from services.ws_mdl.diffusion.model import ContextUnet, fused_for_sampling
from services.ws_mdl.diffusion.samplers import sample_ddim_context
from services.ws_mdl.diffusion.schedule import Schedule, perturb_input
from vla_common import endings
from vla_common.volume import Volume, shown
from vla_modelkit.training.machine import Machine, choose_machine
from vla_modelkit.training.progress import Progress
from vla_modelkit.training.weights import State, WeightFiles

PREFIX = "model"
LONG = "Ctrl-C saves, and the same command goes on"


@dataclass
class Training:
    """A run in progress: the network, its averaged twin, and everything the next batch depends on."""

    config: Config
    data: Pictures
    schedule: Schedule
    machine: Machine
    nn_model: ContextUnet
    averaged: ContextUnet
    optim: torch.optim.Optimizer
    generator: torch.Generator  # of the order of the pictures, of times, noise and left-out contexts
    epoch: int = 0  # the one that is next or under way
    batches: int = 0  # done in it
    order: Tensor | None = None  # of the pictures in it
    global_step: int = 0

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self.data.x) // self.config.batch_size)


def get_model(config: Config, data: Pictures) -> ContextUnet:
    """Returns the network for these pictures, with fresh weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return ContextUnet(data.channels, config.n_feat, len(data.classes), data.height)


def get_training(config: Config, machine: Machine, data: Pictures | None = None) -> Training:
    """Returns a run before its first batch."""
    data = data or load(config.data)
    nn_model = get_model(config, data).to(machine.device, memory_format=torch.channels_last)
    data = Pictures(data.name, data.x.to(machine.device), data.labels.to(machine.device), data.classes)
    return Training(
        config=config,
        data=data,
        schedule=config.make_schedule().to(machine.device),
        machine=machine,
        nn_model=nn_model,
        averaged=copy.deepcopy(nn_model).eval(),
        optim=torch.optim.Adam(nn_model.parameters(), lr=config.lrate, fused=machine.device.type in ("cpu", "cuda")),
        generator=torch.Generator().manual_seed(config.seed),
    )


# --- a step -------------------------------------------------------------------------------------------------


def loss_of(run: Training, x: Tensor, labels: Tensor) -> Tensor:
    """Returns how far the predicted noise is from the noise that was added, as a mean square."""
    n, config = len(x), run.config
    noise = torch.randn(x.shape, generator=run.generator).to(x.device)
    t = torch.randint(1, run.schedule.timesteps + 1, (n,), generator=run.generator).to(x.device)
    context = functional.one_hot(labels, len(run.data.classes)).float()
    told = torch.rand((n, 1), generator=run.generator).to(x.device) < config.keep_context
    context = context * told if config.context else torch.zeros_like(context)
    x_pert = perturb_input(run.schedule, x, t, noise).contiguous(memory_format=torch.channels_last)
    with run.machine.autocast():
        pred_noise = run.nn_model(x_pert, run.schedule.time(t), context)
    return functional.mse_loss(pred_noise.float(), noise)


def train_step(run: Training, index: Tensor) -> Tensor:
    """Trains on the pictures of those numbers; returns the loss, still on the device."""
    for group in run.optim.param_groups:
        group["lr"] = run.config.lrate * (1 - run.epoch / run.config.epochs)
    run.nn_model.train()
    loss = loss_of(run, run.data.x[index], run.data.labels[index])
    run.optim.zero_grad(set_to_none=True)
    loss.backward()
    run.optim.step()
    run.global_step += 1
    average(run)
    return loss.detach()


@torch.no_grad()
def average(run: Training) -> None:
    """Moves the averaged weights a little towards the trained ones; in the first steps by more."""
    weight = min(run.config.ema, (1 + run.global_step) / (10 + run.global_step))
    theirs, ours = list(run.averaged.parameters()), list(run.nn_model.parameters())
    torch._foreach_lerp_(theirs, ours, 1 - weight)
    for averaged, current in zip(run.averaged.buffers(), run.nn_model.buffers(), strict=True):
        if averaged.is_floating_point():
            averaged.lerp_(current, 1 - weight)  # the batch norms' own means forget all but the last ten batches
        else:
            averaged.copy_(current)


def train_epoch(run: Training, stop: Stop, on_batch=lambda run, loss: None) -> bool:
    """Trains to the end of the epoch, or of the batch in which a stop was asked for; returns whether it is whole."""
    if run.order is None:
        run.order = torch.randperm(len(run.data.x), generator=run.generator)
    for index in run.order.split(run.config.batch_size)[run.batches :]:
        loss = train_step(run, index.to(run.machine.device))
        run.batches += 1
        on_batch(run, loss)
        if stop.asked and run.batches < run.batches_per_epoch:
            return False
    run.epoch, run.batches, run.order = run.epoch + 1, 0, None
    return True


# --- state --------------------------------------------------------------------------------------------------


def state_of(run: Training) -> State:
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
        "config": stored_form(run.config),
        "classes": list(run.data.classes),
        "channels": run.data.channels,
        "height": run.data.height,
    }


def restore(run: Training, state: State) -> None:
    """Puts a run where the state was taken. Raises ValueError for an imported one, which holds weights alone."""
    if "optimizer_state_dict" not in state:
        raise ValueError(
            f"the weights of '{run.config.name}' were imported without their optimizer: they make pictures, and "
            "training cannot go on from them; give another --name"
        )
    run.nn_model.load_state_dict(state["model_state_dict"])
    run.averaged.load_state_dict(state["averaged_state_dict"])
    run.optim.load_state_dict(state["optimizer_state_dict"])
    run.generator.set_state(state["generator"].cpu())
    run.epoch, run.batches, run.global_step = state["epoch"], state["batches"], state["global_step"]
    run.order = None if state["order"] is None else state["order"].cpu()


def model_from(state: State) -> ContextUnet:
    """Returns the averaged network that a weights file holds, in eval mode."""
    config = config_from(state["config"])
    size = state["channels"], config.n_feat, len(state["classes"]), state["height"]
    nn_model = ContextUnet(*size, state.get("pool"))
    nn_model.load_state_dict(state["averaged_state_dict"])
    return nn_model.eval()


def save(run: Training, files: WeightFiles) -> None:
    """Writes the weights file of where the run is."""
    whole = run.batches == 0
    path = files.path(run.epoch - 1) if whole else files.path(run.epoch, run.batches)
    files.save(path, state_of(run), run.config.keep)


# --- the whole run ------------------------------------------------------------------------------------------


class Stop:
    """Ctrl-C or SIGTERM: the batch under way is finished, then the state is saved. A second one ends at once."""

    asked = False

    def __call__(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Turns the signals that ask a process to end into a Stop while it lasts."""
    stop = Stop()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train_model(config: Config, volume: Volume) -> bool:
    """Trains a run to its end or until it is stopped, and saves it; returns whether it is complete."""
    machine = choose_machine(config.device, config.precision)
    run = get_training(config, machine)
    files = WeightFiles(run_folder(config, volume), PREFIX)
    if found := files.load_chosen(config.preload):
        refuse_drift(config, found[1]["config"], found[0])
        restore(run, found[1])
        print(f"going on from {found[0].name}: epoch {run.epoch}, step {run.global_step}", flush=True)
    print(f"{config.name}: {len(run.data.x)} pictures, {machine}, weights in {shown(files.folder)}", flush=True)
    with stoppable() as stop, board(config, volume, run.global_step) as writer, progress_of(run) as advance:
        while run.epoch < config.epochs and not stop.asked:
            whole = train_epoch(run, stop, lambda run, loss: advance(run, loss, writer))
            if not whole or stop.asked or run.epoch % config.save_every == 0 or run.epoch == config.epochs:
                save(run, files)
            if whole and (run.epoch % config.sample_every == 0 or run.epoch == config.epochs):
                writer.add_image("samples", sample_sheet(run), run.global_step)
    return run.epoch >= config.epochs


def sample_sheet(run: Training, per_class: int = 4) -> Tensor:
    """Returns a picture of DDIM samples, a row for each class: float32 [3, h, w] in [0, 1]."""
    classes = len(run.data.classes)
    labels = torch.arange(classes).repeat_interleave(per_class)
    context = functional.one_hot(labels, classes).float() if run.config.context else None
    nn_model = fused_for_sampling(run.averaged)
    steps = min(20, run.schedule.timesteps)
    x, _ = sample_ddim_context(nn_model, run.schedule, len(labels), context, steps, seed=0, dtype=run.machine.dtype)
    return visualize.grid(x, per_class)


@contextmanager
def board(config: Config, volume: Volume, step: int) -> Iterator[Any]:
    """Yields TensorBoard's writer; what was written after the state a run goes on from is taken back."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tensorboard_folder(config, volume)), purge_step=step or None, flush_secs=10)
    try:
        yield writer
    finally:
        writer.close()


@contextmanager
def progress_of(run: Training, every: int = 10) -> Iterator[Any]:
    """Yields a function to call after each batch: shows the way to the end, with loss and pictures per second."""
    started, first = time.monotonic(), run.global_step
    progress = Progress(run.config.epochs * run.batches_per_epoch, run.global_step, LONG)

    def advance(run: Training, loss: Tensor, writer: Any) -> None:
        end_of_epoch = run.batches == run.batches_per_epoch
        if run.global_step % every and not end_of_epoch:
            return progress.advance()  # reading the loss waits for the device
        value = loss.item()
        rate = (run.global_step - first) * run.config.batch_size / (time.monotonic() - started)
        progress.advance(f"epoch {run.epoch}", f"loss {value:.4f}", f"{rate:.0f} pictures/s")
        writer.add_scalar("train/loss", value, run.global_step)
        writer.add_scalar("train/rate", run.optim.param_groups[0]["lr"], run.global_step)
        if not progress.live and end_of_epoch:
            print(f"epoch {run.epoch}: loss {value:.4f}, {rate:.0f} pictures/s", flush=True)

    with progress:
        yield advance


def main() -> int:
    """Trains by the command line's flags; returns the exit code: 130 when it was stopped and can go on."""
    config = tyro.cli(Config, prog="train diffusion", description=__doc__)
    complete = train_model(config, Volume())
    if complete:
        print(f"trained. Next: ./lab sample diffusion --name {config.name}")
        return 0
    print("stopped and saved; the same command goes on from there")
    return 130


if __name__ == "__main__":
    endings.run(main)
