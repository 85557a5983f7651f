"""The oracle's view of the simulator: `World` (fixed within an episode) and `SceneState` (one time step).

Both are read from the plain data of `simulator/privileged.py`. Units: m, rad, world frame unless a name says
otherwise. Rotations are 3 x 3 matrices whose columns are the axes of the rotated frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from services.libero.oracle import parsing

GRIPPER_BODIES = "gripper0_"
UNIT = 1.001  # the largest number in a rotation, with room for rounding
UP = np.array([0.0, 0.0, 1.0])


class Pose(NamedTuple):
    """A position and an orientation: `pos` [3] m, `rot` [3, 3]."""

    pos: np.ndarray
    rot: np.ndarray

    def apply(self, points: np.ndarray) -> np.ndarray:
        """Return local points [..., 3] in the world frame."""
        return points @ self.rot.T + self.pos

    def inverse_apply(self, points: np.ndarray) -> np.ndarray:
        """Return world points [..., 3] in this frame."""
        return (points - self.pos) @ self.rot

    def __matmul__(self, child: Pose) -> Pose:
        return Pose(self.apply(child.pos), self.rot @ child.rot)


class Goal(NamedTuple):
    """One predicate of the task: `name` in lower case ("on", "in", "open", "close", "turnon"), then its arguments."""

    name: str
    args: tuple[str, ...]


@dataclass(frozen=True)
class SceneObject:
    """A movable object or a fixture: root body and all bodies (indices), LIBERO's ranges of its joints."""

    movable: bool
    root: int
    bodies: tuple[int, ...]
    ranges: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Joint:
    """A drawer's slide or a door's or knob's hinge; `pos` and `axis` in the frame of its body."""

    name: str
    index: int
    type: str
    body: int
    pos: np.ndarray
    axis: np.ndarray
    range: tuple[float, float]


@dataclass(frozen=True)
class GoalSite:
    """A MuJoCo site; a goal region is a box of half extents `size` [3]."""

    body: int
    local: Pose
    size: np.ndarray


@dataclass(frozen=True)
class Geom:
    """A collision shape in its body's frame; `size` as MuJoCo means it (box: half extents)."""

    body: int
    type: str
    size: np.ndarray
    local: Pose


@dataclass(frozen=True)
class Region:
    """A goal region: the object it belongs to ("" for the table) and the joints that move it."""

    parent: str
    joints: tuple[str, ...]


@dataclass(frozen=True)
class World:
    """Everything that is constant within an episode."""

    goals: tuple[Goal, ...]
    bodies: tuple[str, ...]
    objects: Mapping[str, SceneObject]
    regions: Mapping[str, Region]
    joints: Mapping[str, Joint]
    sites: Mapping[str, GoalSite]
    geoms: tuple[Geom, ...]
    base_pos: np.ndarray
    cache: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)  # geometry computed once per episode

    @classmethod
    def from_static(cls, static: Mapping[str, Any]) -> World:
        """Return the world that `privileged.describe` sent. Raises ValueError or KeyError for an invalid part."""
        bodies = parsing.texts(static["bodies"], parsing.MAX_BODIES)
        goals = [parsing.texts(goal, 8) for goal in parsing.items(static["goal"], parsing.MAX_GOALS)]
        regions = {
            name: Region(parsing.text(region["parent"]), parsing.texts(region["joints"], parsing.MAX_NAMED))
            for name, region in parsing.table(static["regions"]).items()
        }
        return cls(
            goals=tuple(Goal(name.lower(), tuple(args)) for name, *args in goals),
            bodies=bodies,
            objects={name: _object(raw, len(bodies)) for name, raw in parsing.table(static["objects"]).items()},
            regions=regions,
            joints=_joints(static["joints"], len(bodies)),
            sites=_sites(static["sites"], len(bodies)),
            geoms=_geoms(static["geoms"], len(bodies)),
            base_pos=parsing.positions(static, "robot_base_pos", 3),
        )

    def geoms_of(self, name: str) -> list[Geom]:
        """Return the collision shapes of an object, all its bodies included."""
        bodies = set(self.objects[name].bodies)
        return [geom for geom in self.geoms if geom.body in bodies]

    @cached_property
    def owner(self) -> Mapping[int, str]:
        """The object that each body belongs to; "gripper" for the hand and fingers, "" for the room and the arm."""
        owners = {i: "gripper" if n.startswith(GRIPPER_BODIES) else "" for i, n in enumerate(self.bodies)}
        owners.update({body: name for name, each in self.objects.items() for body in each.bodies})
        return owners


