"""Trains the noise predictor: `python -m services.ws_mdl.diffusion.train --data digits --epochs 32`.

A run can be stopped at any time and goes on with the same command, bit for bit as if it had not been stopped.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property

import torch
import tyro
from torch import Tensor
from torch.nn import functional

from services.ws_mdl.diffusion import visualize
from services.ws_mdl.diffusion.config import Config
from services.ws_mdl.diffusion.data import Pictures, load
from services.ws_mdl.diffusion.model import ContextUnet, fused_for_sampling
from services.ws_mdl.diffusion.samplers import sample_ddim_context
from services.ws_mdl.diffusion.schedule import Schedule, perturb_input
from services.ws_mdl.epochs import EpochRun, average, put_back, train_to_end
from vla_common import endings
from vla_common.volume import Volume, shown
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import Machine, choose_dtype, choose_machine
from vla_modelkit.training.weights import State, WeightFiles

PREFIX = "model"


class Training(EpochRun):
    """A run in progress, its data on the device; the generator's are the pictures' order, times, noise and contexts."""

    config: Config
    data: Pictures
    nn_model: ContextUnet
    unit = "pictures"

    @cached_property
    def schedule(self) -> Schedule:
        return self.config.make_schedule().to(self.machine.device)

    def step(self, index: Tensor) -> Tensor:
        return train_step(self, index.to(self.machine.device))

    def own_state(self) -> State:
        return {"classes": list(self.data.classes), "channels": self.data.channels, "height": self.data.height}


def machine_for(device: str = "auto", precision: str = "auto") -> Machine:
    """Return where a run computes; in float32 on a CPU, unless bf16 is named.

    Convolutions learn more slowly in bfloat16 there, also where matrix products are faster in it.
    """
    machine = choose_machine(device, precision)
    return replace(machine, dtype=dtype_for(machine.device, precision))


def dtype_for(device: torch.device, precision: str) -> torch.dtype | None:
    """Return the format of matrix products on a device, None for float32."""
    return None if precision == "auto" and device.type == "cpu" else choose_dtype(device, precision)


def get_model(config: Config, data: Pictures) -> ContextUnet:
    """Returns the network for these pictures, with fresh weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return ContextUnet(data.channels, config.n_feat, len(data.classes), data.height)


def get_training(config: Config, machine: Machine, data: Pictures | None = None) -> Training:
    """Returns a run before its first batch."""
    data = data or load(config.data)
    nn_model = get_model(config, data).to(machine.device, memory_format=torch.channels_last)
    data = Pictures(data.name, data.x.to(machine.device), data.labels.to(machine.device), data.classes)
    return Training(
        config=config,
        data=data,
        machine=machine,
        nn_model=nn_model,
        averaged=copy.deepcopy(nn_model).eval(),
        optim=torch.optim.Adam(nn_model.parameters(), lr=config.lrate, fused=machine.device.type in ("cpu", "cuda")),
        generator=torch.Generator().manual_seed(config.seed),
    )


# --- a step -------------------------------------------------------------------------------------------------


def loss_of(run: Training, x: Tensor, labels: Tensor) -> Tensor:
    """Returns how far the predicted noise is from the noise that was added, as a mean square."""
    n, config = len(x), run.config
    noise = torch.randn(x.shape, generator=run.generator).to(x.device)
    t = torch.randint(1, run.schedule.timesteps + 1, (n,), generator=run.generator).to(x.device)
    context = functional.one_hot(labels, len(run.data.classes)).float()
    told = torch.rand((n, 1), generator=run.generator).to(x.device) < config.keep_context
    context = context * told if config.context else torch.zeros_like(context)
    x_pert = perturb_input(run.schedule, x, t, noise).contiguous(memory_format=torch.channels_last)
    with run.machine.autocast():
        pred_noise = run.nn_model(x_pert, run.schedule.time(t), context)
    return functional.mse_loss(pred_noise.float(), noise)


def train_step(run: Training, index: Tensor) -> Tensor:
    """Trains on the pictures of those numbers; returns the loss, still on the device."""
    for group in run.optim.param_groups:
        group["lr"] = run.config.lrate * (1 - run.epoch / run.config.epochs)
    run.nn_model.train()
    loss = loss_of(run, run.data.x[index], run.data.labels[index])
    run.optim.zero_grad(set_to_none=True)
    loss.backward()
    run.optim.step()
    run.global_step += 1
    average(run)
    return loss.detach()


# --- state --------------------------------------------------------------------------------------------------


def restore(run: Training, state: State) -> None:
    """Puts a run where the state was taken. Raises ValueError for an imported one, which holds weights alone."""
    if "optimizer_state_dict" not in state:
        raise ValueError(
            f"the weights of '{run.config.name}' were imported without their optimizer: they make pictures, and "
            "training cannot go on from them; give another --name"
        )
    put_back(run, state)


def model_from(state: State) -> ContextUnet:
    """Returns the averaged network that a weights file holds, in eval mode."""
    config = Config.of(state["config"])
    size = state["channels"], config.n_feat, len(state["classes"]), state["height"]
    nn_model = ContextUnet(*size, state.get("pool"))
    nn_model.load_state_dict(state["averaged_state_dict"])
    return nn_model.eval()


# --- the whole run ------------------------------------------------------------------------------------------


def train_model(config: Config, volume: Volume) -> bool:
    """Trains a run to its end or until it is stopped, and saves it; returns whether it is complete."""
    machine = machine_for(config.device, config.precision)
    run = get_training(config, machine)
    files = WeightFiles(config.run_folder(volume), PREFIX)
    if found := files.load_chosen(config.preload):
        config.refuse_drift(found[1]["config"], found[0])
        restore(run, found[1])
        print(f"going on from {found[0].name}: epoch {run.epoch}, step {run.global_step}", flush=True)
    print(f"{config.name}: {len(run.data)} pictures, {machine}, weights in {shown(files.folder)}", flush=True)
    curves = Curves(config.tensorboard_folder(volume), run.global_step)

    def draw(run: Training) -> None:
        if run.epoch % config.sample_every == 0 or run.epoch == config.epochs:
            curves.writer.add_image("samples", sample_sheet(run), run.global_step)

    return train_to_end(run, files, curves, draw)


def sample_sheet(run: Training, per_class: int = 4) -> Tensor:
    """Returns a picture of DDIM samples, a row for each class: float32 [3, h, w] in [0, 1]."""
    classes = len(run.data.classes)
    labels = torch.arange(classes).repeat_interleave(per_class)
    context = functional.one_hot(labels, classes).float() if run.config.context else None
    nn_model = fused_for_sampling(run.averaged)
    steps = min(20, run.schedule.timesteps)
    x, _ = sample_ddim_context(nn_model, run.schedule, len(labels), context, steps, seed=0, dtype=run.machine.dtype)
    return visualize.grid(x, per_class)


def main() -> int:
    """Trains by the command line's flags; returns the exit code: 130 when it was stopped and can go on."""
    config = tyro.cli(Config, prog="train diffusion", description=__doc__)
    complete = train_model(config, Volume())
    if complete:
        print(f"trained. Next: ./lab sample diffusion --name {config.name}")
        return 0
    print("stopped and saved; the same command goes on from there")
    return 130


if __name__ == "__main__":
    endings.run(main)
