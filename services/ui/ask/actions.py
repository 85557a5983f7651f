"""Names, units and meaning of an action's numbers, from the policy's action parts and data set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    if info.action != (*OSC_POSE, GRIPPER_OPENS) or key is None or key.startswith("libero"):
        return Spec(tuple(_named(info.action)), "; ".join(f"{part.name}: {part.convention}" for part in info.action))
    note = f"In the units of data set {key!r}: m and rad per step (Open X-Embodiment), gripper 1 = open."
    return Spec(tuple(_named((*METRES, GRIPPER_OPENS))), note)


def numbers(action: Sequence[float], spec: Spec) -> list[Number]:
    """Return the numbers of one action with their names, units and meaning."""
    values = [float(value) for value in action]
    # Numbers without a range are drawn relative to the largest of them.
    free = [abs(v) for v, (_, part) in zip(values, spec.numbers, strict=True) if None in (part.low, part.high)]
    return [_number(name, v, part, max(1.0, *free, 0.0)) for v, (name, part) in zip(values, spec.numbers, strict=True)]


def unit_of(part: Part) -> str:
    """Return a part's unit for display."""
    if part.convention in GRIPPERS:
        return f"{GRIPPERS[part.convention][1]:+g} = open"
    factor, base = scale(part)
    if factor == 1.0:
        return base
    return f"× {factor * 100:g} cm" if base == "m" else f"× {factor:g} {base}"


def _named(parts: Sequence[Part]) -> Iterator[tuple[str, Part]]:
    for part in parts:
        names = SHORT.get(part.name, ())
        if len(names) != part.size:
            names = [part.name] if part.size == 1 else [f"{part.name} {number}" for number in range(1, part.size + 1)]
        yield from ((name, part) for name in names)


def _number(name: str, value: float, part: Part, largest: float) -> Number:
    if part.convention in GRIPPERS:
        return _gripper(name, value, part)
    means = _meaning(value, part)
    if part.low is None or part.high is None:
        return Number(name, value, unit_of(part), means, value / largest)
    return _within(name, value, part, means, (2 * value - part.low - part.high) / (part.high - part.low))


def _gripper(name: str, value: float, part: Part) -> Number:
    closed, opened = GRIPPERS[part.convention]
    openness = (value - closed) / (opened - closed) * 2 - 1
    return _within(name, value, part, "open" if openness >= 0 else "close", openness)


def _within(name: str, value: float, part: Part, means: str, share: float) -> Number:
    limit = f"{part.low:g} to {part.high:g}" if abs(share) > 1 + ROUNDING else ""
    return Number(name, value, unit_of(part), means, min(max(share, -1.0), 1.0), limit)


def _meaning(value: float, part: Part) -> str:
    factor, base = scale(part)
    if base == "m":
        return f"{value * factor * 1e3:+.1f} mm"
    return f"{math.degrees(value * factor):+.1f}°" if base == "rad" else ""


def scale(part: Part) -> tuple[float, str]:
    """Return factor and unit of 1.0: (0.05, "m") for "0.05 m"."""
    factor, _, base = part.unit.partition(" ")
    try:
        return float(factor), base or "1"
    except ValueError:
        return 1.0, part.unit
