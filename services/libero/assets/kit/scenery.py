"""What stands behind the tables: a kitchen, a living room, a study; and the tables of the latter two."""

from __future__ import annotations

import numpy as np
from PIL import Image

from services.libero.assets.kit import paint
from services.libero.assets.kit.mesh import Mesh, Skin, box, lathe, merge, prism, tube
from services.libero.assets.kit.paint import Atlas


def kitchen(atlas: Atlas) -> Mesh:
    """Return the kitchen behind the robot: counter with doors, wall cupboards, a hob with a pot, a fridge."""
    door, stone = atlas.add(paint.wood("kitchen door", (214, 206, 190), 160, 1)), atlas.flat((92, 94, 98))
    steel, dark = atlas.add(paint.metal("fridge", (196, 198, 202), 96)), atlas.flat((44, 44, 48))
    knob = atlas.flat((120, 112, 100))
    parts = [
        box((0.32, 2.1, 0.44), door).transformed((-1.68, 0.35, 0.44)),
        box((0.34, 2.12, 0.02), stone).transformed((-1.67, 0.35, 0.90)),
    ]
    parts.append(box((0.2, 2.1, 0.35), door).transformed((-1.80, 0.35, 1.75)))
    for k in range(7):
        y = -1.45 + 0.6 * k
        parts.append(box((0.002, 0.004, 0.42), dark).transformed((-1.358, y + 0.3, 0.44)))
        parts.append(box((0.002, 0.004, 0.34), dark).transformed((-1.598, y + 0.3, 1.75)))
        parts.append(box((0.012, 0.06, 0.008), knob).transformed((-1.35, y, 0.78)))
    parts.append(box((0.26, 0.36, 0.006), dark).transformed((-1.66, 0.15, 0.926)))
    pot = [(0, 0), (0.11, 0), (0.12, 0.02), (0.12, 0.13), (0.115, 0.14), (0.03, 0.16), (0.02, 0.18), (0, 0.18)]
    parts.append(lathe(pot, steel, 20).transformed((-1.55, 0.25, 0.93)))
    parts.append(box((0.22, 0.43, 0.88), steel).transformed((-1.75, -2.4, 0.88)))
    parts.append(box((0.004, 0.43, 0.004), dark).transformed((-1.528, -2.4, 1.15)))
    parts.append(box((0.02, 0.012, 0.25), dark).transformed((-1.515, -2.06, 0.85)))
    return merge(parts)


def living_room(atlas: Atlas) -> dict[str, Mesh]:
    """Return the living room's low table, and a media unit, shelves and a picture on the rear wall."""
    oak, legs = atlas.add(paint.wood("living table", (150, 104, 66), 192, 4)), atlas.flat((90, 60, 40))
    white, dark = atlas.flat((226, 222, 214)), atlas.flat((40, 42, 48))
    image = atlas.add(_painting("living"))
    outline = [
        (-0.66, -0.82), (0.16, -0.82), (0.30, -0.70), (0.34, -0.58), (0.34, 0.68), (0.30, 0.80), (0.16, 0.90),
        (-0.66, 0.90), (-0.79, 0.80), (-0.83, 0.68), (-0.83, -0.58), (-0.79, -0.70),
    ]  # fmt: skip
    top = _board(outline, 0.413, 0.4368, oak, legs)
    block = box((0.412, 0.435, 0.2), legs).transformed((-0.25, 0.25, 0.205))
    rear = [
        box((0.25, 1.1, 0.22), white).transformed((-1.72, 0, 0.24)),
        box((0.02, 0.62, 0.36), dark).transformed((-1.80, -0.1, 0.88)),
    ]
    rear += [box((0.16, 0.22, 0.9), white).transformed((-1.80, s * 1.3, 0.9)) for s in (1, -1)]
    rear += [box((0.003, 0.004, 0.2), dark).transformed((-1.468, y, 0.24)) for y in (-0.37, 0.37)]
    rear.append(box((0.01, 0.42, 0.28), dark, {"x+": image}).transformed((-1.97, 0.55, 1.75)))
    return {"table": merge([top, block]), "scenery": merge(rear)}


