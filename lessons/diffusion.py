"""Lesson 2: diffusion, from a noise schedule to new images of digits.

Run it: `./lab shell ws_mdl --command "python -m lessons.diffusion"`. Read it from top to bottom: each part uses only
what is above it. `services/ws_mdl/diffusion` is the same model, fast; a test compares their numbers on the same
weights. Comments at the end of a line give shapes, and a test checks each of them: n images, c channels, height = width
in pixels, features of the network.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn


# --- 1. adding noise (Ho et al. 2020, "Denoising Diffusion Probabilistic Models") -----------------------
class Schedule(NamedTuple):
    """Per step, from 0 (clean) to the last (noise): added variance β, α = 1 - β, and ᾱ, the product of α so far."""

    b_t: Tensor
    a_t: Tensor
    ab_t: Tensor


def linear_schedule(timesteps: int = 500, beta1: float = 1e-4, beta2: float = 0.02) -> Schedule:
    """Return the course's schedule. Index 0 is the clean image, so β_0 is 0 and ᾱ_0 is 1."""
    b_t = torch.linspace(beta1, beta2, timesteps + 1, dtype=torch.float64)  # (steps)
    b_t[0] = 0.0
    a_t = 1 - b_t  # (steps)
    ab_t = torch.cumprod(a_t, dim=0)  # (steps)
    return Schedule(b_t.float(), a_t.float(), ab_t.float())


def perturb_input(x: Tensor, t: Tensor, noise: Tensor, ab_t: Tensor) -> Tensor:
    """Return noisy images at steps t [n]: √ᾱ of the image and √(1 - ᾱ) of noise, so the variance stays 1."""
    ab = ab_t[t][:, None, None, None]  # (n, 1, 1, 1)
    return ab.sqrt() * x + (1 - ab).sqrt() * noise  # (n, c, height, height)


# --- 2. the network: what is the noise in this image? ---------------------------------------------------------
class ResidualConvBlock(nn.Module):
    """Two 3×3 convolutions; the network's first block also has a residual connection."""

    def __init__(self, ins: int, outs: int, is_res: bool = False):
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(ins, outs, 3, 1, 1), nn.BatchNorm2d(outs), nn.GELU())
        self.conv2 = nn.Sequential(nn.Conv2d(outs, outs, 3, 1, 1), nn.BatchNorm2d(outs), nn.GELU())
        self.shortcut = nn.Conv2d(ins, outs, 1) if is_res else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.conv1(x))  # (n, outs, h, h)
        return out if self.shortcut is None else (self.shortcut(x) + out) / math.sqrt(2)  # (n, outs, h, h)


class UnetDown(nn.Module):
    """Two blocks, then half the height and width."""

    def __init__(self, ins: int, outs: int):
        super().__init__()
        self.model = nn.Sequential(ResidualConvBlock(ins, outs), ResidualConvBlock(outs, outs), nn.MaxPool2d(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)  # (n, outs, half, half)


class UnetUp(nn.Module):
    """Concatenate the skip connection of this size, double height and width, then two blocks."""

    def __init__(self, ins: int, outs: int):
        super().__init__()
        double = nn.ConvTranspose2d(ins, outs, 2, 2)
        self.model = nn.Sequential(double, ResidualConvBlock(outs, outs), ResidualConvBlock(outs, outs))

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.model(torch.cat((x, skip), dim=1))  # (n, outs, twice, twice)


class EmbedFC(nn.Module):
    """Map a few numbers (the time, the context) to one feature per channel of the upward path."""

    def __init__(self, ins: int, outs: int):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(ins, outs), nn.GELU(), nn.Linear(outs, outs))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[:, :, None, None]  # (n, outs, 1, 1)


