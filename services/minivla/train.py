"""Train mini-VLA on demonstrations: `python -m services.minivla.train --data goal-oracle --size small`.

A run can be stopped at any time. The same command resumes it and ends with the same bits as an uninterrupted run. Under
torchrun each process computes its share of every batch; the result equals that of one process.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from functools import cached_property

import torch
import tyro
from tokenizers import Tokenizer
from torch import Tensor, distributed

from services.minivla.config import SIZES, Config
from services.minivla.data import DatasetStats, TrainingSteps, augmented, load
from services.minivla.heads import HEADS, Diffusion, Flow, Regression
from services.minivla.model import MiniVLA, Shape
from services.ws_mdl.epochs import LONG, EpochRun, load_run_state, lr_schedule, new_run, train_to_end, update_ema
from vla_common import entrypoint
from vla_common.counts import plural
from vla_common.volume import Volume, display_path
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine, choose_machine, destroy_process_group
from vla_modelkit.training.progress import Progress
from vla_modelkit.training.weights import State, WeightFiles

PREFIX = "minivla"
CLIP = 1.0  # maximum norm of the gradient
MAX_INSTRUCTION_TOKENS = 48
PACE_BATCHES = 12  # batches of the speed measurement, after a third as many for warm-up
FIX_EPOCHS_AFTER = 0.25  # share of the time limit; afterwards the number of epochs is final


class Training(EpochRun):
    """A run in progress; its generator samples data order, image shifts, times and noise."""

    config: Config
    data: TrainingSteps
    nn_model: MiniVLA
    unit = "observations"
    minutes: TimeBudget | None = None  # set if this process started the run with a time limit

    def step(self, index: Tensor) -> Tensor:
        return train_step(self, index)

    def extra_state(self) -> State:
        return {"shape": asdict(self.nn_model.shape), "learned": self.data.learned.stored()}

    def on_epoch_end(self) -> None:
        if self.minutes:
            self.config = replace(self.config, epochs=self.minutes.epochs(self))

    @cached_property
    def head(self) -> Diffusion | Flow | Regression:
        return HEADS[self.config.head]()

    @property
    def draws(self) -> int:
        """Noise samples per observation in a batch; regression has no noise."""
        return 1 if self.config.head == "regression" else self.config.draws


def shape_of(config: Config, learned: DatasetStats, vocabulary: int) -> Shape:
    return Shape(
        cameras=len(learned.cameras) if config.pictures else 0,
        state=len(learned.state.offset) if config.state else 0,
        action=len(learned.action.offset),
        chunk=config.chunk,
        vocabulary=vocabulary,
        words=MAX_INSTRUCTION_TOKENS if config.words else 0,
        **SIZES[config.size],
    )


def get_training(config: Config, machine: TrainingMachine, data: TrainingSteps) -> Training:
    """Return a run before its first batch; its weights depend on the seed alone."""
    vocabulary = Tokenizer.from_str(data.learned.tokenizer).get_vocab_size()
    shape = shape_of(config, data.learned, vocabulary)
    return new_run(Training, config, machine, data, lambda: MiniVLA(shape))


# --- a step -------------------------------------------------------------------------------------------------


def loss_of(run: Training, index: Tensor) -> Tensor:
    """Return this process's share of the mean squared error over the chunks that start at steps `index`.

    Random numbers are sampled for the whole batch before processes take their rows, so their number changes no result.
    """
    data, device = run.data, run.machine.device
    draws = run.draws
    chunk, real = data.chunks(index, run.config.chunk)
    images = augmented(data.images[index], run.generator)
    noise = torch.randn((len(index), draws, *chunk.shape[1:]), generator=run.generator)
    draw = torch.rand((len(index), draws), generator=run.generator)
    rows = slice(run.machine.rank, None, run.machine.world)
    count = int(real.sum()) * draws  # over all processes
    parts = (images, data.instructions[data.task[index]], data.state[index], chunk, real, noise, draw)
    images, instructions, state, chunk, real, noise, draw = (part[rows].to(device) for part in parts)

    chunk, real = (tensor.repeat_interleave(draws, 0) for tensor in (chunk, real))
    x, time_, target = run.head.training_pair(chunk.cpu(), noise.flatten(0, 1).cpu(), draw.flatten().cpu())
    with run.machine.autocast():
        memory = run.nn_model.observe(images, instructions, data.pad, state)
        memory.tokens, memory.mask = (tensor.repeat_interleave(draws, 0) for tensor in (memory.tokens, memory.mask))
        predicted = run.nn_model.denoise(x.to(device), time_.to(device), memory)
    error = (predicted.float() - target.to(device)).square().mean(-1)
    return (error * real).sum() / count


def train_step(run: Training, index: Tensor) -> Tensor:
    """Train on steps `index`; return the loss, still on the device."""
    for group in run.optim.param_groups:
        group["lr"] = run.config.lrate * lr_schedule(run.global_step, run.config.warmup, run.steps)
    run.nn_model.train()
    loss = loss_of(run, index)
    run.optim.zero_grad(set_to_none=True)
    loss.backward()
    loss = loss.detach()
    if run.machine.world > 1:  # sum gradients and losses over processes
        grads = [p.grad for p in run.nn_model.parameters()]
        flat = torch.cat([loss.reshape(1), *(grad.flatten() for grad in grads)])
        distributed.all_reduce(flat)
        loss = flat[0]
        for grad, part in zip(grads, flat[1:].split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))
    torch.nn.utils.clip_grad_norm_(run.nn_model.parameters(), CLIP)
    run.optim.step()
    run.global_step += 1
    update_ema(run)
    return loss


# --- state --------------------------------------------------------------------------------------------------


def restore(run: Training, state: State, path: object) -> None:
    """Load a run's state. Raises ValueError if the data set has changed."""
    if (then := state["learned"]["digest"]) != run.data.learned.digest:
        raise ValueError(
            f"{path} was trained on {state['learned']['data']} ({then}), but {run.config.data} is now "
            f"{run.data.learned.digest}; use another --name to start a new training"
        )
    load_run_state(run, state)


