"""How good are pictures of different models? The diffusion lab's distance, and how sharp they are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from services.ws_mdl.diffusion.data import Pictures
from services.ws_mdl.diffusion.score import Classifier, features, frechet_distance

LAPLACIAN = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])


def distance(classifier: Classifier, real: Pictures, x: Tensor) -> float:
    """Returns the Fréchet distance of pictures x [n, c, h, h] to the real ones, as `score diffusion` computes it."""
    return frechet_distance(features(classifier, real.x), features(classifier, x.clamp(-1, 1)))


def sharpness(x: Tensor) -> float:
    """Returns the mean size of a pixel's difference from its four neighbours' mean; blurred pictures have less."""
    kernel = (LAPLACIAN / 4).expand(x.shape[1], 1, 3, 3)
    return functional.conv2d(x, kernel, groups=x.shape[1]).abs().mean().item()


def latent_map(decode, side: int = 12) -> Tensor:
    """Returns the pictures of a net of z over the square that holds 95 % of each number: [side², c, h, h].

    decode: z [n, 2] → pictures. From left to right z₁ rises, from top to bottom z₂ falls; the net's places are equally
    probable parts of a normal distribution.
    """
    shares = torch.linspace(0.025, 0.975, side)
    places = torch.special.ndtri(shares)
    down, across = torch.meshgrid(places.flip(0), places, indexing="ij")
    with torch.no_grad():
        return decode(torch.stack([across.flatten(), down.flatten()], dim=1))
