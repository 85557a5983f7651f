"""Motion as pure functions: orientations, the servo's bounds, and scripts that end where they should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from services.libero.oracle import motion
from services.libero.oracle.example import example_state
from services.libero.oracle.motion import CLOSE, OPEN, orientation
from services.libero.oracle.scene import UP, Pose, SceneState, World

ANGLES = np.linspace(-3, 3, 13)


def yaw_of(rot: np.ndarray) -> float:
    """Return the yaw in (-pi, pi] of a hand that points down: `orientation(yaw_of(rot))` is `rot` made level."""
    return float(np.arctan2(-rot[0, 0], rot[1, 0]))


@pytest.fixture
def scene() -> SceneState:
    state = example_state()
    return SceneState.from_state(World.from_static(state["static"]), state, 0)


def turned(vector: np.ndarray) -> np.ndarray:
    """Return the rotation matrix of a rotation vector [3]."""
    angle = np.linalg.norm(vector)
    return motion.axis_rotation(vector / angle, angle)


def run(script, scene: SceneState, limit: int = 200, reach: float = 1.0) -> tuple[SceneState, list[np.ndarray]]:
    """Play a script against an arm that follows every command at once (`reach` of it); returns last scene, actions."""
    actions = []
    try:
        action = next(script)
        for _ in range(limit):
            actions.append(action)
            pos = scene.eef.pos + reach * 0.3 * motion.POSITION_SCALE * np.clip(action[:3], -1, 1)
            turn = 0.3 * motion.ROTATION_SCALE * np.clip(action[3:6], -1, 1).astype(float)
            rot = turned(turn) @ scene.eef.rot if np.any(turn) else scene.eef.rot
            gap = np.clip(scene.gripper_gap - 0.02 * action[6], 0.0, 0.08)
            scene = replace(scene, step=scene.step + 1, eef=Pose(pos, rot), gripper_gap=float(gap))
            action = script.send(scene)
    except StopIteration as end:
        return end.value, actions
    pytest.fail(f"the script still runs after {limit} steps")


@pytest.mark.parametrize("yaw", ANGLES)
def test_level_hand_points_down_and_closes_along_its_yaw(yaw):
    rot = orientation(yaw)
    np.testing.assert_allclose(rot[:, 2], [0, 0, -1], atol=1e-12)
    np.testing.assert_allclose(rot[:, 0], motion.closing_axis(yaw), atol=1e-12)
    assert np.linalg.det(rot) == pytest.approx(1)
    assert yaw_of(rot) == pytest.approx(yaw)


@pytest.mark.parametrize("yaw", ANGLES)
@pytest.mark.parametrize("current", (-1.0, 0.0, 2.0))
def test_nearest_yaw_is_the_same_gripper_at_most_a_quarter_turn_away(yaw, current):
    near = motion.nearest_yaw(yaw, current)
    assert abs(near - current) <= np.pi / 2 + 1e-12
    assert np.isclose(np.sin(near - yaw), 0, atol=1e-9)


def test_rotation_vector_inverts_rodrigues():
    rng = np.random.default_rng(0)
    for _ in range(200):
        vector = rng.normal(size=3)
        vector *= rng.uniform(1e-3, np.pi - 1e-3) / np.linalg.norm(vector)
        np.testing.assert_allclose(motion.rotation_vector(turned(vector)), vector, atol=1e-9)
    for axis in (*np.eye(3), np.array([0.6, -0.8, 0])):  # half a turn: either sign is right
        found = motion.rotation_vector(turned(np.pi * axis))
        np.testing.assert_allclose(turned(found), turned(np.pi * axis), atol=1e-6)


def test_servo_stays_within_the_controllers_limits(scene):
    rng = np.random.default_rng(1)
    for _ in range(100):
        speed = rng.uniform(0.1, 1)
        action = motion.servo(scene, rng.normal(size=3), orientation(rng.uniform(-3, 3)), OPEN, speed)
        assert action.dtype == np.float32 and action.shape == (7,) and np.isfinite(action).all()
        assert np.linalg.norm(action[:3]) <= speed + 1e-6 and np.linalg.norm(action[3:6]) <= 1 + 1e-6
        assert action[6] == OPEN
    np.testing.assert_allclose(motion.servo(scene, *scene.eef, CLOSE)[:6], 0, atol=1e-6)


def test_move_to_arrives_with_the_yaw_requested(scene):
    rng = np.random.default_rng(2)
    for _ in range(20):
        goal, yaw = scene.eef.pos + rng.uniform(-0.2, 0.2, 3), rng.uniform(-1.5, 1.5)
        end, actions = run(motion.move_to(scene, goal, gripper=CLOSE, yaw=yaw), scene)
        assert motion.distance(end, goal) < 0.006
        assert yaw_of(end.eef.rot) == pytest.approx(yaw, abs=0.08)
        assert all(action[6] == CLOSE for action in actions)


def test_move_to_gives_up_when_the_hand_is_blocked(scene):
    target = scene.eef.pos + np.array([0.1, 0, 0])
    script = motion.move_to(scene, target, gripper=OPEN, timeout=17)
    end, actions = run(script, scene, reach=0.0)
    assert len(actions) == 17 and motion.distance(end, scene.eef.pos) == 0


@pytest.mark.parametrize("back", ([0, 0, 1], [0.6, -0.8, 0]))
def test_approach_goes_deeper_only_where_it_is_aligned_and_never_stops_on_the_way(back, scene):
    rng = np.random.default_rng(1)
    back, height = np.array(back, float), 0.06
    for _ in range(20):
        start = scene.eef.pos + rng.uniform(-0.04, 0.04, 3) + 0.1 * back
        goal, rot = scene.eef.pos.copy(), orientation(rng.uniform(-0.8, 0.8))
        now, passed = replace(scene, eef=Pose(start, scene.eef.rot)), []

        def gripper(at, passed=passed):
            passed.append(at.eef)
            return OPEN

        end, actions = run(motion.approach(now, goal, back, rot, gripper=gripper, height=height), now)
        assert motion.distance(end, goal) < 0.006
        assert min(np.linalg.norm(action[:6]) for action in actions) > 0.05
        for pose in passed:
            deep = (pose.pos - goal) @ back
            aside = np.linalg.norm(pose.pos - goal - deep * back)
            assert aside < motion.STRAIGHT + height / motion.FUNNEL or deep > 0.9 * height


def test_approach_goes_deeper_in_the_end_if_something_keeps_the_hand_aside(scene):
    goal = scene.eef.pos + np.array([0.02, 0, -0.06])
    script = motion.approach(scene, goal, UP, scene.eef.rot, gripper=OPEN, height=0.06)
    _, actions = run(script, scene, reach=0.0)
    assert len(actions) == 60 and actions[0][2] == pytest.approx(actions[29][2])
    assert actions[-1][2] < actions[0][2] - 0.3


def test_gripper_scripts_end_when_the_fingers_stop(scene):
    closed, actions = run(motion.close_gripper(scene), scene)
    assert closed.gripper_gap == 0 and len(actions) < 10
    opened, _ = run(motion.open_gripper(closed), closed)
    assert opened.gripper_gap == pytest.approx(0.08)


def test_hand_rotations_are_proper_point_as_asked_and_do_not_flip():
    rng = np.random.default_rng(1)
    for _ in range(50):
        away, lean = motion.horizontal(rng.normal(size=3)), rng.uniform(-1.4, 1.4)
        rot = motion.leaning(away, lean)
        assert rot.T @ rot == pytest.approx(np.eye(3)) and np.linalg.det(rot) == pytest.approx(1)
        assert rot[:, 2] == pytest.approx(-np.cos(lean) * UP - np.sin(lean) * away)
        assert abs(rot[:, 0] @ away) < 1e-9 and abs(rot[2, 0]) < 1e-9  # the fingers lie side by side across the way
        half_turn = rot @ np.diag([-1.0, -1.0, 1.0])
        assert motion.leaning(away, lean, reference=half_turn) == pytest.approx(half_turn)
    assert motion.axis_rotation(UP, 0.7) @ orientation(0.2) == pytest.approx(orientation(0.9))
