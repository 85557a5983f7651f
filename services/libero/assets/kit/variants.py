"""LIBERO-PRO's objects: the kit's own in another colour or 1.5 times as large, as LIBERO-PRO did with LIBERO's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from services.libero.assets.kit.mjcf import Asset, RigidBody, of_kind
from services.libero.assets.kit.paint import Colour

TEXTURE_SHARE = 0.35  # of the texture's own colour


@dataclass(frozen=True)
class ObjectVariant:
    """One object: its name, the original `of`, the tint, and the factor of its size."""

    name: str
    of: str
    tint: Colour | None = None
    size: float = 1.0


def variant(spec: ObjectVariant, of: Asset) -> Asset:
    """Return the asset: same shape, frame, joints and regions; mass grows with the volume."""
    prefix = of.path.removesuffix(of.name).replace(f"/{of.name}/", f"/{spec.name}/")
    larger = {name: spec.size * getattr(of, name) for name in ("bottom", "top", "radius")}
    texture = of.texture if spec.tint is None else tinted(of.texture, spec.tint)
    return replace(of, path=f"{prefix}{spec.name}", root=_scaled(of.root, spec.size), texture=texture, **larger)


def tinted(image: Image.Image, tint: Colour) -> Image.Image:
    """Return the image in the hue of `tint` with its brightness, so that text on it stays readable."""
    pixels = np.asarray(image.convert("RGB"), np.float64)
    light = pixels.mean(axis=-1, keepdims=True) / 255
    painted = np.array(tint) * (0.45 + 0.65 * light)
    return Image.fromarray(
        np.clip(TEXTURE_SHARE * pixels + (1 - TEXTURE_SHARE) * painted, 0, 255).round().astype(np.uint8)
    )


def _scaled(body: RigidBody, size: float) -> RigidBody:
    """Return a body scaled by `size`; other than by 1, only without joints, children and glass."""
    if size == 1:
        return body
    if body.children or body.joint or body.inertial or body.glass:
        raise ValueError(f"body {body.name} has joints, children or glass; only plain objects can be scaled")
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


def assets(originals: Mapping[str, Asset]) -> Iterable[Asset]:
    """Yield LIBERO-PRO's objects, made from the `originals`."""
    for spec in of_kind("variants", ObjectVariant):
        yield variant(spec, originals[spec.of])
