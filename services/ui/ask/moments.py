"""The examples: moments of LIBERO's scenes, each with its instruction, what other cameras saw and the robot's state."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from vla_contract import Part
from vla_contract.protocol.parts import HAND_STATE

DIRECTORY = (
    Path(__file__).parent / "static/examples"
)  # <suite>/*.jpg of the first camera, <camera>/<suite>/*.jpg of others


def examples() -> list[list[str]]:
    """Return the example pictures, each with the instruction that its file is named after."""
    return [[str(path), _named(path)] for path in sorted(DIRECTORY.glob("*/*.jpg"), key=_named)]


def suite_of(instruction: str) -> str | None:
    """Return the suite of the example with that instruction: the folder that it lies in."""
    return next((path.parent.name for path in DIRECTORY.glob("*/*.jpg") if _named(path) == instruction), None)


def image_of(instruction: str, camera: str) -> str | None:
    """Return what another camera saw at an example's moment, a path; None where there is no such picture."""
    return next((str(path) for path in DIRECTORY.glob("*/*/*.jpg") if seen(path) == (camera, instruction)), None)


def seen(path: Path) -> tuple[str, str]:
    """Return whose picture of which example a file is."""
    return path.parts[-3], _named(path)


def state_of(part: Part, instruction: str = "") -> list[float]:
    """Return a part's numbers at an example's moment, of the first example where there is none with that instruction.

    A part that LIBERO's robot does not have is at rest: 0, or the middle of its range.
    """
    known = _states()
    if part in HAND_STATE:
        return known.get(instruction, next(iter(known.values())))[part.name]
    rest = 0.0 if None in (part.low, part.high) or part.low <= 0 <= part.high else (part.low + part.high) / 2
    return [rest] * part.size


@functools.cache
def _states() -> dict[str, dict[str, list[float]]]:
    return json.loads((DIRECTORY / "states.json").read_text())


def _named(path: Path) -> str:
    return path.stem.replace("_", " ")
