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
from torch.nn.functional import smooth_l1_loss

from services.minivla.config import SIZES, Config
from services.minivla.data import DatasetStats, Scenes, TrainingSteps, augmented, load, muffled
from services.minivla.heads import HEADS, Diffusion, Flow, Regression
from services.minivla.model import Looks, MiniVLA, Shape
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
UNKNOWN = 0  # id of [UNK]
IMAGE_WEIGHT = 0.1  # of the loss of places in images, in nats
ROUND = 0.1  # error of a place (about 1 cm) below which the loss is quadratic
PACE_BATCHES = 12  # batches of the speed measurement, after a third as many for warm-up
ACTING_WORK = 0.2  # time of a batch of acting, in batches of seeing
LOOKING_SHARE = 0.7  # of the time limit, for learning to see
FIX_EPOCHS_AFTER = 0.25  # share of such a part; afterwards the number of epochs is final


class Training(EpochRun):
    """A run in progress; its generator samples data order, image shifts, times and noise."""

    config: Config
    data: TrainingSteps
    nn_model: MiniVLA
    unit = "observations"
    minutes: TimeBudget | None = None  # set if this process started the run with a time limit

    def step(self, index: Tensor) -> Tensor:
        return train_step(self, index)

    @property
    def looking(self) -> int:
        """Epochs of learning to see, before those of acting."""
        return self.config.looks if self.data.scenes is not None else 0

    @property
    def acting(self) -> int:
        """Epochs of learning to act."""
        return self.config.acts if self.looking else self.config.epochs

    @property
    def epochs(self) -> int:
        return self.looking + self.acting

    def work(self, batches: int) -> float:
        seeing = min(batches, self.looking * self.batches_per_epoch)
        return seeing + (ACTING_WORK if self.looking else 1) * (batches - seeing)

    @property
    def part(self) -> tuple[int, int]:
        """Batches of the current part, seeing or acting: finished, and in all."""
        seeing = self.looking * self.batches_per_epoch
        begun, end = (seeing, self.steps) if self.epoch >= self.looking else (0, seeing)
        return self.global_step - begun, end - begun

    @property
    def sees(self) -> bool:
        """Whether it has learned to see from scenes; then only the rest of the network learns."""
        return 0 < self.looking <= self.epoch

    def extra_state(self) -> State:
        return {"shape": asdict(self.nn_model.shape), "learned": self.data.learned.stored()}

    def on_epoch_end(self) -> None:
        if self.minutes:
            self.config = self.minutes.adjusted(self)

    @cached_property
    def head(self) -> Diffusion | Flow | Regression:
        return HEADS[self.config.head]()

    @property
    def draws(self) -> int:
        """Noise samples per observation in a batch; regression has no noise."""
        return 1 if self.config.head == "regression" else self.config.draws


def shape_of(config: Config, learned: DatasetStats, vocabulary: int, sees: bool) -> Shape:
    return Shape(
        cameras=len(learned.cameras) if config.pictures else 0,
        state=len(learned.state.offset) if config.state else 0,
        action=len(learned.action.offset),
        chunk=config.chunk,
        vocabulary=vocabulary,
        words=MAX_INSTRUCTION_TOKENS if config.words else 0,
        answers=not sees,
        **SIZES[config.size],
    )


def get_training(config: Config, machine: TrainingMachine, data: TrainingSteps) -> Training:
    """Return a run before its first batch; its weights depend on the seed alone."""
    vocabulary = Tokenizer.from_str(data.learned.tokenizer).get_vocab_size()
    shape = shape_of(config, data.learned, vocabulary, data.scenes is not None)
    return new_run(Training, config, machine, data, lambda: MiniVLA(shape))


# --- a step -------------------------------------------------------------------------------------------------


def words_of(run: Training, task: Tensor) -> Tensor:
    """Return the instructions [B, L] of tasks [B] as a hasty listener hears them."""
    data = run.data
    return muffled(data.instructions[task], data.pad, UNKNOWN, data.common, run.generator)


