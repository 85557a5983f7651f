"""Arm motions as generators that yield one action per step and receive the next scene.

A skill therefore reads as straight-line code:

    scene = yield from move_to(scene, above, yaw=0.3, gripper=OPEN)
    scene = yield from move_to(scene, grasp, yaw=0.3, gripper=OPEN)
    scene = yield from close_gripper(scene)

An action is float32 [7] of LIBERO's OSC_POSE controller: three position deltas (1.0 = 0.05 m), three axis-angle deltas
in the world frame (1.0 = 0.5 rad), gripper (-1 open, +1 close). It acts for one control step (50 ms).

A hand's rotation is [3, 3]; its columns are the closing axis, the axis across it, and the direction that the fingers
point.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

import numpy as np

from services.libero.oracle.scene import UP, SceneState

Skill: TypeAlias = Generator[np.ndarray, SceneState, SceneState]

OPEN, CLOSE = -1.0, 1.0
POSITION_SCALE = 0.05  # m per unit of action (robosuite's osc_pose.json, output_max)
ROTATION_SCALE = 0.5  # rad per unit of action
GAIN = 3.0  # the controller alone converges slowly; a target beyond the goal makes it three times stiffer,
DAMPING = 0.15  # s, and this keeps it from overshooting (measured: within 4 mm; critical damping would be 0.12 s)
ROTATION_GAIN = 2.0
# `approach`: m of height per m sideways beyond the allowed ones, and m that a radian of turning counts
FUNNEL, STRAIGHT, TURN_ASIDE = 4.0, 0.008, 0.05
PATIENCE, RELAX = 30, 0.001  # steps after which a hand that cannot be aligned goes deeper, and m per step
REST_ROT = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])  # fingers down, closing along world y
FINGERTIP = 0.010  # m that the fingertips reach beyond the grip site
# from the Panda's data sheet: shoulder over the base, wrist over the grip site, hand before the wrist
SHOULDER_HEIGHT, WRIST_HEIGHT, WRIST_TO_HAND = 0.333, 0.204, 0.088
# m between shoulder and wrist. The elbow stops at its limit (joint 4 at -0.07 rad) at 0.694 m: there the hand tilts and
# may get stuck, so targets are kept closer. Up to the second the hand moves as freely as anywhere.
FARTHEST, COMFORTABLE = 0.69, 0.66


def orientation(yaw: float) -> np.ndarray:
    """Return the rotation [3, 3] of a level hand, fingers down; at zero it closes along world y."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    return np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]]) @ REST_ROT


NEUTRAL = orientation(0.4)  # keeps the last wrist joint closer to the middle of its range than the start pose


def closing_axis(yaw: float) -> np.ndarray:
    """Return the unit vector [3] along which the fingers of a level hand close."""
    return np.array([-np.sin(yaw), np.cos(yaw), 0.0])


def nearest_yaw(yaw: float, current: float = 0.0) -> float:
    """Return `yaw` or `yaw + pi`, whichever is nearer to `current`: the gripper is the same turned by half a turn."""
    return current + (yaw - current + np.pi / 2) % np.pi - np.pi / 2


def facing(approach: np.ndarray, along: np.ndarray, reference: np.ndarray = NEUTRAL) -> np.ndarray:
    """Return the hand rotation whose fingers point along `approach` and close across the direction `along`.

    Of the two such rotations, half a turn apart, the one closer to `reference` is returned. The default keeps the wrist
    away from its limits; during a motion, pass the current rotation so that the hand does not flip.
    """
    closing = np.cross(along, approach)
    closing /= np.linalg.norm(closing)
    first, second = (np.stack([axis, np.cross(approach, axis), approach], axis=1) for axis in (closing, -closing))
    return first if np.trace(reference.T @ first) >= np.trace(reference.T @ second) else second


def leaning(away: np.ndarray, lean: float, reference: np.ndarray = NEUTRAL) -> np.ndarray:
    """Return the hand rotation for pushing along the level unit vector `away` [3], fingers side by side across it.

    The fingers point down and lean back by `lean` > 0 rad, like a rake, or forward for `lean` < 0.
    """
    return facing(-np.cos(lean) * UP - np.sin(lean) * away, np.cos(lean) * away - np.sin(lean) * UP, reference)


