"""The five rooms of LIBERO's tasks: floor, walls, table, lights, cameras and simple scenery, and their surfaces.

LIBERO replaces the file names of the textures `texplane` and `tex-wall` and sets the size of the geoms `table_*`, so
those names and the directory `textures/` are part of its layout.
"""

from __future__ import annotations

import numpy as np

from services.libero.assets.kit import paint, scenery
from services.libero.assets.kit.mesh import Mesh, box, merge
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
    """Return every surface that LIBERO's styles name, as images by path."""
    out = {f"textures/{name}": draw(name) for name, draw in FLOORS.items()}
    out |= {f"textures/{name}": paint.plaster(name, colour, 128) for name, colour in WALLS.items()}
    out[f"textures/{TABLE_TOP}"] = paint.wood(TABLE_TOP, (222, 196, 162), 384, 5, 0.07)
    return out


SKIN_2M = (0.0, 0.0, 2.0, 2.0)  # the walls repeat their image


def _walls(corners: bool) -> Mesh:
    """Return the inward faces of a 3 m high room, x from -2 to 3 m and y within 3 m; `corners` cuts two corners."""
    if corners:
        parts = [((1.06, 0.01, 1.5), (-1.25, 2.25, 1.5), 45.0), ((1.06, 0.01, 1.5), (-1.25, -2.25, 1.5), -45.0)]
        parts += [((1.75, 0.01, 1.5), (1.25, 3, 1.5), 0.0), ((1.75, 0.01, 1.5), (1.25, -3, 1.5), 0.0)]
        parts += [((0.01, 1.5, 1.5), (-2, 0, 1.5), 0.0), ((0.01, 3, 1.5), (3, 0, 1.5), 0.0)]
    else:
        parts = [((2.5, 0.01, 1.5), (0.5, 3, 1.5), 0.0), ((2.5, 0.01, 1.5), (0.5, -3, 1.5), 0.0)]
        parts += [((0.01, 3, 1.5), (-2, 0, 1.5), 0.0), ((0.01, 3, 1.5), (3, 0, 1.5), 0.0)]
    return merge([box(half, SKIN_2M).transformed(pos, rot("z", deg)) for half, pos, deg in parts])


LIGHT = dict(
    diffuse=(0.52, 0.52, 0.50), dir=(0, -0.15, -1), directional="false", specular=(0.25, 0.25, 0.25), castshadow="false"
)
# from behind the cameras, so that the sides that they see are not in the dark
FILL = dict(
    name="fill", pos=(2.5, 1, 3), dir=(-1, -0.45, -0.75), directional="true", castshadow="false",
    diffuse=(0.55, 0.55, 0.55), specular=(0.15, 0.15, 0.15),
)  # fmt: skip
CAMERAS = {
    "frontview": ((1.0, 0, 1.45), (0.56, 0.43, 0.43, 0.56)),
    "birdview": ((-0.2, 0, 3.0), (0.7071, 0, 0, 0.7071)),
    "agentview": ((0.5, 0, 1.35), (0.653, 0.271, 0.271, 0.653)),
    "sideview": ((-0.056518, 1.276122, 1.487957), (0.009905, 0.006878, 0.591223, 0.806418)),
}
SKY, MATT = dict(rgb1=(0.9, 0.9, 1.0), rgb2=(0.2, 0.3, 0.4)), dict(specular=0, shininess=0)
VISUAL = dict(contype=0, conaffinity=0, group=1)


def _work_table() -> str:
    """Return the table whose size, place and friction LIBERO sets."""
    leg = dict(type="cylinder", size=(0.05, 0.1), material="table_legs", **VISUAL)
    inner = [
        xml("geom", name="table_collision", type="box", size=(0.4, 0.4, 0.4), group=0, friction=(1, 0.005, 0.0001)),
        xml("geom", name="table_visual", type="box", size=(0.4, 0.4, 0.4), material="table_texture", **VISUAL),
        xml("site", name="table_top", pos=(0, 0, 0.4), size=(0.001,) * 3, rgba=(0, 0, 0, 0)),
        *(xml("geom", name=f"table_leg{k}_visual", **leg) for k in (1, 2, 3, 4)),
    ]
    return xml("body", inner, name="table", pos=(0, 0, 0.4))


def _fixed_table(boxes, mesh: str, name: str, child: str | None) -> str:
    """Return a table of fixed boxes (low corner, high corner) that shows the scenery mesh `mesh`."""
    inner = [xml("geom", type="mesh", mesh=mesh, material="scenery", mass=0.0, **VISUAL)]
    for low, high in boxes:
        low, high = np.array(low), np.array(high)
        inner.append(
            xml("geom", type="box", size=(high - low) / 2, pos=(low + high) / 2, group=0, density=100, **STIFF)
        )
    if child:
        inner = [xml("body", inner, name=child)]
    return xml("body", inner, name=name)


