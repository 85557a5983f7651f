"""Names, units and meaning of an action's numbers, from the policy's action parts and data set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vla_contract import Part, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, OSC_POSE

ROUNDING = 1e-5  # of float32: tolerance at the ends of a range
SHORT = {"position delta": ("Δx", "Δy", "Δz"), "rotation delta": ("rotation x", "rotation y", "rotation z")}
GRIPPERS = {GRIPPER_CLOSES.convention: (1.0, -1.0), GRIPPER_OPENS.convention: (0.0, 1.0)}  # (fully closed, fully open)
METRES = tuple(  # the same two parts in m and rad; a full step of OSC_POSE is the range
    replace(part, unit=part.unit.split()[1], low=-float(part.unit.split()[0]), high=float(part.unit.split()[0]))
    for part in OSC_POSE
)


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