def axis_rotation(axis: np.ndarray, angle: float) -> np.ndarray:
    """Return the rotation by `angle` rad about the unit vector `axis` [3]."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def horizontal(vector: np.ndarray) -> np.ndarray:
    """Return the unit vector [3] of the horizontal part of a direction [2] or [3]."""
    flat = np.array([vector[0], vector[1], 0.0])
    return flat / max(np.linalg.norm(flat), 1e-9)


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


def stretch(pos: np.ndarray, base_pos: np.ndarray) -> float:
    """Return the distance (m) from shoulder to wrist when a level hand has its grip site at `pos` [3]."""
    out = float(np.hypot(*(pos - base_pos)[:2]) - WRIST_TO_HAND)
    return float(np.hypot(out, float(pos[2] + WRIST_HEIGHT - base_pos[2] - SHOULDER_HEIGHT)))


def within_reach(pos: np.ndarray, base_pos: np.ndarray) -> np.ndarray:
    """Return `pos` [3], pulled horizontally towards the base where it lies beyond `FARTHEST`."""
    if stretch(pos, base_pos) <= FARTHEST:
        return pos
    height = float(pos[2] + WRIST_HEIGHT - base_pos[2] - SHOULDER_HEIGHT)
    height = np.clip(height, -0.95 * FARTHEST, 0.95 * FARTHEST)
    out = np.sqrt(FARTHEST**2 - height**2) + WRIST_TO_HAND
    away = (pos - base_pos)[:2]
    xy = base_pos[:2] + away * min(1.0, out / np.hypot(*away))
    return np.append(xy, height + base_pos[2] + SHOULDER_HEIGHT - WRIST_HEIGHT)


def servo(scene: SceneState, pos: np.ndarray, rot: np.ndarray, gripper: float, speed: float = 1.0) -> np.ndarray:
    """Return the action [7] that moves the hand straight towards a pose, at most `speed` (1.0 is about 0.3 m/s)."""
    shift = (GAIN * (pos - scene.eef.pos) - DAMPING * scene.eef_vel[:3]) / POSITION_SCALE
    turn = (ROTATION_GAIN * rotation_vector(rot @ scene.eef.rot.T) - DAMPING * scene.eef_vel[3:]) / ROTATION_SCALE
    action = np.empty(7, dtype=np.float32)
    action[:3] = _limit(shift, speed)
    action[3:6] = _limit(turn, 1.0)
    action[6] = gripper
    return action


def _limit(vector: np.ndarray, longest: float) -> np.ndarray:
    """Return the vector, shortened to length `longest` without turning it."""
    length = np.linalg.norm(vector)
    return vector if length <= longest else vector * (longest / length)


def distance(scene: SceneState, pos: Sequence[float] | np.ndarray) -> float:
    """Return the distance (m) of the grip site from `pos`."""
    return float(np.linalg.norm(scene.eef.pos - pos))


def move_to(
    scene: SceneState,
    pos: np.ndarray,
    *,
    gripper: float,
    yaw: float = 0.0,
    rot: np.ndarray | None = None,
    tolerance: float = 0.006,
    angle_tolerance: float = 0.08,
    speed: float = 1.0,
    timeout: int = 60,
) -> Skill:
    """Moves the grip site to `pos` [3] m; `rot` overrides `yaw`.

    Ends within `tolerance` m and `angle_tolerance` rad, or after `timeout` steps, since contact can stop the hand:
    check with `distance` where it matters.
    """
    rot = orientation(yaw) if rot is None else rot
    for _ in range(timeout):
        turned = np.linalg.norm(rotation_vector(rot @ scene.eef.rot.T))
        if distance(scene, pos) < tolerance and turned < angle_tolerance:
            break
        scene = yield servo(scene, pos, rot, gripper, speed)
    return scene


def funnel(aside: float, height: float, straight: float = STRAIGHT) -> float:
    """Return how far (m, at most `height`) above its target the hand stays while it is `aside` m beside it."""
    return min(height, FUNNEL * max(0.0, aside - straight))


def approach(
    scene: SceneState,
    pos: np.ndarray,
    back: np.ndarray,
    rot: np.ndarray,
    *,
    gripper: float | Callable[[SceneState], float],
    height: float,
    tolerance: float = 0.006,
    timeout: int = 60,
) -> Skill:
    """Moves the grip site to `pos` [3] m along a funnel that opens in direction `back` [3], `height` m deep at most.

    How deep the hand is depends on how well it is aligned, so it never stops on the way, and each pose has one action:
    a policy can learn that from single observations. Ends like `move_to`.
    """
    for step in range(timeout):
        turned = float(np.linalg.norm(rotation_vector(rot @ scene.eef.rot.T)))
        if distance(scene, pos) < tolerance and turned < 0.08:
            break
        gap = pos - scene.eef.pos
        aside = float(np.linalg.norm(gap - (gap @ back) * back)) + TURN_ASIDE * turned
        straight = STRAIGHT + RELAX * max(0, step - PATIENCE)
        aim = pos + funnel(aside, height, straight) * back
        scene = yield servo(scene, aim, rot, gripper(scene) if callable(gripper) else gripper)
    return scene


def move_by(scene: SceneState, delta: np.ndarray, *, gripper: float, **options) -> Skill:
    """Moves the grip site by `delta` [3] m in the world frame and keeps the hand's orientation."""
    return (yield from move_to(scene, scene.eef.pos + delta, gripper=gripper, rot=scene.eef.rot.copy(), **options))


def hold(scene: SceneState, steps: int, *, gripper: float) -> Skill:
    """Hold the hand still."""
    pos, rot = scene.eef
    for _ in range(steps):
        scene = yield servo(scene, pos, rot, gripper)
    return scene


def close_gripper(scene: SceneState) -> Skill:
    """Closes until the fingers stop; afterwards `scene.gripper_gap` is the width between them (about 0: nothing)."""
    return _move_fingers(scene, CLOSE, 14)


def open_gripper(scene: SceneState) -> Skill:
    """Opens until the fingers stop."""
    return _move_fingers(scene, OPEN, 8)


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