def looking_loss(run: Training, scenes: Scenes) -> Tensor:
    """Return this process's share of the loss over random scenes: where the things are, in the images and in space."""
    device = run.machine.device
    index = torch.randint(len(scenes), (run.config.batch_size,), generator=run.generator)
    images = augmented(scenes.images[index], run.generator, shift=False)  # a shift would move the things
    parts = (images, words_of(run, scenes.task[index]), scenes.state[index], scenes.places[index], scenes.pixels[index])
    rows = slice(run.machine.rank, None, run.machine.world)
    images, words, state, places, pixels = (part[rows].to(device) for part in parts)
    with run.machine.autocast():
        looks = run.nn_model.look(images, words, run.data.pad, state)
    in_images = -(run.nn_model.eyes[0].cells(pixels) * looks.cells).sum(-1).mean((1, 2))
    in_space = smooth_l1_loss(looks.places, places, reduction="none", beta=ROUND).mean((1, 2))
    return (IMAGE_WEIGHT * in_images + in_space).sum() / len(index)


def fix_seeing(run: Training) -> None:
    """End the learning to see: fix the averaged weights of `look`."""
    for weight, averaged in zip(run.nn_model.eyesight(), run.averaged.eyesight(), strict=True):
        weight.requires_grad_(False).copy_(averaged.detach())


def loss_of(run: Training, index: Tensor) -> Tensor:
    """Return this process's share of the mean error over the chunks that start at steps `index`.

    The error is absolute for regression, else squared.

    Random numbers are sampled for the whole batch before processes take their rows, so their number changes no result.
    """
    data, device = run.data, run.machine.device
    draws = run.draws
    chunk, real = data.chunks(index, run.config.chunk)
    scenes = data.scenes
    seen = augmented(data.images[index], run.generator) if scenes is None else scenes.steps[index]
    noise = torch.randn((len(index), draws, *chunk.shape[1:]), generator=run.generator)
    draw = torch.rand((len(index), draws), generator=run.generator)
    rows = slice(run.machine.rank, None, run.machine.world)
    count = int(real.sum()) * draws  # over all processes
    parts = (words_of(run, data.task[index]), data.state[index], chunk, real, noise, draw, seen)
    words, state, chunk, real, noise, draw, seen = (part[rows].to(device) for part in parts)

    chunk, real = (tensor.repeat_interleave(draws, 0) for tensor in (chunk, real))
    x, time_, target = run.head.training_pair(chunk.cpu(), noise.flatten(0, 1).cpu(), draw.flatten().cpu())
    with run.machine.autocast():
        if scenes is None:
            memory = run.nn_model.observe(seen, words, data.pad, state)
        else:  # acts on places alone, here on the true ones: so no demonstration needs an image
            empty = torch.zeros(0)
            memory = run.nn_model.encode(Looks(empty, empty, seen), words, data.pad, state)
        memory.tokens, memory.mask = (tensor.repeat_interleave(draws, 0) for tensor in (memory.tokens, memory.mask))
        predicted = run.nn_model.denoise(x.to(device), time_.to(device), memory)
    gap = predicted.float() - target.to(device)
    error = (gap.abs() if run.config.head == "regression" else gap.square()).mean(-1)
    return (error * real).sum() / count


def train_step(run: Training, index: Tensor) -> Tensor:
    """Train on steps `index`, or on as many scenes; return the loss, still on the device."""
    if run.sees and run.nn_model.asks.requires_grad:
        fix_seeing(run)
    done, batches = run.part
    for group in run.optim.param_groups:
        group["lr"] = run.config.lrate * lr_schedule(done, run.config.warmup, batches)
    run.nn_model.train()
    scenes = run.data.scenes if run.epoch < run.looking else None
    loss = loss_of(run, index) if scenes is None else looking_loss(run, scenes)
    run.optim.zero_grad(set_to_none=True)
    loss.backward()
    loss = loss.detach()
    if run.machine.world > 1:  # sum gradients and losses over processes
        grads = [p.grad for p in run.nn_model.parameters() if p.grad is not None]
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


