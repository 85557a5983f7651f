"""Sample images from a trained run: `… -m services.ws_mdl.diffusion.sample --sampler ddim --steps 20 --context hero`.

Writes a grid (PNG), the denoising (GIF), the schedule, and with --compare the samplers side by side and an interactive
page.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import tyro
from torch import Tensor

from services.ws_mdl.diffusion import samplers, visualize
from services.ws_mdl.diffusion.config import SampleRequest as Request
from services.ws_mdl.diffusion.train import TrainedDiffusion, open_run
from vla_common import entrypoint
from vla_common.volume import Volume, display_path, make_directory
from vla_modelkit.training.progress import Progress


def names_of(request: Request, run: TrainedDiffusion) -> list[str]:
    """Return the class or mix of each image; empty if no context is used."""
    if request.sampler == "incorrect" or not run.config.context:
        return []
    if request.context not in (None, "all"):
        return [request.context] * request.count
    contexts = samplers.contexts_for("all", run.classes, request.count)
    return [run.classes[number] for number in contexts.argmax(dim=1).tolist()]


def steps_of(request: Request, run: TrainedDiffusion) -> int:
    """Return the number of steps: as requested for DDIM, all for the others."""
    return request.steps or (min(20, run.schedule.timesteps) if request.sampler == "ddim" else run.schedule.timesteps)


def sample(
    request: Request, run: TrainedDiffusion, save_rate: int = 0, on_step=lambda t: None
) -> tuple[Tensor, np.ndarray]:
    """Return images [count, c, h, h] and intermediate images with the requested sampler.

    Raises ValueError for a context if the run was trained without one.
    """
    model, schedule, count, context = run.nn_model, run.schedule, request.count, None
    options = {"seed": request.seed, "dtype": run.dtype, "save_rate": save_rate, "on_step": on_step}
    if request.sampler == "incorrect":
        return samplers.sample_ddpm_incorrect(model, schedule, count, **options)
    if run.config.context:
        context = samplers.contexts_for(request.context or "all", run.classes, count)
    elif request.context:
        raise ValueError(f"run '{run.config.name}' was trained without context; train one with --context")
    options["guidance"] = request.guidance
    if request.sampler == "ddpm":
        return samplers.sample_ddpm_context(model, schedule, count, context, **options)
    options |= {name: getattr(request, name) for name in ("eta", "clip", "spacing", "order")}
    return samplers.sample_ddim_context(model, schedule, count, context, steps_of(request, run), **options)


def stem_of(request: Request) -> str:
    """Return the file name of a request: every option that differs from its default."""
    parts = [f"epoch{request.epoch}" if request.epoch else "", request.sampler, str(request.steps or "")]
    for name in ("order", "eta", "clip", "spacing", "context", "guidance", "count"):
        value = getattr(request, name)
        if value != getattr(Request, name):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            parts.append({"clip": name, "context": text}.get(name, name + text))
    stem = "-".join(part for part in (*parts, f"seed{request.seed}") if part)
    return stem.replace(":", "").replace(",", "+")


def sample_and_save(request: Request, run: TrainedDiffusion) -> list[Path]:
    """Sample images and write the files; return their paths."""
    directory, stem = make_directory(request.out or run.directory / "pictures"), stem_of(request)
    started = time.perf_counter()
    with Progress(steps_of(request, run), long="--count 8 takes less") as progress:
        x, intermediate = sample(request, run, save_rate=20, on_step=progress.step_of(request.sampler))
    print(f"{request.count} images by {request.sampler} in {time.perf_counter() - started:.1f} s")
    names = names_of(request, run)
    visualize.named_grid(x, request.columns, names).save(directory / f"{stem}.png")
    written = [
        directory / f"{stem}.png",
        visualize.save_gif(directory / f"{stem}.gif", intermediate, request.columns, names),
        visualize.save_schedule(directory / "schedule.png", run.schedule),
    ]
    return written + ([save_comparison(request, run, directory), save_page(run, directory)] if request.compare else [])


def save_comparison(request: Request, run: TrainedDiffusion, directory: Path) -> Path:
    """Save the three samplers' images from the same initial noise, with DDIM's options as requested."""
    count, seed = request.columns, request.seed
    ddpm = Request(sampler="ddpm", count=count, seed=seed, context=request.context, guidance=request.guidance)
    ddim = replace(request, count=count) if request.sampler == "ddim" else replace(ddpm, sampler="ddim")
    rows = {
        f"DDPM, {run.schedule.timesteps} steps": (ddpm, run),
        f"DDIM, {steps_of(ddim, run)} steps": (ddim, run),
        "incorrect: no noise added back": (Request(sampler="incorrect", count=count, seed=seed), run),
    }
    return _save_rows(directory / "samplers.png", rows, request.columns)


def save_stages(request: Request, runs: Mapping[int | None, TrainedDiffusion]) -> Path:
    """Save a run's images from the same initial noise after each of these epochs."""
    directory = make_directory(request.out or next(iter(runs.values())).directory / "pictures")
    row = replace(request, count=request.columns)
    rows = {f"after epoch {epoch}": (row, run) for epoch, run in runs.items()}
    return _save_rows(directory / f"stages-{stem_of(request)}.png", rows, request.columns)


def _save_rows(path: Path, rows: Mapping[str, tuple[Request, TrainedDiffusion]], columns: int) -> Path:
    sheets = []
    with Progress(sum(steps_of(*row) for row in rows.values())) as progress:
        for title, (request, run) in rows.items():
            x, _ = sample(request, run, on_step=progress.step_of(title))
            sheets.append((title, x, names_of(request, run)))
    return visualize.save_comparison(path, sheets, columns)


def save_page(run: TrainedDiffusion, directory: Path) -> Path:
    """Save an interactive page: denoising, and noising of a clean image."""
    from services.ws_mdl.diffusion import viewers  # ipywidgets, for this only
    from vla_notebooks.viewer import page

    steps, contexts = min(20, run.schedule.timesteps), (viewers.NO_CONTEXT, *run.classes[:2])
    few = {"steps": (steps,), "η": (0.0, 1.0), "guidance": (0.0, 1.0, 3.0), "context": contexts}
    clean = viewers.moments(run, steps)[-1].x[0]
    boxes = {
        "Out of noise": (viewers.denoising(run, steps), few),
        "Into noise": (viewers.noising(clean, run.schedule.timesteps), {}),
    }
    path = directory / "looking-in.html"
    path.write_text(page(f"What {run.config.name} sees", boxes), encoding="utf-8")
    return path


def main() -> None:
    """Sample by the command line's flags; print the paths of the files."""
    request = tyro.cli(Request, prog="sample diffusion", description=__doc__)
    epochs = [int(part) for part in request.epoch.split(",")] if request.epoch else [None]
    runs = {epoch: open_run(request.name, Volume(), request.device, epoch) for epoch in epochs}
    if len(runs) > 1:
        written = [save_stages(request, runs)]
    else:
        (run,) = runs.values()
        print(f"run {run.config.name}: {run.epochs} of {run.config.epochs} epochs trained")
        written = sample_and_save(request, run)
    for path in written:
        print(display_path(path))


if __name__ == "__main__":
    entrypoint.run(main)
