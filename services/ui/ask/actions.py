"""What the numbers of an action mean: names, units and senses, by the parts that the policy names and the data set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vla_contract import Part, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, OSC_POSE

ROUNDING = 1e-5  # of float32: what is beyond a range by less is at its end
SHORT = {"position delta": ("Δx", "Δy", "Δz"), "rotation delta": ("rotation x", "rotation y", "rotation z")}
GRIPPERS = {GRIPPER_CLOSES.convention: (1.0, -1.0), GRIPPER_OPENS.convention: (0.0, 1.0)}  # (fully closed, fully open)
METRES = tuple(  # the same two parts in m and rad: what a full step of OSC_POSE is, is its range
    replace(part, unit=part.unit.split()[1], low=-float(part.unit.split()[0]), high=float(part.unit.split()[0]))
    for part in OSC_POSE
)


@dataclass(frozen=True)
class Number:
    """One number of an action, ready to be shown.

    share is where its bar ends: -1 to 1 of its range. A value that lies beyond that has a `limit`, the range it
    leaves; `means` is then the whole of it all the same.
    """

    name: str
    value: float
    unit: str
    means: str
    share: float
    limit: str = ""


@dataclass(frozen=True)
class Spec:
    """What every number of an action is: (name, its part), in order; and what to say about them."""

    numbers: tuple[tuple[str, Part], ...]
    note: str


def spec(info: PolicyInfo, unnorm_key: str | None) -> Spec:
    """Return what the numbers of `info`'s policy are with a key (None: its only one, or it needs none).

    Statistics of another data set than LIBERO's un-normalise OpenVLA's actions to what that set recorded, which Open
    X-Embodiment's convention has in metres and radians.
    """
    key = unnorm_key or (info.unnorm_keys[0] if len(info.unnorm_keys) == 1 else None)
    if info.action != (*OSC_POSE, GRIPPER_OPENS) or key is None or key.startswith("libero"):
        return Spec(tuple(_named(info.action)), "; ".join(f"{part.name}: {part.convention}" for part in info.action))
    note = f"As data set {key!r} recorded it: by Open X-Embodiment's convention m and rad per step, gripper 1 = open."
    return Spec(tuple(_named((*METRES, GRIPPER_OPENS))), note)


def numbers(action: Sequence[float], spec: Spec) -> list[Number]:
    """Return the numbers of one action with their names, units and meaning."""
    values = [float(value) for value in action]
    # Where no range is known, numbers are drawn relative to the largest of those.
    free = [abs(v) for v, (_, part) in zip(values, spec.numbers, strict=True) if None in (part.low, part.high)]
    return [_number(name, v, part, max(1.0, *free, 0.0)) for v, (name, part) in zip(values, spec.numbers, strict=True)]


def unit_of(part: Part) -> str:
    """Return a part's unit as it is shown."""
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
            names = [part.name] if part.size == 1 else [f"{part.name} {place}" for place in range(1, part.size + 1)]
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
    """Return how many of which unit 1.0 is: (0.05, "m") for "0.05 m"."""
    factor, _, base = part.unit.partition(" ")
    try:
        return float(factor), base or "1"
    except ValueError:
        return 1.0, part.unit
