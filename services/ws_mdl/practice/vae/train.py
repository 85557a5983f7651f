"""Trains a variational autoencoder: `python -m services.ws_mdl.practice.vae.train --data digits`."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from services.ws_mdl.diffusion import visualize
from services.ws_mdl.diffusion.data import Pictures, load
from services.ws_mdl.epochs import begin
from services.ws_mdl.practice import training
from services.ws_mdl.practice.training import Figures, PracticeRun
from services.ws_mdl.practice.vae.config import Config
from services.ws_mdl.practice.vae.model import VAE, active_numbers, objective
from vla_common import endings
from vla_common.volume import Volume
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import Machine
from vla_modelkit.training.weights import State


class Training(PracticeRun):
    """A run in progress; `data` are the pictures that are learned from."""

    config: Config
    data: Pictures
    held: Pictures
    nn_model: VAE
    averaged: VAE
    unit = "pictures"

    @property
    def about(self) -> str:
        return f"{len(self.data):,} pictures of {self.data.name}, {self.config.latent} numbers for each"

    @cached_property
    def noise(self) -> Tensor:
        """What z is drawn with wherever something is measured: the same at every measurement."""
        generator = torch.Generator().manual_seed(0)
        return torch.randn(len(self.held), self.config.latent, generator=generator).to(self.machine.device)

    def kl_weight(self) -> float:
        """Returns what a nat of KL costs now."""
        batches = self.config.anneal * self.steps
        return self.config.beta * (min(1.0, self.global_step / batches) if batches else 1.0)

    def loss(self, index: Tensor) -> Tensor:
        x = self.data.x[index].to(self.machine.device)
        noise = torch.randn(len(x), self.config.latent, generator=self.generator).to(x.device)
        return objective(self.nn_model.bound(x, noise), self.kl_weight(), self.config.free_nats)

    @torch.no_grad()
    def measure(self) -> Figures:
        x = self.held.x.to(self.machine.device)
        bound = self.averaged.bound(x, self.noise)
        return {
            "ELBO": -bound.negative_elbo.mean().item(),
            "reconstruction": bound.reconstruction.mean().item(),
            "KL": bound.kl.mean().item(),
            "active": float(active_numbers(self.averaged.encoder(x))),
            "sigma": self.averaged.decoder.sigma.item(),
        }

    def own_state(self) -> State:
        return {**super().own_state(), "channels": self.data.channels, "height": self.data.height}

    def digest(self) -> str:
        return training.digest_of(self.data.x)

    @torch.no_grad()
    def show(self, folder: Path, curves: Curves) -> str:
        generator = torch.Generator().manual_seed(0)
        z = torch.randn(40, self.config.latent, generator=generator).to(self.machine.device)
        sheet = visualize.grid(self.averaged.sample(z).cpu(), 8)
        curves.writer.add_image("samples", sheet, self.global_step)
        visualize.to_image(sheet).save(folder / "samples.png")
        return f"pictures that nobody drew: {folder / 'samples.png'}"


def get_training(config: Config, machine: Machine, volume: Volume | None = None, data: Pictures | None = None):
    """Returns a run before its first batch."""
    pictures = data or load(config.data)
    learned, held = pictures.split()
    size = pictures.channels, pictures.height, config.width, config.latent
    run = begin(Training, config, machine, learned, lambda: VAE(*size, config.sigma))
    run.held = held
    return run


def model_from(state: State) -> VAE:
    """Returns the averaged network that a weights file holds, in eval mode."""
    config = Config.of(state["config"])
    model = VAE(state["channels"], state["height"], config.width, config.latent, config.sigma)
    model.load_state_dict(state["averaged_state_dict"])
    return model.eval()


def main() -> int:
    """Trains by the command line's flags; returns the exit code."""
    return training.main_of(Config, get_training, __doc__, "./lab train vae --set sigma=4")


if __name__ == "__main__":
    endings.run(main)
