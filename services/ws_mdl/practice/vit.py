"""The Vision Transformer (Dosovitskiy et al., 2020) from lab 1's encoder: an image is a sequence of patches.

Read it from top to bottom: the model, its attention, the images, the run. Shapes stand at the end of the line: batch
images of n = (side / patch)² patches, each a vector of d_model numbers.

    ./lab train vit --data digits
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from services.ws_mdl.diffusion import data as images
from services.ws_mdl.epochs import new_run
from services.ws_mdl.frames import images_of
from services.ws_mdl.practice import training
from services.ws_mdl.practice.blocks import build_positions, build_stack, initialize
from services.ws_mdl.practice.settings import Vit as Config
from services.ws_mdl.practice.training import Figures, PracticeRun
from services.ws_mdl.transformer.visualize import record_attention
from vla_common.volume import Volume
from vla_datasets import libero, marks
from vla_datasets.errors import DatasetError
from vla_datasets.loader import open_dataset
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.weights import State


class PatchEmbedding(nn.Module):
    """A linear embedding of each patch, written as a convolution whose stride is its kernel size."""

    def __init__(self, channels: int, patch: int, d_model: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, d_model, kernel_size=patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)  # (batch, channels, side, side) -> (batch, n, d_model)


class VisionTransformer(nn.Module):
    """Patches, a class token before them, positions, lab 1's encoder, and a linear layer on the class token."""

    def __init__(
        self, side: int, channels: int, classes: int, patch: int = 4, d_model: int = 64, N: int = 4, h: int = 4,
        d_ff: int = 128, dropout: float = 0.1, positions: str = "learned",
    ) -> None:  # fmt: skip
        super().__init__()
        if side % patch != 0:
            raise ValueError(f"images of {side} × {side} cannot be cut into patches of {patch}; choose another patch")
        seq = (side // patch) ** 2 + 1  # the class token and the patches
        self.patches = PatchEmbedding(channels, patch, d_model)
        self.class_token = nn.Parameter(torch.empty(1, 1, d_model))
        self.positions = build_positions(positions, d_model, seq, dropout)
        self.encoder = build_stack(d_model, N, h, d_ff, dropout, seq, positions=positions)
        self.head = nn.Linear(d_model, classes)
        initialize(self)
        nn.init.normal_(self.head.weight, std=0.02)  # all classes start about equally likely

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each class [batch, classes] of images float [batch, channels, side, side]."""
        patches = self.patches(x)  # (batch, n, d_model)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], dim=1)
        x = self.encoder(self.positions(tokens), None)  # (batch, 1 + n, d_model): every patch may look at every other
        return self.head(x[:, 0])


# --- attention roll-out -----------------------------------------------------------------------------------


@torch.inference_mode()
def attention_of(model: VisionTransformer, x: Tensor) -> Tensor:
    """Return the attention weights of all layers and heads for images: float [layers, batch, h, 1 + n, 1 + n]."""
    with record_attention(model):
        model(x)
        maps = [layer.self_attention_block.attention_scores.float() for layer in model.encoder.layers]
    return torch.stack(maps)


def rollout(maps: Tensor) -> Tensor:
    """Return the attention roll-out (Abnar & Zuidema, 2020) from the class token: float [batch, grid, grid], sum 1.

    A layer mixes tokens by its heads' mean, half of each token going around it by the residual connection; the
    mixtures of all layers are multiplied. maps: as `attention_of` returns them.
    """
    around = torch.eye(maps.shape[-1], device=maps.device)
    mixed = around.expand(maps.shape[1], -1, -1)  # (batch, 1 + n, 1 + n)
    for weights in maps.mean(dim=2):  # over heads
        mixed = (weights + around) / 2 @ mixed
    seen = mixed[:, 0, 1:]  # the class token's row, without itself
    grid = round(seen.shape[-1] ** 0.5)
    return (seen / seen.sum(dim=-1, keepdim=True)).unflatten(-1, (grid, grid))


def plot_rollouts(model: VisionTransformer, x: Tensor) -> Figure:
    """Plot images [batch, channels, side, side], and their attention roll-outs below."""
    figure = Figure(figsize=(1.2 * len(x), 2.6), layout="constrained")
    axes = figure.subplots(2, len(x), squeeze=False)
    for column, weights in enumerate(rollout(attention_of(model, x)).cpu()):
        image = ((x[column].cpu() + 1) / 2).clamp(0, 1).permute(1, 2, 0).squeeze(-1)
        for axis in axes[:, column]:
            axis.imshow(image.numpy(), cmap="gray")
            axis.axis("off")
        extent = (-0.5, len(image) - 0.5, len(image) - 0.5, -0.5)
        axes[1, column].imshow(weights.numpy(), extent=extent, cmap="inferno", alpha=0.6)
    return figure


# --- images: lab 2's, or the frames of demonstrations, whose class is the task -------------------------------


@dataclass(frozen=True)
class Labelled:
    """Training and held-out images."""

    train: images.LabelledImages
    val: images.LabelledImages

    def __len__(self) -> int:
        return len(self.train)


def load(config: Config, volume: Volume) -> Labelled:
    """Load labelled images. Raises ValueError if they are not available or have only one class."""
    for path in (volume.path("datasets") / config.data, Path(config.data).expanduser()):
        is_dataset = path.is_dir() and ((path / "meta").is_dir() or any(path.glob("*.hdf5")))
        if is_dataset and config.data not in images.NAMED:
            return frames(path, config)
    return Labelled(*images.load(config.data).split(config.held_fraction))


def frames(directory: Path, config: Config) -> Labelled:
    """Load a data set's front camera; the class is the instruction. The last episodes of each task are held out.

    Frames of an episode are nearly identical, so whole episodes are held out.
    """
    dataset = open_dataset(directory)
    if text := marks.leave_out(dataset).left_out:
        print(f"{dataset.name}: {text}", flush=True)
    marks.require_instructions(dataset)
    key = libero.video_key(next(iter(libero.CAMERAS)))
    if key not in dataset.video_keys:
        raise DatasetError(f"{dataset.name} has no images {key}; it has {', '.join(dataset.video_keys) or 'none'}")
    tasks = tuple(dict.fromkeys(episode.tasks[0] for episode in dataset.episodes))
    if len(tasks) < 2:
        raise ValueError(f"{dataset.name} has one task, '{tasks[0]}'; expected 2 at least")
    val_episodes: set[int] = set()
    for task in tasks:
        of_task = [episode.index for episode in dataset.episodes if episode.tasks[0] == task]
        if len(of_task) < 2:
            raise ValueError(f"the task '{task}' has 1 episode; expected 2 at least: one for training, one held out")
        val_episodes.update(of_task[-max(1, round(config.held_fraction * len(of_task))) :])
    x = images_of(dataset, dataset.episodes, [key], config.side, lambda done, total: None)[:, 0]
    steps = [episode for episode in dataset.episodes for _ in range(episode.length)]
    labels = torch.tensor([tasks.index(episode.tasks[0]) for episode in steps])
    is_val = torch.tensor([episode.index in val_episodes for episode in steps])
    parts = (
        images.LabelledImages(dataset.name, x[rows].float() / 127.5 - 1, labels[rows], tasks)
        for rows in (~is_val, is_val)
    )
    return Labelled(*parts)


def random_shift(x: Tensor, max_shift: int, generator: torch.Generator) -> Tensor:
    """Shift images [batch, channels, side, side] randomly by up to max_shift pixels, with edge padding."""
    side, limit = x.shape[-1], min(max_shift, x.shape[-1] // 4)
    shift = torch.randint(-limit, limit + 1, (2, len(x), 1), generator=generator)
    rows, columns = (torch.arange(side) + shift).clamp(0, side - 1).to(x.device)  # each (batch, side)
    batch = torch.arange(len(x), device=x.device)[:, None, None]
    moved = x.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]]  # (batch, side, side, channels)
    return moved.permute(0, 3, 1, 2)


class Training(PracticeRun):
    """A run in progress, its images on the device."""

    config: Config
    data: Labelled
    unit = "images"

    @property
    def summary(self) -> str:
        train, val = self.data.train, self.data.val
        return f"{len(train)} images of {len(train.classes)} classes, {len(val)} held out"

    def loss(self, index: Tensor) -> Tensor:
        index = index.to(self.machine.device)
        x = random_shift(self.data.train.x[index], self.config.shift, self.generator)
        labels = self.data.train.labels[index]
        return F.cross_entropy(self.nn_model(x).float(), labels, label_smoothing=self.config.smoothing)

    @torch.inference_mode()
    def measure(self) -> Figures:
        val = self.data.val
        scores = torch.cat([self.averaged(x) for x in val.x.split(256)])
        accuracy = (scores.argmax(dim=1) == val.labels).float().mean()
        return {"accuracy_percent": 100 * accuracy.item(), "loss": F.cross_entropy(scores.float(), val.labels).item()}

    def show(self, directory: Path, curves: Curves) -> str:
        figure = plot_rollouts(self.averaged, self.data.val.x[:10])
        return f"attention roll-outs: {self.save_figure('rollout', figure, directory, curves)}"

    def extra_state(self) -> State:
        val = self.data.val
        shape = {"classes": list(val.classes), "channels": val.channels, "height": val.height}
        return {**super().extra_state(), **shape}

    def digest(self) -> str:
        return training.digest_of(self.data.train.x, self.data.train.labels)


def get_model(config: Config, height: int, channels: int, classes: int) -> VisionTransformer:
    """Return the network for images of that size, with fresh weights."""
    return VisionTransformer(height, channels, classes, config.patch, **config.size())


def get_training(config: Config, machine: TrainingMachine, volume: Volume) -> Training:
    """Return a run before its first batch."""
    loaded = load(config, volume)
    train, val = loaded.train.to(machine.device), loaded.val.to(machine.device)
    size = train.height, train.channels, len(train.classes)
    return new_run(Training, config, machine, Labelled(train, val), lambda: get_model(config, *size))


if __name__ == "__main__":
    training.main_of(Config, get_training, __doc__, "./lab notebook ws_mdl, and there Practice_Attention")
