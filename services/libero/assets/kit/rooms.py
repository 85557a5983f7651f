"""The five rooms of LIBERO's tasks: floor, walls, table, lights, cameras and simple scenery, and their surfaces.

LIBERO replaces the file names of the textures `texplane` and `tex-wall` and sets the size of the geoms `table_*`, so
those names and the folder `textures/` are part of its layout.
"""

from __future__ import annotations

import numpy as np

from services.libero.assets.kit import paint
from services.libero.assets.kit.mesh import Mesh, Skin, box, lathe, merge, prism, tube
from services.libero.assets.kit.mjcf import STIFF, rot, xml
from services.libero.assets.kit.paint import Atlas

FLOORS = {
    "dark_floor_texture.png": lambda n: paint.wood(n, (86, 66, 52), 256, 6),
    "rustic_floor.png": lambda n: paint.wood(n, (146, 108, 76), 256, 5, 0.22),
    "light-gray-floor-tile.png": lambda n: paint.tiles(n, (188, 186, 182), (220, 218, 214), 256, 2),
    "white_marble_floor.png": lambda n: paint.plaster(n, (226, 226, 228), 256, 0.08),
    "seamless_wood_planks_floor.png": lambda n: paint.wood(n, (176, 132, 92), 256, 6),
    "brown_ceramic_tile.png": lambda n: paint.tiles(n, (150, 110, 82), (120, 92, 70), 256, 4),
    "gray_ceramic_tile.png": lambda n: paint.tiles(n, (172, 174, 176), (206, 208, 208), 256, 3),
    "tile_grigia_caldera_porcelain_floor.png": lambda n: paint.tiles(n, (168, 162, 154), (196, 192, 186), 256, 2, 0.1),
}
WALLS = {
    "light_blue_wall.png": (176, 200, 222),
    "dark_blue_wall.png": (54, 74, 110),
    "dark_gray_plaster.png": (104, 104, 106),
    "gray_plaster.png": (150, 150, 150),
    "dark_green_plaster_wall.png": (62, 86, 70),
    "light-gray-plaster.png": (178, 180, 182),
    "ceramic.png": (214, 206, 194),
    "white_wall.png": (230, 230, 226),
    "yellow_linen_wall_texture.png": (226, 206, 150),
    "smooth_light_gray_plaster.png": (188, 190, 192),
}
TABLE_TOP = "martin_novak_wood_table.png"


def textures() -> dict[str, object]:
    """Returns every surface that LIBERO's styles name, as pictures by path."""
    out = {f"textures/{name}": draw(name) for name, draw in FLOORS.items()}
    out |= {f"textures/{name}": paint.plaster(name, colour, 128) for name, colour in WALLS.items()}
    out[f"textures/{TABLE_TOP}"] = paint.wood(TABLE_TOP, (222, 196, 162), 384, 5, 0.07)
    return out


SKIN_2M = (0.0, 0.0, 2.0, 2.0)  # the walls repeat their picture


def _walls(corners: bool) -> Mesh:
    """Returns the inward faces of a 3 m high room, x from -2 to 3 m and y within 3 m; `corners` cuts two corners."""
    if corners:
        parts = [((1.06, 0.01, 1.5), (-1.25, 2.25, 1.5), 45.0), ((1.06, 0.01, 1.5), (-1.25, -2.25, 1.5), -45.0)]
        parts += [((1.75, 0.01, 1.5), (1.25, 3, 1.5), 0.0), ((1.75, 0.01, 1.5), (1.25, -3, 1.5), 0.0)]
        parts += [((0.01, 1.5, 1.5), (-2, 0, 1.5), 0.0), ((0.01, 3, 1.5), (3, 0, 1.5), 0.0)]
    else:
        parts = [((2.5, 0.01, 1.5), (0.5, 3, 1.5), 0.0), ((2.5, 0.01, 1.5), (0.5, -3, 1.5), 0.0)]
        parts += [((0.01, 3, 1.5), (-2, 0, 1.5), 0.0), ((0.01, 3, 1.5), (3, 0, 1.5), 0.0)]
    return merge([box(half, SKIN_2M).moved(pos, rot("z", deg)) for half, pos, deg in parts])


LIGHT = dict(diffuse=(0.52, 0.52, 0.50), dir=(0, -0.15, -1), directional="false", specular=(0.25, 0.25, 0.25), castshadow="false")
# from behind the cameras, so that the sides that they see are not in the dark
FILL = dict(name="fill", pos=(2.5, 1, 3), dir=(-1, -0.45, -0.75), directional="true", castshadow="false",
            diffuse=(0.55, 0.55, 0.55), specular=(0.15, 0.15, 0.15))  # fmt: skip
