"""Pictures with classes, some held out: lab 2's, or the frames of demonstrations, whose class is the task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from services.ws_mdl.diffusion import data as pictures
from services.ws_mdl.diffusion.data import Pictures
from services.ws_mdl.minivla.pictures import pictures_of
from services.ws_mdl.practice.vit.config import Config
from vla_common.volume import Volume
from vla_datasets import libero, marks
from vla_datasets.errors import DatasetError
from vla_datasets.opening import open_dataset


@dataclass(frozen=True)
class Labelled:
    """Pictures to learn from, and those that are held out."""

    train: Pictures
    held: Pictures

    def __len__(self) -> int:
        return len(self.train)

    def to(self, device: torch.device) -> Labelled:
        """Returns them on a device."""
        return Labelled(
            *(Pictures(p.name, p.x.to(device), p.labels.to(device), p.classes) for p in (self.train, self.held))
        )


def load(config: Config, volume: Volume) -> Labelled:
    """Returns pictures with classes. Raises ValueError that says what is wrong with them."""
    folder = _dataset_folder(config.data, volume)
    return frames(folder, config) if folder else Labelled(*pictures.load(config.data).split(config.held_fraction))


def _dataset_folder(name: str, volume: Volume) -> Path | None:
    """Returns the folder of a data set of that name or place, or None where it is none."""
    for path in (volume.path("datasets") / name, Path(name).expanduser()):
        if name not in pictures.NAMED and path.is_dir() and ((path / "meta").is_dir() or [*path.glob("*.hdf5")]):
            return path
    return None


def frames(folder: Path, config: Config) -> Labelled:
    """Returns the front camera's frames; the class is the instruction. Of each task's episodes the last are held out.

    Frames of one episode are nearly the same picture, so an episode is held out whole or not at all.
    """
    found = open_dataset(folder)
    if text := marks.leave_out(found).left_out:
        print(f"{found.name}: {text}", flush=True)
    marks.require_instructions(found)
    key = libero.video_key(next(iter(libero.CAMERAS)))
    if key not in found.video_keys:
        raise DatasetError(f"{found.name} has no pictures {key}; it has {', '.join(found.video_keys) or 'none'}")
    tasks = tuple(dict.fromkeys(one.tasks[0] for one in found.episodes))
    if len(tasks) < 2:
        raise ValueError(f"{found.name} has one task, '{tasks[0]}'; expected 2 at least to tell apart")
    held = {one.index for task in tasks for one in held_out(found.episodes, task, config.held_fraction)}
    x = pictures_of(found, found.episodes, [key], config.side, lambda done, total: None)[:, 0]
    labels = torch.tensor([tasks.index(one.tasks[0]) for one in found.episodes for _ in range(one.length)])
    is_held = torch.tensor([one.index in held for one in found.episodes for _ in range(one.length)])

    def chosen(rows: Tensor) -> Pictures:
        return Pictures(found.name, x[rows].float() / 127.5 - 1, labels[rows], tasks)

    return Labelled(chosen(~is_held), chosen(is_held))


def held_out(episodes: list, task: str, fraction: float) -> list:
    """Returns the episodes of a task that are held out: a share of them, the last. Raises ValueError for too few."""
    of = [one for one in episodes if one.tasks[0] == task]
    if len(of) < 2:
        raise ValueError(f"the task '{task}' has {len(of)} episode; expected 2 at least: one to learn, one to measure")
    return of[-max(1, round(fraction * len(of))) :]


def moved(x: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Returns pictures [batch, channels, side, side], each moved by up to `most` pixels; its edge is repeated."""
    side, far = x.shape[-1], min(most, x.shape[-1] // 4)
    shift = torch.randint(-far, far + 1, (2, len(x), 1), generator=generator)
    rows, columns = (torch.arange(side) + shift).clamp(0, side - 1).to(x.device)  # each (batch, side)
    batch, channels = torch.arange(len(x), device=x.device), torch.arange(x.shape[1], device=x.device)
    return x[
        batch[:, None, None, None], channels[None, :, None, None], rows[:, None, :, None], columns[:, None, None, :]
    ]
