"""Image augmentation of training: random crop, resize, colour jitter, with the same bits as torchvision.

Random numbers and rounding are those of torchvision's RandomCrop, Resize and ColorJitter, which upstream uses
(gr00t/data/transform/video.py at 4af2b622). It is faster: channels are contiguous, so each operation reads memory
in order; numbers are changed in place; and a choice between values is a minimum or maximum,
which is exact, while torch's own selections handle one element at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from services.gr00t.processing.images import CROP

BRIGHTNESS, CONTRAST, SATURATION, HUE = 0.3, 0.4, 0.5, 0.08  # upstream's ColorJitter
HUE_PENALTY = 1e9  # times what a channel lacks of the largest: beyond every hue
EPSILON = torch.finfo(torch.float32).tiny  # in a denominator whose numerator is 0


def changed(images: Sequence[np.ndarray], side: int, seed: int) -> Tensor:
    """Return uint8 [V, side, side, 3] of V images uint8 [3, H, W], all changed alike; `seed` says how."""
    draw = torch.Generator().manual_seed(seed)
    rows, columns = (_draw_crop(size, draw) for size in images[0].shape[1:])
    order = torch.randperm(4, generator=draw).tolist()
    ranges = [(1 - strength, 1 + strength) for strength in (BRIGHTNESS, CONTRAST, SATURATION)] + [(-HUE, HUE)]
    factors = [torch.empty(1).uniform_(*ends, generator=draw).item() for ends in ranges]
    functions = (brighten, contrast, saturate, turn_hue)
    cropped = [torch.from_numpy(image[:, rows, columns]) for image in images]
    pixels = torch.empty((len(cropped), *cropped[0].shape))
    for target, source in zip(pixels, cropped, strict=True):
        target.copy_(source)
    pixels = F.interpolate(pixels.div_(255), (side, side), mode="bilinear", align_corners=False, antialias=True)
    for index in order:
        functions[index](pixels, factors[index])
    return pixels.mul_(255).to(torch.uint8).permute(0, 2, 3, 1)


def _draw_crop(size: int, draw: torch.Generator) -> slice:
    """Return the crop of a side; draws no random number if nothing is cropped."""
    cropped = int(size * CROP)
    start = int(torch.randint(0, size - cropped + 1, size=(), generator=draw)) if size > cropped else 0
    return slice(start, start + cropped)


def brighten(pixels: Tensor, factor: float) -> None:
    """Multiply float32 [V, 3, H, W] in place."""
    pixels.mul_(factor).clamp_(0, 1)


def contrast(pixels: Tensor, factor: float) -> None:
    """Move float32 [V, 3, H, W] in place from or towards each image's mean grey."""
    _blend(pixels, _grey(pixels).mean((-3, -2, -1), keepdim=True), factor)


def saturate(pixels: Tensor, factor: float) -> None:
    """Move float32 [V, 3, H, W] in place from or towards grey."""
    _blend(pixels, _grey(pixels), factor)


def _grey(pixels: Tensor) -> Tensor:
    red, green, blue = pixels.unbind(1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze(1)


def _blend(pixels: Tensor, other: Tensor, factor: float) -> None:
    pixels.mul_(factor).add_(other, alpha=1.0 - factor).clamp_(0, 1)


def turn_hue(pixels: Tensor, turn: float) -> None:
    """Turn the hue of float32 [V, 3, H, W] of 0 to 1 in place, by a share of the circle."""
    for image in pixels.flatten(2):
        hue, saturation, value = _hue_saturation_value(image)
        hue.add_(turn)
        _write_colours(image, hue.sub_(hue.floor()), saturation, value)


def _hue_saturation_value(colours: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue, saturation and value of [3, N]. The hue is the minimum of three: with red, green, blue as maximum.

    A channel that is not the largest is far from its formula: how much it lacks is 0 or at least 6e-8.
    """
    red, green, blue = colours
    value = torch.maximum(red, green)
    torch.maximum(value, blue, out=value)
    minimum = torch.minimum(red, green)
    torch.minimum(minimum, blue, out=minimum)
    spread = torch.sub(value, minimum, out=minimum)
    r, g, b = (value - colours).div_(spread.clamp_min(EPSILON))
    hue = (g + 4).sub_(r)
    torch.minimum(hue, (r + 2).sub_(b).add_(g, alpha=HUE_PENALTY), out=hue)
    torch.minimum(hue, torch.sub(b, g, out=b).add_(r, alpha=HUE_PENALTY), out=hue)
    return hue.mul_(1 / 6).add_(1).frac_(), spread.div_(value.clamp_min(EPSILON)), value


def _write_colours(colours: Tensor, hue: Tensor, saturation: Tensor, value: Tensor) -> None:
    """Write [3, N] of hue, saturation and value.

    In each sixth of the circle one channel is the largest, one the least, one between them, where it rises in even
    sixths and falls in odd ones. A product for each channel is 0 where it lies between, and else at least 2 away.
    """
    sixth = hue.mul_(6).floor()
    part = hue.sub_(sixth).mul_(saturation)
    odd = sixth.mul(0.5).frac_().mul_(2)
    minimum, between = levels = torch.empty((2, len(hue)))
    torch.sub(1, saturation, out=minimum)
    torch.maximum(minimum, odd, out=between).addcmul_(part, odd.mul_(-2).add_(1))
    levels.mul_(value).clamp_max_(1)
    red, green, blue = colours
    torch.addcmul(between, sixth - 1, sixth - 4, out=red)
    torch.addcmul(between, sixth, 3 - sixth, out=green)
    torch.addcmul(between, sixth - 2, 5 - sixth, out=blue)
    torch.clamp(colours, minimum, value, out=colours)