CAMERAS = {
    "frontview": ((1.0, 0, 1.45), (0.56, 0.43, 0.43, 0.56)),
    "birdview": ((-0.2, 0, 3.0), (0.7071, 0, 0, 0.7071)),
    "agentview": ((0.5, 0, 1.35), (0.653, 0.271, 0.271, 0.653)),
    "sideview": ((-0.056518, 1.276122, 1.487957), (0.009905, 0.006878, 0.591223, 0.806418)),
}
SHOWN = dict(contype=0, conaffinity=0, group=1)


def _work_table() -> str:
    """Returns the table whose size, place and friction LIBERO sets."""
    leg = dict(type="cylinder", size=(0.05, 0.1), material="table_legs", **SHOWN)
    inner = [
        xml("geom", name="table_collision", type="box", size=(0.4, 0.4, 0.4), group=0, friction=(1, 0.005, 0.0001)),
        xml("geom", name="table_visual", type="box", size=(0.4, 0.4, 0.4), material="table_texture", **SHOWN),
        xml("site", name="table_top", pos=(0, 0, 0.4), size=(0.001,) * 3, rgba=(0, 0, 0, 0)),
        *(xml("geom", name=f"table_leg{k}_visual", **leg) for k in (1, 2, 3, 4)),
    ]
    return xml("body", inner, name="table", pos=(0, 0, 0.4))


def _fixed_table(boxes, mesh: str, name: str, child: str | None) -> str:
    """Returns a table of fixed boxes (low corner, high corner) that shows the scenery mesh `mesh`."""
    inner = [xml("geom", type="mesh", mesh=mesh, material="scenery", mass=0.0, **SHOWN)]
    for low, high in boxes:
        low, high = np.array(low), np.array(high)
        inner.append(xml("geom", type="box", size=(high - low) / 2, pos=(low + high) / 2, group=0, density=100, **STIFF))
    if child:
        inner = [xml("body", inner, name=child)]
    return xml("body", inner, name=name)


def _room(scene: str, out: dict, walls: bool, floor_body: bool, table: str | None, parts: dict[str, Mesh], atlas: Atlas | None):
    """Writes one scene: `parts` maps mesh names to scenery; "table" is left to the table body."""
    folder = f"scenes/{scene}"
    surface = dict(specular=0.1, shininess=0.1)
    assets = [
        xml("texture", type="skybox", builtin="gradient", rgb1=(0.9, 0.9, 1.0), rgb2=(0.2, 0.3, 0.4), width=64, height=64),
        xml("texture", name="texplane", type="2d", file="../textures/tile_grigia_caldera_porcelain_floor.png"),
        xml("material", name="floorplane", texture="texplane", texrepeat=(2, 2), texuniform="true", specular=0, shininess=0),
        xml("texture", name="tex-table", type="cube", file=f"../textures/{TABLE_TOP}"),
        xml("material", name="table_texture", texture="tex-table", **surface),
        xml("material", name="table_legs", rgba=(0.35, 0.33, 0.32, 1), **surface),
        xml("texture", name="tex-wall", type="2d", file="../textures/smooth_light_gray_plaster.png"),
        xml("material", name="walls_mat", texture="tex-wall", **surface),
        xml("mesh", name="room_walls", file=f"{scene}/room_walls.msh"),
    ]
    out[f"{folder}/room_walls.msh"] = _walls(walls).tobytes()
    floor = xml("geom", name="floor", type="plane", size=(3, 3, 0.5), material="floorplane", condim=3, group=1)
    world = [xml("body", [floor], name="floor") if floor_body else floor]
    world.append(xml("geom", name="walls_visual", type="mesh", mesh="room_walls", material="walls_mat", **SHOWN))
    if parts:
        out[f"{folder}/scenery.png"] = atlas.image
        assets.append(xml("texture", name="tex-scenery", type="2d", file=f"{scene}/scenery.png"))
        assets.append(xml("material", name="scenery", texture="tex-scenery", specular=0.2, shininess=0.3))
    for name, mesh in parts.items():
        out[f"{folder}/{name}.msh"] = mesh.tobytes()
        assets.append(xml("mesh", name=name, file=f"{scene}/{name}.msh"))
        if name != "table":
            world.append(xml("geom", name=f"{name}_visual", type="mesh", mesh=name, material="scenery", **SHOWN))
    world += [table] if table else []
    world += [xml("light", name="light1", pos=(1, 1, 4), **LIGHT), xml("light", name="light2", pos=(-3, -3, 4), **LIGHT), xml("light", **FILL)]
    world += [xml("camera", name=n, mode="fixed", pos=p, quat=q) for n, (p, q) in CAMERAS.items()]
    out[f"{folder}.xml"] = xml("mujoco", [xml("asset", assets), xml("worldbody", world)], model=scene) + "\n"


