"""From noise to images: DDPM (all steps, with fresh noise) and DDIM (few steps, without).

A sampler takes the network and a schedule, and returns images and intermediate images. The same seed gives the same
images. DDIM is Song et al. 2020, "Denoising Diffusion Implicit Models", and its second order Lu et al.
2022, "DPM-Solver++".
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from services.ws_mdl.diffusion.schedule import Schedule, predicted_x0

MAX_RECORDED_STEPS = 50  # a sampler with at most this many steps records all intermediate images

# One denoising step: (x, t, t_prev, pred_noise, fresh noise) -> x at t_prev
Step = Callable[[Tensor, int, int, Tensor, Tensor], Tensor]


def denoise_add_noise(
    schedule: Schedule, x: Tensor, t: int, pred_noise: Tensor, z: Tensor, variance: str = "beta"
) -> Tensor:
    """Take a DDPM step to t - 1: remove part of the predicted noise, and add noise z.

    variance: of the added noise, "beta" (as in the course) or "posterior"; Ho et al. report similar results.
    """
    b, a, ab, ab_prev = schedule.b_t[t], schedule.a_t[t], schedule.ab_t[t], schedule.ab_t[t - 1]
    mean = (x - b / (1 - ab).sqrt() * pred_noise) / a.sqrt()
    spread = b if variance == "beta" else (1 - ab_prev) / (1 - ab) * b
    return mean + spread.sqrt() * z


def denoise_ddim(
    schedule: Schedule, x: Tensor, t: int, t_prev: int, pred_noise: Tensor, z: Tensor | None = None,
    eta: float = 0.0, clip: bool = False,
) -> Tensor:  # fmt: skip
    """Take a DDIM step to t_prev < t: the predicted image with the noise level of t_prev.

    eta: share of fresh noise z, from 0 (deterministic given the initial noise) to 1 (as in DDPM with posterior
    variance; `denoise_add_noise` uses the larger β by default). clip: clip the predicted image to [-1, 1].
    """
    x0 = predicted_x0(schedule, x, t, pred_noise)
    return towards(schedule, x, t, t_prev, x0.clamp(-1, 1) if clip else x0, z, eta)


def towards(schedule: Schedule, x: Tensor, t: int, t_prev: int, x0: Tensor, z: Tensor | None, eta: float) -> Tensor:
    """Return image x0 with the noise level of t_prev: the noise of x at t, and a share of fresh noise z."""
    ab, ab_prev = schedule.ab_t[t], schedule.ab_t[t_prev]
    fresh = eta * ((1 - ab_prev) / (1 - ab) * (1 - ab / ab_prev)).sqrt()
    noise = (x - ab.sqrt() * x0) / (1 - ab).sqrt()
    x0_pred = ab_prev.sqrt() * x0
    dir_xt = (1 - ab_prev - fresh**2).clamp(min=0).sqrt() * noise
    return x0_pred + dir_xt if z is None or eta == 0 else x0_pred + dir_xt + fresh * z


def ddim_step(schedule: Schedule, eta: float = 0.0, clip: bool = False, order: int = 1) -> Step:
    """Return a DDIM step for `walk`.

    order: 1 is DDIM, which uses the image predicted at t up to t_prev. 2 extrapolates from the previous prediction: the
    multistep solver DPM-Solver++, whose first order is DDIM; with eta 1, its stochastic form. It needs no more calls of
    the network.
    """
    if order not in (1, 2):
        raise ValueError(f"order is {order}; expected 1 (DDIM) or 2 (second-order solver)")
    before: tuple[int, Tensor] | None = None

    def step(x: Tensor, t: int, t_prev: int, pred_noise: Tensor, z: Tensor) -> Tensor:
        nonlocal before
        x0 = predicted = predicted_x0(schedule, x, t, pred_noise)
        if clip:
            x0 = predicted = predicted.clamp(-1, 1)
        if order == 2 and before is not None and t_prev > 0:
            # to the midpoint of t and t_prev, linear in λ = ½ ln(ᾱ / (1 - ᾱ)), which is infinite for the clean image
            last, now, following = (0.5 * torch.logit(schedule.ab_t[k].double()) for k in (before[0], t, t_prev))
            x0 = predicted + ((following - now) / (now - last) / 2).float() * (predicted - before[1])
        before = t, predicted
        return towards(schedule, x, t, t_prev, x0, z, eta)

    return step


def ddim_steps(timesteps: int, n: int, spacing: float = 1.0) -> list[int]:
    """Return n + 1 different steps from `timesteps` down to 0.

    spacing: 1 is even; above 1, more of the steps are near the clean image.
    """
    if not 1 <= n <= timesteps:
        raise ValueError(f"{n} sampling steps requested; expected 1 to {timesteps}, the schedule's")
    if not 1 <= spacing <= 4:
        raise ValueError(f"spacing is {spacing}; expected 1 (even) to 4 (nearly all steps near the clean image)")
    return [max(k, int(timesteps * (k / n) ** spacing + 0.5)) for k in range(n, -1, -1)]


# --- the samplers -------------------------------------------------------------------------------------------
# Each returns images [n, c, h, h] in about [-1, 1] and intermediate images [frames, n, c, h, h]; options: see `walk`.


def sample_ddpm(nn_model, schedule: Schedule, n_sample: int, **options) -> tuple[Tensor, np.ndarray]:
    """Sample by all steps, with fresh noise."""
    return sample_ddpm_context(nn_model, schedule, n_sample, None, **options)


def sample_ddpm_context(
    nn_model, schedule: Schedule, n_sample: int, context: Tensor | None, *, variance: str = "beta", **options
) -> tuple[Tensor, np.ndarray]:
    """Like `sample_ddpm`, with a context [n, n_cfeat]: one-hot, or a mix such as half hero, half food."""

    def step(x, t, t_prev, pred_noise, z):
        return denoise_add_noise(schedule, x, t, pred_noise, z if t > 1 else torch.zeros_like(z), variance)

    return walk(nn_model, schedule, n_sample, context, range(schedule.timesteps, -1, -1), step, **options)


def sample_ddpm_incorrect(nn_model, schedule: Schedule, n_sample: int, **options) -> tuple[Tensor, np.ndarray]:
    """Sample without adding noise, which gives blurred, average images. For the lesson only."""

    def step(x, t, t_prev, pred_noise, z):
        return denoise_add_noise(schedule, x, t, pred_noise, torch.zeros_like(z))

    return walk(nn_model, schedule, n_sample, None, range(schedule.timesteps, -1, -1), step, **options)


def sample_ddim(nn_model, schedule: Schedule, n_sample: int, n: int = 20, **options) -> tuple[Tensor, np.ndarray]:
    """Sample by n steps, from 1 to the schedule's."""
    return sample_ddim_context(nn_model, schedule, n_sample, None, n, **options)


