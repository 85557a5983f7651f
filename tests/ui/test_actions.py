"""What the seven numbers are called, and what they mean, for every convention of the contract."""

import numpy as np
import pytest

from services.ui import actions
from vla_contract import PolicyInfo
from vla_contract.protocol.info import ACTION_CONVENTIONS


def info(convention="openvla", keys=("libero_goal",)) -> PolicyInfo:
    return PolicyInfo(name="p", action_convention=convention, unnorm_keys=keys)


@pytest.mark.parametrize("convention", ACTION_CONVENTIONS)
@pytest.mark.parametrize("key", [None, "libero_goal", "bridge_orig"])
def test_every_convention_names_seven_numbers_with_a_unit_and_a_bar_that_fits(convention, key):
    action = np.linspace(-3, 3, 7)
    numbers = actions.numbers(action, info(convention, ("libero_goal", "bridge_orig")), key)
    assert [number.name for number in numbers] == list(actions.NAMES)
    assert [number.value for number in numbers] == list(action)
    assert all(number.unit and -1 <= number.share <= 1 for number in numbers)
    assert actions.units(info(convention, ("a", "b")), key).note


@pytest.mark.parametrize("convention", ["libero", "openvla"])
def test_the_controllers_units_become_millimetres_and_degrees(convention):
    numbers = actions.numbers([0.5, -1, 0, 1, -0.5, 0, 1], info(convention), "libero_goal")
    assert [number.means for number in numbers[:6]] == ["+25.0 mm", "-50.0 mm", "+0.0 mm", "+28.6°", "-14.3°", "+0.0°"]
    assert {number.unit for number in numbers[:3]} == {"× 5 cm"} and {n.unit for n in numbers[3:6]} == {"× 0.5 rad"}


def test_another_data_sets_numbers_are_metres_and_radians():
    policy = info(keys=("bridge_orig", "libero_goal"))
    numbers = actions.numbers([0.01, 0, 0, 0.1, 0, 0, 0.9], policy, "bridge_orig")
    assert (numbers[0].unit, numbers[0].means) == ("m", "+10.0 mm")
    assert (numbers[3].unit, numbers[3].means) == ("rad", "+5.7°")
    assert "bridge_orig" in actions.units(policy, "bridge_orig").note
    assert actions.units(info(keys=("bridge_orig",)), None).position == "m", "its only key counts without being named"


@pytest.mark.parametrize(
    ("convention", "value", "means"),
    [("libero", -1, "open"), ("libero", 1, "close"), ("openvla", 0.99, "open"), ("openvla", 0.01, "close")],
)
def test_the_gripper_says_in_words_what_it_does(convention, value, means):
    gripper = actions.numbers([0, 0, 0, 0, 0, 0, value], info(convention), None)[6]
    assert gripper.means == means and (gripper.share > 0) == (means == "open")


def test_what_lies_beyond_a_range_is_told_in_full():
    policy = info(keys=("bridge_orig", "libero_goal"))
    far = actions.numbers([-1.6, 1, 0, 7.25, -1, 0, 1.5], policy, "libero_goal")
    assert [(n.means, n.limit) for n in far if n.limit] == [
        ("-80.0 mm", "-1 to 1"), ("+207.7°", "-1 to 1"), ("open", "0 to 1"),
    ]  # fmt: skip
    metres = actions.numbers([0.08, 0.05, 0, 0, 0, 0, 0], policy, "bridge_orig")
    assert (metres[0].means, metres[0].limit, metres[1].limit) == ("+80.0 mm", "-0.05 to 0.05", "")
    assert not any(n.limit for n in actions.numbers(np.float32([1, -1, 1, -1, 1, -1, 1]), policy, "libero_goal"))


def test_numbers_of_no_known_range_are_drawn_beside_each_other():
    shares = [n.share for n in actions.numbers([20, -10, 0, 5, 0, 0, 1], info("embodiment"), None)]
    assert shares == [1, -0.5, 0, 0.25, 0, 0, 0.05]