def _kitchen(atlas: Atlas) -> Mesh:
    """Returns the kitchen behind the robot: counter with doors, wall cupboards, a hob with a pot, a fridge."""
    door, stone = atlas.add(paint.wood("kitchen door", (214, 206, 190), 160, 1)), atlas.flat((92, 94, 98))
    steel, dark = atlas.add(paint.metal("fridge", (196, 198, 202), 96)), atlas.flat((44, 44, 48))
    knob = atlas.flat((120, 112, 100))
    parts = [box((0.32, 2.1, 0.44), door).moved((-1.68, 0.35, 0.44)), box((0.34, 2.12, 0.02), stone).moved((-1.67, 0.35, 0.90))]
    parts.append(box((0.2, 2.1, 0.35), door).moved((-1.80, 0.35, 1.75)))
    for k in range(7):
        y = -1.45 + 0.6 * k
        parts.append(box((0.002, 0.004, 0.42), dark).moved((-1.358, y + 0.3, 0.44)))
        parts.append(box((0.002, 0.004, 0.34), dark).moved((-1.598, y + 0.3, 1.75)))
        parts.append(box((0.012, 0.06, 0.008), knob).moved((-1.35, y, 0.78)))
    parts.append(box((0.26, 0.36, 0.006), dark).moved((-1.66, 0.15, 0.926)))
    pot = [(0, 0), (0.11, 0), (0.12, 0.02), (0.12, 0.13), (0.115, 0.14), (0.03, 0.16), (0.02, 0.18), (0, 0.18)]
    parts.append(lathe(pot, steel, 20).moved((-1.55, 0.25, 0.93)))
    parts.append(box((0.22, 0.43, 0.88), steel).moved((-1.75, -2.4, 0.88)))
    parts.append(box((0.004, 0.43, 0.004), dark).moved((-1.528, -2.4, 1.15)))
    parts.append(box((0.02, 0.012, 0.25), dark).moved((-1.515, -2.06, 0.85)))
    return merge(parts)


def _living_room(atlas: Atlas) -> dict[str, Mesh]:
    """Returns the living room's low table, and a media unit, shelves and a picture on the rear wall."""
    oak, legs = atlas.add(paint.wood("living table", (150, 104, 66), 192, 4)), atlas.flat((90, 60, 40))
    white, dark = atlas.flat((226, 222, 214)), atlas.flat((40, 42, 48))
    picture = atlas.add(_painting("living"))
    outline = [(-0.66, -0.82), (0.16, -0.82), (0.30, -0.70), (0.34, -0.58), (0.34, 0.68), (0.30, 0.80), (0.16, 0.90), (-0.66, 0.90),
               (-0.79, 0.80), (-0.83, 0.68), (-0.83, -0.58), (-0.79, -0.70)]  # fmt: skip
    top = _board(outline, 0.413, 0.4368, oak, legs)
    block = box((0.412, 0.435, 0.2), legs).moved((-0.25, 0.25, 0.205))
    rear = [box((0.25, 1.1, 0.22), white).moved((-1.72, 0, 0.24)), box((0.02, 0.62, 0.36), dark).moved((-1.80, -0.1, 0.88))]
    rear += [box((0.16, 0.22, 0.9), white).moved((-1.80, s * 1.3, 0.9)) for s in (1, -1)]
    rear += [box((0.003, 0.004, 0.2), dark).moved((-1.468, y, 0.24)) for y in (-0.37, 0.37)]
    rear.append(box((0.01, 0.42, 0.28), dark, {"x+": picture}).moved((-1.97, 0.55, 1.75)))
    return {"table": merge([top, block]), "scenery": merge(rear)}


def _board(outline, z0: float, z1: float, top: Skin, edge: Skin) -> Mesh:
    """Returns a prism whose top shows the picture `top` stretched over its bounding rectangle."""
    mesh = prism(outline, z0, z1, edge, edge)
    low, high = mesh.pos[:, :2].min(0), mesh.pos[:, :2].max(0)
    face = mesh.nrm[:, 2] > 0.5
    where = (mesh.pos[face, :2] - low) / (high - low)
    mesh.uv[face] = np.column_stack([top[0] + where[:, 1] * (top[2] - top[0]), top[3] - where[:, 0] * (top[3] - top[1])])
    return mesh


def _painting(name: str):
    """Returns an abstract landscape for the wall."""
    gen = paint.rng(name)
    hills = paint.noise(gen, (120, 180), (3, 5)) + np.linspace(-1, 1.4, 120)[:, None]
    colours = np.array([(160, 190, 214), (214, 196, 150), (120, 150, 110), (70, 98, 84), (52, 66, 72)])
    index = np.clip(((hills + 1.5) * 1.6).astype(int), 0, 4)
    return paint.Image.fromarray(colours[index].astype(np.uint8))