class ContextUnet(nn.Module):
    """A small U-Net: down to one number per feature and up again, with skip connections, time and context."""

    def __init__(self, c: int, features: int, classes: int, height: int):
        super().__init__()
        self.init_conv = ResidualConvBlock(c, features, is_res=True)
        self.down1, self.down2 = UnetDown(features, features), UnetDown(features, 2 * features)
        self.to_vec = nn.Sequential(nn.AvgPool2d(height // 4), nn.GELU())
        self.timeembed1, self.timeembed2 = EmbedFC(1, 2 * features), EmbedFC(1, features)
        self.contextembed1, self.contextembed2 = EmbedFC(classes, 2 * features), EmbedFC(classes, features)
        wide = nn.ConvTranspose2d(2 * features, 2 * features, height // 4, height // 4)
        self.up0 = nn.Sequential(wide, nn.GroupNorm(8, 2 * features), nn.ReLU())
        self.up1, self.up2 = UnetUp(4 * features, features), UnetUp(2 * features, features)
        first, last = nn.Conv2d(2 * features, features, 3, 1, 1), nn.Conv2d(features, c, 3, 1, 1)
        self.out = nn.Sequential(first, nn.GroupNorm(8, features), nn.ReLU(), last)

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """Return the noise in x. time [n, 1]: 0 clean, 1 noise. context [n, classes]: zeros mean no context."""
        x = self.init_conv(x)  # (n, features, height, height)
        down1 = self.down1(x)  # (n, features, height / 2, height / 2)
        down2 = self.down2(down1)  # (n, 2 * features, height / 4, height / 4)
        up = self.up0(self.to_vec(down2))  # (n, 2 * features, height / 4, height / 4)
        up = self.up1(self.contextembed1(context) * up + self.timeembed1(time), down2)
        up = self.up2(self.contextembed2(context) * up + self.timeembed2(time), down1)
        return self.out(torch.cat((up, x), dim=1))  # (n, c, height, height)


# --- 3. learning ----------------------------------------------------------------------------------------------
def loss_of(model: ContextUnet, x: Tensor, context: Tensor, schedule: Schedule, draw: torch.Generator) -> Tensor:
    """Return the squared error of the predicted noise; one context in ten is dropped, for guidance."""
    n, timesteps = len(x), len(schedule.ab_t) - 1
    noise = torch.randn(x.shape, generator=draw)  # (n, c, height, height)
    t = torch.randint(1, timesteps + 1, (n,), generator=draw)  # (n)
    has_context = torch.rand((n, 1), generator=draw) < 0.9  # (n, 1)
    x_pert = perturb_input(x, t, noise, schedule.ab_t)  # (n, c, height, height)
    pred_noise = model(x_pert, t[:, None] / timesteps, context * has_context)  # (n, c, height, height)
    return ((pred_noise - noise) ** 2).mean()  # ()


def train_model(
    model: ContextUnet, x: Tensor, context: Tensor, schedule: Schedule, epochs: int, batch: int = 100,
    lrate: float = 1e-3, seed: int = 0,
) -> None:  # fmt: skip
    """Train on images; the learning rate falls linearly to 0."""
    optim = torch.optim.Adam(model.parameters())
    draw = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        optim.param_groups[0]["lr"] = lrate * (1 - epoch / epochs)
        for index in torch.randperm(len(x), generator=draw).split(batch):
            loss = loss_of(model, x[index], context[index], schedule, draw)  # ()
            optim.zero_grad()
            loss.backward()
            optim.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


# --- 4. sampling with every step: DDPM ------------------------------------------------------------------------
def guided_noise(model: ContextUnet, x: Tensor, time: Tensor, context: Tensor, guidance: float) -> Tensor:
    """Return the noise predicted with classifier-free guidance (Ho & Salimans 2022); guidance 1 is plain sampling."""
    with_context = model(x, time, context)  # (n, c, height, height)
    without = model(x, time, torch.zeros_like(context))  # (n, c, height, height)
    return without + guidance * (with_context - without)  # (n, c, height, height)


def denoise_add_noise(x: Tensor, t: int, pred_noise: Tensor, z: Tensor, schedule: Schedule) -> Tensor:
    """Return x at t - 1: part of the predicted noise is removed, new noise z is added, except in the last step."""
    b, a, ab = schedule.b_t[t], schedule.a_t[t], schedule.ab_t[t]
    mean = (x - b / (1 - ab).sqrt() * pred_noise) / a.sqrt()  # (n, c, height, height)
    return mean + b.sqrt() * z if t > 1 else mean  # (n, c, height, height)


@torch.no_grad()
def sample_ddpm(
    model: ContextUnet, x: Tensor, context: Tensor, schedule: Schedule, draw: torch.Generator, guidance=1.0
):
    """Return images sampled from the noise x with every step of the schedule."""
    timesteps = len(schedule.ab_t) - 1
    for t in range(timesteps, 0, -1):
        time = torch.full((len(x), 1), t / timesteps)  # (n, 1)
        pred_noise = guided_noise(model, x, time, context, guidance)  # (n, c, height, height)
        z = torch.randn(x.shape, generator=draw)  # (n, c, height, height)
        x = denoise_add_noise(x, t, pred_noise, z, schedule)  # (n, c, height, height)
    return x  # (n, c, height, height)


# --- 5. sampling with few steps: DDIM (Song et al. 2020, "Denoising Diffusion Implicit Models") -------------
def denoise_ddim(x: Tensor, t: int, t_prev: int, pred_noise: Tensor, ab_t: Tensor) -> Tensor:
    """Return x at step t_prev < t: the clean image that x predicts, with the noise of t_prev."""
    ab, ab_prev = ab_t[t], ab_t[t_prev]
    x0_pred = (x - (1 - ab).sqrt() * pred_noise) / ab.sqrt()  # (n, c, height, height)
    return ab_prev.sqrt() * x0_pred + (1 - ab_prev).sqrt() * pred_noise  # (n, c, height, height)


@torch.no_grad()
def sample_ddim(model: ContextUnet, x: Tensor, context: Tensor, schedule: Schedule, steps: int = 20, guidance=1.0):
    """Return images sampled from the noise x in `steps` steps, without new noise."""
    timesteps = len(schedule.ab_t) - 1
    steps_down = [round(timesteps * k / steps) for k in range(steps, -1, -1)]  # 500, 475 … 0
    for t, t_prev in pairwise(steps_down):
        time = torch.full((len(x), 1), t / timesteps)  # (n, 1)
        pred_noise = guided_noise(model, x, time, context, guidance)  # (n, c, height, height)
        x = denoise_ddim(x, t, t_prev, pred_noise, schedule.ab_t)  # (n, c, height, height)
    return x  # (n, c, height, height)


# --- 6. digits ------------------------------------------------------------------------------------------------
def digits() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's 1,797 handwritten digits, doubled to 16 × 16, in [-1, 1], and their classes, one-hot."""
    from sklearn.datasets import load_digits

    x = torch.from_numpy(load_digits().images).float()[:, None] / 8 - 1  # (count, 1, 8, 8)
    x = nn.functional.interpolate(x, scale_factor=2, mode="bilinear")  # (count, 1, 16, 16)
    return x, nn.functional.one_hot(
        torch.from_numpy(load_digits().target).long()
    ).float()  # (count, 1, 16, 16) (count, 10)


def as_text(images: Tensor) -> str:
    """Return images [n, 1, height, height] side by side as shades of text."""
    rows = torch.cat(tuple(images[:, 0]), dim=1)[::2]  # (height / 2, n * height)
    return "\n".join("".join(" .:-=+*#%@"[min(9, max(0, int(5 * p + 5)))] for p in row) for row in rows)


if __name__ == "__main__":
    torch.manual_seed(0)
    schedule, model = linear_schedule(), ContextUnet(c=1, features=32, classes=10, height=16)
    train_model(model, *digits(), schedule, epochs=12)
    model.eval()
    print(as_text(sample_ddim(model, torch.randn(6, 1, 16, 16), torch.eye(10)[:6], schedule, guidance=2.0)))
