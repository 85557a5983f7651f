"""Arm motions as generators that yield one action per step and receive the next scene.

A skill therefore reads as straight-line code:

    scene = yield from move_to(scene, above, yaw=0.3, gripper=OPEN)
    scene = yield from move_to(scene, grasp, yaw=0.3, gripper=OPEN)
    scene = yield from close_gripper(scene)

An action is float32 [7] of LIBERO's OSC_POSE controller: three position deltas (1.0 = 0.05 m), three axis-angle deltas
in the world frame (1.0 = 0.5 rad), gripper (-1 open, +1 close). It acts for one control step (50 ms).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias

import numpy as np

from services.libero.oracle.scene import SceneState

Skill: TypeAlias = Generator[np.ndarray, SceneState, SceneState]

OPEN, CLOSE = -1.0, 1.0
POSITION_SCALE = 0.05  # m per unit of action (robosuite's osc_pose.json, output_max)
ROTATION_SCALE = 0.5  # rad per unit of action
GAIN = 3.0  # the controller alone converges slowly; a target beyond the goal makes it three times stiffer,
DAMPING = 0.15  # s, and this keeps it from overshooting (measured: within 4 mm; critical damping would be 0.12 s)
ROTATION_GAIN = 2.0
REST_ROT = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])  # fingers down, closing along world y
FINGERTIP = 0.010  # m that the fingertips reach beyond the grip site


def orientation(yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> np.ndarray:
    """Return a hand rotation [3, 3].

    At zero the fingers point down and close along world y. `pitch` (about y, applied first) < 0 swings the fingers
    forward, away from the robot's base: -pi/2 points them along +x. `roll` (about x) > 0 swings them towards +y.
    `yaw` (about the vertical, applied last) turns all of it: a level hand closes along (-sin yaw, cos yaw, 0).
    """
    return _axis_rotation("z", yaw) @ _axis_rotation("y", pitch) @ _axis_rotation("x", roll) @ REST_ROT


def closing_axis(yaw: float) -> np.ndarray:
    """Return the unit vector [3] along which the fingers of a level hand close."""
    return np.array([-np.sin(yaw), np.cos(yaw), 0.0])


def nearest_yaw(yaw: float, current: float = 0.0) -> float:
    """Return `yaw` or `yaw + pi`, whichever is nearer to `current`: the gripper is the same turned by half a turn."""
    return current + (yaw - current + np.pi / 2) % np.pi - np.pi / 2


def servo(scene: SceneState, pos: np.ndarray, rot: np.ndarray, gripper: float, speed: float = 1.0) -> np.ndarray:
    """Return the action [7] that moves the hand straight towards a pose, at most `speed` (1.0 is about 0.3 m/s)."""
    shift = (GAIN * (pos - scene.eef.pos) - DAMPING * scene.eef_vel[:3]) / POSITION_SCALE
    turn = (ROTATION_GAIN * rotation_vector(rot @ scene.eef.rot.T) - DAMPING * scene.eef_vel[3:]) / ROTATION_SCALE
    action = np.empty(7, dtype=np.float32)
    action[:3] = _limit(shift, speed)
    action[3:6] = _limit(turn, 1.0)
    action[6] = gripper
    return action


def move_to(
    scene: SceneState,
    pos: Sequence[float] | np.ndarray,
    *,
    gripper: float,
    yaw: float = 0.0,
    rot: np.ndarray | None = None,
    tolerance: float = 0.006,
    angle_tolerance: float = 0.08,
    speed: float = 1.0,
    timeout: int = 60,
) -> Skill:
    """Moves the grip site to `pos` [3] m; `rot` (see `orientation`) overrides `yaw`.

    Ends within `tolerance` m and `angle_tolerance` rad, or after `timeout` steps, since contact can stop the hand:
    check with `distance` where it matters.
    """
    pos = np.asarray(pos, dtype=np.float64)
    rot = orientation(yaw) if rot is None else rot
    for _ in range(timeout):
        turned = np.linalg.norm(rotation_vector(rot @ scene.eef.rot.T))
        if distance(scene, pos) < tolerance and turned < angle_tolerance:
            break
        scene = yield servo(scene, pos, rot, gripper, speed)
    return scene


def follow(scene: SceneState, waypoints: Sequence[np.ndarray], *, gripper: float, yaw: float = 0.0, **options) -> Skill:
    """Passes through waypoints [3] without stopping (within 3 cm) and ends at the last one like `move_to`."""
    for point in waypoints[:-1]:
        passing = {**options, "tolerance": 0.03, "angle_tolerance": 0.5}
        scene = yield from move_to(scene, point, gripper=gripper, yaw=yaw, **passing)
    return (yield from move_to(scene, waypoints[-1], gripper=gripper, yaw=yaw, **options))


def move_by(scene: SceneState, delta: Sequence[float] | np.ndarray, *, gripper: float, **options) -> Skill:
    """Moves the grip site by `delta` [3] m in the world frame and keeps the hand's orientation."""
    target = scene.eef.pos + np.asarray(delta)
    return (yield from move_to(scene, target, gripper=gripper, rot=scene.eef.rot.copy(), **options))


