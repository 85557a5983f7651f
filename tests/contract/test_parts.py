"""Parts name what the numbers of an action and of a state are."""

import pytest

from vla_contract import Part
from vla_contract.protocol.parts import GRIPPER_OPENS, OSC_POSE, format_parts, total


def test_a_vector_is_its_parts_one_after_the_other():
    parts = (*OSC_POSE, GRIPPER_OPENS)
    assert total(parts) == 7
    assert format_parts(parts) == "position delta [3], rotation delta [3], gripper [1]"
    assert str(GRIPPER_OPENS) == "gripper [1] (unit 1, 0 closed, 1 open)"


def test_parts_are_equal_where_all_they_say_is():
    assert Part("lift", 1, "m", "world frame", 0, 1) == Part("lift", 1, "m", "world frame", 0.0, 1.0)
    assert Part("lift", 1, "m", "world frame") != Part("lift", 1, "m", "base frame")


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""}, {"size": 0}, {"size": 1.0}, {"size": True}, {"unit": ""}, {"convention": None},
        {"low": "0"}, {"low": float("nan")}, {"high": float("inf")}, {"high": True}, {"low": 1, "high": 1},
    ],
)  # fmt: skip
def test_a_bad_part_is_named(changes):
    with pytest.raises(ValueError, match=f"Part.{next(iter(changes))}"):
        Part(**{"name": "lift", "size": 1, "unit": "m", "convention": "world frame", **changes})
