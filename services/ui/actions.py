"""What the seven numbers of an action mean: names, units and senses, by convention and data set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vla_contract.protocol.info import ACTION_CONVENTIONS, PolicyInfo

NAMES = ("Δx", "Δy", "Δz", "rotation x", "rotation y", "rotation z", "gripper")
STEP_M, STEP_RAD = 0.05, 0.5  # what 1.0 asks of LIBERO's controller (robosuite's OSC_POSE) in one step
ROUNDING = 1e-5  # of float32: what is beyond a range by less is at its end

# convention -> the gripper's (fully closed, fully open); a convention that is not here keeps its robot's own units
GRIPPERS = {"libero": (1.0, -1.0), "openvla": (0.0, 1.0)}


@dataclass(frozen=True)
class Number:
    """One of the seven, ready to be shown.

    share is where its bar ends: -1 to 1 of a full step. A value that lies beyond that has a `limit`, the range it
    leaves; `means` is then the whole of it all the same.
    """

    name: str
    value: float
    unit: str
    means: str
    share: float
    limit: str = ""


@dataclass(frozen=True)
class Units:
    """The units of an action's position and rotation; how many m and rad one of them is; what to say about them."""

    position: str
    rotation: str
    metres: float
    radians: float
    note: str


def units(info: PolicyInfo, unnorm_key: str | None) -> Units:
    """Returns the units of what `info`'s policy answers with a key (None: its only one, or it needs none).

    LIBERO's statistics, and a policy without keys, give the controller's units. Others un-normalise to what their
    data set recorded, which Open X-Embodiment's convention has in metres and radians.
    """
    if info.action_convention not in GRIPPERS:
        return Units("own", "own", 1.0, 1.0, f"Convention {info.action_convention!r}: {_said(info)}.")
    key = unnorm_key or (info.unnorm_keys[0] if len(info.unnorm_keys) == 1 else None)
    if info.action_convention != "openvla" or key is None or key.startswith("libero"):
        note = f"Convention {info.action_convention!r}: {_said(info)}."
        return Units(f"× {STEP_M * 100:g} cm", f"× {STEP_RAD:g} rad", STEP_M, STEP_RAD, note)
    note = f"As data set {key!r} recorded it: by Open X-Embodiment's convention m and rad per step, gripper 1 = open."
    return Units("m", "rad", 1.0, 1.0, note)


def numbers(action: Sequence[float], info: PolicyInfo, unnorm_key: str | None) -> list[Number]:
    """Returns the seven numbers of one action [7] with their names, units and meaning."""
    unit = units(info, unnorm_key)
    if info.action_convention not in GRIPPERS:
        scale = max(1.0, *(abs(float(value)) for value in action))  # their range is not known: relative to the largest
        return [Number(n, float(v), "own", "", float(v) / scale) for n, v in zip(NAMES, action, strict=True)]
    moves = [_position(name, float(value), unit) for name, value in zip(NAMES[:3], action[:3], strict=True)]
    turns = [_rotation(name, float(value), unit) for name, value in zip(NAMES[3:6], action[3:6], strict=True)]
    return [*moves, *turns, _gripper(float(action[6]), info.action_convention)]


def _said(info: PolicyInfo) -> str:
    return ACTION_CONVENTIONS[info.action_convention]


def _position(name: str, value: float, unit: Units) -> Number:
    metres = value * unit.metres
    return _number(name, value, unit.position, f"{metres * 1e3:+.1f} mm", metres / STEP_M, _range(unit.metres, STEP_M))


def _rotation(name: str, value: float, unit: Units) -> Number:
    radians = value * unit.radians
    means = f"{math.degrees(radians):+.1f}°"
    return _number(name, value, unit.rotation, means, radians / STEP_RAD, _range(unit.radians, STEP_RAD))


def _gripper(value: float, convention: str) -> Number:
    closed, opened = GRIPPERS[convention]
    openness = (value - closed) / (opened - closed) * 2 - 1
    means = "open" if openness >= 0 else "close"
    limit = f"{min(closed, opened):g} to {max(closed, opened):g}"
    return _number(NAMES[6], value, f"{opened:+g} = open", means, openness, limit)


def _range(per_one: float, step: float) -> str:
    """Returns the values that a full step each way spans, in the unit of the value."""
    return f"{-step / per_one:g} to {step / per_one:g}"


def _number(name: str, value: float, unit: str, means: str, share: float, limit: str) -> Number:
    beyond = abs(share) > 1 + ROUNDING
    return Number(name, value, unit, means, min(max(share, -1.0), 1.0), limit if beyond else "")
