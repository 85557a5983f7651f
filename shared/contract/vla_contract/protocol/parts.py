"""Named parts of actions and states, and the parts that many robots share."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Adjacent numbers of an action or state vector with one meaning.

    name        what moves or is measured
    size        how many numbers
    unit        what 1.0 is: "m", "rad", with a factor where it is a share of a step ("0.05 m"), "1" where it has none
    convention  frame, representation and sense
    low, high   the valid range of each number; None: unknown. Values are not clipped

    Raises ValueError naming an invalid field.
    """

    name: str
    size: int
    unit: str
    convention: str
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        for field in ("name", "unit", "convention"):
            if not isinstance(getattr(self, field), str) or not getattr(self, field):
                raise ValueError(f"Part.{field} is {getattr(self, field)!r}; expected a text")
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"Part.size of {self.name!r} is {self.size!r}; expected an int >= 1")
        for field in ("low", "high"):
            value = getattr(self, field)
            if value is not None:
                if type(value) not in (int, float) or not math.isfinite(value):
                    raise ValueError(f"Part.{field} of {self.name!r} is {value!r}; expected a number or None")
                object.__setattr__(self, field, float(value))
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"Part.low of {self.name!r} is {self.low}; expected less than high, {self.high}")

    def __str__(self) -> str:
        """Return the part as text, for errors: "gripper [1] (unit 1, 0 closed, 1 open)"."""
        return f"{self.name} [{self.size}] (unit {self.unit}, {self.convention})"


def total(parts: Iterable[Part]) -> int:
    """Return how many numbers the parts have together."""
    return sum(part.size for part in parts)


def format_parts(parts: Iterable[Part]) -> str:
    """Return the parts' names and sizes: "position delta [3], gripper [1]"."""
    return ", ".join(f"{part.name} [{part.size}]" for part in parts)


# --- parts that a policy and a benchmark must name identically -------------------------------------------------

# The action of robosuite's OSC_POSE controller with its default limits, as in LIBERO's data.
OSC_POSE = (
    Part("position delta", 3, "0.05 m", "base frame", -1, 1),
    Part("rotation delta", 3, "0.5 rad", "axis-angle, base frame", -1, 1),
)
GRIPPER_CLOSES = Part("gripper", 1, "1", "-1 open, 1 closed", -1, 1)  # robosuite's convention
GRIPPER_OPENS = Part("gripper", 1, "1", "0 closed, 1 open", 0, 1)  # Open X-Embodiment's data, and models of them
# The pose of a hand with two fingers.
HAND_STATE = (
    Part("position", 3, "m", "world frame"),
    Part("rotation", 3, "rad", "axis-angle, world frame"),
    Part("fingers", 2, "m", "joint positions"),
)
# The round finger of PushT, in a plane of 512 × 512 pixels.
_PUSHT_FRAME = "of 512 × 512, origin at the top left"
PUSHT_STATE = (Part("agent position", 2, "pixel", _PUSHT_FRAME, 0, 512),)
PUSHT_ACTION = (Part("agent target", 2, "pixel", _PUSHT_FRAME, 0, 512),)
# ALOHA's two arms: state and action alike. The range of joints is gym-aloha's action space, which real targets leave.
ALOHA_JOINTS = tuple(
    part
    for side in ("left", "right")
    for part in (
        Part(f"{side} joints", 6, "rad", "waist, shoulder, elbow, forearm roll, wrist angle, wrist rotation", -1, 1),
        Part(f"{side} gripper", 1, "0.0396 m", "0 closed, 1 open", 0, 1),
    )
)
