"""Train the noise predictor: `python -m services.ws_mdl.diffusion.train --data digits --epochs 32`.

A run can be stopped at any time; the same command resumes it with bit-identical results.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
import tyro
from torch import Tensor
from torch.nn import functional

from services.ws_mdl.diffusion import visualize
from services.ws_mdl.diffusion.config import Config
from services.ws_mdl.diffusion.data import LabelledImages, load
from services.ws_mdl.diffusion.model import ContextUnet, fused_for_sampling
from services.ws_mdl.diffusion.samplers import sample_ddim_context
from services.ws_mdl.diffusion.schedule import Schedule, perturb_input
from services.ws_mdl.epochs import LONG, EpochRun, load_run_state, run_files, train_run, update_ema
from vla_common import entrypoint
from vla_common.volume import Volume
from vla_modelkit.devices import choose_device
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine, choose_dtype, choose_machine
from vla_modelkit.training.weights import State

PREFIX = "model"  # of a run's weight files


class Training(EpochRun):
    """A run in progress, its data on the device; the generator's are the images' order, times, noise and contexts."""

    config: Config
    data: LabelledImages
    nn_model: ContextUnet
    unit = "images"

    @cached_property
    def schedule(self) -> Schedule:
        return self.config.make_schedule().to(self.machine.device)

    def step(self, index: Tensor) -> Tensor:
        return train_step(self, index.to(self.machine.device))

    def extra_state(self) -> State:
        return {"classes": list(self.data.classes), "channels": self.data.channels, "height": self.data.height}

    def restore(self, state: State, path: Path) -> None:
        if "optimizer_state_dict" not in state:
            raise ValueError(f"run '{self.config.name}' was imported without optimizer; train with another --name")
        load_run_state(self, state)

    def after_save(self, directory: Path, curves: Curves) -> None:
        if self.epoch % self.config.sample_every == 0 or self.epoch == self.config.epochs:
            curves.writer.add_image("samples", sample_sheet(self), self.global_step)


def machine_for(device: str = "auto", precision: str = "auto") -> TrainingMachine:
    """Return the machine of a run; on a CPU in float32 unless bf16 is requested.

    On CPUs convolutions train more slowly in bfloat16, even where its matrix products are faster.
    """
    machine = choose_machine(device, precision)
    return replace(machine, dtype=dtype_for(machine.device, precision))


def dtype_for(device: torch.device, precision: str) -> torch.dtype | None:
    """Return the format of matrix products on a device, None for float32."""
    return None if precision == "auto" and device.type == "cpu" else choose_dtype(device, precision)


def get_training(config: Config, machine: TrainingMachine, data: LabelledImages | None = None) -> Training:
    """Return a run before its first batch; its weights depend on the seed alone."""
    data = data or load(config.data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        nn_model = ContextUnet(data.channels, config.n_feat, len(data.classes), data.height)
    nn_model.to(machine.device, memory_format=torch.channels_last)
    return Training(
        config=config,
        data=data.to(machine.device),
        machine=machine,
        nn_model=nn_model,
        averaged=copy.deepcopy(nn_model).eval(),
        optim=torch.optim.Adam(nn_model.parameters(), lr=config.lrate, fused=machine.device.type in ("cpu", "cuda")),
        generator=torch.Generator().manual_seed(config.seed),
    )


def loss_of(run: Training, x: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared error of the predicted noise."""
    n, config = len(x), run.config
    noise = torch.randn(x.shape, generator=run.generator).to(x.device)
    t = torch.randint(1, run.schedule.timesteps + 1, (n,), generator=run.generator).to(x.device)
    context = functional.one_hot(labels, len(run.data.classes)).float()
    keep = torch.rand((n, 1), generator=run.generator).to(x.device) < config.keep_context
    context = context * keep if config.context else torch.zeros_like(context)
    x_pert = perturb_input(run.schedule, x, t, noise).contiguous(memory_format=torch.channels_last)
    with run.machine.autocast():
        pred_noise = run.nn_model(x_pert, run.schedule.time(t), context)
    return functional.mse_loss(pred_noise.float(), noise)


def train_step(run: Training, index: Tensor) -> Tensor:
    """Train on the images `index`; return the loss, still on the device."""
    for group in run.optim.param_groups:
        group["lr"] = run.config.lrate * (1 - run.epoch / run.config.epochs)
    run.nn_model.train()
    loss = loss_of(run, run.data.x[index], run.data.labels[index])
    run.optim.zero_grad(set_to_none=True)
    loss.backward()
    run.optim.step()
    run.global_step += 1
    update_ema(run)
    return loss.detach()


def train_model(config: Config, volume: Volume) -> bool:
    """Train until the run is complete or stopped, save it, and return whether it is complete."""
    machine = machine_for(config.device, config.precision)
    run = train_run(config, machine, volume, PREFIX, lambda: get_training(config, machine))
    return run.epoch >= config.epochs


def sample_sheet(run: Training, per_class: int = 4) -> Tensor:
    """Return a sheet of DDIM samples, a row per class: float32 [3, h, w] in [0, 1]."""
    classes = len(run.data.classes)
    labels = torch.arange(classes).repeat_interleave(per_class)
    context = functional.one_hot(labels, classes).float() if run.config.context else None
    nn_model, steps = fused_for_sampling(run.averaged), min(20, run.schedule.timesteps)
    x, _ = sample_ddim_context(nn_model, run.schedule, len(labels), context, steps, seed=0, dtype=run.machine.dtype)
    return visualize.grid(x, per_class)


@dataclass
class TrainedDiffusion:
    """A trained run, ready to sample from."""

    directory: Path
    config: Config
    classes: tuple[str, ...]
    nn_model: ContextUnet
    schedule: Schedule
    epochs: int

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of matrix products in training, if this device supports it."""
        return dtype_for(self.schedule.b_t.device, self.config.precision)


def open_run(name: str | None, volume: Volume, device: str = "auto", epoch: int | None = None) -> TrainedDiffusion:
    """Load a trained run by name and epoch; None: the newest."""
    files = run_files(Config, PREFIX, volume, name)
    _, state = files.load_latest() if epoch is None else files.load_epoch(epoch)
    return trained_from(state, files.directory, choose_device(device))


def trained_from(state: State, directory: Path, device: torch.device) -> TrainedDiffusion:
    """Return the run of a weights file on a device, with its averaged network."""
    config, classes = Config.of(state["config"]), tuple(state["classes"])
    nn_model = ContextUnet(state["channels"], config.n_feat, len(classes), state["height"], state.get("pool"))
    nn_model.load_state_dict(state["averaged_state_dict"])
    nn_model = fused_for_sampling(nn_model.to(device))
    return TrainedDiffusion(directory, config, classes, nn_model, config.make_schedule().to(device), state["epoch"])


def main() -> int:
    """Train; return the exit code: 130 if the run was stopped and can be resumed."""
    config = tyro.cli(Config, prog="train diffusion", description=__doc__)
    complete = train_model(config, Volume())
    print(f"trained. Next: ./lab sample diffusion --name {config.name}" if complete else "stopped and saved; " + LONG)
    return 0 if complete else 130


if __name__ == "__main__":
    entrypoint.run(main)
