"""What the oracle knows: `World` (fixed within an episode) and `Scene` (one moment of it).

Both are read from the plain data of `simulator/privileged.py`. Units: m, rad, world frame unless a name says
otherwise. Rotations are 3 x 3 matrices whose columns are the axes of the rotated frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

GRIPPER_BODIES = "gripper0_"


class Pose(NamedTuple):
    """A place and an orientation: `pos` [3] m, `rot` [3, 3]."""

    pos: np.ndarray
    rot: np.ndarray

    def apply(self, points: np.ndarray) -> np.ndarray:
        """Returns local points [..., 3] in the world frame."""
        return points @ self.rot.T + self.pos

    def inverse_apply(self, points: np.ndarray) -> np.ndarray:
        """Returns world points [..., 3] in this frame."""
        return (points - self.pos) @ self.rot

    def __matmul__(self, child: Pose) -> Pose:
        return Pose(self.apply(child.pos), self.rot @ child.rot)


class Goal(NamedTuple):
    """One predicate of the task: `name` in lower case ("on", "in", "open", "close", "turnon"), then its arguments."""

    name: str
    args: tuple[str, ...]


@dataclass(frozen=True)
class Thing:
    """A movable object or a fixture: category, root body and all bodies (indices), LIBERO's ranges of its joints."""

    name: str
    category: str
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
class Site:
    """A marked place; a goal region is a box of half extents `size` [3]."""

    name: str
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

    name: str
    parent: str
    joints: tuple[str, ...]


@dataclass(frozen=True)
class World:
    """All that stays the same within an episode."""

    instruction: str
    goals: tuple[Goal, ...]
    bodies: tuple[str, ...]
    things: Mapping[str, Thing]
    regions: Mapping[str, Region]
    joints: Mapping[str, Joint]
    sites: Mapping[str, Site]
    geoms: tuple[Geom, ...]
    base_pos: np.ndarray
    cache: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)  # geometry computed once per episode

    @classmethod
    def from_static(cls, static: Mapping[str, Any]) -> World:
        """Returns the world that `privileged.describe` sent."""
        return cls(
            instruction=static["instruction"],
            goals=tuple(Goal(p[0].lower(), tuple(p[1:])) for p in static["goal"]),
            bodies=tuple(static["bodies"]),
            things={name: _thing(name, thing) for name, thing in static["objects"].items()},
            regions={n: Region(n, r["parent"], tuple(r["joints"])) for n, r in static["regions"].items()},
            joints=_joints(static["joints"]),
            sites=_sites(static["sites"]),
            geoms=_geoms(static["geoms"]),
            base_pos=np.asarray(static["robot_base_pos"]),
        )

    def geoms_of(self, name: str) -> list[Geom]:
        """Returns the collision shapes of an object, all its bodies included."""
        bodies = set(self.things[name].bodies)
        return [geom for geom in self.geoms if geom.body in bodies]

    @cached_property
    def owner(self) -> Mapping[int, str]:
        """The object that each body belongs to; "gripper" for the hand and fingers, "" for the room and the arm."""
        found = {i: "gripper" if n.startswith(GRIPPER_BODIES) else "" for i, n in enumerate(self.bodies)}
        found.update({body: name for name, thing in self.things.items() for body in thing.bodies})
        return found


