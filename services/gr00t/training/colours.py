"""Pictures as training shows them: cropped by chance, resized, their colours changed, with torchvision's bits.

What is drawn, and every rounding, is that of torchvision's RandomCrop, Resize and ColorJitter, which upstream uses
(gr00t/data/transform/video.py at 4af2b622). What is saved: channels lie one after the other, so that each operation
goes through memory in order; numbers are changed in place; and a choice between values is a product with 0 or 1, which
is exact, where torch's own selections take an element at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from services.gr00t.processing.pictures import CROP

BRIGHTNESS, CONTRAST, SATURATION, HUE = 0.3, 0.4, 0.5, 0.08  # upstream's ColorJitter
SIXTHS = torch.tensor([[5.0, 1, 3, 5, 1], [2, 4, 0, 2, 4]])[..., None]  # of the circle, in which red, green, blue fall
# and rise, with the neighbours of each: a channel is largest in its left one's fall and right one's rise
TOGETHER = 12544  # pixels: their numbers stay in a processor's cache
LEAST = torch.finfo(torch.float32).tiny  # in a denominator whose numerator is 0


def changed(pictures: Sequence[np.ndarray], side: int, seed: int) -> Tensor:
    """Returns uint8 [V, side, side, 3] of V pictures uint8 [3, H, W], all changed alike; `seed` says how."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        rows, columns = (_draw_crop(whole) for whole in pictures[0].shape[1:])
        change = _draw_colours()
    cropped = [torch.from_numpy(one[:, rows, columns]) for one in pictures]
    pixels = torch.empty((len(cropped), *cropped[0].shape))
    for place, one in zip(pixels, cropped, strict=True):
        place.copy_(one)
    pixels = F.interpolate(pixels.div_(255), (side, side), mode="bilinear", align_corners=False, antialias=True)
    for function, factor in change:
        function(pixels, factor)
    return pixels.mul_(255).to(torch.uint8).permute(0, 2, 3, 1)


def _draw_crop(whole: int) -> slice:
    """Returns what is kept of a side; nothing is drawn where there is no room."""
    kept = int(whole * CROP)
    start = int(torch.randint(0, whole - kept + 1, size=())) if whole > kept else 0
    return slice(start, start + kept)


def _draw_colours() -> list[tuple]:
    order = torch.randperm(4).tolist()
    ranges = [(1 - one, 1 + one) for one in (BRIGHTNESS, CONTRAST, SATURATION)] + [(-HUE, HUE)]
    factors = [torch.empty(1).uniform_(*ends).item() for ends in ranges]
    functions = (brighten, contrast, saturate, turn_hue)
    return [(functions[one], factors[one]) for one in order]


def brighten(pixels: Tensor, factor: float) -> None:
    """Multiplies float32 [V, 3, H, W] in place."""
    pixels.mul_(factor).clamp_(0, 1)


def contrast(pixels: Tensor, factor: float) -> None:
    """Moves float32 [V, 3, H, W] in place from or towards each picture's mean grey."""
    _blend(pixels, _grey(pixels).mean((-3, -2, -1), keepdim=True), factor)


def saturate(pixels: Tensor, factor: float) -> None:
    """Moves float32 [V, 3, H, W] in place from or towards grey."""
    _blend(pixels, _grey(pixels), factor)


def _grey(pixels: Tensor) -> Tensor:
    red, green, blue = pixels.unbind(1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze(1)


def _blend(pixels: Tensor, other: Tensor, factor: float) -> None:
    pixels.mul_(factor).add_(other, alpha=1.0 - factor).clamp_(0, 1)


def turn_hue(pixels: Tensor, turn: float) -> None:
    """Turns the hue of float32 [V, 3, H, W] of 0 to 1 in place, by a share of the circle."""
    for picture in pixels.flatten(2):
        for part in picture.split(TOGETHER, -1):
            hue, saturation, value = _hue_saturation_value(part)
            hue.add_(turn)
            _write_colours(part, hue.sub_(hue.floor()).frac_(), saturation, value)


def _hue_saturation_value(colours: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    red, green, blue = colours
    value = torch.maximum(torch.maximum(red, green), blue)
    spread = value - torch.minimum(torch.minimum(red, green), blue)
    r, g, b = (value - colours).div_(spread.clamp_min(LEAST))
    largest = torch.eq(colours, value, out=torch.empty_like(colours))  # 1 or 0 as a number: booleans are slow
    largest[1].mul_(1 - largest[0])
    hue = (b - g).mul_(largest[0]).addcmul_((r + 2).sub_(b), largest[1])
    hue.addcmul_((g + 4).sub_(r), (1 - largest[0]).sub_(largest[1]))
    return hue.mul_(1 / 6).add_(1).frac_(), spread.div_(value.clamp_min(LEAST)), value


def _write_colours(colours: Tensor, hue: Tensor, saturation: Tensor, value: Tensor) -> None:
    """Writes [3, N] of hue, saturation and value: each sixth of the circle has one channel fall, or rise."""
    sixth = hue.mul_(6).floor()
    part = hue.sub_(sixth).mul_(saturation)
    falling, rising, least = levels = torch.empty_like(colours)
    torch.sub(1, saturation, out=least)
    torch.add(part, least, out=rising)
    torch.sub(1, part, out=falling)
    levels.mul_(value).clamp_(0, 1)
    falls, rises = (torch.eq(sixth, one, out=torch.empty((5, len(sixth)))) for one in SIXTHS)
    torch.mul(falls[1:4], falling, out=colours)
    colours.addcmul_(rises[1:4], rising).addcmul_(falls[:3] + rises[2:], value).addcmul_(falls[2:] + rises[:3], least)