def hold(scene: SceneState, steps: int, *, gripper: float) -> Skill:
    """Hold the hand still."""
    pos, rot = scene.eef
    for _ in range(steps):
        scene = yield servo(scene, pos, rot, gripper)
    return scene


def close_gripper(scene: SceneState, max_steps: int = 14) -> Skill:
    """Closes until the fingers stop; afterwards `scene.gripper_gap` is the width between them (about 0: nothing)."""
    return (yield from _move_fingers(scene, CLOSE, max_steps))


def open_gripper(scene: SceneState, max_steps: int = 8) -> Skill:
    """Opens until the fingers stop."""
    return (yield from _move_fingers(scene, OPEN, max_steps))


def distance(scene: SceneState, pos: Sequence[float] | np.ndarray) -> float:
    """Return the distance (m) of the grip site from `pos`."""
    return float(np.linalg.norm(scene.eef.pos - pos))


def rotation_vector(rot: np.ndarray) -> np.ndarray:
    """Return axis times angle [3] rad, angle in [0, pi], of a rotation matrix."""
    w = np.array([rot[2, 1] - rot[1, 2], rot[0, 2] - rot[2, 0], rot[1, 0] - rot[0, 1]]) / 2  # axis * sin
    sin, cos = np.linalg.norm(w), (np.trace(rot) - 1) / 2
    if sin > 1e-6:
        return w * (np.arctan2(sin, cos) / sin)
    if cos > 0:
        return w
    axis = np.sqrt(np.clip((np.diag(rot) + 1) / 2, 0, None))  # half a turn: the sign of the axis does not matter
    axis *= np.where(rot[np.argmax(axis)] < 0, -1.0, 1.0)
    return np.pi * axis


def _move_fingers(scene: SceneState, gripper: float, max_steps: int) -> Skill:
    pos, rot = scene.eef
    still = 0
    for _ in range(max_steps):
        before = scene.gripper_gap
        scene = yield servo(scene, pos, rot, gripper)
        still = still + 1 if abs(scene.gripper_gap - before) < 0.0008 else 0
        if still == 2:
            break
    return scene


def _limit(vector: np.ndarray, longest: float) -> np.ndarray:
    """Return the vector, shortened to length `longest` without turning it."""
    length = np.linalg.norm(vector)
    return vector if length <= longest else vector * (longest / length)


def _axis_rotation(axis: str, angle: float) -> np.ndarray:
    i = "xyz".index(axis)
    j, k = (i + 1) % 3, (i + 2) % 3
    rot = np.eye(3)
    rot[j, j] = rot[k, k] = np.cos(angle)
    rot[k, j] = np.sin(angle)
    rot[j, k] = -np.sin(angle)
    return rot
