"""Names, units and meaning of an action's numbers, from the policy's action parts and data set; and a chunk's motion.

The action parts determine which numbers a motion is drawn from; a robot without such parts has no drawing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vla_contract import ActionChunk, Part, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, OSC_POSE

ROUNDING = 1e-5  # of float32: tolerance at the ends of a range
SHORT = {"position delta": ("Δx", "Δy", "Δz"), "rotation delta": ("rotation x", "rotation y", "rotation z")}
GRIPPERS = {GRIPPER_CLOSES.convention: (1.0, -1.0), GRIPPER_OPENS.convention: (0.0, 1.0)}  # (fully closed, fully open)
METRES = tuple(  # the same two parts in m and rad; a full step of OSC_POSE is the range
    replace(part, unit=part.unit.split()[1], low=-float(part.unit.split()[0]), high=float(part.unit.split()[0]))
    for part in OSC_POSE
)
SIDE, ROOM = 200, 26  # pixels of a panel, and of its margins
AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Number:
    """One number of an action, ready for display.

    share: end of its bar, -1 to 1 of its range. limit: the range, if the value is outside it. means: the value in mm or
    degrees, not clipped.
    """

    name: str
    value: float
    unit: str
    means: str
    share: float
    limit: str = ""


@dataclass(frozen=True)
class Spec:
    """Name and part of every number of an action, in order, and a note about them."""

    numbers: tuple[tuple[str, Part], ...]
    note: str


def spec(info: PolicyInfo, unnorm_key: str | None) -> Spec:
    """Return the numbers of a policy's actions for an unnorm key (None: its only one, or none needed).

    With a data set other than LIBERO's, OpenVLA's actions are in that data set's units: metres and radians in Open
    X-Embodiment's convention.
    """
    key = unnorm_key or (info.unnorm_keys[0] if len(info.unnorm_keys) == 1 else None)
    parts, note = info.action, "; ".join(f"{part.name}: {part.convention}" for part in info.action)
    if parts == (*OSC_POSE, GRIPPER_OPENS) and key is not None and not key.startswith("libero"):
        parts = (*METRES, GRIPPER_OPENS)
        note = f"In the units of data set {key!r}: m and rad per step (Open X-Embodiment), gripper 1 = open."
    numbers = []
    for part in parts:
        names = SHORT.get(part.name, ())
        if len(names) != part.size:
            names = [part.name] if part.size == 1 else [f"{part.name} {number}" for number in range(1, part.size + 1)]
        numbers += [(name, part) for name in names]
    return Spec(tuple(numbers), note)


def numbers(action: Sequence[float], spec: Spec) -> list[Number]:
    """Return the numbers of one action with their names, units and meaning."""
    rows = [(name, float(value), part) for value, (name, part) in zip(action, spec.numbers, strict=True)]
    # Numbers without a range are drawn relative to the largest of them.
    largest = max([1.0, *(abs(value) for _, value, part in rows if None in (part.low, part.high))])
    return [_number(name, value, part, largest) for name, value, part in rows]


def _number(name: str, value: float, part: Part, largest: float) -> Number:
    factor, base = scale(part)
    unit, means = base, ""
    if base == "m":
        means = f"{value * factor * 1e3:+.1f} mm"
    elif base == "rad":
        means = f"{math.degrees(value * factor):+.1f}°"
    if factor != 1.0:
        unit = f"× {factor * 100:g} cm" if base == "m" else f"× {factor:g} {base}"
    if part.convention in GRIPPERS:
        closed, opened = GRIPPERS[part.convention]
        share = (value - closed) / (opened - closed) * 2 - 1
        unit, means = f"{opened:+g} = open", "open" if share >= 0 else "close"
    elif part.low is None or part.high is None:
        return Number(name, value, unit, means, value / largest)
    else:
        share = (2 * value - part.low - part.high) / (part.high - part.low)
    limit = f"{part.low:g} to {part.high:g}" if abs(share) > 1 + ROUNDING else ""
    return Number(name, value, unit, means, min(max(share, -1.0), 1.0), limit)


def scale(part: Part) -> tuple[float, str]:
    """Return factor and unit of 1.0: (0.05, "m") for "0.05 m"."""
    factor, _, base = part.unit.partition(" ")
    try:
        return float(factor), base or "1"
    except ValueError:
        return 1.0, part.unit


# --- a chunk's motion: the gripper's path from two sides, its rotation, and its opening ------------------------------


@dataclass(frozen=True)
class Panel:
    """A path in the plane of two axes: points in pixels of a square of SIDE, the first one now."""

    caption: str
    across: str
    up: str
    points: Sequence[tuple[float, float]]
    opened: Sequence[bool]


@dataclass(frozen=True)
class Motion:
    """The motion of a chunk relative to the current pose: row 0 is now, row n after n actions.

    path   float [T + 1, 3] in `length`, "mm" or the policy's own unit; None: no position part of three numbers
    turn   float [T + 1, 3] in degrees about each axis, steps summed; None: no rotation part
    opened bool of every action; None: no gripper of known convention
    """

    path: np.ndarray | None
    turn: np.ndarray | None
    opened: Sequence[bool] | None
    length: str = "mm"

    @property
    def panels(self) -> list[Panel]:
        """The path from above and from behind in one scale; empty without a path."""
        if self.path is None:
            return []
        reach = np.abs(self.path).max() or 1.0
        # across is y to the left, looking along x; up is x or z
        planes = {"from above": self.path[:, [1, 0]], "from behind": self.path[:, [1, 2]]}
        opened = self.opened or [True] * (len(self.path) - 1)
        return [
            Panel(
                f"{name}; scale: {reach:.3g} {self.length} to the edge", "y", up,
                (SIDE / 2 - plane * (SIDE / 2 - ROOM) / reach).round(1).tolist(), opened,
            )
            for up, (name, plane) in zip("xz", planes.items(), strict=True)
        ]  # fmt: skip

    @property
    def sentence(self) -> str:
        """The motion in a sentence."""

        def along(values: np.ndarray, unit: str) -> str:
            ends = zip(AXES, values, strict=True)
            return ", ".join(f"{axis} {round(value, 1) + 0:+.1f}{unit}" for axis, value in ends)  # + 0: no -0.0

        phrases = []
        if self.path is not None:
            phrases.append(f"moves {along(self.path[-1], f' {self.length}')}")
        if self.turn is not None:
            phrases.append(f"turns about {along(self.turn[-1], '°')}")
        if opened := self.opened:
            changes = ["open" if opened[0] else "closed"]
            for step in range(1, len(opened)):
                if opened[step] != opened[step - 1]:
                    changes.append(f"{'opens' if opened[step] else 'closes'} at action {step + 1}")
            phrases.append(f"gripper {', '.join(changes)}")
        count = len(self.path if self.path is not None else self.turn) - 1
        text = "; ".join(phrases)
        return f"In 1 action: {text}." if count == 1 else f"In {count} actions: {text}."


def motion(answer: ActionChunk, spec: Spec) -> Motion:
    """Return the motion of a chunk. Absolute positions are relative to the first; deltas are summed."""
    parts, actions = [part for _, part in spec.numbers], np.asarray(answer.actions, np.float64)

    def along(word: str) -> tuple[np.ndarray, Part] | None:
        """Return the path, and the part, of the first part of three numbers whose name contains the word."""
        start = next((n for n, part in enumerate(parts) if word in part.name and part.size == 3), None)
        if start is None:
            return None
        factor, base = scale(parts[start])
        steps = actions[:, start : start + 3] * factor * (1e3 if base == "m" else 1.0)
        if "delta" in parts[start].name:
            return np.concatenate((np.zeros((1, 3)), np.cumsum(steps, axis=0))), parts[start]
        return np.concatenate((steps[:1], steps)) - steps[0], parts[start]

    path = turn = opened = None
    length = "mm"
    if position := along("position"):
        path, base = position[0], scale(position[1])[1]
        length = "mm" if base == "m" else base
    if (rotation := along("rotation")) and "delta" in rotation[1].name and scale(rotation[1])[1] == "rad":
        turn = np.degrees(rotation[0])
    for column, part in enumerate(parts):
        if part.convention in GRIPPERS:
            closed, open_at = GRIPPERS[part.convention]
            opened = [bool(abs(value - open_at) <= abs(value - closed)) for value in actions[:, column]]
            break
    return Motion(path, turn, opened, length)
