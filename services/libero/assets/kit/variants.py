"""LIBERO-PRO's objects: the kit's own in another colour or 1.5 times as large, as LIBERO-PRO did with LIBERO's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from PIL import Image

from services.libero.assets.kit.mjcf import Asset, RigidBody, of_kind
from services.libero.assets.kit.paint import Colour

TEXTURE_SHARE = 0.35  # of the texture's own colour


def variant(originals: Mapping[str, Asset], name: str, of: str, tint: Colour | None = None, size: float = 1.0) -> Asset:
    """Return `originals[of]`, `size` times as large: same shape, frame, joints and regions; mass grows with the volume.

    A tinted texture has the hue of `tint` and its own brightness, so that text on it stays readable.
    """
    asset = originals[of]
    prefix = asset.path.removesuffix(of).replace(f"/{of}/", f"/{name}/")
    larger = {key: size * getattr(asset, key) for key in ("bottom", "top", "radius")}
    texture = asset.texture
    if tint is not None:
        pixels = np.asarray(texture.convert("RGB"), np.float64)
        light = pixels.mean(axis=-1, keepdims=True) / 255
        painted = TEXTURE_SHARE * pixels + (1 - TEXTURE_SHARE) * (np.array(tint) * (0.45 + 0.65 * light))
        texture = Image.fromarray(np.clip(painted, 0, 255).round().astype(np.uint8))
    return replace(asset, path=f"{prefix}{name}", root=_scaled(asset.root, size), texture=texture, **larger)


def _scaled(body: RigidBody, size: float) -> RigidBody:
    """Return a body scaled by `size`; other than by 1, only without joints, children and glass."""
    if size == 1:
        return body
    if body.children or body.joint or body.inertial or body.glass:
        raise ValueError(f"body {body.name} has joints, children or glass; only plain objects can be scaled")
    return replace(
        body,
        mass=size**3 * body.mass,
        meshes=[mesh.scaled(size) for mesh in body.meshes],
        colliders=[
            replace(collider, size=tuple(size * length for length in collider.size), pos=size * collider.pos)
            for collider in body.colliders
        ],
        sites=[site | {key: size * np.asarray(site[key], float) for key in ("size", "pos")} for site in body.sites],
    )


def assets(originals: Mapping[str, Asset]) -> tuple[Asset, ...]:
    """Return LIBERO-PRO's objects, made from the `originals`."""
    return of_kind("variants", partial(variant, originals))
