"""Makes pictures with a trained run: `… -m services.ws_mdl.diffusion.sample --sampler ddim --steps 20 --context hero`.

Writes a grid (PNG), the way from noise to pictures (GIF), the schedule, and with --compare the samplers side by side
and a page with sliders.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import tyro
from torch import Tensor

from services.ws_mdl.diffusion import samplers, visualize
from services.ws_mdl.diffusion.config import Config
from services.ws_mdl.diffusion.contexts import contexts_for, names_for
from services.ws_mdl.diffusion.model import ContextUnet, fused_for_sampling
from services.ws_mdl.diffusion.options import SampleRequest as Request
from services.ws_mdl.diffusion.schedule import Schedule
from services.ws_mdl.diffusion.train import PREFIX, dtype_for, model_from
from vla_common import endings
from vla_common.volume import Volume, make_folder, shown
from vla_modelkit.devices import choose_device
from vla_modelkit.training.progress import Progress
from vla_modelkit.training.weights import State, WeightFiles


@dataclass
class Trained:
    """A trained run, ready to sample from."""

    folder: Path
    config: Config
    classes: tuple[str, ...]
    nn_model: ContextUnet
    schedule: Schedule
    epochs: int

    @property
    def dtype(self) -> torch.dtype | None:
        """The format of matrix products that it was trained in, where this device computes in it."""
        return dtype_for(self.schedule.b_t.device, self.config.precision)


def newest_run(volume: Volume) -> str:
    """Returns the name of the run whose weights were written last. Raises ValueError where there is none."""
    files = [path for path in Config.runs_folder(volume).glob(f"*/{PREFIX}_*.pt")]
    if not files:
        raise ValueError(f"no trained run under {Config.runs_folder(volume)}; first: ./lab train diffusion")
    return max(files, key=lambda path: path.stat().st_mtime).parent.name


def open_run(name: str | None, volume: Volume, device: str = "auto", epoch: int | None = None) -> Trained:
    """Returns a trained run by name, else the newest one; after an epoch, else with its newest weights."""
    name = name or newest_run(volume)
    folder = Config.runs_folder(volume) / name
    files = WeightFiles(folder, PREFIX)
    found = files.load_latest() if epoch is None or not files.latest() else files.load_epoch(epoch)
    if found is None:
        known = ", ".join(sorted({path.parent.name for path in Config.runs_folder(volume).glob(f"*/{PREFIX}_*.pt")}))
        raise ValueError(f"run '{name}' has no weights in {folder}; trained runs: {known or 'none'}")
    return trained_from(found[1], folder, choose_device(device))


def trained_from(state: State, folder: Path, device: torch.device) -> Trained:
    """Returns the run that a weights file holds, on that device."""
    config = Config.of(state["config"])
    nn_model = fused_for_sampling(model_from(state).to(device))
    return Trained(folder, config, tuple(state["classes"]), nn_model, config.make_schedule().to(device), state["epoch"])


def context_of(request: Request, run: Trained) -> Tensor | None:
    """Returns the contexts to sample with, or None. Raises ValueError where the run has learned none."""
    if not run.config.context:
        if request.context:
            raise ValueError(f"run '{run.config.name}' was trained without context; train one with --context")
        return None
    return contexts_for(request.context or "all", run.classes, request.count)


def names_of(request: Request, run: Trained) -> list[str]:
    """Returns what each of the pictures is to show, or nothing where no context is used."""
    if request.sampler == "incorrect" or not run.config.context:
        return []
    return names_for(request.context or "all", run.classes, request.count)


def steps_of(request: Request, run: Trained) -> int:
    """Returns how many steps the sampler takes: DDIM as many as are asked for, the others all."""
    return request.steps or (min(20, run.schedule.timesteps) if request.sampler == "ddim" else run.schedule.timesteps)


def sample(request: Request, run: Trained, save_rate: int = 0, on_step=lambda t: None) -> tuple[Tensor, np.ndarray]:
    """Returns pictures [count, c, h, h] and the intermediate ones by the sampler that is asked for."""
    options = {"seed": request.seed, "dtype": run.dtype, "save_rate": save_rate, "on_step": on_step}
    if request.sampler == "incorrect":
        return samplers.sample_ddpm_incorrect(run.nn_model, run.schedule, request.count, **options)
    options["guidance"] = request.guidance
    context = context_of(request, run)
    if request.sampler == "ddpm":
        return samplers.sample_ddpm_context(run.nn_model, run.schedule, request.count, context, **options)
    steps = steps_of(request, run)
    options |= {"eta": request.eta, "clip": request.clip, "spacing": request.spacing, "order": request.order}
    return samplers.sample_ddim_context(run.nn_model, run.schedule, request.count, context, steps, **options)


def stem_of(request: Request) -> str:
    """Returns what the files of a request are called: whatever makes its pictures others than the default's."""
    eta, clip = request.eta and f"eta{request.eta:g}", request.clip and "clip"
    spacing = request.spacing != 1.0 and f"spacing{request.spacing:g}"
    order = request.order != 1 and f"order{request.order}"
    guidance = request.guidance != 1.0 and f"guidance{request.guidance:g}"
    count = request.count != Request.count and f"count{request.count}"
    epoch = request.epoch and f"epoch{request.epoch}"
    parts = (epoch, request.sampler, request.steps, order, eta, clip, spacing, request.context, guidance, count)
    parts += (f"seed{request.seed}",)
    return "-".join(str(part) for part in parts if part).replace(":", "").replace(",", "+")


