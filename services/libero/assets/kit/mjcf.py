"""Data model of the kit's assets, and their MJCF in LIBERO's directory layout.

LIBERO (through robosuite's MujocoXMLObject) reads an object from `worldbody/body/body[@name="object"]`, keeps group 0
for collision and group 1 for show, and takes the placement sites from the outer body. Designs use z up; `up="y"`
rotates them for the objects whose official frame has y up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from xml.sax.saxutils import quoteattr

import numpy as np
import yaml

from services.libero.assets.kit.mesh import Mesh, box, merge

Product = TypeVar("Product")
# contact parameters of LIBERO's movable objects; stiff, so that objects neither sink nor creep
STIFF = {"solimp": (0.998, 0.998, 0.001), "solref": (0.001, 1), "friction": (0.95, 0.3, 0.1)}
Y_UP = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])  # design (x, y, z) -> stored (x, z, -y)


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    return yaml.safe_load(Path(__file__).with_name("products.yaml").read_text(encoding="utf-8"))


def of_kind(name: str, make: Callable[..., Product]) -> tuple[Product, ...]:
    """Return `make(**entry)` for the entries of products.yaml under `name` (such as "boxes"), lists as tuples."""

    def frozen(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: frozen(member) for key, member in value.items()}
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return tuple(make(**frozen(row)) for row in _table()[name])


def rot(axis: str, deg: float) -> np.ndarray:
    """Return the [3, 3] rotation by `deg` degrees about "x", "y" or "z"."""
    c, s = np.cos(np.radians(deg)), np.sin(np.radians(deg))
    i, j = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}[axis]
    m = np.eye(3)
    m[i, i] = m[j, j] = c
    m[i, j], m[j, i] = -s, s
    return m


def quat_wxyz(m: np.ndarray) -> np.ndarray:
    """Return the unit quaternion (w, x, y, z), w >= 0, of a rotation matrix [3, 3]."""
    k = np.array(
        [
            [m[0, 0] - m[1, 1] - m[2, 2], 0, 0, 0],
            [m[0, 1] + m[1, 0], m[1, 1] - m[0, 0] - m[2, 2], 0, 0],
            [m[0, 2] + m[2, 0], m[1, 2] + m[2, 1], m[2, 2] - m[0, 0] - m[1, 1], 0],
            [m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1], np.trace(m)],
        ]
    )
    x, y, z, w = np.linalg.eigh(k / 3)[1][:, -1]
    q = np.array([w, x, y, z])
    return q if w > 0 or (w == 0 and q[np.nonzero(q)[0][0]] > 0) else -q


def xml(tag: str, children: list[str] | None = None, **attributes) -> str:
    """Return one XML element; numbers and arrays are written with six significant digits, None is left out."""
    text = "".join(f" {k.rstrip('_')}={quoteattr(_text(v))}" for k, v in attributes.items() if v is not None)
    if not children:
        return f"<{tag}{text}/>"
    inner = "\n".join(children).replace("\n", "\n  ")
    return f"<{tag}{text}>\n  {inner}\n</{tag}>"


def _text(value) -> str:
    if isinstance(value, (str, int)):
        return str(value)
    return " ".join(f"{float(np.round(x, 6)) + 0.0:.6g}" for x in np.atleast_1d(value))


@dataclass
class Collider:
    """A collision shape: MuJoCo `kind`, `size` as in MJCF, pose in the design frame, contact attributes."""

    kind: str
    size: tuple[float, ...]
    pos: np.ndarray
    rot: np.ndarray
    attributes: dict

    @property
    def volume(self) -> float:
        """The volume in cubic metres; it shares out the body's mass."""
        if self.kind == "box":
            return 8.0 * float(np.prod(self.size))
        radius, half_length = self.size  # a capsule
        return float(np.pi * radius**2 * (2 * half_length + 4 / 3 * radius))