def sample_ddim_context(
    nn_model, schedule: Schedule, n_sample: int, context: Tensor | None, n: int = 20, *,
    eta: float = 0.0, clip: bool = False, spacing: float = 1.0, order: int = 1, **options,
) -> tuple[Tensor, np.ndarray]:  # fmt: skip
    """Like `sample_ddim`, with a context; eta, clip and order as in `ddim_step`, spacing as in `ddim_steps`."""
    steps = ddim_steps(schedule.timesteps, n, spacing)
    return walk(nn_model, schedule, n_sample, context, steps, ddim_step(schedule, eta, clip, order), **options)


@torch.inference_mode()
def walk(
    nn_model, schedule: Schedule, n_sample: int, context: Tensor | None, steps: Sequence[int], step: Step, *,
    seed: int | None = None, guidance: float = 1.0, dtype: torch.dtype | None = None,
    save_rate: int = 0, on_step: Callable[[int], None] = lambda t: None,
) -> tuple[Tensor, np.ndarray]:  # fmt: skip
    """Run a sampler over `steps` (descending to 0); return the images and intermediate images.

    seed: of all noise; None: random. guidance: classifier-free guidance (Ho & Salimans 2022); 1 is plain conditional
    sampling, larger values follow the context at the cost of variety. dtype: of the network's matrix products; the
    images stay float32. save_rate: record every save_rate-th step, the first and the last eight; a short sampler that
    skips steps records all; 0 records none.
    """
    device = schedule.b_t.device
    if context is not None and tuple(context.shape) != (n_sample, nn_model.n_cfeat):
        raise ValueError(f"context has the shape {tuple(context.shape)}; expected {(n_sample, nn_model.n_cfeat)}")
    generator = torch.Generator("cpu")  # the same numbers on every device
    generator.manual_seed(seed) if seed is not None else generator.seed()
    shape = (n_sample, nn_model.in_channels, nn_model.h, nn_model.h)
    context = None if context is None else context.to(device, torch.float32)

    x, frames = torch.randn(shape, generator=generator).to(device), []
    keeps_all = len(steps) <= min(steps[0], MAX_RECORDED_STEPS)  # a short sampler that skips steps
    for number, (t, t_prev) in enumerate(itertools.pairwise(steps)):
        on_step(t)
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            pred_noise = predict_noise(nn_model, x, schedule.time(t), context, guidance)
        x = step(x, t, t_prev, pred_noise, torch.randn(shape, generator=generator).to(device))
        if save_rate and (keeps_all or t % save_rate == 0 or number == 0 or len(steps) - number < 9):
            frames.append(x.cpu().numpy())
    return x, np.stack(frames) if frames else np.empty((0, *shape), np.float32)


def predict_noise(nn_model, x: Tensor, time: Tensor, context: Tensor | None, guidance: float) -> Tensor:
    """Return the predicted noise, with classifier-free guidance if `guidance` is not 1."""
    x_in = x.contiguous(memory_format=torch.channels_last)
    if context is None or guidance == 1.0:
        return nn_model(x_in, time, context).float()
    stacked = nn_model(torch.cat((x_in, x_in)), time, torch.cat((context, torch.zeros_like(context)))).float()
    with_context, without = stacked.chunk(2)
    return without + guidance * (with_context - without)


# --- contexts: what `--context` means -----------------------------------------------------------------------


def parse_context(text: str, classes: tuple[str, ...]) -> Tensor:
    """Parse "hero", "hero+food" (both) or "hero:1,food:0.6" (a mix) to a context vector, float32 [n_cfeat]."""
    context = torch.zeros(len(classes))
    for part in text.replace("+", ",").split(","):
        name, _, weight = part.strip().partition(":")
        if name not in classes:
            close = difflib.get_close_matches(name, classes, 1)
            hint = f"; did you mean '{close[0]}'?" if close else "."
            raise ValueError(f"context '{name}' not found{hint} Known: {', '.join(classes)}, all")
        try:
            context[classes.index(name)] = float(weight or 1)
        except ValueError as error:
            raise ValueError(f"{part!r} has the weight {weight!r}; expected a number, as in {name}:0.6") from error
    return context


def contexts_for(text: str, classes: tuple[str, ...], count: int) -> Tensor:
    """Return contexts [count, n_cfeat]: the same for all images, or with "all" each class for an equal share."""
    if text == "all":
        labels = torch.arange(count) * len(classes) // count
        return functional.one_hot(labels, len(classes)).float()
    return parse_context(text, classes).expand(count, -1)