def require_shape(state: State, path: object) -> None:
    """Raise ValueError for weights of an earlier version's network."""
    if "answers" not in state["shape"]:
        raise ValueError(
            f"{path} holds the network of an earlier version; train it again: "
            f"./lab train minivla --data {state['learned']['data']} --name NAME"
        )


def model_from(state: State, path: object) -> tuple[MiniVLA, Config, DatasetStats]:
    """Return the averaged network of a weights file in eval mode, its settings and its data statistics.

    Raises ValueError for an earlier version's network.
    """
    require_shape(state, path)
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
    checkpoint, asked = files.load_for_resume(config.preload), config
    if checkpoint:
        require_shape(checkpoint[1], checkpoint[0])
    if config.minutes and checkpoint:
        config = replace(config, **{name: checkpoint[1]["config"][name] for name in ("looks", "acts", "epochs")})
    elif config.minutes:
        config = epochs_that_fit(config, machine, data)
    run = get_training(config, machine, data)
    if config.minutes:
        prefix, seeing = "" if checkpoint else "about ", f"{run.looking} of seeing and " if run.looking else ""
        log(f"{prefix}{seeing}{plural(run.acting, 'epoch')} in at most {config.minutes:g} minutes", flush=True)
    run.minutes = TimeBudget(asked) if config.minutes and not checkpoint else None
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
    """The numbers of epochs that fit a time limit, from the speed of the finished ones.

    `epochs_that_fit` estimates them before the first epoch; that short measurement may be disturbed by other load.
    """

    def __init__(self, asked: Config) -> None:
        self.asked, self.started = asked, time.monotonic()
        self.looked_s = 0.0  # how long the learning to see took

    def adjusted(self, run: Training) -> Config:
        """Return the settings with the updated number of epochs; late in its part of the run it no longer changes.

        An early change hardly affects the learning rate, which decays late.
        """
        passed_ms = round(1000 * (time.monotonic() - self.started))
        [ms] = run.machine.all_reduce(passed_ms)  # all processes must agree
        passed_s, all_s = max(1, ms) / 1000 / run.machine.world, 60 * self.asked.minutes
        is_looking = run.epoch <= run.looking
        name, part_s = ("acts" if run.looking else "epochs"), all_s - self.looked_s
        if is_looking:
            name, part_s = "looks", LOOKING_SHARE * all_s
        done, spent_s = (run.epoch, passed_s) if is_looking else (run.epoch - run.looking, passed_s - self.looked_s)
        config = run.config
        if done == 1 or spent_s <= FIX_EPOCHS_AFTER * part_s:
            fit = max(done, min(getattr(self.asked, name), int(part_s / spent_s * done)))
            config = replace(config, **{name: fit})
        if run.epoch == config.looks:
            self.looked_s = passed_s
        return config


def epochs_that_fit(config: Config, machine: TrainingMachine, data: TrainingSteps) -> Config:
    """Return the settings with as many epochs as fit into config.minutes, estimated from a few discarded batches.

    With scenes these learn to see; epochs of acting take a fraction of their time, and are counted when they run.
    """
    trial = get_training(config, machine, data)
    generator = torch.Generator().manual_seed(config.seed)
    for number in range(PACE_BATCHES + PACE_BATCHES // 3):
        if number == PACE_BATCHES // 3:
            started = time.monotonic()
        train_step(trial, torch.randint(len(data), (config.batch_size,), generator=generator)).item()
    batch_s = (time.monotonic() - started) / PACE_BATCHES
    [ms] = machine.all_reduce(round(1000 * batch_s))  # all processes must agree
    fit = 60_000 * config.minutes / (ms / machine.world) / trial.batches_per_epoch
    if trial.looking:
        return replace(config, looks=min(config.looks, max(2, int(LOOKING_SHARE * fit))))  # the rate falls late
    return replace(config, epochs=max(1, min(config.epochs, int(fit))))


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