def model_from(state: State) -> tuple[MiniVLA, Config, DatasetStats]:
    """Return the averaged network of a weights file in eval mode, its settings and its data statistics."""
    nn_model = MiniVLA(Shape(**state["shape"]))
    nn_model.load_state_dict(state["averaged_state_dict"])
    return nn_model.eval(), Config.of(state["config"]), DatasetStats.of(state["learned"])


# --- the whole run ------------------------------------------------------------------------------------------


def train_model(config: Config, volume: Volume) -> bool:
    """Train until the run is complete or stopped, save it, and return whether it is complete."""
    machine = choose_machine(config.device, config.precision)
    with Progress(1, enabled=machine.is_main) as progress:  # videos are decoded once

        def on_episode(done: int, total: int) -> None:
            progress.total = total
            progress.advance("reading demonstrations")

        data = load(config, on_episode)
    files = WeightFiles(config.run_directory(volume), PREFIX)
    log = print if machine.is_main else lambda *_, **__: None
    checkpoint, max_epochs = files.load_for_resume(config.preload), config.epochs
    if config.minutes:
        epochs = checkpoint[1]["config"]["epochs"] if checkpoint else epochs_that_fit(config, machine, data)
        config = replace(config, epochs=epochs)
        prefix = "" if checkpoint else "about "
        log(f"{prefix}{plural(epochs, 'epoch')} in at most {config.minutes:g} minutes", flush=True)
    run = get_training(config, machine, data)
    run.minutes = TimeBudget(config.minutes, max_epochs) if config.minutes and not checkpoint else None
    if checkpoint:
        config.check_same_settings(checkpoint[1]["config"], checkpoint[0])
        restore(run, checkpoint[1], checkpoint[0])
        log(f"resuming from {checkpoint[0].name}: epoch {run.epoch}, step {run.global_step}", flush=True)
    summary = f"{plural(run.data.learned.demonstrations, 'demonstration')}, {plural(len(run.data), 'step')}"
    if run.data.left_out:
        summary += f" ({run.data.left_out})"
    log(f"{config.name}: {summary}, {machine}, weights in {display_path(files.directory)}", flush=True)
    curves = Curves(config.tensorboard_directory(volume) if machine.is_main else None, run.global_step)
    return train_to_end(run, files, curves)


class TimeBudget:
    """The number of epochs that fits a time limit, from the speed of the finished epochs.

    `epochs_that_fit` estimates it before the first epoch; that two-second measurement may be disturbed by other load.
    """

    def __init__(self, minutes: float, max_epochs: int) -> None:
        self.all_s, self.started, self.max_epochs = 60 * minutes, time.monotonic(), max_epochs

    def epochs(self, run: Training) -> int:
        """Return the updated number of epochs; late in the run it no longer changes.

        An early change hardly affects the learning rate, which decays late.
        """
        passed_ms = round(1000 * (time.monotonic() - self.started))
        [ms] = run.machine.all_reduce(passed_ms)  # all processes must agree
        passed_s = max(1, ms) / 1000 / run.machine.world
        if passed_s > FIX_EPOCHS_AFTER * self.all_s and run.epoch > 1:
            return run.config.epochs
        return max(run.epoch, min(self.max_epochs, int(self.all_s / passed_s * run.epoch)))


def epochs_that_fit(config: Config, machine: TrainingMachine, data: TrainingSteps) -> int:
    """Estimate from a few discarded batches how many of config.epochs fit into config.minutes."""
    trial = get_training(config, machine, data)
    generator = torch.Generator().manual_seed(config.seed)
    for number in range(PACE_BATCHES + PACE_BATCHES // 3):
        if number == PACE_BATCHES // 3:
            started = time.monotonic()
        train_step(trial, torch.randint(len(data), (config.batch_size,), generator=generator)).item()
    batch_s = (time.monotonic() - started) / PACE_BATCHES
    [ms] = machine.all_reduce(round(1000 * batch_s))  # all processes must agree
    fit = int(60_000 * config.minutes / (ms / machine.world) / trial.batches_per_epoch)
    return max(1, min(config.epochs, fit))


def main() -> int:
    """Train; return the exit code: 130 if the run was stopped and can be resumed."""
    config = tyro.cli(Config, prog="train minivla", description=__doc__)
    try:
        complete = train_model(config, Volume())
    finally:
        destroy_process_group()
    print("trained. Next: ./lab eval SUITE --policy minivla" if complete else "stopped and saved; " + LONG)
    return 0 if complete else 130


if __name__ == "__main__":
    entrypoint.run(main)