def _board(outline, z0: float, z1: float, top: Skin, edge: Skin) -> Mesh:
    """Return a prism whose top shows the image `top` stretched over its bounding rectangle."""
    mesh = prism(outline, z0, z1, edge, edge)
    low, high = mesh.pos[:, :2].min(0), mesh.pos[:, :2].max(0)
    face = mesh.nrm[:, 2] > 0.5
    fraction = (mesh.pos[face, :2] - low) / (high - low)
    mesh.uv[face] = np.column_stack(
        [top[0] + fraction[:, 1] * (top[2] - top[0]), top[3] - fraction[:, 0] * (top[3] - top[1])]
    )
    return mesh


def _painting(name: str):
    """Return an abstract landscape for the wall."""
    gen = paint.rng(name)
    hills = paint.noise(gen, (120, 180), (3, 5)) + np.linspace(-1, 1.4, 120)[:, None]
    colours = np.array([(160, 190, 214), (214, 196, 150), (120, 150, 110), (70, 98, 84), (52, 66, 72)])
    index = np.clip(((hills + 1.5) * 1.6).astype(int), 0, 4)
    return Image.fromarray(colours[index].astype(np.uint8))


def study(atlas: Atlas) -> dict[str, Mesh]:
    """Return the study's desk, and a bookcase with books, a plant, a lamp and a picture behind it."""
    oak, leg = atlas.add(paint.wood("desk", (140, 96, 62), 192, 4)), atlas.flat((70, 64, 60))
    white, dark, green = atlas.flat((222, 218, 208)), atlas.flat((60, 56, 54)), atlas.flat((74, 126, 70))
    clay = atlas.flat((170, 96, 66))
    inks = [atlas.flat(c) for c in ((150, 44, 40), (40, 70, 120), (210, 170, 70), (60, 100, 76), (96, 66, 110))]
    image = atlas.add(_painting("study"))
    desk = [_board([(-0.689, -1.393), (0.689, -1.393), (0.689, 1.393), (-0.689, 1.393)], 0.813, 0.885, oak, leg)]
    desk += [box((0.02, 0.05, 0.394), leg).transformed((x, y, 0.394)) for x in (-0.5, 0.496) for y in (-0.69, 0.71)]
    desk += [box((0.51, 0.05, 0.02), leg).transformed((0, y, 0.025)) for y in (-0.697, 0.715)]
    gen = paint.rng("books")
    rear = [box((0.14, 0.02, 0.89), white).transformed((-1.72, -1.0 + s * 0.6, 0.89)) for s in (1, -1)]
    rear.append(box((0.01, 0.6, 0.89), white).transformed((-1.86, -1.0, 0.89)))
    for k in range(5):
        z = 0.03 + 0.42 * k
        rear.append(box((0.14, 0.6, 0.012), white).transformed((-1.72, -1.0, z)))
        for j in range(9 if k < 4 else 0):
            tall = gen.uniform(0.11, 0.16)
            rear.append(
                box((0.09, 0.022, tall), inks[gen.integers(5)]).transformed(
                    (-1.72, -1.5 + 0.052 * j + gen.uniform(0, 0.01), z + tall + 0.012)
                )
            )
    rear.append(lathe([(0, 0), (0.13, 0), (0.17, 0.3), (0.15, 0.3), (0, 0.28)], clay, 18).transformed((-1.75, 0.57, 0)))
    for k in range(9):
        a, r = 2.4 * k, 0.10 + 0.02 * (k % 4)
        bend = [
            (0, 0, 0.25),
            (0.4 * r * np.cos(a), 0.4 * r * np.sin(a), 0.75),
            (1.9 * r * np.cos(a), 1.9 * r * np.sin(a), 1.05 + 0.05 * (k % 3)),
        ]
        rear.append(tube(bend, 0.035, green, 6, flat=0.25).transformed((-1.75, 0.57, 0)))
    rear.append(box((0.01, 0.45, 0.34), dark, {"x+": image}).transformed((-1.94, 0.5, 1.5)))
    return {"table": merge(desk), "scenery": merge(rear)}