def _study(atlas: Atlas) -> dict[str, Mesh]:
    """Returns the study's desk, and a bookcase with books, a plant, a lamp and a picture behind it."""
    oak, leg = atlas.add(paint.wood("desk", (140, 96, 62), 192, 4)), atlas.flat((70, 64, 60))
    white, dark, green = atlas.flat((222, 218, 208)), atlas.flat((60, 56, 54)), atlas.flat((74, 126, 70))
    clay = atlas.flat((170, 96, 66))
    inks = [atlas.flat(c) for c in ((150, 44, 40), (40, 70, 120), (210, 170, 70), (60, 100, 76), (96, 66, 110))]
    picture = atlas.add(_painting("study"))
    desk = [_board([(-0.689, -1.393), (0.689, -1.393), (0.689, 1.393), (-0.689, 1.393)], 0.813, 0.885, oak, leg)]
    desk += [box((0.02, 0.05, 0.394), leg).moved((x, y, 0.394)) for x in (-0.5, 0.496) for y in (-0.69, 0.71)]
    desk += [box((0.51, 0.05, 0.02), leg).moved((0, y, 0.025)) for y in (-0.697, 0.715)]
    gen = paint.rng("books")
    rear = [box((0.14, 0.02, 0.89), white).moved((-1.72, -1.0 + s * 0.6, 0.89)) for s in (1, -1)]
    rear.append(box((0.01, 0.6, 0.89), white).moved((-1.86, -1.0, 0.89)))
    for k in range(5):
        z = 0.03 + 0.42 * k
        rear.append(box((0.14, 0.6, 0.012), white).moved((-1.72, -1.0, z)))
        for j in range(9 if k < 4 else 0):
            tall = gen.uniform(0.11, 0.16)
            rear.append(box((0.09, 0.022, tall), inks[gen.integers(5)]).moved((-1.72, -1.5 + 0.052 * j + gen.uniform(0, 0.01), z + tall + 0.012)))
    rear.append(lathe([(0, 0), (0.13, 0), (0.17, 0.3), (0.15, 0.3), (0, 0.28)], clay, 18).moved((-1.75, 0.57, 0)))
    for k in range(9):
        a, r = 2.4 * k, 0.10 + 0.02 * (k % 4)
        bend = [(0, 0, 0.25), (0.4 * r * np.cos(a), 0.4 * r * np.sin(a), 0.75), (1.9 * r * np.cos(a), 1.9 * r * np.sin(a), 1.05 + 0.05 * (k % 3))]
        rear.append(tube(bend, 0.035, green, 6, flat=0.25).moved((-1.75, 0.57, 0)))
    rear.append(box((0.01, 0.45, 0.34), dark, {"x+": picture}).moved((-1.94, 0.5, 1.5)))
    return {"table": merge(desk), "scenery": merge(rear)}


def files() -> dict[str, object]:
    """Returns the rooms' and surfaces' files: text, bytes or pictures by path below the asset folder."""
    out = textures()
    _room("libero_tabletop_base_style", out, True, False, _work_table(), {}, None)
    _room("libero_floor_base_style", out, True, True, None, {}, None)
    atlas = Atlas(512)
    _room("libero_kitchen_tabletop_base_style", out, False, False, _work_table(), {"scenery": _kitchen(atlas)}, atlas)
    atlas = Atlas(512)
    top = [((-0.694, -0.619, 0.413), (0.194, 0.724, 0.4368)), ((-0.667, 0.70, 0.413), (0.167, 0.90, 0.4368)),
           ((-0.667, -0.82, 0.413), (0.167, -0.60, 0.4368)), ((0.18, -0.60, 0.413), (0.339, 0.70, 0.4368)),
           ((-0.824, -0.60, 0.413), (-0.68, 0.70, 0.4368)), ((-0.662, -0.185, 0.0), (0.162, 0.685, 0.413))]  # fmt: skip
    parts = _living_room(atlas)
    table = _fixed_table(top, "table", "living_room_table", "living_room_table_col")
    _room("libero_living_room_tabletop_base_style", out, True, True, table, parts, atlas)
    atlas = Atlas(512)
    legs = [((x - 0.02, y - 0.05, 0.0), (x + 0.02, y + 0.05, 0.788)) for x in (-0.5, 0.496) for y in (-0.69, 0.71)]
    parts = _study(atlas)
    table = _fixed_table([((-0.689, -1.393, 0.8135), (0.689, 1.393, 0.8851)), *legs], "table", "study_table", None)
    _room("libero_study_base_style", out, True, False, table, parts, atlas)
    return out
