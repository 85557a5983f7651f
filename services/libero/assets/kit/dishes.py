"""Bowls, plates, mugs and pans: walls are rings of thin boxes, so that a gripper can hold a rim."""

from __future__ import annotations

import numpy as np

from services.libero.assets.kit.mesh import box, lathe, tube
from services.libero.assets.kit.mjcf import Asset, RigidBody, of_kind, rot
from services.libero.assets.kit.paint import Atlas, Colour, weave

STEP = 0.0012  # a wall starts this far above the foot (m): a standing dish then has 8 contacts and not 4 per box
SCANNED = "stable_scanned_objects"


def bowl(name, profile, thick, mass, outside: Colour, inside: Colour, rim: Colour, floor, sides=(12, 16)) -> Asset:
    """Return a dish: a bottom plate and one ring of wall boxes per profile segment.

    `profile` are the outer points (radius, z) from foot to rim (m), `thick` is the wall's thickness (m), `mass` in kg,
    `floor` half the height of the bottom plate (m), `sides` the number of boxes per segment.
    """
    atlas = Atlas(64)
    outer_skin, inner_skin, rim_skin = (atlas.flat(colour) for colour in (outside, inside, rim))
    t = thick
    inner = [(max(r - t, 0.004), z + t * 0.7) for r, z in profile]
    inner[-1] = (profile[-1][0] - t, profile[-1][1])
    outline = [(0.0, profile[0][1]), *profile, *reversed(inner), (0.0, inner[0][1])]
    # outside wall, then its last tenth and the edge in the rim's colour, then the inside
    r1, z1 = profile[-1]
    r0, z0 = profile[-2]
    band = (r1 - 0.12 * (r1 - r0), z1 - 0.12 * (z1 - z0))
    outline.insert(len(profile), band)
    walls = len(profile) - 1
    skins = [outer_skin] * (1 + walls) + [rim_skin] * 2 + [inner_skin] * (walls + 1)
    body = RigidBody("object", mass=mass).show(lathe(outline, skins, n=28))
    foot_r, foot_z = profile[0]
    body.prism(8, foot_r * 0.98, foot_z, foot_z + 2 * floor, inset=STEP / 2)
    _walls(body, sides, profile, t)
    return Asset(f"{SCANNED}/{name}/{name}", body, atlas.image, specular=0.5, shininess=0.7)


def _walls(body: RigidBody, sides: tuple[int, ...], profile, thick: float, centre=(0, 0)) -> None:
    """Add one ring of boxes per profile segment; the lowest starts STEP above the foot, which alone carries."""
    for k, (count, low, high) in enumerate(zip(sides, profile, profile[1:], strict=False)):
        body.ring(count, (low[0], low[1] + (STEP if k == 0 else 0.0)), high, thick, pos=centre)


def mug(
    name, centre, profile, thick, mass, side, handle, handle_half, outside: Colour, inside: Colour,
    band: Colour | None = None, sides=(10, 12),
) -> Asset:  # fmt: skip
    """Return a mug with a three-bar handle that a gripper can hold by the wall's rim or by the handle.

    `centre` (m) is the position of its axis; `handle` = (reach from the frame's origin, z low, z high) in m, towards
    `side` (+1 or -1 along x); `handle_half` = half its width across and half its thickness (m); the rest as in `bowl`.
    """
    atlas = Atlas(64)
    outer_skin, inner_skin = atlas.flat(outside), atlas.flat(inside)
    band_skin = atlas.flat(band) if band else outer_skin
    t = thick
    top_r, top_z = profile[-1]
    low_r, low_z = profile[-2]
    stripes = [(low_r + f * (top_r - low_r), low_z + f * (top_z - low_z)) for f in (0.45, 0.95)]
    outline = [(0, profile[0][1]), *profile[:-1], *stripes, profile[-1], (top_r - t, top_z)]
    outline += [(max(profile[0][0] - t, 0.01), profile[0][1] + 0.010), (0, profile[0][1] + 0.010)]
    before = len(profile) - 1
    skins = [outer_skin] * (before + 1) + [band_skin, outer_skin, outer_skin, inner_skin, inner_skin]
    x0, y0 = centre
    reach, z_low, z_high = handle
    across, thin = handle_half
    near = x0 + side * (top_r - t)
    far = side * (reach - thin)
    middle = (z_low + z_high) / 2
    turn = np.linspace(-np.pi / 2, np.pi / 2, 9)
    arc = [
        (
            near + (far - near) * np.cos(a) ** 0.6 if np.cos(a) > 0 else near,
            y0,
            middle + (z_high - z_low) / 2 * np.sin(a),
        )
        for a in turn
    ]
    body = RigidBody("object", mass=mass)
    body.show(lathe(outline, skins, n=28), (x0, y0, 0)).show(tube(arc, across * 0.75, outer_skin, n=8, flat=0.7))
    body.prism(8, profile[0][0] * 0.95, profile[0][1], profile[0][1] + 0.009, pos=centre, inset=STEP / 2)
    _walls(body, sides, profile, t, centre)
    body.box((thin, across, (z_high - z_low) / 2 - thin), (far, y0, middle))
    bar = (abs(far - near) / 2 + thin, across, thin)
    for z in (z_low + thin, z_high - thin):
        body.box(bar, ((near + far) / 2, y0, z))
    return Asset(f"turbosquid_objects/{name}/{name}", body, atlas.image, specular=0.6, shininess=0.8)


