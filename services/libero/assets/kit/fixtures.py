"""Furniture of the tasks: cabinets with three drawers, the stove, the microwave; racks, shelves and trays of blocks.

Joint names, axes, ranges and damping, drawer masses and the regions are LIBERO's: its predicates read them.
"""

from __future__ import annotations

from services.libero.assets.kit.mesh import box, lathe, tube
from services.libero.assets.kit.mjcf import Asset, RigidBody, of_kind, rot
from services.libero.assets.kit.paint import Atlas, Colour, metal, plaster, wood

PAINTERS = {"plaster": plaster, "wood": wood}
HALF_TURN_Y = (0.70711, 0.0, 0.70711, 0.0)
HEAVY = (3.0, 1.0)  # mass (kg) and inertia (kg m2) of a drawer or knob: steady under a push


def cabinet(name: str, frame: Colour, front: Colour, handle: Colour, grain: float = 0.16) -> Asset:
    """Return a three-drawer cabinet; drawers slide out towards -y, a bar handle on each; `grain` 0 is lacquer."""
    atlas = Atlas(512)
    carcass = atlas.add(wood(f"{name} frame", frame, 192, 3, grain))
    face = atlas.add(wood(f"{name} front", front, 160, 2, grain))
    inside, grip = atlas.flat(tuple(int(0.72 * c) for c in frame)), atlas.add(metal(f"{name} grip", handle, 32))
    base = RigidBody("base", mass=0.1762)
    for half, pos in (
        ((0.1191, 0.0023, 0.1058), (0.0034, 0.1094, 0.1143)),  # back
        ((0.1228, 0.0896, 0.0021), (0.0040, 0.0163, 0.0068)),  # bottom
        ((0.0051, 0.0954, 0.1058), (-0.1122, 0.0163, 0.1143)),  # sides
        ((0.0051, 0.0954, 0.1058), (0.1190, 0.0163, 0.1143)),
        ((0.1100, 0.0840, 0.0010), (0.0034, 0.0240, 0.0793)),  # shelves between the drawers
        ((0.1100, 0.0840, 0.0010), (0.0034, 0.0240, 0.1494)),
        ((0.1273, 0.0941, 0.0021), (0.0039, 0.0158, 0.2209)),  # top
    ):
        base.block(half, carcass, pos)
    base.site("top_side", (0.12534, 0.09438, 0.00147), (0.00354, 0.01567, 0.22152), rgba=(0.8, 0.8, 0, 0))
    levels = (
        ("top", 0.1831, 0.1839, 0.1551, 0.18563),
        ("middle", 0.1134, 0.1104, 0.0854, 0.1169),
        ("bottom", 0.0448, 0.0411, 0.0168, 0.04701),
    )
    for level, panel_z, grip_z, floor_z, region_z in levels:
        joint = dict(
            name=f"{level}_level", type="slide", axis=(0, 1, 0), limited="true", range=(-0.16, 0.01), damping=50
        )
        drawer = RigidBody(f"cabinet_{level}", joint=joint, inertial=HEAVY)
        for half, pos, skin in (
            ((0.1093, 0.0055, 0.0341), (0.0033, -0.0725, panel_z), face),
            ((0.1068, 0.0035, 0.0321), (0.0033, 0.0908, panel_z + 0.0005), inside),
            ((0.0024, 0.0782, 0.0314), (-0.1019, 0.0111, panel_z + 0.0005), inside),
            ((0.0024, 0.0782, 0.0314), (0.1089, 0.0111, panel_z + 0.0005), inside),
            ((0.1070, 0.0782, 0.0040), (0.0035, 0.0111, floor_z), inside),
        ):
            drawer.block(half, skin, pos)
        bar = [(-0.0473 + 0.0089 * k, -0.1016, grip_z) for k in (0, 5, 10)]
        drawer.box((0.0445, 0.0077, 0.0082), (-0.0028, -0.1016, grip_z)).show(tube(bar, 0.0082, grip, 10))
        for x in (0.0292, -0.0356):
            post = [(x, -0.100, grip_z), (x, -0.086, grip_z), (x, -0.074, grip_z)]
            drawer.box((0.0051, 0.0106, 0.0055), (x, -0.0835, grip_z)).show(tube(post, 0.0052, grip, 8))
        base.children.append(
            drawer.site(f"{level}_region", (0.02993, 0.07561, 0.10224), (0.00328, 0.01128, region_z), HALF_TURN_Y)
        )
    root = RigidBody("object", children=[base])
    return Asset(f"articulated_objects/{name}", root, atlas.image, bottom=-0.045, top=0.045, radius=0.045, specular=0.2)


