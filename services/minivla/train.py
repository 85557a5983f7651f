"""Trains mini-VLA on demonstrations: `python -m services.minivla.train --data goal-oracle --size small`.

A run can be stopped at any time and goes on with the same command, bit for bit as if it had not been stopped. Under
torchrun every process takes its share of each batch; together they take the steps that one process would.
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
from services.minivla.data import Demonstrations, Learned, augmented, load
from services.minivla.heads import HEADS, Diffusion, Flow, Regression
from services.minivla.model import MiniVLA, Shape
from services.ws_mdl.epochs import LONG, EpochRun, average, begin, put_back, rate, train_to_end
from vla_common import endings
from vla_common.counts import plural
from vla_common.volume import Volume, shown
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import Machine, choose_machine, leave
from vla_modelkit.training.progress import Progress
from vla_modelkit.training.weights import State, WeightFiles

PREFIX = "minivla"
CLIP = 1.0  # of the gradient's norm
WORDS = 48  # most words of an instruction
PACE = 12  # batches to guess the pace by, after a third as many that are not counted
SURE = 0.25  # of the minutes have passed: from then on the number of epochs stays


class Training(EpochRun):
    """A run in progress; its generator draws the order, shifts, times and noise."""

    config: Config
    data: Demonstrations
    nn_model: MiniVLA
    unit = "observations"
    minutes: Minutes | None = None  # of a run that began with these

    def step(self, index: Tensor) -> Tensor:
        return train_step(self, index)

    def own_state(self) -> State:
        return {"shape": asdict(self.nn_model.shape), "learned": self.data.learned.stored()}

    def ended_epoch(self) -> None:
        if self.minutes:
            self.config = replace(self.config, epochs=self.minutes.epochs(self))

    @cached_property
    def head(self) -> Diffusion | Flow | Regression:
        return HEADS[self.config.head]()

    @property
    def draws(self) -> int:
        """Chunks of each observation in a batch: without noise they would all be one."""
        return 1 if self.config.head == "regression" else self.config.draws


def shape_of(config: Config, learned: Learned, vocabulary: int) -> Shape:
    """Returns what the network of a run is built for."""
    return Shape(
        cameras=len(learned.cameras) if config.pictures else 0,
        state=len(learned.state.offset) if config.state else 0,
        action=len(learned.action.offset),
        chunk=config.chunk,
        vocabulary=vocabulary,
        words=WORDS if config.words else 0,
        **SIZES[config.size],
    )


def get_training(config: Config, machine: Machine, data: Demonstrations) -> Training:
    """Returns a run before its first batch; its weights depend on the seed alone."""
    vocabulary = Tokenizer.from_str(data.learned.tokenizer).get_vocab_size()
    shape = shape_of(config, data.learned, vocabulary)
    return begin(Training, config, machine, data, lambda: MiniVLA(shape))


# --- a step -------------------------------------------------------------------------------------------------


def loss_of(run: Training, index: Tensor) -> Tensor:
    """Returns this process's share of the mean square of what was predicted wrong in the chunks of those steps.

    All random numbers are drawn for the whole batch, then each process takes its rows: two make what one would.
    """
    data, device = run.data, run.machine.device
    draws = run.draws
    chunk, real = data.chunks(index, run.config.chunk)
    images = augmented(data.pictures[index], run.generator)
    noise = torch.randn((len(index), draws, *chunk.shape[1:]), generator=run.generator)
    draw = torch.rand((len(index), draws), generator=run.generator)
    mine = slice(run.machine.rank, None, run.machine.world)
    count = int(real.sum()) * draws  # of all processes
    parts = (images, data.words[data.task[index]], data.state[index], chunk, real, noise, draw)
    images, words, state, chunk, real, noise, draw = (part[mine].to(device) for part in parts)

    chunk, real = (one.repeat_interleave(draws, 0) for one in (chunk, real))
    x, time_, wanted = run.head.training_pair(chunk.cpu(), noise.flatten(0, 1).cpu(), draw.flatten().cpu())
    with run.machine.autocast():
        memory = run.nn_model.observe(images, words, data.pad, state)
        memory.tokens, memory.mask = (one.repeat_interleave(draws, 0) for one in (memory.tokens, memory.mask))
        predicted = run.nn_model.denoise(x.to(device), time_.to(device), memory)
    wrong = (predicted.float() - wanted.to(device)).square().mean(-1)
    return (wrong * real).sum() / count


def train_step(run: Training, index: Tensor) -> Tensor:
    """Trains on the steps of those numbers; returns the loss, still on the device."""
    for group in run.optim.param_groups:
        group["lr"] = run.config.lrate * rate(run.global_step, run.config.warmup, run.steps)
    run.nn_model.train()
    loss = loss_of(run, index)
    run.optim.zero_grad(set_to_none=True)
    loss.backward()
    loss = share(run, loss.detach())
    torch.nn.utils.clip_grad_norm_(run.nn_model.parameters(), CLIP)
    run.optim.step()
    run.global_step += 1
    average(run)
    return loss


def share(run: Training, loss: Tensor) -> Tensor:
    """Adds up the processes' gradients and their losses; returns the loss of the whole batch."""
    if run.machine.world == 1:
        return loss
    grads = [p.grad for p in run.nn_model.parameters()]
    flat = torch.cat([loss.reshape(1), *(grad.flatten() for grad in grads)])
    distributed.all_reduce(flat)
    for grad, part in zip(grads, flat[1:].split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(part.view_as(grad))
    return flat[0]


# --- state --------------------------------------------------------------------------------------------------


def restore(run: Training, state: State, path: object) -> None:
    """Puts a run where the state was taken. Raises ValueError where the data set has changed since."""
    if (then := state["learned"]["digest"]) != run.data.learned.digest:
        raise ValueError(
            f"{path} learned from {state['learned']['data']} ({then}); {run.config.data} now is "
            f"{run.data.learned.digest}; give another --name to start anew"
        )
    put_back(run, state)


def model_from(state: State) -> tuple[MiniVLA, Config, Learned]:
    """Returns the averaged network of a weights file in eval mode, how it was trained and what on."""
    nn_model = MiniVLA(Shape(**state["shape"]))
    nn_model.load_state_dict(state["averaged_state_dict"])
    return nn_model.eval(), Config.of(state["config"]), Learned.of(state["learned"])


# --- the whole run ------------------------------------------------------------------------------------------


def train_model(config: Config, volume: Volume) -> bool:
    """Trains a run to its end or until it is stopped, and saves it; returns whether it is complete."""
    machine = choose_machine(config.device, config.precision)
    data, files = loaded(config, machine), WeightFiles(config.run_directory(volume), PREFIX)
    say = print if machine.is_main else lambda *_, **__: None
    found, most = files.load_chosen(config.preload), config.epochs
    if config.minutes:
        config = replace(config, epochs=found[1]["config"]["epochs"] if found else fitting(config, machine, data))
        known = "" if found else "about "
        say(f"{known}{plural(config.epochs, 'epoch')} in at most {config.minutes:g} minutes", flush=True)
    run = get_training(config, machine, data)
    run.minutes = Minutes(config.minutes, most) if config.minutes and not found else None
    if found:
        config.refuse_drift(found[1]["config"], found[0])
        restore(run, found[1], found[0])
        say(f"going on from {found[0].name}: epoch {run.epoch}, step {run.global_step}", flush=True)
    about = f"{plural(run.data.learned.demonstrations, 'demonstration')}, {plural(len(run.data), 'step')}"
    if run.data.left_out:
        about += f" ({run.data.left_out})"
    say(f"{config.name}: {about}, {machine}, weights in {shown(files.directory)}", flush=True)
    curves = Curves(config.tensorboard_directory(volume) if machine.is_main else None, run.global_step)
    return train_to_end(run, files, curves)


class Minutes:
    """How many of the epochs asked for fit into some minutes, by the pace of those that were done.

    The trial before the first one guesses: what it takes two seconds to measure may just then have been slowed down.
    """

    def __init__(self, minutes: float, most: int) -> None:
        self.all_s, self.started, self.most = 60 * minutes, time.monotonic(), most

    def epochs(self, run: Training) -> int:
        """Returns the run's number of epochs, reckoned anew; late in the minutes what it is.

        A number that changes early hardly changes the learning rate, which falls late.
        """
        passed_ms = round(1000 * (time.monotonic() - self.started))
        [ms] = run.machine.sums(passed_ms)  # all processes must come to one number
        passed_s = max(1, ms) / 1000 / run.machine.world
        if passed_s > SURE * self.all_s and run.epoch > 1:
            return run.config.epochs
        return max(run.epoch, min(self.most, int(self.all_s / passed_s * run.epoch)))


def fitting(config: Config, machine: Machine, data: Demonstrations) -> int:
    """Returns how many of the epochs this machine does in the minutes, both configuration's, by a trial thrown away."""
    trial = get_training(config, machine, data)
    generator = torch.Generator().manual_seed(config.seed)
    for number in range(PACE + PACE // 3):
        if number == PACE // 3:
            started = time.monotonic()
        train_step(trial, torch.randint(len(data), (config.batch_size,), generator=generator)).item()
    batch_s = (time.monotonic() - started) / PACE
    [ms] = machine.sums(round(1000 * batch_s))  # all processes must come to one number
    fit = int(60_000 * config.minutes / (ms / machine.world) / trial.batches_per_epoch)
    return max(1, min(config.epochs, fit))


def loaded(config: Config, machine: Machine) -> Demonstrations:
    """Returns the data set, with progress: its films are decoded once."""
    with Progress(1, enabled=machine.is_main) as progress:

        def told(done: int, total: int) -> None:
            progress.total = total
            progress.advance("reading demonstrations")

        return load(config, told)


def main() -> int:
    """Trains by the command line's flags; returns the exit code: 130 when it was stopped and can go on."""
    config = tyro.cli(Config, prog="train minivla", description=__doc__)
    try:
        complete = train_model(config, Volume())
    finally:
        leave()
    print("trained. Next: ./lab eval SUITE --policy minivla" if complete else "stopped and saved; " + LONG)
    return 0 if complete else 130


if __name__ == "__main__":
    endings.run(main)
