"""The motion that is drawn is the one that the policy's numbers ask for, in the units of its parts."""

import re

import numpy as np
import pytest

from services.ui.ask import actions, motion
from vla_contract import ActionChunk, Part, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, OSC_POSE

STEPS = np.array([[1, 0, 0, 0, 0, 0.5, 0], [1, -0.5, 0, 0, 0, 0.5, 1], [0, 0, 0.2, 0, 0, 0, 1]], np.float32)
WHEELS = (Part("wheels", 2, "rad", "left, right"), Part("lift", 1, "m", "up", 0, 2))
TARGETS = (Part("position", 3, "m", "world frame"), Part("rotation", 3, "rad", "axis-angle, world frame"))


def of(rows, *parts, key=None):
    info = PolicyInfo("p", parts, unnorm_keys=("libero_goal", "bridge_orig"))
    return motion.motion(ActionChunk(np.asarray(rows, np.float32)), actions.spec(info, key))


def test_steps_of_the_controller_add_up_to_millimetres_and_degrees():
    found = of(STEPS, *OSC_POSE, GRIPPER_CLOSES)
    assert np.allclose(found.path, [[0, 0, 0], [50, 0, 0], [100, -25, 0], [100, -25, 10]], atol=1e-4)
    assert np.allclose(found.turn[-1], [0, 0, np.degrees(0.5)])
    assert motion.describe(found) == (
        "In 3 actions: moves x +100.0 mm, y -25.0 mm, z +10.0 mm; turns about x +0.0°, y +0.0°, z +28.6°; "
        "gripper open, closes at action 2."
    )


def test_the_other_sense_of_a_gripper_and_another_data_sets_metres():
    assert of(STEPS, *OSC_POSE, GRIPPER_OPENS).opened == [False, True, True]
    assert np.allclose(of(STEPS, *OSC_POSE, GRIPPER_OPENS, key="bridge_orig").path[-1], [2000, -500, 200])


def test_targets_begin_at_the_first_of_them():
    found = of([[1, 2, 3, 0, 0, 0], [1.1, 2, 2.9, 0, 0, 0]], *TARGETS)
    assert np.allclose(found.path, [[0, 0, 0], [0, 0, 0], [100, 0, -100]], atol=1e-3) and found.turn is None


@pytest.mark.parametrize(("parts", "panels"), [((*OSC_POSE, GRIPPER_OPENS), 3), (TARGETS, 2), (WHEELS, 0)])
def test_what_is_not_known_is_not_drawn(parts, panels):
    width = sum(part.size for part in parts)
    for rows in (np.zeros((1, width)), np.full((4, width), 0.5)):
        shown = motion.draw(of(rows, *parts))
        assert (len(shown.panels) if shown else 0) == panels and not re.search(r"\b(nan|inf)\b", str(shown))


def test_forward_is_up_and_left_is_left_as_seen_from_above():
    shown = motion.draw(of(np.eye(7)[:2], *OSC_POSE, GRIPPER_CLOSES)).panels[0][0]
    line = shown.split('<polyline points="')[1].split('"')[0]
    (_, up), (_, forward), (left, _) = ([float(n) for n in point.split(",")] for point in line.split(" "))
    assert forward < up and left < motion.SIDE / 2
