"""Inputs of policies besides image and instruction: images of further cameras, and the robot's state as text.

The examples are LIBERO scenes, each with its instruction, images of other cameras and the robot's state.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.ui.ask.link import MAX_IMAGES
from vla_contract import Part, PolicyInfo
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import HAND_STATE

MORE_IMAGES = MAX_IMAGES - 1  # fields of the page besides the first
# <suite>/*.jpg of the first camera, <camera>/<suite>/*.jpg of others
EXAMPLES = Path(__file__).parent / "static/examples"


class StateError(ValueError):
    """The entered state does not fit the policy. The message says what is expected."""


@dataclass(frozen=True)
class Requirements:
    """The combined inputs of the selected policies, without duplicates.

    first   names of each policy's first camera; all share the page's first image
    more    further cameras, in the order of the page's fields
    state   the parts of their states
    """

    first: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    state: tuple[Part, ...] = ()

    @classmethod
    def of(cls, infos: Iterable[PolicyInfo | None]) -> Requirements:
        """Return the requirements of policies; None for a policy that does not respond."""
        available = [info for info in infos if info is not None]
        first = dict.fromkeys(info.cameras[0] for info in available if info.cameras)
        more = dict.fromkeys(camera for info in available for camera in info.cameras[1:])
        return cls(tuple(first), tuple(more), tuple(dict.fromkeys(part for info in available for part in info.state)))

    @property
    def offered(self) -> tuple[str, ...]:
        """The camera of each of the page's fields for further images; "" for an unused field."""
        return (*self.more, *[""] * MORE_IMAGES)[:MORE_IMAGES]


# --- the state as text: a line for each part, "position (m): -0.2 0 1.18" --------------------------------------------


def format_state(parts: Sequence[Part], text: str | None = "", instruction: str = "") -> str:
    """Return a line for each part: from `text`, else from the example."""
    typed = _lines(text)
    examples = {label: " ".join(f"{value:g}" for value in state_of(part, instruction))
                for part, label in labels(parts).items()}  # fmt: skip
    return "\n".join(f"{label}: {typed.get(label, example)}" for label, example in examples.items())


def labels(parts: Sequence[Part]) -> dict[Part, str]:
    """Return the label of each part's line, with the convention if names are not unique."""
    short = {part: f"{part.name} ({part.unit})" for part in parts}
    alike = list(short.values())
    return {part: f"{part.name} ({part.unit}, {part.convention})" if alike.count(label) > 1 else label
            for part, label in short.items()}  # fmt: skip


def parse_state(text: str | None, required: Sequence[Part], offered: Sequence[Part]) -> np.ndarray | None:
    """Return the state float32 [n] of the parts `required`, parsed from a text with lines for the parts `offered`.

    None if no part is required. Raises StateError with a line for each invalid part.
    """
    if not required:
        return None
    typed, named, errors, values = _lines(text), labels(offered), [], []
    for part in required:
        label = named.get(part) or labels([part])[part]
        if label not in typed:
            errors.append(f"The state has no line {label!r}{did_you_mean(label, list(typed))}.")
            continue
        try:
            numbers = [float(word) for word in typed[label].replace(",", " ").split()]
        except ValueError:
            numbers = []
        if len(numbers) != part.size or not all(map(math.isfinite, numbers)):
            errors.append(f"The state's line {label!r} has {typed[label]!r}; expected {part.size} numbers.")
        values += numbers
    if errors:
        raise StateError("\n".join(errors))
    return np.array(values, np.float32)


def _lines(text: str | None) -> dict[str, str]:
    pairs = (line.rpartition(":") for line in (text or "").splitlines() if ":" in line)
    return {label.strip(): values.strip() for label, _, values in pairs}


# --- examples --------------------------------------------------------------------------------------------------------


def examples() -> list[tuple[Path, str]]:
    """Return the path and instruction of each example image."""
    paths = [(path, path.stem.replace("_", " ")) for path in EXAMPLES.glob("*/*.jpg")]
    return sorted(paths, key=lambda example: example[1])


def suite_of(instruction: str) -> str | None:
    """Return the suite of the example with that instruction, or None."""
    return next((path.parent.name for path, named in examples() if named == instruction), None)


def image_of(instruction: str, camera: str) -> Path | None:
    """Return the path of another camera's image of an example, or None."""
    is_name = instruction.replace(" ", "").isalnum()
    paths = EXAMPLES.glob(f"*/*/{instruction.replace(' ', '_')}.jpg") if is_name else ()
    return next((path for path in paths if path.parts[-3] == camera), None)


def state_of(part: Part, instruction: str = "") -> list[float]:
    """Return a part's numbers in the example with that instruction, else in the first example.

    A part that LIBERO's robot does not have is 0, or the middle of its range.
    """
    if part in HAND_STATE:
        states = _states()
        return states.get(instruction, next(iter(states.values())))[part.name]
    rest = 0.0 if None in (part.low, part.high) or part.low <= 0 <= part.high else (part.low + part.high) / 2
    return [rest] * part.size


@functools.cache
def _states() -> dict[str, dict[str, list[float]]]:
    return json.loads((EXAMPLES / "states.json").read_text())
