"""The training run that every practice lab shares: steps, measurements after an epoch, weight files, resuming.

A lab subclasses `PracticeRun` and defines the loss of a batch, the figures on held-out data, and the output at the end.
"""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import tyro
from matplotlib.figure import Figure
from torch import Tensor, nn

from services.ws_mdl.epochs import LONG, EpochRun, load_run_state, lr_schedule, train_run, update_ema
from services.ws_mdl.practice.settings import PracticeSettings
from vla_common import entrypoint
from vla_common.volume import Volume, display_path
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine, choose_machine
from vla_modelkit.training.weights import State

Figures = dict[str, float]  # name with its unit, as in "accuracy_percent" → number


class PracticeRun(EpochRun):
    """A practice lab's run in progress. `data` has a length: the number of training examples."""

    config: PracticeSettings

    @abstractmethod
    def loss(self, index: Tensor) -> Tensor:
        """Return the loss of the examples `index`; random numbers come from `self.generator`."""

    @abstractmethod
    def measure(self) -> Figures:
        """Return figures of the averaged network on held-out data, without using `self.generator`."""

    def show(self, directory: Path, curves: Curves) -> str:
        """Return text about the trained network; write its images to the directory and to the curves."""
        return ""

    @abstractmethod
    def digest(self) -> str:
        """Return hex digits that identify the training data; a run resumes only with the same data."""

    def extra_state(self) -> State:
        """Return what identifies the data, and a text lab's tokenizer."""
        tokenizer = getattr(self.data, "tokenizer", None)
        return {"data": self.digest(), **({"tokenizer": tokenizer.to_str()} if tokenizer else {})}

    def save_figure(self, name: str, figure: Figure, directory: Path, curves: Curves) -> str:
        """Save a figure as PNG and next to the curves; return its path for the terminal."""
        curves.writer.add_figure(name, figure, self.global_step)
        figure.savefig(directory / f"{name}.png", dpi=110)
        return display_path(directory / f"{name}.png")

    def restore(self, state: State, path: Path) -> None:
        if (previous := state.get("data")) != (now := self.digest()):
            raise ValueError(
                f"{path} was trained on other data ({previous}) than is there now ({now}); "
                "use another --name to start a new run"
            )
        load_run_state(self, state)

    def after_save(self, directory: Path, curves: Curves) -> None:
        config, is_last = self.config, self.epoch == self.config.epochs
        if self.epoch % config.measure_every == 0 or is_last:
            figures = self.measure()
            curves.scalars("held out", figures, self.global_step)
            print(f"epoch {self.epoch}, held out: {format_figures(figures)}", flush=True)
        if is_last:
            print(self.show(directory, curves), flush=True)

    def step(self, index: Tensor) -> Tensor:
        for group in self.optim.param_groups:
            group["lr"] = self.config.lrate * lr_schedule(self.global_step, self.config.warmup, self.steps)
        self.nn_model.train()
        with torch.random.fork_rng(devices=[self.machine.device] if self.machine.device.type == "cuda" else []):
            # dropout follows from seed and step alone: a resumed run drops the same numbers
            torch.manual_seed(random.Random(f"{self.config.seed} {self.global_step}").getrandbits(32))
            with self.machine.autocast():
                loss = self.loss(index)
        self.optim.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.nn_model.parameters(), self.config.clip)
        self.optim.step()
        self.global_step += 1
        update_ema(self)
        return loss.detach()


Begin = Callable[[Any, TrainingMachine, Volume], PracticeRun]  # returns a run before its first batch


def train_model(config: PracticeSettings, volume: Volume, get_training: Begin) -> PracticeRun:
    """Train a run until it is complete or stopped, save it, and return it."""
    machine = choose_machine(config.device, config.precision)
    return train_run(config, machine, volume, config.LAB, lambda: get_training(config, machine, volume))


def digest_of(*parts: Tensor | str) -> str:
    """Return 16 hex digits of a hash of tensors and texts."""
    sha256 = hashlib.sha256()
    for part in parts:
        sha256.update(part.encode() if isinstance(part, str) else part.cpu().contiguous().numpy().data)
    return sha256.hexdigest()[:16]


def format_figures(figures: Figures) -> str:
    """Return figures as a line: "accuracy 97.2 %, loss 0.12"; a name that ends in _percent is in percent."""
    parts = []
    for name, value in figures.items():
        unit = " %" if name.endswith("_percent") else ""
        parts.append(f"{name.removesuffix('_percent').replace('_', ' ')} {value:.4g}{unit}")
    return ", ".join(parts)


def main_of(config_class: type[PracticeSettings], get_training: Begin, description: str, following: str) -> None:
    """Run a lab's program: train by the flags; the exit code is 130 if the run was stopped and can be resumed."""

    def main() -> int:
        config = tyro.cli(config_class, prog=f"train {config_class.LAB}", description=description)
        run = train_model(config, Volume(), get_training)
        complete = run.epoch >= config.epochs
        print(f"trained. Next: {following}" if complete else "stopped and saved; " + LONG)
        return 0 if complete else 130

    entrypoint.run(main)
