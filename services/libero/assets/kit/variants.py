"""LIBERO-PRO's objects: the kit's own, in another colour or half as large again, as those were made of LIBERO's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from services.libero.assets.kit.mjcf import Asset, Body, of_kind
from services.libero.assets.kit.paint import Colour

KEPT = 0.35  # of the texture's own colour


@dataclass(frozen=True)
class Variant:
    """One object: its name, the one `of` which it is made, the colour it is tinted with, how many times as large."""

    name: str
    of: str
    tint: Colour | None = None
    size: float = 1.0


def variant(spec: Variant, of: Asset) -> Asset:
    """Returns the asset: same shape, frame, joints and regions; mass grows with the volume."""
    place = of.path.removesuffix(of.name).replace(f"/{of.name}/", f"/{spec.name}/")
    larger = {name: spec.size * getattr(of, name) for name in ("bottom", "top", "radius")}
    texture = of.texture if spec.tint is None else tinted(of.texture, spec.tint)
    return replace(of, path=f"{place}{spec.name}", root=_scaled(of.root, spec.size), texture=texture, **larger)


def tinted(image: Image.Image, tint: Colour) -> Image.Image:
    """Returns the picture in the hue of `tint`, its light and dark kept; what is written on it can still be read."""
    pixels = np.asarray(image.convert("RGB"), np.float64)
    light = pixels.mean(axis=-1, keepdims=True) / 255
    painted = np.array(tint) * (0.45 + 0.65 * light)
    return Image.fromarray(np.clip(KEPT * pixels + (1 - KEPT) * painted, 0, 255).round().astype(np.uint8))


def _scaled(body: Body, size: float) -> Body:
    """Returns a body without joints `size` times as large, or any as it is for size 1."""
    if size == 1:
        return body
    if body.children or body.joint or body.inertial or body.glass:
        raise ValueError(f"body {body.name} has joints, children or glass; only plain objects are made larger")
    return replace(
        body,
        mass=size**3 * body.mass,
        meshes=[mesh.scaled(size, size, size) for mesh in body.meshes],
        colliders=[
            replace(collider, size=tuple(size * length for length in collider.size), pos=size * collider.pos)
            for collider in body.colliders
        ],
        sites=[site | {key: size * np.asarray(site[key], float) for key in ("size", "pos")} for site in body.sites],
    )


def assets(known: Mapping[str, Asset]) -> Iterable[Asset]:
    """Yields LIBERO-PRO's objects, made of those that are `known`."""
    for spec in of_kind("variants", Variant):
        yield variant(spec, known[spec.of])
