"""Draw the motion of a chunk: the gripper's path from two sides, its rotation, and its opening.

The policy's action parts determine which numbers these are; a robot without such parts has no drawing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from services.ui.ask.actions import GRIPPERS, Spec, scale
from vla_contract import ActionChunk, Part

SIDE, ROOM = 200, 26  # pixels of a panel, and of its margins
AXES = ("x", "y", "z")
COLOURS = ("#0d9488", "#c2570c", "#7c3aed")  # of x, y and z; for light and dark themes
OPEN, CLOSED = "none", "currentColor"  # fill of a point


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


def motion(answer: ActionChunk, spec: Spec) -> Motion:
    """Return the motion of a chunk. Absolute positions are relative to the first; deltas are summed."""
    position, turning = (_columns(spec, word, 3) for word in ("position", "rotation"))
    fingers = next((n for n, (_, part) in enumerate(spec.numbers) if part.convention in GRIPPERS), None)
    actions = np.asarray(answer.actions, np.float64)
    path, length = (None, "mm") if position is None else _path(actions, *position)
    turns = turning is not None and "delta" in turning[1].name and scale(turning[1])[1] == "rad"
    turn = np.degrees(_path(actions, *turning)[0]) if turns else None
    opened = None if fingers is None else [_opens(action, spec.numbers[fingers][1]) for action in actions[:, fingers]]
    return Motion(path, turn, opened, length)


def _columns(spec: Spec, word: str, size: int) -> tuple[slice, Part] | None:
    """Return slice and part of the first part of that size whose name contains the word."""
    parts = [part for _, part in spec.numbers]
    start = next((n for n, part in enumerate(parts) if word in part.name and part.size == size), None)
    return None if start is None else (slice(start, start + size), parts[start])


def _path(actions: np.ndarray, columns: slice, part: Part) -> tuple[np.ndarray, str]:
    factor, base = scale(part)
    steps = actions[:, columns] * factor * (1e3 if base == "m" else 1.0)
    if "delta" in part.name:
        steps = np.concatenate((np.zeros((1, 3)), np.cumsum(steps, axis=0)))
    else:
        steps = np.concatenate((steps[:1], steps)) - steps[0]
    return steps, "mm" if base == "m" else base


def _opens(value: float, part: Part) -> bool:
    closed, opened = GRIPPERS[part.convention]
    return abs(value - opened) <= abs(value - closed)


# --- sentence and panels -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MotionDrawing:
    """A sentence about a motion, and its panels: SVG content and caption of each."""

    sentence: str
    panels: list[tuple[str, str]]


def draw(motion: Motion) -> MotionDrawing | None:
    """Return the drawing of a motion; None if it has neither path nor rotation."""
    panels = []
    if motion.path is not None:
        panels += [_plan(motion, 1, 0, "from above"), _plan(motion, 1, 2, "from behind")]
    if motion.turn is not None:
        panels.append(_curves(motion.turn))
    return MotionDrawing(describe(motion), panels) if panels else None


def describe(motion: Motion) -> str:
    """Return a sentence that sums up a motion."""
    phrases = []
    if motion.path is not None:
        phrases.append(f"moves {_along(motion.path[-1], f' {motion.length}')}")
    if motion.turn is not None:
        phrases.append(f"turns about {_along(motion.turn[-1], '°')}")
    if motion.opened is not None:
        phrases.append(f"gripper {_fingers(motion.opened)}")
    count = len(motion.path if motion.path is not None else motion.turn) - 1
    return f"In {count} action{'s' * (count > 1)}: {'; '.join(phrases)}."


def _along(values: np.ndarray, unit: str) -> str:
    ends = zip(AXES, values, strict=True)
    return ", ".join(f"{axis} {round(value, 1) + 0:+.1f}{unit}" for axis, value in ends)  # + 0: no -0.0


def _fingers(opened: Sequence[bool]) -> str:
    phrases = ["open" if opened[0] else "closed"]
    for step in range(1, len(opened)):
        if opened[step] != opened[step - 1]:
            phrases.append(f"{'opens' if opened[step] else 'closes'} at action {step + 1}")
    return ", ".join(phrases)


def _plan(motion: Motion, across: int, up: int, name: str) -> tuple[str, str]:
    """Return the path in the plane of two axes. Across is y to the left, looking along x; up is x or z."""
    points = np.stack((-motion.path[:, across], motion.path[:, up]), axis=1)
    reach = np.abs(motion.path).max() or 1.0  # both planes have one scale
    pixels = SIDE / 2 + points * [1, -1] * (SIDE / 2 - ROOM) / reach
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    opened = motion.opened or [True] * (len(pixels) - 1)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{OPEN if is_open else CLOSED}" stroke="currentColor"/>'
        for (x, y), is_open in zip(pixels[1:], opened, strict=True)
    )
    start = f'<rect x="{SIDE / 2 - 4}" y="{SIDE / 2 - 4}" width="8" height="8" fill="{COLOURS[0]}"/>'
    path = f'<polyline points="{line}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>'
    names = _svg_text(SIDE / 2, 12, f"+{AXES[up]}") + _svg_text(12, SIDE / 2, f"+{AXES[across]}")
    return _cross() + path + start + dots + names, f"{name}; scale: {reach:.3g} {motion.length} to the edge"


def _curves(turn: np.ndarray) -> tuple[str, str]:
    """Return the angles over the actions, one line per axis."""
    reach = np.abs(turn).max() or 1.0
    across = np.linspace(ROOM, SIDE - ROOM, len(turn))
    lines = ""
    for axis, colour, values in zip(AXES, COLOURS, turn.T, strict=True):
        heights = SIDE / 2 - values * (SIDE / 2 - ROOM) / reach
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, heights, strict=True))
        lines += f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        lines += _svg_text(SIDE - ROOM + 10, heights[-1], axis)
    return _cross(False) + lines, f"rotation per action; scale: {math.ceil(reach)}° to the edge"


def _cross(vertical: bool = True) -> str:
    middle, end = SIDE / 2, SIDE - ROOM
    lines = f'<line x1="{ROOM}" y1="{middle}" x2="{end}" y2="{middle}"/>'
    lines += f'<line x1="{middle}" y1="{ROOM}" x2="{middle}" y2="{end}"/>' if vertical else ""
    return f'<g stroke="currentColor" stroke-opacity="0.35">{lines}</g>'


def _svg_text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" dominant-baseline="central">{escape(text)}</text>'