def frypan() -> Asset:
    """Return the chefmate_8_frypan: a shallow pan whose handle rises towards +x."""
    atlas = Atlas(64)
    black, grey, wood = atlas.flat((42, 42, 46)), atlas.flat((74, 74, 80)), atlas.flat((120, 70, 40))
    x0, y0 = 0.007, 0.0
    outline = [(0, 0.0008), (0.074, 0.0008), (0.097, 0.0424), (0.0945, 0.0424), (0.0725, 0.006), (0, 0.006)]
    pan = lathe(outline, [black, black, black, grey, grey], n=36).transformed((x0, y0, 0))
    handle = tube(
        [(0.098, 0, 0.024), (0.128, 0, 0.034), (0.20, 0, 0.046), (0.259, 0, 0.054)], 0.0125, wood, n=10, flat=0.55
    )
    body = RigidBody("object", mass=0.0502).show(pan).show(handle)
    body.prism(8, 0.072, 0.0008, 0.0118, pos=(x0, y0), inset=STEP / 2)
    body.ring(16, (0.074, 0.0023), (0.097, 0.0424), 0.006, pos=(x0, y0))
    body.box((0.0665, 0.0127, 0.0062), (0.1926, 0, 0.0441), rot("y", -7.4))
    body.box((0.0200, 0.0110, 0.0075), (0.1170, 0, 0.0280), rot("y", -24))
    return Asset(f"{SCANNED}/chefmate_8_frypan/chefmate_8_frypan", body, atlas.image, specular=0.4)


def basket() -> Asset:
    """Return the woven basket: a bottom and four leaning walls around `contain_region`."""
    atlas = Atlas(256)
    cane = atlas.add(weave("basket", (196, 148, 92)))
    dark = atlas.add(weave("basket rim", (150, 104, 60), 64, 6))
    body = RigidBody("object", mass=0.1361)
    body.block((0.0766, 0.0724, 0.0085), cane, (0.0025, 0, 0.0131))
    half = (0.0067, 0.0724, 0.0637)
    lean = 4.5
    for pos, turn in (
        ((0.0756, 0, 0.0766), rot("y", lean)),
        ((-0.0727, 0, 0.0766), rot("y", -lean)),
        ((0.0005, 0.0690, 0.0818), rot("z", 90) @ rot("y", lean)),
        ((0.0, -0.0685, 0.0818), rot("z", -90) @ rot("y", lean)),
    ):
        body.block(half, cane, pos, turn)
        body.show(box((0.0085, 0.0760, 0.005), dark), np.asarray(pos) + turn @ (0, 0, 0.0625), turn)
    body.site("contain_region", (0.06108, 0.06108, 0.06949), (0, 0, 0.07185), (0, 0, 0, 1), rgba=(0.8, 0, 0, 0))
    return Asset(f"{SCANNED}/basket/basket", body, atlas.image, specular=0.1)


def assets() -> list[Asset]:
    """Return every dish of the kit."""
    return [*of_kind("bowls", bowl), *of_kind("mugs", mug), frypan(), basket()]