@dataclass(frozen=True)
class Scene:
    """One moment: where the hand, the objects and the joints are."""

    world: World
    step: int
    eef: Pose  # grip site between the fingertips; x: closing axis, z: out of the fingers
    eef_vel: np.ndarray  # [6] linear m/s, angular rad/s
    gripper_gap: float  # m between the finger pads, 0 (closed) to 0.08
    robot_qpos: np.ndarray  # [7] rad
    body_pos: np.ndarray  # [nb, 3]
    body_rot: np.ndarray  # [nb, 3, 3]
    joint_pos: np.ndarray  # [nj] m or rad
    contacts: np.ndarray  # int [nc, 2] pairs of bodies
    goal_done: tuple[bool, ...]

    @classmethod
    def from_state(cls, world: World, state: Mapping[str, Any], step: int) -> Scene:
        """Returns the scene that `privileged.observe` sent."""
        return cls(
            world=world,
            step=step,
            eef=Pose(state["eef_pos"], state["eef_rot"]),
            eef_vel=state["eef_vel"],
            gripper_gap=float(np.abs(state["gripper_qpos"]).sum()),
            robot_qpos=state["robot_qpos"],
            body_pos=state["body_pos"],
            body_rot=rotations(state["body_quat_wxyz"]),
            joint_pos=state["joint_pos"],
            contacts=state["contacts"],
            goal_done=tuple(state.get("goal_done", [False] * len(world.goals))),
        )

    def pose(self, name: str) -> Pose:
        """Returns the pose of an object's root body: the point that LIBERO's predicates look at."""
        return self.body_pose(self.world.things[name].root)

    def body_pose(self, body: int) -> Pose:
        """Returns the pose of a body by its index."""
        return Pose(self.body_pos[body], self.body_rot[body])

    def site(self, name: str) -> Pose:
        """Returns the pose of a site, for example of a goal region's centre."""
        site = self.world.sites[name]
        return self.body_pose(site.body) @ site.local

    def joint(self, name: str) -> float:
        """Returns the position of a drawer, door or knob joint, m or rad."""
        return float(self.joint_pos[self.world.joints[name].index])

    def joint_axis(self, name: str) -> Pose:
        """Returns a joint's anchor point as `pos` and, as the columns of `rot`, its body's axes; see `axis_of`."""
        joint = self.world.joints[name]
        pose = self.body_pose(joint.body)
        return Pose(pose.apply(joint.pos), pose.rot)

    def axis_of(self, name: str) -> np.ndarray:
        """Returns the unit vector [3] along which a joint slides or around which it turns."""
        joint = self.world.joints[name]
        return self.body_rot[joint.body] @ joint.axis

    def touching(self, first: str, second: str) -> bool:
        """Returns whether two objects are in contact; "gripper" is the hand with its fingers, "" the room."""
        owner = self.world.owner
        pairs = {(owner[a], owner[b]) for a, b in self.contacts.tolist()}
        return (first, second) in pairs or (second, first) in pairs

    @property
    def done(self) -> bool:
        """Whether every goal predicate holds."""
        return all(self.goal_done)


def rotations(quat_wxyz: np.ndarray) -> np.ndarray:
    """Returns rotation matrices [n, 3, 3] of unit quaternions [n, 4] (w, x, y, z)."""
    w, x, y, z = np.asarray(quat_wxyz, dtype=np.float64).T
    return np.stack(
        [
            1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
        ],
        axis=-1,
    ).reshape(-1, 3, 3)  # fmt: skip


def _thing(name: str, raw: Mapping[str, Any]) -> Thing:
    return Thing(name, raw["category"], raw["movable"], raw["root"], tuple(raw["bodies"]), raw["ranges"])


def _joints(raw: Mapping[str, Any]) -> dict[str, Joint]:
    rows = zip(raw["name"], raw["type"], raw["body"], raw["pos"], raw["axis"], raw["range"], strict=True)
    return {
        name: Joint(name, i, kind, int(body), pos, axis, (float(low), float(high)))
        for i, (name, kind, body, pos, axis, (low, high)) in enumerate(rows)
    }


def _sites(raw: Mapping[str, Any]) -> dict[str, Site]:
    rows = zip(raw["name"], raw["body"], raw["pos"], rotations(raw["quat_wxyz"]), raw["size"], strict=True)
    return {name: Site(name, int(body), Pose(pos, rot), size) for name, body, pos, rot, size in rows}


def _geoms(raw: Mapping[str, Any]) -> tuple[Geom, ...]:
    rows = zip(raw["body"], raw["type"], raw["size"], raw["pos"], rotations(raw["quat_wxyz"]), strict=True)
    return tuple(Geom(int(body), kind, size, Pose(pos, rot)) for body, kind, size, pos, rot in rows)
