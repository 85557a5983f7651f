"""The examples: LIBERO scenes, each with its instruction, images of other cameras and the robot's state."""

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
    """Return the path and instruction of each example image."""
    return [[str(path), _named(path)] for path in sorted(DIRECTORY.glob("*/*.jpg"), key=_named)]


def suite_of(instruction: str) -> str | None:
    """Return the suite of the example with that instruction, or None."""
    return next((path.parent.name for path in DIRECTORY.glob("*/*.jpg") if _named(path) == instruction), None)


def image_of(instruction: str, camera: str) -> str | None:
    """Return the path of another camera's image of an example, or None."""
    return next(
        (str(path) for path in DIRECTORY.glob("*/*/*.jpg") if camera_and_instruction(path) == (camera, instruction)),
        None,
    )


def camera_and_instruction(path: Path) -> tuple[str, str]:
    """Return camera and instruction of an image file."""
    return path.parts[-3], _named(path)


def state_of(part: Part, instruction: str = "") -> list[float]:
    """Return a part's numbers in the example with that instruction, else in the first example.

    A part that LIBERO's robot does not have is 0, or the middle of its range.
    """
    states = _states()
    if part in HAND_STATE:
        return states.get(instruction, next(iter(states.values())))[part.name]
    rest = 0.0 if None in (part.low, part.high) or part.low <= 0 <= part.high else (part.low + part.high) / 2
    return [rest] * part.size


@functools.cache
def _states() -> dict[str, dict[str, list[float]]]:
    return json.loads((DIRECTORY / "states.json").read_text())


def _named(path: Path) -> str:
    return path.stem.replace("_", " ")
