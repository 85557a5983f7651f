"""Plots: sample grids, denoising as a GIF, schedules, samplers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from services.ws_mdl.diffusion.schedule import Schedule

GAP = 1  # pixels between two images, before scaling
BAND = 16  # pixels for a line of labels above images


def grid(x: Tensor, columns: int) -> Tensor:
    """Arrange images [n, c, h, h] in [-1, 1] in a grid with `columns` per row: float32 [3, H, W] in [0, 1]."""
    n, _, h, w = x.shape
    x = ((x.float().cpu().clamp(-1, 1) + 1) / 2).expand(-1, 3, -1, -1)
    rows = -(-n // columns)
    sheet = torch.ones(3, rows * (h + GAP) - GAP, columns * (w + GAP) - GAP)
    for k in range(n):
        top, left = (k // columns) * (h + GAP), (k % columns) * (w + GAP)
        sheet[:, top : top + h, left : left + w] = x[k]
    return sheet


def to_image(sheet: Tensor, scale: int = 4) -> Image.Image:
    """Convert float32 [3, H, W] in [0, 1] to an image, scaled up by `scale`."""
    pixels = (sheet * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return Image.fromarray(pixels).resize((pixels.shape[1] * scale, pixels.shape[0] * scale), Image.Resampling.NEAREST)


def stack(sheets: Sequence[tuple[Sequence[tuple[int, str]], Image.Image]], width: int = 0) -> Image.Image:
    """Stack images vertically, each below a line of labels (left in pixels, text)."""
    size = max(width, *(sheet.width for _, sheet in sheets)), sum(sheet.height + BAND for _, sheet in sheets)
    canvas = Image.new("RGB", size, "white")
    draw, top = ImageDraw.Draw(canvas), 0
    for texts, sheet in sheets:
        for left, text in texts:
            draw.text((left, top + 2), text, fill="black")
        canvas.paste(sheet, (0, top + BAND))
        top += BAND + sheet.height
    return canvas


def named_grid(x: Tensor, columns: int, names: Sequence[str] = (), scale: int = 4) -> Image.Image:
    """Arrange images [n, c, h, h] in a grid. names: of the images; written where a name changes."""
    if not names:
        return to_image(grid(x, columns), scale)
    cell, sheets = (x.shape[-1] + GAP) * scale, []
    for start in range(0, len(x), columns):
        row = names[start : start + columns]
        texts = [(at * cell + 1, name) for at, name in enumerate(row) if at == 0 or name != row[at - 1]]
        sheets.append((texts, to_image(grid(x[start : start + columns], columns), scale)))
    return stack(sheets)


def save_gif(path: Path, intermediate: np.ndarray, columns: int, names: Sequence[str] = ()) -> Path:
    """Save the denoising as GIF: intermediate [frames, n, c, h, h], noise first; the last frame is shown longer."""
    if len(intermediate) == 0:
        raise ValueError("no intermediate images to animate; sample with a save_rate above 0")
    frames = [named_grid(torch.from_numpy(x), columns, names) for x in intermediate]
    durations = [100] * (len(frames) - 1) + [1000]  # ms
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return path


def save_comparison(path: Path, rows: Sequence[tuple[str, Tensor, Sequence[str]]], columns: int = 8) -> Path:
    """Save images of several samplers in rows of (title, images [n, c, h, h], names)."""
    sheets = [([(2, title)], named_grid(x[:columns], columns, names[:columns])) for title, x, names in rows]
    text_width = ImageDraw.Draw(Image.new("RGB", (1, 1))).textlength
    stack(sheets, max(round(text_width(title)) + 4 for title, _, _ in rows)).save(path)
    return path


def save_schedule(path: Path, schedule: Schedule) -> Path:
    """Plot a schedule: the noise per step, and the shares of image and noise."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    added, share = figure.subplots(1, 2)
    steps, signal = np.arange(schedule.timesteps + 1), schedule.ab_t.sqrt().cpu()
    added.plot(steps[1:], schedule.b_t[1:].cpu(), label=schedule.name)
    (line,) = share.plot(steps, signal, label=f"{schedule.name}: image")
    share.plot(steps, (1 - signal**2).sqrt(), "--", color=line.get_color(), label=f"{schedule.name}: noise")
    added.set(xlabel="step", title="β: noise per step")
    share.set(xlabel="step", title="√ᾱ and √(1 - ᾱ): shares of image and noise")
    for axes in (added, share):
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    return path