@dataclass(frozen=True)
class SceneState:
    """One time step: the state of the hand, the objects and the joints."""

    world: World
    step: int
    eef: Pose  # grip site between the fingertips; x: closing axis, z: out of the fingers
    eef_vel: np.ndarray  # [6] linear m/s, angular rad/s
    gripper_gap: float  # m between the finger pads, 0 (closed) to 0.08
    body_pos: np.ndarray  # [nb, 3]
    body_rot: np.ndarray  # [nb, 3, 3]
    joint_pos: np.ndarray  # [nj] m or rad
    contacts: np.ndarray  # int [nc, 2] pairs of bodies
    goal_done: tuple[bool, ...]

    @classmethod
    def from_state(cls, world: World, state: Mapping[str, Any], step: int) -> SceneState:
        """Return the scene that `privileged.observe` sent. Raises ValueError or KeyError for an invalid part."""
        count = len(world.bodies)
        done = parsing.items(state.get("goal_done", [False] * len(world.goals)), parsing.MAX_GOALS)
        if len(done) != len(world.goals):
            raise ValueError(f"goal_done must have {len(world.goals)} members, one per goal, got {len(done)}")
        return cls(
            world=world,
            step=step,
            eef=Pose(parsing.positions(state, "eef_pos", 3), parsing.numbers(state, "eef_rot", 3, 3, limit=UNIT)),
            eef_vel=parsing.numbers(state, "eef_vel", 6),
            gripper_gap=float(np.abs(parsing.numbers(state, "gripper_qpos", 2)).sum()),
            body_pos=parsing.positions(state, "body_pos", count, 3),
            body_rot=rotations(parsing.numbers(state, "body_quat_wxyz", count, 4, limit=UNIT)),
            joint_pos=parsing.numbers(state, "joint_pos", len(world.joints)),
            contacts=parsing.indices(state, "contacts", count, columns=2, limit=parsing.MAX_CONTACTS),
            goal_done=tuple(bool(value) for value in done),
        )

    def pose(self, name: str) -> Pose:
        """Return the pose of an object's root body: the point that LIBERO's predicates use."""
        return self.body_pose(self.world.objects[name].root)

    def body_pose(self, body: int) -> Pose:
        """Return the pose of a body by its index."""
        return Pose(self.body_pos[body], self.body_rot[body])

    def site(self, name: str) -> Pose:
        """Return the pose of a site, for example of a goal region's centre."""
        site = self.world.sites[name]
        return self.body_pose(site.body) @ site.local

    def joint(self, joint: Joint) -> float:
        """Return the position of a drawer, door or knob joint, m or rad."""
        return float(self.joint_pos[joint.index])

    def anchor(self, joint: Joint) -> np.ndarray:
        """Return a point [3] on a joint's axis."""
        return self.body_pose(joint.body).apply(joint.pos)

    def axis(self, joint: Joint) -> np.ndarray:
        """Return the unit vector [3] along which a joint slides or around which it turns."""
        return self.body_rot[joint.body] @ joint.axis

    def touching(self, first: str, second: str) -> bool:
        """Return whether two objects are in contact; "gripper" is the hand with its fingers, "" the room."""
        owner = self.world.owner
        pairs = {(owner[a], owner[b]) for a, b in self.contacts.tolist()}
        return (first, second) in pairs or (second, first) in pairs


def rotations(quat_wxyz: np.ndarray) -> np.ndarray:
    """Return rotation matrices [n, 3, 3] of unit quaternions [n, 4] (w, x, y, z)."""
    w, x, y, z = np.asarray(quat_wxyz, dtype=np.float64).T
    return np.stack(
        [
            1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
        ],
        axis=-1,
    ).reshape(-1, 3, 3)  # fmt: skip


def _object(raw: Mapping[str, Any], count: int) -> SceneObject:
    bodies = tuple(parsing.indices(raw, "bodies", count, limit=count).tolist())
    if type(raw["root"]) is not int or raw["root"] not in bodies:
        raise ValueError(f"root must be one of the object's bodies, got {raw['root']!r:.80}")
    ranges = {key: parsing.bounds(value) for key, value in parsing.table(raw["ranges"], 32).items()}
    return SceneObject(bool(raw["movable"]), raw["root"], bodies, ranges)


def _joints(raw: Mapping[str, Any], count: int) -> dict[str, Joint]:
    names, types = (parsing.texts(raw[column], parsing.MAX_NAMED) for column in ("name", "type"))
    body, n = parsing.indices(raw, "body", count, limit=parsing.MAX_NAMED), len(names)
    pos, axis = parsing.positions(raw, "pos", n, 3), parsing.numbers(raw, "axis", n, 3, limit=UNIT)
    columns = zip(names, range(n), types, body.tolist(), pos, axis, strict=True)
    ranges = parsing.numbers(raw, "range", n, 2).tolist()
    return {row[0]: Joint(*row, (low, high)) for row, (low, high) in zip(columns, ranges, strict=True)}


def _sites(raw: Mapping[str, Any], count: int) -> dict[str, GoalSite]:
    names, rows = parsing.texts(raw["name"], parsing.MAX_SHAPES), _shapes(raw, count)
    return {name: GoalSite(body, pose, size) for name, (body, pose, size) in zip(names, rows, strict=True)}


def _geoms(raw: Mapping[str, Any], count: int) -> tuple[Geom, ...]:
    types, rows = parsing.texts(raw["type"], parsing.MAX_SHAPES), _shapes(raw, count)
    return tuple(Geom(body, kind, size, pose) for kind, (body, pose, size) in zip(types, rows, strict=True))


def _shapes(raw: Mapping[str, Any], count: int) -> list[tuple[int, Pose, np.ndarray]]:
    """Return body, pose and size [3] m of every shape in a table."""
    body = parsing.indices(raw, "body", count, limit=parsing.MAX_SHAPES)
    n = len(body)
    rot = rotations(parsing.numbers(raw, "quat_wxyz", n, 4, limit=UNIT))
    pos, size = parsing.positions(raw, "pos", n, 3), parsing.numbers(raw, "size", n, 3, limit=parsing.REACH)
    return [(b, Pose(p, r), s) for b, p, r, s in zip(body.tolist(), pos, rot, size, strict=True)]
