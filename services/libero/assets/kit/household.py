"""Household objects: books, the moka pot, the wine bottle."""

from __future__ import annotations

import itertools

from PIL import Image, ImageDraw

from services.libero.assets.kit.mesh import box, frustum, lathe, prism, regular, tube
from services.libero.assets.kit.mjcf import Asset, RigidBody, of_kind, rot
from services.libero.assets.kit.paint import Atlas, Colour, fitted, label, metal

TURBO = "turbosquid_objects"


def book(name: str, half, centre, mass: float, cover: Colour, ink: Colour, title: str) -> Asset:
    """Return a standing book, thin along x, its spine towards -y."""
    atlas = Atlas(512)
    image = Image.new("RGB", (170, 210), cover)
    draw = ImageDraw.Draw(image)
    draw.rectangle((8, 8, 161, 201), outline=ink, width=3)
    fitted(draw, title, (85, 80), 130, 90, ink)
    draw.line((40, 150, 130, 150), fill=ink, width=3)
    front, skin = atlas.add(image), atlas.flat(cover)
    pages = atlas.add(metal("pages", (236, 228, 206), 48))
    (hx, hy, hz), (cx, cy, cz) = half, centre
    body = RigidBody("object", mass=mass).box(half, centre)
    for side in (1, -1):
        face = {"x+" if side > 0 else "x-": front}
        body.show(box((0.0012, hy, hz), skin, face), (cx + side * (hx - 0.0012), cy, cz))
    body.show(box((hx - 0.0024, hy - 0.003, hz - 0.003), pages), (cx, cy + 0.001, cz))
    body.show(box((hx, 0.0012, hz), skin), (cx, cy - hy + 0.0012, cz))
    return Asset(f"{TURBO}/{name}/{name}", body, atlas.image, specular=0.2)


def wine_bottle() -> Asset:
    """Return the wine bottle: round body, shoulder and a thin neck, standing on z = 0.001."""
    atlas = Atlas(256)
    glass, foil = atlas.flat((34, 62, 38)), atlas.flat((140, 24, 34))
    paper = label("VINO\nROSSO", (238, 228, 200), (110, 20, 30), (120, 78), None)
    strip = Image.new("RGB", (250, 78), (34, 62, 38))
    for k in range(2):
        strip.paste(paper.resize((96, 78)), (14 + 125 * k, 0))
    wrap = atlas.add(strip)
    r = 0.0208
    outline = [
        (0, 0.0011), (r, 0.0011), (r, 0.012), (r, 0.062), (r, 0.070), (0.017, 0.080), (0.0095, 0.091),
        (0.0076, 0.100), (0.0072, 0.126), (0.0074, 0.127), (0.0074, 0.157), (0, 0.158),
    ]  # fmt: skip
    skins = [glass, glass, wrap, *[glass] * 5, foil, foil, foil]
    body = RigidBody("object", mass=0.0154).show(lathe(outline, skins, 24))
    body.prism(8, 0.0200, 0.0011, 0.0720)
    body.box((0.0118, 0.0118, 0.0090), (0, 0, 0.0800)).box((0.0080, 0.0080, 0.0070), (0, 0, 0.0930))
    body.prism(4, 0.0066, 0.0950, 0.1580)
    body.box((0.0060, 0.0060, 0.0310), (0, 0, 0.1265), rot("z", 45))
    return Asset(f"{TURBO}/wine_bottle/wine_bottle", body, atlas.image, specular=0.8, shininess=0.9)


def moka_pot() -> Asset:
    """Return the moka pot: an eight-sided pot with a waist, spout towards -y, handle towards +y, knob on the lid."""
    atlas = Atlas(256)
    steel, bright = atlas.add(metal("moka", (176, 178, 184), 64)), atlas.flat((206, 208, 212))
    black = atlas.flat((30, 30, 32))
    body = RigidBody("object", mass=0.0682)
    y0 = 0.0018
    tiers = [
        (0.0395, -0.0661), (0.0365, -0.0150), (0.0290, -0.0040), (0.0300, 0.0030), (0.0375, 0.0620),
        (0.0380, 0.0670),
    ]  # fmt: skip
    for (r0, z0), (r1, z1) in itertools.pairwise(tiers):
        flat = [(regular(8, r), z) for r, z in ((r0, z0), (r1, z1))]
        body.show(frustum(*flat[0], *flat[1], steel), (0, y0, 0))
    body.show(prism(regular(8, 0.0395), -0.0662, -0.0655, steel), (0, y0, 0))
    lid = [(0, 0.066), (0.036, 0.0665), (0.030, 0.0705), (0.008, 0.0745), (0, 0.0745)]
    body.show(lathe(lid, bright, 16), (0, y0, 0))
    knob = [(0, 0.074), (0.005, 0.074), (0.0062, 0.080), (0.005, 0.0857), (0, 0.0862)]
    body.show(lathe(knob, black, 12), (0, -0.0013, 0))
    handle = [
        (0, 0.036, 0.060), (0, 0.058, 0.0640), (0, 0.080, 0.0570), (0, 0.0840, 0.044), (0, 0.0740, 0.0150),
        (0, 0.0600, -0.0030),
    ]  # fmt: skip
    body.show(tube(handle, 0.0085, black, 8, flat=0.75))
    body.show(prism([(-0.012, -0.038), (0, -0.057), (0.012, -0.038)], 0.034, 0.063, bright))
    body.prism(8, 0.0350, -0.0661, 0.0670, pos=(0, y0))
    body.box((0.0170, 0.0050, 0.0245), (0, -0.0370, 0.0420)).box((0.0075, 0.0072, 0.0137), (0, -0.0485, 0.0462))
    body.box((0.0066, 0.0190, 0.0070), (0, 0.0530, 0.0603)).box(
        (0.0066, 0.0071, 0.0170), (0, 0.0790, 0.0480), rot("x", 4)
    )
    body.box((0.0066, 0.0065, 0.0210), (0, 0.0700, 0.0170), rot("x", -24))
    body.box((0.0055, 0.0058, 0.0110), (0, -0.0013, 0.0747))
    return Asset(f"{TURBO}/moka_pot/moka_pot", body, atlas.image, specular=0.8, shininess=0.7)


def assets() -> list[Asset]:
    """Return the household objects of the kit."""
    return [*of_kind("books", book), wine_bottle(), moka_pot()]
