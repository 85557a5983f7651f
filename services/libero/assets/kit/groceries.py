"""Packages: flat boxes, cans, gable cartons and bottles, each with its product's name on the label."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from services.libero.assets.kit.mesh import box, lathe, loft
from services.libero.assets.kit.mjcf import Asset, RigidBody, of_kind, rot
from services.libero.assets.kit.paint import Atlas, Colour, label

HOPE = "stable_hope_objects"


@dataclass(frozen=True)
class Package:
    """One product: name, mass (kg), label text and colours, and the numbers of its shape.

    `half` (m) is the half size of a box or carton body; bottles use `tiers` = (half x, half y, z low, z high).
    """

    name: str
    mass: float
    text: str
    ground: Colour
    ink: Colour
    band: Colour | None = None
    motif: str = ""
    blob: Colour = (200, 60, 40)
    half: tuple[float, float, float] = (0.0, 0.0, 0.0)
    centre: tuple[float, float, float] = (0.0, 0.0, 0.0)
    tiers: tuple[tuple[float, float, float, float], ...] = ()
    cap: Colour = (240, 240, 240)
    body: Colour = (200, 200, 200)
    sites: tuple[float, float, float] = (-0.06, 0.04, 0.025)  # bottom, top, radius

    def label(self, size=(160, 96)) -> Image.Image:
        """Return the product's label."""
        return label(self.text, self.ground, self.ink, size, self.band, self.motif, self.blob)


def flat_box(p: Package) -> Asset:
    """Return a box that lies on its largest face, the label up."""
    wide = p.half[0] >= p.half[1]
    atlas = Atlas(256)
    front = p.label((200, 128))
    top = atlas.add(front if wide else front.rotate(90, expand=True))
    side = atlas.add(replace(p, motif="").label((200, 48)))
    plain = atlas.flat(p.ground)
    skins = {"z+": top, "z-": top, "y+": side, "y-": side, "x+": side, "x-": side}
    body = RigidBody("object", mass=p.mass).block(p.half, plain, p.centre, faces=skins)
    return _asset(p, body, atlas, "z")


def can(p: Package) -> Asset:
    """Return a tin with rims, the label around it."""
    atlas = Atlas(512, (180, 180, 184))
    two = Image.new("RGB", (440, 150))
    for k in range(2):
        two.paste(p.label((220, 150)), (220 * k, 0))
    wrap, tin, lid = atlas.add(two), atlas.flat((196, 198, 202)), atlas.flat((216, 218, 222))
    r, z0, z1 = 0.0322, -0.0386, 0.0386
    outline = [
        (0, z0), (r, z0), (r, z0 + 0.003), (r - 0.001, z0 + 0.004), (r - 0.001, z1 - 0.004), (r, z1 - 0.003),
        (r, z1), (r - 0.002, z1), (r - 0.002, z1 - 0.002), (0, z1 - 0.002),
    ]  # fmt: skip
    body = RigidBody("object", mass=p.mass).prism(12, 0.0313, z0, z1 - 0.001)
    body.show(lathe(outline, [lid, tin, tin, wrap, tin, tin, tin, tin, lid], n=28), turn=rot("z", 90))
    return _asset(p, body, atlas, "y")


def carton(p: Package) -> Asset:
    """Return a gable-top carton that stands; the label is on all four sides."""
    atlas = Atlas(256)
    w, z0, z1, ridge = 0.0262, -0.0698, 0.0398, 0.0600
    side = atlas.add(p.label((110, 220)))
    roof, plain = atlas.flat(tuple(int(0.85 * c) for c in p.ground)), atlas.flat(p.ground)
    cap = atlas.flat(p.cap)
    tall = (w, w, (z1 - z0) / 2)
    slope = float(np.degrees(np.arctan2(ridge - z1, w)))
    half = (w, float(np.hypot(w, ridge - z1)) / 2, 0.0022)
    around = dict.fromkeys(("x+", "x-", "y+", "y-"), side)
    body = RigidBody("object", mass=p.mass).block(tall, plain, (0, 0, (z0 + z1) / 2), faces=around)
    for s in (1, -1):
        pos, turn = (0, s * w / 2, (z1 + ridge) / 2 - 0.002), rot("x", -s * slope)
        body.block(half, roof, pos, turn)
    body.box((w, 0.0033, 0.0045), (0, 0, ridge - 0.003)).show(box((w, 0.003, 0.0085), plain), (0, 0, ridge + 0.002))
    body.show(lathe([(0, 0), (0.009, 0), (0.009, 0.008), (0, 0.008)], cap, 14), (0, -w / 2, 0.0505), rot("x", slope))
    return _asset(p, body, atlas, "y")


def bottle(p: Package, up: str) -> Asset:
    """Return a squeeze bottle: rounded tiers, the label on front and back of the widest, a cap on top."""
    atlas = Atlas(256)
    strip = Image.new("RGB", (250, 80), p.body)
    for k in (0, 1):  # u = 0.25 and 0.75 are the bottle's two broad sides
        strip.paste(p.label((94, 76)), (16 + 125 * k, 2))
    wrap, skin, cap = atlas.add(strip), atlas.flat(p.body), atlas.flat(p.cap)
    body = RigidBody("object", mass=p.mass)
    for hx, hy, z0, z1 in p.tiers:
        mid = (0, 0, (z0 + z1) / 2)
        body.box((hx, 0.62 * hy, (z1 - z0) / 2), mid).box((0.78 * hx, hy, (z1 - z0) / 2 - 0.0003), mid)
    widest = max(p.tiers, key=lambda tier: tier[0] * (tier[3] - tier[2]))
    # ellipses (half x, half y, z) a little larger than the boxes, and a skin per stretch between them
    (x0, y0, bottom, _), top = p.tiers[0], p.tiers[-1][3]
    sections, skins = [(0, 0, bottom), (x0 * 1.06 * 0.9, y0 * 1.08 * 0.9, bottom)], [skin]
    for tier in p.tiers:
        hx, hy, z0, z1 = tier
        is_last, x, y = tier == p.tiers[-1], hx * 1.06, hy * 1.08
        soft = 0.22 * (z1 - z0)
        low, high = (z0 + 0.0005, z1) if is_last else (z0 + soft, z1 - soft)
        sections += [(x, y, low), (x, y, high)]
        skins += [skin, wrap if tier == widest else cap if is_last else skin]
    sections.append((0, 0, top + 0.0005))
    body.show(loft(sections, [*skins, cap], 24))
    return _asset(p, body, atlas, up)


def _asset(p: Package, body: RigidBody, atlas: Atlas, up: str) -> Asset:
    bottom, top, radius = p.sites
    path = f"{HOPE}/{p.name}/{p.name}"
    return Asset(path, body, atlas.image, up=up, bottom=bottom, top=top, radius=radius, specular=0.15, shininess=0.2)


def assets() -> list[Asset]:
    """Return every package of the kit."""
    bottles = {package.name: package for package in of_kind("bottles", Package)}
    salad = bottles["salad_dressing"]  # the new one is the same, with its frame 5 cm lower
    raised = tuple((x, y, low + 0.05, high + 0.05) for x, y, low, high in salad.tiers)
    every = [*bottles.values(), replace(salad, name="new_salad_dressing", tiers=raised)]
    shapes = {"boxes": flat_box, "cans": can, "cartons": carton}
    made = [shape(package) for name, shape in shapes.items() for package in of_kind(name, Package)]
    return [*made, *(bottle(package, "z" if package.name == "bbq_sauce" else "y") for package in every)]
