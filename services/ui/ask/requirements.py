"""Inputs of policies besides image and instruction: images of further cameras, and the robot's state as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from services.ui.ask import scenes
from services.ui.ask.link import MAX_IMAGES
from vla_contract import Part, PolicyInfo
from vla_contract.protocol.errors import did_you_mean

MORE_IMAGES = MAX_IMAGES - 1  # fields of the page besides the first


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

    @property
    def offered(self) -> tuple[str, ...]:
        """The camera of each of the page's fields for further images; "" for an unused field."""
        return (*self.more, *[""] * MORE_IMAGES)[:MORE_IMAGES]


def of(infos: Iterable[PolicyInfo | None]) -> Requirements:
    """Return the requirements of policies; None for a policy that does not respond."""
    available = [info for info in infos if info is not None]
    first = (info.cameras[0] for info in available if info.cameras)
    more = (camera for info in available for camera in info.cameras[1:])
    return Requirements(_unique(first), _unique(more), _unique(part for info in available for part in info.state))


def _unique(values: Iterable) -> tuple:
    return tuple(dict.fromkeys(values))


# --- the state as text: a line for each part, "position (m): -0.2 0 1.18" --------------------------------------------


def format_state(parts: Sequence[Part], text: str | None = "", instruction: str = "") -> str:
    """Return a line for each part: from `text`, else from the example."""
    typed, part_labels = _lines(text), labels(parts)
    return "\n".join(
        f"{label}: {typed[label] if label in typed else _format_values(scenes.state_of(part, instruction))}"
        for part, label in part_labels.items()
    )


def describe_parts(parts: Sequence[Part]) -> str:
    """Return size, unit and convention of each part."""
    return "; ".join(f"{part.name}: {part.size} × {part.unit}, {part.convention}" for part in parts)


def labels(parts: Sequence[Part]) -> dict[Part, str]:
    """Return the label of each part's line, with the convention if names are not unique."""
    short = {part: f"{part.name} ({part.unit})" for part in parts}
    alike = list(short.values())
    return {part: f"{part.name} ({part.unit}, {part.convention})" if alike.count(label) > 1 else label
            for part, label in short.items()}  # fmt: skip


def numbers(text: str | None, required: Sequence[Part], offered: Sequence[Part]) -> np.ndarray | None:
    """Return the state float32 [n] of the parts `required`, parsed from a text with lines for the parts `offered`.

    None if no part is required. Raises StateError with a line for each invalid part.
    """
    if not required:
        return None
    typed, named, errors, values = _lines(text), labels(offered), [], []
    for part in required:
        try:
            values += _numbers(typed, named.get(part) or labels([part])[part], part)
        except StateError as error:
            errors.append(str(error))
    if errors:
        raise StateError("\n".join(errors))
    return np.array(values, np.float32)


def _numbers(typed: dict[str, str], label: str, part: Part) -> list[float]:
    if label not in typed:
        raise StateError(f"The state has no line {label!r}{did_you_mean(label, list(typed))}.")
    tokens = typed[label].replace(",", " ").split()
    try:
        values = [float(word) for word in tokens]
    except ValueError:
        values = []
    if len(values) != part.size or not all(math.isfinite(value) for value in values):
        raise StateError(f"The state's line {label!r} has {typed[label]!r}; expected {part.size} numbers.")
    return values


def _lines(text: str | None) -> dict[str, str]:
    pairs = (line.rpartition(":") for line in (text or "").splitlines() if ":" in line)
    return {label.strip(): values.strip() for label, _, values in pairs}


def _format_values(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)