@dataclass
class RigidBody:
    """One rigid body of an asset: visual meshes, colliders, sites, an optional joint and children.

    `mass` (kg) is shared out over the colliders by volume; `inertial` = (mass, inertia) replaces that, as
    LIBERO does for drawers and knobs.
    """

    name: str
    mass: float = 0.0
    pos: tuple[float, float, float] = (0.0, 0.0, 0.0)
    quat: tuple[float, ...] | None = None
    joint: dict | None = None
    inertial: tuple[float, float] | None = None
    meshes: list[Mesh] = field(default_factory=list)
    glass: list[tuple[Mesh, tuple]] = field(default_factory=list)
    colliders: list[Collider] = field(default_factory=list)
    sites: list[dict] = field(default_factory=list)
    children: list[RigidBody] = field(default_factory=list)

    def show(self, mesh: Mesh, pos=(0, 0, 0), turn=None) -> RigidBody:
        """Add a mesh painted with the asset's texture, turned and then shifted by `pos` (m)."""
        self.meshes.append(mesh.transformed(pos, turn))
        return self

    def collide(self, kind: str, size, pos=(0, 0, 0), turn=None, **attributes) -> RigidBody:
        """Add a collision shape (m): `kind` and `size` as in MJCF, a capsule's axis along z unless turned."""
        size = tuple(float(s) for s in size)
        turn = np.eye(3) if turn is None else turn
        self.colliders.append(Collider(kind, size, np.asarray(pos, float), turn, {**STIFF, **attributes}))
        return self

    def box(self, half, pos=(0, 0, 0), turn=None, **attributes) -> RigidBody:
        """Add a collision box of half sizes `half` (m)."""
        return self.collide("box", half, pos, turn, **attributes)

    def block(self, half, skin, pos=(0, 0, 0), turn=None, faces=None, **attributes) -> RigidBody:
        """Add a box of half sizes `half` (m) that collides and is seen; `faces` as in `mesh.box`."""
        return self.box(half, pos, turn, **attributes).show(box(half, skin, faces), pos, turn)

    def prism(self, sides: int, radius, z0, z1, pos=(0, 0), inset=0.0005) -> RigidBody:
        """Add a round post from z0 to z1 as crossed boxes whose flats touch `radius` (m).

        Boxes, because box contacts give a parallel gripper several points to hold. Only the first two reach
        the full height; the others end `inset` short, so that a standing post has 8 contacts and not 4 per box.
        """
        for k in range(sides // 2):
            short = 0.0 if k in (0, sides // 4) else inset
            half = (radius, radius * np.tan(np.pi / sides), (z1 - z0) / 2 - short)
            self.box(half, (*pos, (z0 + z1) / 2), rot("z", 360 * k / sides))
        return self

    def ring(self, sides: int, low, high, thick, pos=(0, 0)) -> RigidBody:
        """Add a wall of `sides` boxes whose outer face runs from `low` = (radius, z) to `high` (m)."""
        (r0, z0), (r1, z1) = low, high
        slope = np.array([r1 - r0, z1 - z0])
        length = float(np.linalg.norm(slope))
        slope = slope / length
        out = np.array([slope[1], -slope[0]])
        centre = np.array([(r0 + r1) / 2, (z0 + z1) / 2]) - out * thick / 2
        half = (thick / 2, max(r0, r1) * np.tan(np.pi / sides), length / 2)
        tilt = np.array([[out[0], 0, slope[0]], [0, 1, 0], [out[1], 0, slope[1]]])
        for k in range(sides):
            turn = rot("z", 360 * k / sides)
            box_pos = turn @ np.array([centre[0], 0, centre[1]]) + np.array([*pos, 0.0])
            self.box(half, box_pos, turn @ tilt)
        return self

    def site(self, name, size, pos=(0, 0, 0), quat=(1, 0, 0, 0), kind="box", rgba=(0.8, 0.8, 0.8, 0)) -> RigidBody:
        """Add a named region that LIBERO's predicates look up."""
        self.sites.append(dict(name=name, type=kind, size=size, pos=pos, quat=quat, rgba=rgba, group=0))
        return self


@dataclass
class Asset:
    """One object or fixture: its file path without ending, root body, texture, frame and placement sites.

    `bottom`, `top` (m) and `radius` (m) are the placement sites' offsets; LIBERO's samplers use them, so they
    are LIBERO's numbers and not the shape's.
    """

    path: str
    root: RigidBody
    texture: object  # PIL.Image
    up: str = "z"
    bottom: float = -0.06
    top: float = 0.04
    radius: float = 0.025
    specular: float = 0.3
    shininess: float = 0.4

    @property
    def name(self) -> str:
        """The category's name, e.g. "akita_black_bowl"."""
        return self.path.rsplit("/", 1)[-1]

    def files(self) -> dict[str, object]:
        """Return file contents by path below the asset directory: bytes, text or a PIL image (saved as PNG).

        They are an XML file, a texture, and a mesh per visible body.
        """
        directory = self.path.rsplit("/", 1)[0]
        is_own = directory.endswith(f"/{self.name}")  # then meshes and texture lie next to the XML file
        parts, relative = (directory, "") if is_own else (self.path, f"{self.name}/")
        meshes: dict[str, bytes] = {}
        body = self._body(self.root, meshes)
        placement = {
            "bottom": (0, 0, self.bottom),
            "top": (0, 0, self.top),
            "horizontal_radius": (self.radius, self.radius, 0),
        }
        sites = [xml("site", name=f"{n}_site", pos=p, size=0.005, rgba=(0, 0, 0, 0)) for n, p in placement.items()]
        image, shine = f"tex-{self.name}", dict(specular=self.specular, shininess=self.shininess)
        assets = [
            xml("texture", type="2d", name=image, file=f"{relative}texture.png"),
            xml("material", name=self.name, texture=image, **shine),
            *(xml("mesh", name=name, file=f"{relative}{name}.msh") for name in meshes),
        ]
        world = xml("worldbody", [xml("body", [body, *sites])])
        document = xml("mujoco", [xml("compiler", angle="radian"), xml("asset", assets), world], model=self.name)
        return {
            f"{self.path}.xml": document + "\n",
            f"{parts}/texture.png": self.texture,
            **{f"{parts}/{name}.msh": content for name, content in meshes.items()},
        }

    def _body(self, body: RigidBody, meshes: dict[str, bytes]) -> str:
        """Return a body's XML; add its meshes to `meshes`."""
        frame, inner = (Y_UP if self.up == "y" else np.eye(3)), []
        if body.inertial:
            mass, inertia = body.inertial
            inner.append(xml("inertial", pos=(0, 0, 0), mass=mass, diaginertia=(inertia,) * 3))
        if body.joint:
            inner.append(xml("joint", **body.joint))
        painted = [(merge(body.meshes), None)] if body.meshes else []
        for k, (mesh, rgba) in enumerate([*painted, *body.glass]):
            name = f"{self.name}_{body.name}_{k}"
            meshes[name] = mesh.transformed(rot=frame).tobytes()
            look = dict(material=self.name) if rgba is None else dict(rgba=rgba)
            inner.append(xml("geom", type="mesh", mesh=name, **look, group=1, contype=0, conaffinity=0, mass=0.0))
        density = 0.0 if body.inertial else body.mass / max(sum(c.volume for c in body.colliders), 1e-12)
        for c in body.colliders:
            quat = quat_wxyz(frame @ c.rot)
            pose = dict(pos=frame @ c.pos, quat=quat if abs(quat[0]) < 1 - 1e-9 else None)
            inner.append(
                xml("geom", type=c.kind, size=c.size, **pose, mass=density * c.volume, group=0, **c.attributes)
            )
        inner += [xml("site", **site) for site in body.sites]
        inner += [self._body(child, meshes) for child in body.children]
        return xml("body", inner, name=body.name, pos=body.pos if any(body.pos) else None, quat=body.quat)
