"""The run that every practice lab shares: a step, what is measured after an epoch, saving, going on.

A lab's `train.py` says three things: what a batch's loss is, what is measured on held-out data, and what is shown at
the end. All else (order, rate, averaging, weight files, curves, Ctrl-C) is the same for all of them and is done here.
"""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import tyro
from torch import Tensor, nn

from services.ws_mdl.epochs import LONG, EpochRun, average, put_back, rate, train_to_end
from services.ws_mdl.practice.settings import PracticeSettings
from vla_common.volume import Volume, shown
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import Machine, choose_machine
from vla_modelkit.training.weights import State, WeightFiles

Figures = dict[str, float]  # name with its unit, as in "accuracy_percent" → number


class PracticeRun(EpochRun):
    """A practice lab's run in progress. `data` has a length: the examples that are learned from."""

    config: PracticeSettings
    about: ClassVar[str] = ""  # what the run says of its data when it begins

    @abstractmethod
    def loss(self, index: Tensor) -> Tensor:
        """Returns the loss of the examples of those numbers; what is random is drawn from `self.generator`."""

    @abstractmethod
    def measure(self) -> Figures:
        """Returns what the averaged network comes to on held-out data. It draws nothing from `self.generator`."""

    def show(self, folder: Path, curves: Curves) -> str:
        """Returns what a person should see of the trained network; pictures go to the folder and to the curves."""
        return ""

    def own_state(self) -> State:
        """Returns what the lab's weights file holds beside what every practice lab's does; `super`'s is among it."""
        return {"data": self.digest()}

    def digest(self) -> str:
        """Returns hex digits that change with what is learned from: a run does not go on with other data."""
        return ""

    def step(self, index: Tensor) -> Tensor:
        return train_step(self, index)


# --- a step -------------------------------------------------------------------------------------------------


def train_step(run: PracticeRun, index: Tensor) -> Tensor:
    """Trains on the examples of those numbers; returns the loss, still on the device."""
    for group in run.optim.param_groups:
        group["lr"] = run.config.lrate * rate(run.global_step, run.config.warmup, run.steps)
    run.nn_model.train()
    with torch.random.fork_rng(devices=[run.machine.device] if run.machine.device.type == "cuda" else []):
        torch.manual_seed(dropout_seed(run.config.seed, run.global_step))
        with run.machine.autocast():
            loss = run.loss(index)
    run.optim.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(run.nn_model.parameters(), run.config.clip)
    run.optim.step()
    run.global_step += 1
    average(run)
    return loss.detach()


def dropout_seed(seed: int, step: int) -> int:
    """Returns a seed that depends on those two alone, so that a run that goes on drops the same numbers."""
    return random.Random(f"{seed} {step}").getrandbits(32)


# --- the whole run ------------------------------------------------------------------------------------------

Begin = Callable[[Any, Machine, Volume], PracticeRun]  # of a lab: its configuration, where it computes, the volume


def files_of(config: PracticeSettings, volume: Volume) -> WeightFiles:
    """Returns a run's weight files: checkpoints/<lab>/<run>/<lab>_NN.pt on the volume."""
    return WeightFiles(config.run_folder(volume), config.LAB)


def train_model(config: PracticeSettings, volume: Volume, get_training: Begin) -> PracticeRun:
    """Trains a run to its end or until it is stopped, saves it, and returns it."""
    machine = choose_machine(config.device, config.precision)
    files = files_of(config, volume)
    found = files.load_chosen(config.preload)
    if found:
        config.refuse_drift(found[1]["config"], found[0])
    run = get_training(config, machine, volume)
    if found:
        refuse_other_data(run, found[1].get("data"), found[0])
        put_back(run, found[1])
        print(f"going on from {found[0].name}: epoch {run.epoch}, step {run.global_step}", flush=True)
    print(f"{config.name}: {run.about}, {machine}, weights in {shown(files.folder)}", flush=True)
    curves = Curves(config.tensorboard_folder(volume), run.global_step)

    def on_epoch(run: PracticeRun) -> None:
        if run.epoch % config.measure_every == 0 or run.epoch == config.epochs:
            figures = run.measure()
            curves.scalars("held out", figures, run.global_step)
            print(f"epoch {run.epoch}, held out: {told(figures)}", flush=True)
        if run.epoch == config.epochs:
            print(run.show(files.folder, curves), flush=True)

    train_to_end(run, files, curves, on_epoch)
    return run


def refuse_other_data(run: PracticeRun, then: str | None, path: Path) -> None:
    """Raises ValueError where a run would go on with other data than it began with."""
    if then != (now := run.digest()):
        raise ValueError(
            f"{path} was trained on other data ({then}) than is there now ({now}); give another --name to start anew"
        )


def digest_of(*parts: Tensor | str) -> str:
    """Returns 16 hex digits that change with tensors and texts."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else part.cpu().contiguous().numpy().data)
    return found.hexdigest()[:16]


def told(figures: Figures) -> str:
    """Returns figures as a line: "accuracy 97.2 %, loss 0.12"; a name that ends in _percent is in percent."""

    def one(name: str, value: float) -> str:
        percent = name.endswith("_percent")
        return f"{name.removesuffix('_percent').replace('_', ' ')} {value:.4g}{' %' if percent else ''}"

    return ", ".join(one(*figure) for figure in figures.items())


def main_of(config_class: type[PracticeSettings], get_training: Begin, about: str, then: str) -> int:
    """Trains by the command line's flags; returns the exit code: 130 when it was stopped and can go on.

    about: what help says. then: what can be done next.
    """
    config = tyro.cli(config_class, prog=f"train {config_class.LAB}", description=about)
    run = train_model(config, Volume(), get_training)
    complete = run.epoch >= config.epochs
    print(f"trained. Next: {then}" if complete else "stopped and saved; " + LONG)
    return 0 if complete else 130


def trained(config_class: type[PracticeSettings], name: str, volume: Volume) -> State:
    """Returns the newest state of a run. Raises ValueError where there is none of that name."""
    folder = config_class.runs_folder(volume) / name
    found = WeightFiles(folder, config_class.LAB).load_latest()
    if found is None:
        raise ValueError(f"no trained {config_class.LAB} '{name}'; first: ./lab train {config_class.LAB} --name {name}")
    return found[1]
