"""A fine-tuning run: steps of the optimizer, training states, curves, progress.

The randomness of a step depends on seed, step and process alone, and a state holds weights and optimizer: a resumed run
has the same bits as an uninterrupted one.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from vla_common.volume import display_path, require_space
from vla_modelkit.checkpoint import changed_files, read_record
from vla_modelkit.memory import free_bytes
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.options import TrainerOptions
from vla_modelkit.training.progress import Progress
from vla_modelkit.training.stopping import StopSignal
from vla_modelkit.training.weights import WeightFiles

INTERRUPT_HINT = "Ctrl-C saves; the same command resumes"


def states_of(directory: Path) -> WeightFiles:
    """Return the training states of a run's directory: step_12.pt is the state after step 12."""
    return WeightFiles(directory, "step", frozenset({"trained", "optimizer", "step", "identity"}))


def has_result(target: Path, provenance: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is the undamaged result of a run with this provenance; if so, print that."""
    record = read_record(target)
    if record.get("finetuned") != provenance or changed_files(target, record):
        return False
    print(f"all steps are done: {display_path(target)}; give another --name to train again", flush=True)
    return True


class Trainer:
    """A run: loss with its network, optimizer, and the number of completed steps.

    loss       called with a batch's tensors; returns a scalar
    trained    name -> parameter, as the states store them
    rate       step, counted from 0 -> learning rate
    directory  of the states
    identity   settings, data and base: a run is resumed only with the same
    clip       largest norm of the gradient
    """

    def __init__(
        self,
        settings: TrainerOptions,
        machine: TrainingMachine,
        loss: nn.Module,
        trained: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        rate: Callable[[int], float],
        directory: Path,
        identity: Mapping[str, Any],
        clip: float = math.inf,
    ):
        self.settings, self.machine, self.trained, self.optimizer = settings, machine, trained, optimizer
        self.rate, self.directory, self.identity, self.clip = rate, directory, identity, clip
        self.network = loss
        self.loss = nn.parallel.DistributedDataParallel(loss) if machine.world > 1 else loss
        self.states, self.step = states_of(directory), 0

    @property
    def samples_per_step(self) -> int:
        """Samples of a step in all processes."""
        return self.settings.batch_size * self.settings.accumulate * self.machine.world

    def require_disk(self, base: Path) -> None:
        """Raise VolumeError if the disk has no space for the states and a result of the base's size."""
        state = 12 * sum(parameter.numel() for parameter in self.trained.values())
        missing = max(1, self.settings.keep + 1 - len(self.states.all()))
        require_space(self.directory, missing * state + sum(path.stat().st_size for path in base.glob("*.safetensors")))

    def cache_videos(self, frames: Any, samples: int) -> str:
        """Reserve memory for decoded videos (vla_datasets.frames) if frames are read more than once; return a message.

        samples: in the data set.
        """
        if (self.settings.max_steps - self.step) * self.samples_per_step <= samples:
            return "videos: each frame is read once at most, so none is cached"
        free = free_bytes(torch.device("cpu")) or 0
        limit = free / 2 if self.settings.frames_gb < 0 else self.settings.frames_gb * 1e9
        cached, total = frames.keep(int(limit / self.machine.world)), frames.bytes
        rest = "" if cached == total else "; the rest is decoded again for every sample (--frames-gb)"
        return f"videos: {cached / 1e9:.2f} of {total / 1e9:.2f} GB are cached in memory after decoding{rest}"

    def batches(self, samples: Dataset, collate: Callable[[list[Any]], Sequence[Tensor]]) -> DataLoader:
        """Return this process's batches of the remaining steps."""
        settings, machine = self.settings, self.machine
        workers = settings.workers if settings.workers >= 0 else 4 if machine.device.type == "cuda" else 0
        size = self.samples_per_step // machine.world
        indices = BatchIndices(self.step, settings.max_steps, size, machine.rank, machine.world)
        return DataLoader(
            samples, batch_sampler=indices, collate_fn=collate, num_workers=workers, pin_memory=workers > 0
        )

    def learn(self, batch: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """Take a step; return loss and gradient norm, scalars on the device. batch: tensors [N, …]."""
        parts = self.settings.accumulate
        torch.manual_seed(random.Random(f"{self.settings.seed} {self.step} {self.machine.rank}").getrandbits(32))
        tensors = [tensor.to(self.machine.device, non_blocking=True) for tensor in batch]
        total = torch.zeros((), device=self.machine.device)
        for number, part in enumerate(zip(*(tensor.chunk(parts) for tensor in tensors), strict=True), 1):
            is_last = number == parts or self.machine.world == 1
            with nullcontext() if is_last else self.loss.no_sync():
                with self.machine.autocast():
                    loss = self.loss(*part) / parts
                loss.backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.trained.values(), self.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return total, norm

    def save(self) -> Path:
        """Write the state atomically and return its file; delete all but the newest `keep`."""
        path = self.states.path(self.step)
        state = {
            "trained": {name: parameter.detach() for name, parameter in self.trained.items()},
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "identity": self.identity,
            "threads": self.machine.threads,
        }
        self.states.save(path, state, self.settings.keep)
        return path

    def resume(self) -> Path | None:
        """Load the newest valid state; return its file, or None for a new run.

        Raises ValueError if it belongs to other data, another base or other settings, or if there is none and
        the settings require one.
        """
        latest = self.states.load_latest("cpu")
        if latest is None:
            if self.settings.resume:
                raise ValueError(
                    f"{display_path(self.directory)} has no training state to resume; remove --resume to start a new "
                    "training"
                )
            return None
        path, state = latest
        for name, value in self.identity.items():
            if (previous := state["identity"].get(name)) != value:
                raise ValueError(
                    f"{self.directory.name} was started with {name.replace('_', ' ')} {previous}, not {value}; "
                    "use the same, or another --name"
                )
        self.machine.restore_threads(state.get("threads"))
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(state["trained"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        return path

    def run(self, batches: Iterable[Sequence[Tensor]], board: Curves, stop: StopSignal) -> None:
        """Take all remaining steps, or save and stop when `stop.requested` becomes true.

        Raises ValueError if the loss is NaN.
        """
        settings, machine = self.settings, self.machine
        started, first = time.monotonic(), self.step
        with Progress(settings.max_steps, self.step, INTERRUPT_HINT, enabled=machine.is_main) as progress:
            for batch in batches:
                loss, norm = self.learn(batch)
                figures: tuple[str, ...] = ()
                if self.step == first + 1 or self.step % settings.log_every == 0:
                    value = machine.all_reduce(loss.item())[0] / machine.world
                    speed = (self.step - first) * self.samples_per_step / (time.monotonic() - started)
                    if value != value:
                        raise ValueError(f"the loss is NaN at step {self.step}; try a lower --learning-rate")
                    figures = f"loss {value:.4f}", f"{speed:.1f} samples/s"
                    points = {"loss": value, "gradient_norm": float(norm), "samples_per_s": speed}
                    board.scalars("train", {**points, "learning_rate": self.rate(self.step - 1)}, self.step)
                progress.advance(*figures)
                if figures and not progress.live and self.step % max(1, settings.max_steps // 20) == 0:
                    self.print(f"step {self.step} of {settings.max_steps}: {', '.join(figures)}")
                is_stopped = bool(sum(machine.all_reduce(int(stop.requested))))
                is_due = self.step % settings.save_steps == 0 or self.step == settings.max_steps
                if machine.is_main and (is_stopped or is_due):
                    self.save()
                if is_stopped:
                    break
        if self.step < settings.max_steps:
            self.print(f"stopped after step {self.step} of {settings.max_steps}; saved in "
                       f"{display_path(self.directory)}\nrun the same command to resume")  # fmt: skip

    def print(self, text: str) -> None:
        """Print in the main process."""
        if self.machine.is_main:
            print(text, flush=True)


@lru_cache(maxsize=2)
def order(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return an epoch's order of `count` samples."""
    return np.random.default_rng([seed, 2**32 + epoch]).permutation(count)


@dataclass(frozen=True)
class BatchIndices:
    """Indices of the samples of process `rank` of `world` in each step from `first` to `last`."""

    first: int
    last: int
    batch: int
    rank: int = 0
    world: int = 1

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.first, self.last):
            start = (step * self.world + self.rank) * self.batch
            yield list(range(start, start + self.batch))

    def __len__(self) -> int:
        return self.last - self.first
