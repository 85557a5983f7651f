"""What an action's numbers are called and mean, and the motion that is drawn of them, in a policy's units."""

import math
import re

import numpy as np
import pytest

from services.ui.ask import actions
from vla_contract import ActionChunk, Part, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, OSC_POSE

OTHER = (Part("wheels", 2, "rad", "left, right"), Part("lift", 1, "m", "up", 0, 2), Part("mood", 1, "1", "its own"))
ROBOTS = {"libero": (*OSC_POSE, GRIPPER_CLOSES), "openvla": (*OSC_POSE, GRIPPER_OPENS), "other": OTHER}
SEVEN = ["Δx", "Δy", "Δz", "rotation x", "rotation y", "rotation z", "gripper"]


def info(robot="openvla", keys=("libero_goal",)) -> PolicyInfo:
    return PolicyInfo("p", ROBOTS[robot], unnorm_keys=keys)


def numbers_of(action, policy, key=None) -> list[actions.Number]:
    return actions.numbers(action, actions.spec(policy, key))


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("key", [None, "libero_goal", "bridge_orig"])
def test_every_robot_has_numbers_with_a_name_a_unit_and_a_bar_that_fits(robot, key):
    policy = info(robot, ("libero_goal", "bridge_orig"))
    action = np.linspace(-3, 3, policy.action_size)
    numbers = numbers_of(action, policy, key)
    assert [number.name for number in numbers] == (
        ["wheels 1", "wheels 2", "lift", "mood"] if robot == "other" else SEVEN
    )
    assert [number.value for number in numbers] == list(action)
    assert all(number.unit and -1 <= number.share <= 1 for number in numbers)
    assert actions.spec(policy, key).note


@pytest.mark.parametrize("convention", ["libero", "openvla"])
def test_the_controllers_units_become_millimetres_and_degrees(convention):
    numbers = numbers_of([0.5, -1, 0, 1, -0.5, 0, 1], info(convention), "libero_goal")
    assert [number.means for number in numbers[:6]] == ["+25.0 mm", "-50.0 mm", "+0.0 mm", "+28.6°", "-14.3°", "+0.0°"]
    assert {number.unit for number in numbers[:3]} == {"× 5 cm"} and {n.unit for n in numbers[3:6]} == {"× 0.5 rad"}


def test_another_data_sets_numbers_are_metres_and_radians():
    policy = info(keys=("bridge_orig", "libero_goal"))
    numbers = numbers_of([0.01, 0, 0, 0.1, 0, 0, 0.9], policy, "bridge_orig")
    assert (numbers[0].unit, numbers[0].means) == ("m", "+10.0 mm")
    assert (numbers[3].unit, numbers[3].means) == ("rad", "+5.7°")
    assert "bridge_orig" in actions.spec(policy, "bridge_orig").note
    alone = numbers_of(np.zeros(7), info(keys=("bridge_orig",)))
    assert alone[0].unit == "m", "its only key counts without being named"


@pytest.mark.parametrize(
    ("convention", "value", "means"),
    [("libero", -1, "open"), ("libero", 1, "close"), ("openvla", 0.99, "open"), ("openvla", 0.01, "close")],
)
def test_the_gripper_says_in_words_what_it_does(convention, value, means):
    gripper = numbers_of([0, 0, 0, 0, 0, 0, value], info(convention))[6]
    assert gripper.means == means and (gripper.share > 0) == (means == "open")


def test_what_lies_beyond_a_range_is_reported_in_full():
    policy = info(keys=("bridge_orig", "libero_goal"))
    far = numbers_of([-1.6, 1, 0, 7.25, -1, 0, 1.5], policy, "libero_goal")
    assert [(n.means, n.limit) for n in far if n.limit] == [
        ("-80.0 mm", "-1 to 1"), ("+207.7°", "-1 to 1"), ("open", "0 to 1"),
    ]  # fmt: skip
    metres = numbers_of([0.08, 0.05, 0, 0, 0, 0, 0], policy, "bridge_orig")
    assert (metres[0].means, metres[0].limit, metres[1].limit) == ("+80.0 mm", "-0.05 to 0.05", "")
    assert not any(n.limit for n in numbers_of(np.float32([1, -1, 1, -1, 1, -1, 1]), policy, "libero_goal"))


def test_numbers_of_no_known_range_are_drawn_next_to_each_other():
    assert [n.share for n in numbers_of([20, -10, 0.5, 5], info("other"))] == [1, -0.5, -0.5, 0.25]
    assert [n.means for n in numbers_of([math.pi, 0, 0.5, 5], info("other"))] == ["+180.0°", "+0.0°", "+500.0 mm", ""]


# --- the motion -----------------------------------------------------------------------------------------------

STEPS = np.array([[1, 0, 0, 0, 0, 0.5, 0], [1, -0.5, 0, 0, 0, 0.5, 1], [0, 0, 0.2, 0, 0, 0, 1]], np.float32)
TARGETS = (Part("position", 3, "m", "world frame"), Part("rotation", 3, "rad", "axis-angle, world frame"))


def of(rows, *parts, key=None):
    info = PolicyInfo("p", parts, unnorm_keys=("libero_goal", "bridge_orig"))
    return actions.motion(ActionChunk(np.asarray(rows, np.float32)), actions.spec(info, key))


def test_steps_of_the_controller_add_up_to_millimetres_and_degrees():
    found = of(STEPS, *OSC_POSE, GRIPPER_CLOSES)
    assert np.allclose(found.path, [[0, 0, 0], [50, 0, 0], [100, -25, 0], [100, -25, 10]], atol=1e-4)
    assert np.allclose(found.turn[-1], [0, 0, np.degrees(0.5)])
    assert found.sentence == (
        "In 3 actions: moves x +100.0 mm, y -25.0 mm, z +10.0 mm; turns about x +0.0°, y +0.0°, z +28.6°; "
        "gripper open, closes at action 2."
    )


def test_the_other_sense_of_a_gripper_and_another_data_sets_metres():
    assert of(STEPS, *OSC_POSE, GRIPPER_OPENS).opened == [False, True, True]
    assert np.allclose(of(STEPS, *OSC_POSE, GRIPPER_OPENS, key="bridge_orig").path[-1], [2000, -500, 200])


def test_targets_begin_at_the_first_of_them():
    found = of([[1, 2, 3, 0, 0, 0], [1.1, 2, 2.9, 0, 0, 0]], *TARGETS)
    assert np.allclose(found.path, [[0, 0, 0], [0, 0, 0], [100, 0, -100]], atol=1e-3) and found.turn is None


@pytest.mark.parametrize(("parts", "panels"), [((*OSC_POSE, GRIPPER_OPENS), 2), (TARGETS, 2), (OTHER, 0)])
def test_what_is_not_known_is_not_drawn(parts, panels):
    width = sum(part.size for part in parts)
    for rows in (np.zeros((1, width)), np.full((4, width), 0.5)):
        shown = of(rows, *parts).panels
        assert len(shown) == panels and not re.search(r"\b(nan|inf)\b", str(shown))


def test_forward_is_up_and_left_is_left_as_seen_from_above():
    (_, up), (_, forward), (left, _) = of(np.eye(7)[:2], *OSC_POSE, GRIPPER_CLOSES).panels[0].points
    assert forward < up and left < actions.SIDE / 2
