"""Trains a Vision Transformer: `python -m services.ws_mdl.practice.vit.train --data digits`.

A run can be stopped at any time and goes on with the same command, bit for bit as if it had not been stopped.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from services.ws_mdl.epochs import begin
from services.ws_mdl.practice import training
from services.ws_mdl.practice.training import Figures, PracticeRun
from services.ws_mdl.practice.vit.config import Config
from services.ws_mdl.practice.vit.data import Labelled, load, moved
from services.ws_mdl.practice.vit.model import VisionTransformer, attention_of, loss_of, rollout
from services.ws_mdl.transformer.visualize import save
from vla_common import endings
from vla_common.volume import Volume, shown
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import Machine
from vla_modelkit.training.weights import State

SHOWN = 10  # pictures with roll-outs


class Training(PracticeRun):
    """A run in progress, its pictures on the device."""

    config: Config
    data: Labelled
    nn_model: VisionTransformer
    unit = "pictures"

    @property
    def about(self) -> str:
        train, held = self.data.train, self.data.held
        return f"{len(train)} pictures of {len(train.classes)} classes, {len(held)} held out"

    def loss(self, index: Tensor) -> Tensor:
        index = index.to(self.machine.device)
        x = moved(self.data.train.x[index], self.config.shift, self.generator)
        return loss_of(self.nn_model, x, self.data.train.labels[index], self.config.smoothing)

    @torch.inference_mode()
    def measure(self) -> Figures:
        held = self.data.held
        scores = torch.cat([self.averaged(x) for x in held.x.split(256)])
        right = (scores.argmax(dim=1) == held.labels).float().mean()
        loss = torch.nn.functional.cross_entropy(scores.float(), held.labels)
        return {"accuracy_percent": 100 * right.item(), "loss": loss.item()}

    def show(self, folder: Path, curves: Curves) -> str:
        figure = plot_rollouts(self.averaged, self.data.held.x[:SHOWN])
        curves.writer.add_figure("roll-out", figure, self.global_step)
        return f"where it looks: {shown(save(figure, folder / 'rollout.png'))}"

    def own_state(self) -> State:
        held = self.data.held
        size = {"classes": list(held.classes), "channels": held.channels, "height": held.height}
        return {**super().own_state(), **size}

    def digest(self) -> str:
        return training.digest_of(self.data.train.x, self.data.train.labels)


def get_model(config: Config, height: int, channels: int, classes: int) -> VisionTransformer:
    """Returns the network for pictures of that size, with fresh weights."""
    size = {name: getattr(config, name) for name in ("patch", "d_model", "N", "h", "d_ff", "dropout", "positions")}
    return VisionTransformer(height, channels, classes, **size)


def get_training(config: Config, machine: Machine, volume: Volume) -> Training:
    """Returns a run before its first batch."""
    data = load(config, volume)
    size = data.train.height, data.train.channels, len(data.train.classes)
    return begin(Training, config, machine, data.to(machine.device), lambda: get_model(config, *size))


def model_from(state: State) -> VisionTransformer:
    """Returns the averaged network that a weights file holds, in eval mode."""
    model = get_model(Config.of(state["config"]), state["height"], state["channels"], len(state["classes"]))
    model.load_state_dict(state["averaged_state_dict"])
    return model.eval()


def plot_rollouts(model: VisionTransformer, x: Tensor) -> Figure:
    """Returns pictures [batch, channels, side, side], and below each where the class token has looked."""
    seen = rollout(attention_of(model, x)).cpu()
    figure = Figure(figsize=(1.2 * len(x), 2.6), layout="constrained")
    for column, (picture, weights) in enumerate(zip(x.cpu(), seen, strict=True)):
        top, bottom = (figure.add_subplot(2, len(x), row * len(x) + column + 1) for row in (0, 1))
        plain = ((picture + 1) / 2).clamp(0, 1).permute(1, 2, 0)
        side = len(plain)
        for axes in (top, bottom):
            axes.imshow(plain.squeeze(-1).numpy(), cmap="gray")
            axes.axis("off")
        bottom.imshow(weights.numpy(), extent=(-0.5, side - 0.5, side - 0.5, -0.5), cmap="inferno", alpha=0.6)
    return figure


def main() -> int:
    """Trains by the command line's flags; returns the exit code."""
    return training.main_of(Config, get_training, __doc__, "./lab notebook ws_mdl, and there Practice_Attention")


if __name__ == "__main__":
    endings.run(main)