def flat_stove() -> Asset:
    """Return a one-plate stove; the knob at the frame's origin turns about z and has a wing to grip or push."""
    atlas = Atlas(256)
    steel, plate = atlas.add(metal("stove", (168, 170, 174), 96)), atlas.flat((58, 58, 62))
    knob, mark, ring = atlas.flat((36, 36, 38)), atlas.flat((220, 60, 40)), atlas.flat((84, 84, 88))
    plain = dict(solimp=None, solref=None, friction=None)
    burner = RigidBody("burner", mass=1.48, pos=(0.15, 0, 0))
    burner.box((0.095, 0.095, 0.02), name="base", **plain)
    burner.box((0.095, 0.095, 0.0028), (0, 0, 0.0227), name="collision_burner", **plain)
    burner.show(box((0.095, 0.095, 0.02), steel))
    # the glowing disc (site "burner", up to z = 0.0225) shows between the rings when LIBERO turns it visible
    grooves = [(0, 0.0190), (0.066, 0.0190), (0.066, 0.0245)]
    for r in (0.060, 0.047, 0.034, 0.021):
        grooves += [(r, 0.0250), (r - 0.0005, 0.0206), (r - 0.006, 0.0206), (r - 0.0065, 0.0250)]
    grooves.append((0, 0.0250))
    burner.show(lathe(grooves, [ring, ring] + [plate, plate, ring, plate] * 4 + [plate], 28))
    burner.site("cook_region", (0.075, 0.075, 0.0025), rgba=(0.8, 0.8, 0, 0))
    burner.site("burner", (0.0625, 0.0005), (0, 0, 0.022), kind="cylinder", rgba=(0.9, 0.05, 0.05, 1))
    joint = dict(name="button", type="hinge", axis=(0, 0, 1), limited="true", range=(-0.005, 2.1), damping=1)
    button = RigidBody("button", quat=(0.7071068, 0, 0, 0.7071068), joint=joint, inertial=HEAVY)
    button.prism(8, 0.0455, 0.0004, 0.0128, pos=(0.0013, 0.0045))
    button.show(lathe([(0, 0), (0.047, 0), (0.047, 0.0105), (0.044, 0.013), (0, 0.013)], knob, 24), (0.0013, 0.0045, 0))
    for half, pos in (
        ((0.0120, 0.0345, 0.0243), (0.0013, 0.0174, 0.0257)),
        ((0.0120, 0.0110, 0.0205), (0.0012, -0.0240, 0.0244)),
        ((0.0120, 0.0042, 0.0166), (0.0011, -0.0368, 0.0172)),
    ):
        button.block(half, knob, pos)
    button.show(box((0.003, 0.02, 0.0006), mark), (0.0013, 0.030, 0.0504))
    root = RigidBody("object", children=[RigidBody("base", children=[burner, button])])
    return Asset(
        "articulated_objects/flat_stove", root, atlas.image, bottom=-0.045, top=0.045, radius=0.045, specular=0.5
    )


