"""What the numbers of an action and of a state are, in named parts; and words for what many robots share."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Neighbouring numbers of an action or a state vector that mean one thing.

    name        what moves or is measured
    size        how many numbers
    unit        what 1.0 is: "m", "rad", with a factor where it is a share of a step ("0.05 m"), "1" where it has none
    convention  frame, representation and sense
    low, high   the range in which each number makes sense; None: not known. Nobody clips to it

    Raises ValueError naming the field where one does not hold.
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
            _set_bound(self, field)
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"Part.low of {self.name!r} is {self.low}; expected less than high, {self.high}")

    def __str__(self) -> str:
        """Returns it in words, for errors: "gripper [1] (unit 1, 0 closed, 1 open)"."""
        return f"{self.name} [{self.size}] (unit {self.unit}, {self.convention})"


def total(parts: Iterable[Part]) -> int:
    """Returns how many numbers the parts have together."""
    return sum(part.size for part in parts)


def in_words(parts: Iterable[Part]) -> str:
    """Returns the parts' names and sizes: "position delta [3], gripper [1]"."""
    return ", ".join(f"{part.name} [{part.size}]" for part in parts)


def _set_bound(part: Part, field: str) -> None:
    value = getattr(part, field)
    if value is None:
        return
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"Part.{field} of {part.name!r} is {value!r}; expected a number or None")
    object.__setattr__(part, field, float(value))


# --- words that a policy and a benchmark must spell alike to fit each other ------------------------------------

# An arm's hand as robosuite's OSC_POSE controller moves it, by its default limits; LIBERO's data were recorded so.
OSC_POSE = (
    Part("position delta", 3, "0.05 m", "base frame", -1, 1),
    Part("rotation delta", 3, "0.5 rad", "axis-angle, base frame", -1, 1),
)
GRIPPER_CLOSES = Part("gripper", 1, "1", "-1 open, 1 closed", -1, 1)  # robosuite executes this
GRIPPER_OPENS = Part("gripper", 1, "1", "0 closed, 1 open", 0, 1)  # Open X-Embodiment's data, and models of them
# Where a hand with two fingers is.
HAND_STATE = (
    Part("position", 3, "m", "world frame"),
    Part("rotation", 3, "rad", "axis-angle, world frame"),
    Part("fingers", 2, "m", "joint positions"),
)