def _room(
    scene: str, out: dict, walls: bool, floor_body: bool, table: str | None, parts: dict[str, Mesh], atlas: Atlas | None
):
    """Write one scene: `parts` maps mesh names to scenery; "table" is left to the table body."""
    directory = f"scenes/{scene}"
    surface = dict(specular=0.1, shininess=0.1)
    assets = [
        xml("texture", type="skybox", builtin="gradient", **SKY, width=64, height=64),
        xml("texture", name="texplane", type="2d", file="../textures/tile_grigia_caldera_porcelain_floor.png"),
        xml("material", name="floorplane", texture="texplane", texrepeat=(2, 2), texuniform="true", **MATT),
        xml("texture", name="tex-table", type="cube", file=f"../textures/{TABLE_TOP}"),
        xml("material", name="table_texture", texture="tex-table", **surface),
        xml("material", name="table_legs", rgba=(0.35, 0.33, 0.32, 1), **surface),
        xml("texture", name="tex-wall", type="2d", file="../textures/smooth_light_gray_plaster.png"),
        xml("material", name="walls_mat", texture="tex-wall", **surface),
        xml("mesh", name="room_walls", file=f"{scene}/room_walls.msh"),
    ]
    out[f"{directory}/room_walls.msh"] = _walls(walls).tobytes()
    floor = xml("geom", name="floor", type="plane", size=(3, 3, 0.5), material="floorplane", condim=3, group=1)
    world = [xml("body", [floor], name="floor") if floor_body else floor]
    world.append(xml("geom", name="walls_visual", type="mesh", mesh="room_walls", material="walls_mat", **VISUAL))
    if parts:
        out[f"{directory}/scenery.png"] = atlas.image
        assets.append(xml("texture", name="tex-scenery", type="2d", file=f"{scene}/scenery.png"))
        assets.append(xml("material", name="scenery", texture="tex-scenery", specular=0.2, shininess=0.3))
    for name, mesh in parts.items():
        out[f"{directory}/{name}.msh"] = mesh.tobytes()
        assets.append(xml("mesh", name=name, file=f"{scene}/{name}.msh"))
        if name != "table":
            world.append(xml("geom", name=f"{name}_visual", type="mesh", mesh=name, material="scenery", **VISUAL))
    world += [table] if table else []
    for name, pos in (("light1", (1, 1, 4)), ("light2", (-3, -3, 4))):
        world.append(xml("light", name=name, pos=pos, **LIGHT))
    world.append(xml("light", **FILL))
    world += [xml("camera", name=n, mode="fixed", pos=p, quat=q) for n, (p, q) in CAMERAS.items()]
    out[f"{directory}.xml"] = xml("mujoco", [xml("asset", assets), xml("worldbody", world)], model=scene) + "\n"


def files() -> dict[str, object]:
    """Return the rooms' and surfaces' files: text, bytes or images by path below the asset directory."""
    out = textures()
    _room("libero_tabletop_base_style", out, True, False, _work_table(), {}, None)
    _room("libero_floor_base_style", out, True, True, None, {}, None)
    atlas = Atlas(512)
    parts = {"scenery": scenery.kitchen(atlas)}
    _room("libero_kitchen_tabletop_base_style", out, False, False, _work_table(), parts, atlas)
    atlas = Atlas(512)
    top = [
        ((-0.694, -0.619, 0.413), (0.194, 0.724, 0.4368)), ((-0.667, 0.70, 0.413), (0.167, 0.90, 0.4368)),
        ((-0.667, -0.82, 0.413), (0.167, -0.60, 0.4368)), ((0.18, -0.60, 0.413), (0.339, 0.70, 0.4368)),
        ((-0.824, -0.60, 0.413), (-0.68, 0.70, 0.4368)), ((-0.662, -0.185, 0.0), (0.162, 0.685, 0.413)),
    ]  # fmt: skip
    parts = scenery.living_room(atlas)
    table = _fixed_table(top, "table", "living_room_table", "living_room_table_col")
    _room("libero_living_room_tabletop_base_style", out, True, True, table, parts, atlas)
    atlas = Atlas(512)
    legs = [((x - 0.02, y - 0.05, 0.0), (x + 0.02, y + 0.05, 0.788)) for x in (-0.5, 0.496) for y in (-0.69, 0.71)]
    parts = scenery.study(atlas)
    table = _fixed_table([((-0.689, -1.393, 0.8135), (0.689, 1.393, 0.8851)), *legs], "table", "study_table", None)
    _room("libero_study_base_style", out, True, False, table, parts, atlas)
    return out