def sample_and_save(request: Request, run: Trained) -> list[Path]:
    """Makes the pictures and writes them; returns the files."""
    folder = make_folder(request.out or run.folder / "pictures")
    stem = stem_of(request)
    started = time.perf_counter()
    with Progress(steps_of(request, run), long="--count 8 takes less") as progress:
        x, intermediate = sample(request, run, save_rate=20, on_step=progress.step_of(request.sampler))
    print(f"{request.count} pictures by {request.sampler} in {time.perf_counter() - started:.1f} s")
    names = names_of(request, run)
    written = [
        visualize.save_grid(folder / f"{stem}.png", x, request.columns, names),
        visualize.save_gif(folder / f"{stem}.gif", intermediate, request.columns, names),
        visualize.save_schedules(folder / "schedule.png", [run.schedule]),
    ]
    return written + ([save_comparison(request, run, folder), save_page(run, folder)] if request.compare else [])


def save_comparison(request: Request, run: Trained, folder: Path) -> Path:
    """Writes the three samplers' pictures of the same first noise under each other, DDIM's as the request has it."""
    same = {"count": request.columns, "seed": request.seed}
    told = {**same, "context": request.context, "guidance": request.guidance}
    ddim = replace(request, **same) if request.sampler == "ddim" else Request(**told)
    kinds = {
        f"DDPM, {run.schedule.timesteps} steps": Request(sampler="ddpm", **told),
        f"DDIM, {steps_of(ddim, run)} steps": ddim,
        "incorrect: no noise added back": Request(sampler="incorrect", **same),
    }
    shown = []
    with Progress(sum(steps_of(asked, run) for asked in kinds.values())) as progress:
        for title, asked in kinds.items():
            x, _ = sample(asked, run, on_step=progress.step_of(asked.sampler))
            shown.append((title, x, names_of(asked, run)))
    return visualize.save_comparison(folder / "samplers.png", shown, request.columns)


def save_page(run: Trained, folder: Path) -> Path:
    """Writes a page with sliders: the way out of noise, and a clean picture's way into it."""
    from services.ws_mdl.diffusion import viewers  # ipywidgets: not needed for pictures alone
    from vla_notebooks.page import page

    few = {"steps": (min(20, run.schedule.timesteps),), "η": (0.0, 1.0), "guidance": (0.0, 1.0, 3.0)}
    few["context"] = (viewers.NO_CONTEXT, *run.classes[:2])
    clean = viewers.moments(run, *few["steps"])[-1].x[0]
    shown = {
        "Out of noise": (viewers.denoising(run, *few["steps"]), few),
        "Into noise": (viewers.noising(clean, run.schedule.timesteps), {}),
    }
    path = folder / "looking-in.html"
    path.write_text(page(f"What {run.config.name} sees", shown), encoding="utf-8")
    return path


def save_stages(request: Request, runs: Mapping[int, Trained]) -> Path:
    """Writes what a run makes of the same first noise after each of these epochs, under each other."""
    sheets = []
    with Progress(sum(steps_of(request, run) for run in runs.values())) as progress:
        for epoch, run in runs.items():
            x, _ = sample(replace(request, count=request.columns), run, on_step=progress.step_of(f"epoch {epoch}"))
            sheets.append((f"after epoch {epoch}", x, names_of(replace(request, count=request.columns), run)))
    folder = make_folder(request.out or run.folder / "pictures")
    return visualize.save_comparison(folder / f"stages-{stem_of(request)}.png", sheets, request.columns)


def main() -> int:
    """Samples by the command line's flags; returns the exit code."""
    request = tyro.cli(Request, prog="sample diffusion", description=__doc__)
    epochs = [int(part) for part in request.epoch.split(",")] if request.epoch else [None]
    runs = {epoch: open_run(request.name, Volume(), request.device, epoch) for epoch in epochs}
    if len(runs) > 1:
        print(shown(save_stages(request, runs)))
        return 0
    (run,) = runs.values()
    print(f"run {run.config.name}: {run.epochs} of {run.config.epochs} epochs trained")
    for path in sample_and_save(request, run):
        print(shown(path))
    return 0


if __name__ == "__main__":
    endings.run(main)