def microwave() -> Asset:
    """Return the microwave; its door hangs on the left and swings open towards -y with a bar handle."""
    atlas = Atlas(256)
    shell, black = atlas.add(metal("microwave", (188, 190, 194), 96)), atlas.flat((34, 34, 38))
    inner, steel, green = atlas.flat((206, 206, 200)), atlas.flat((216, 218, 222)), atlas.flat((80, 230, 130))
    soft = dict(solimp=(0.8, 0.9, 0.01), solref=(0.02, 1), friction=None, contype=0, conaffinity=1, margin=0.001)
    root = RigidBody("object", mass=3.0)
    for half, pos in (
        ((0.0145, 0.0995, 0.0935), (-0.158, 0.0115, 0.0935)),
        ((0.0545, 0.0995, 0.0935), (0.118, 0.0115, 0.0935)),
        ((0.1035, 0.0150, 0.0935), (-0.0405, 0.0955, 0.0935)),
        ((0.1035, 0.0845, 0.0095), (-0.040, -0.0035, 0.1775)),
        ((0.1035, 0.0840, 0.0120), (-0.040, -0.0040, 0.0120)),
    ):
        root.block(half, inner, pos, faces={"x-": shell, "z+": shell, "y+": shell}, **soft)
    root.show(box((0.1728, 0.1000, 0.0012), shell), (0, 0.0115, 0.1872))
    root.show(box((0.0004, 0.0995, 0.0935), shell), (0.1728, 0.0115, 0.0935))
    root.block((0.0425, 0.0120, 0.0935), black, (0.130, -0.0985, 0.0935), **soft)
    root.show(box((0.026, 0.0006, 0.010), green), (0.132, -0.1108, 0.158))
    for k in range(9):
        spot = (0.112 + 0.019 * (k % 3), -0.1108, 0.122 - 0.022 * (k // 3))
        root.show(box((0.006, 0.0008, 0.006), steel), spot)
    root.show(lathe([(0, 0), (0.014, 0), (0.012, 0.01), (0, 0.01)], steel, 16), (0.131, -0.110, 0.038), rot("x", 90))
    root.site("top_side", (0.12, 0.0835, 0.005), (0, 0.01, 0.20), rgba=(1, 0, 0, 0))
    root.site("heating_region", (0.12, 0.0835, 0.08), (0, 0.01, 0.096), rgba=(1, 0, 0, 0))
    joint = dict(name="microjoint", type="hinge", axis=(0, 0, 1), limited="true", range=(-2.094, 0), damping=0.5)
    door = RigidBody("microdoorroot", mass=0.26, pos=(-0.1725, -0.088, 0.096), joint=joint)
    door.box((0.1295, 0.0120, 0.0925), (0.1295, -0.013, 0), **soft)
    for half, pos in (
        ((0.1295, 0.012, 0.0225), (0.1295, -0.013, 0.070)),
        ((0.1295, 0.012, 0.0225), (0.1295, -0.013, -0.070)),
        ((0.0200, 0.012, 0.0475), (0.0200, -0.013, 0)),
        ((0.0350, 0.012, 0.0475), (0.2240, -0.013, 0)),
    ):
        door.show(box(half, black), pos)
    door.glass.append(
        (box((0.0745, 0.004, 0.0475), (0, 0, 1, 1)).transformed((0.1145, -0.013, 0)), (0.25, 0.27, 0.30, 0.55))
    )
    door.collide("capsule", (0.010, 0.065), (0.2375, -0.054, 0), **soft)
    bar = [
        (0.2375, -0.024, -0.066), (0.2375, -0.05, -0.064), (0.2375, -0.054, -0.05), (0.2375, -0.054, 0.05),
        (0.2375, -0.05, 0.064), (0.2375, -0.024, 0.066),
    ]  # fmt: skip
    door.show(tube(bar, 0.010, steel, 10))
    for z in (0.065, -0.065):
        door.collide("capsule", (0.010, 0.015), (0.2375, -0.0375, z), rot("x", 90), **soft)
    root.children.append(door)
    return Asset("articulated_objects/microwave", root, atlas.image, bottom=-0.06, top=0.06, radius=0.015, specular=0.5)


def furniture(name, mass, surfaces: dict, blocks: tuple, sites: tuple, specular=0.2) -> Asset:
    """Return a rigid piece of furniture.

    surfaces  what its faces show: a colour, or [kind of surface, its name, colour, further numbers of its painter]
    blocks    half sizes and surface of blocks at several positions (m), perhaps turned ([axis, degrees]), or with
              another surface on some faces
    sites     as `RigidBody.site` takes them
    """
    atlas, root = Atlas(256), RigidBody("object", mass=mass)
    skins = {}
    for key, surface in surfaces.items():
        is_colour = not isinstance(surface[0], str)
        skins[key] = atlas.flat(surface) if is_colour else atlas.add(PAINTERS[surface[0]](*surface[1:]))
    for block in blocks:
        turn = rot(*block["turn"]) if "turn" in block else None
        faces = {face: skins[key] for face, key in block.get("faces", {}).items()}
        for pos in block["at"]:
            root.block(block["half"], skins[block["skin"]], pos, turn, faces)
    for site in sites:
        root.site(**site)
    return Asset(f"turbosquid_objects/{name}/{name}", root, atlas.image, specular=specular)


def assets() -> list[Asset]:
    """Return every fixture of the kit, and the furniture that LIBERO places like one."""
    return [
        cabinet("wooden_cabinet", (150, 92, 52), (176, 114, 66), (70, 62, 56)),
        cabinet("white_cabinet", (226, 224, 218), (240, 238, 232), (150, 152, 156), 0.03),
        flat_stove(),
        microwave(),
        *of_kind("furniture", furniture),
    ]
