"""Viewers for notebooks: noising and denoising of images."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch
from ipywidgets import Dropdown, FloatSlider, IntSlider, SelectionSlider, VBox
from torch import Tensor

from services.ws_mdl.diffusion import samplers
from services.ws_mdl.diffusion.schedule import SCHEDULES, perturb_input, predicted_x0
from services.ws_mdl.diffusion.train import TrainedDiffusion
from services.ws_mdl.diffusion.visualize import grid
from vla_notebooks import drawing
from vla_notebooks.viewer import viewer

PARTS = 9  # of the noising strip
SAMPLE_COUNT = 4  # images that are denoised together
NO_CONTEXT = "none"


def pixels(x: Tensor, columns: int = 2) -> np.ndarray:
    """Return a grid of images [n, c, h, h] in [-1, 1] as pixels, uint8 [H, W, 3]."""
    return (grid(x, columns) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()


def noising(x0: Tensor, timesteps: int = 500) -> VBox:
    """Return a viewer of an image [c, h, h] at evenly spaced steps, with controls for schedule and seed."""

    def strip(schedule: str, seed: int) -> str:
        noise_schedule, panels = SCHEDULES[schedule](timesteps), []
        noise = torch.randn((1, *x0.shape), generator=torch.Generator().manual_seed(seed))
        for t in torch.linspace(0, timesteps, PARTS).round().int().tolist():
            x = perturb_input(noise_schedule, x0[None], torch.tensor([t]), noise)
            panels.append(drawing.image(pixels(x, 1), f"t={t} √ᾱ={noise_schedule.ab_t[t].sqrt():.2f}", 110))
        return drawing.side_by_side(panels)

    return viewer(strip, schedule=Dropdown(options=list(SCHEDULES)), seed=IntSlider(min=0, max=9))


class SamplerState(NamedTuple):
    """A sampler's state at step t: images [n, c, h, h], predicted noise, predicted clean images."""

    t: int
    x: Tensor
    noise: Tensor
    x0: Tensor


def moments(
    run: TrainedDiffusion, steps: int, eta: float = 0.0, guidance: float = 1.0, context: Tensor | None = None,
    seed: int = 0,
) -> list[SamplerState]:  # fmt: skip
    """Return DDIM's trajectory from noise to images: a moment before each step, then the final images."""
    step, trajectory = samplers.ddim_step(run.schedule, eta), []

    def recording_step(x: Tensor, t: int, t_prev: int, pred_noise: Tensor, z: Tensor) -> Tensor:
        x0 = predicted_x0(run.schedule, x, t, pred_noise)
        trajectory.append(SamplerState(t, *(part.cpu() for part in (x, pred_noise, x0))))
        return step(x, t, t_prev, pred_noise, z)

    times = samplers.ddim_steps(run.schedule.timesteps, steps)
    x, _ = samplers.walk(
        run.nn_model, run.schedule, SAMPLE_COUNT, context, times, recording_step, seed=seed, guidance=guidance
    )
    return [*trajectory, SamplerState(0, x.cpu(), torch.zeros_like(x.cpu()), x.cpu())]


def denoising(run: TrainedDiffusion, steps: int = 20) -> VBox:
    """Return a viewer of x_t, predicted noise ε and image x̂0, with sliders for t, steps, η, guidance and class."""

    @functools.lru_cache(maxsize=32)
    def trajectory_of(steps: int, eta: float, guidance: float, name: str) -> list[SamplerState]:
        context = None if name == NO_CONTEXT else samplers.parse_context(name, run.classes).expand(SAMPLE_COUNT, -1)
        return moments(run, steps, eta, guidance, context)

    def draw(t: float, steps: int, eta: float, guidance: float, context: str) -> str:
        trajectory = trajectory_of(steps, eta, guidance, context)
        now = min(trajectory, key=lambda moment: abs(moment.t - t * run.schedule.timesteps))
        parts = {f"x_t at t = {now.t}": now.x, "ε: predicted noise": now.noise / 2, "x̂0: predicted image": now.x0}
        return drawing.side_by_side([drawing.image(pixels(x), name) for name, x in parts.items()])

    timesteps = run.schedule.timesteps
    return viewer(
        draw,
        t=SelectionSlider(options=[(str(round(timesteps * (1 - i / 20))), 1 - i / 20) for i in range(21)], value=0.5),
        steps=IntSlider(min=1, max=min(50, timesteps), value=min(steps, timesteps), continuous_update=False),
        eta=FloatSlider(description="η", min=0.0, max=1.0, step=0.1, value=0.0, continuous_update=False),
        guidance=FloatSlider(min=0.0, max=5.0, step=0.5, value=1.0, continuous_update=False),
        context=Dropdown(options=[NO_CONTEXT, *(run.classes if run.config.context else ())]),
    )
