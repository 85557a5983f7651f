"""What policies need beside a picture and a sentence: further cameras' pictures, and the robot's state as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from services.ui.ask import moments
from services.ui.ask.link import MAX_IMAGES
from vla_contract import Part, PolicyInfo
from vla_contract.protocol.errors import did_you_mean

MORE_IMAGES = MAX_IMAGES - 1  # the page has fields for so many beside the first


class StateError(ValueError):
    """The state as it was typed is not what the policy needs; the text says what is."""


@dataclass(frozen=True)
class Needs:
    """What the policies that are chosen need together, each thing once.

    first   the names of the camera that each has first: the page's one picture is every policy's first
    more    further cameras, in the order of the page's fields for them
    state   the parts of their states
    """

    first: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    state: tuple[Part, ...] = ()

    @property
    def offered(self) -> tuple[str, ...]:
        """For each of the page's fields for further pictures, whose it is; empty: nobody's."""
        return (*self.more, *[""] * MORE_IMAGES)[:MORE_IMAGES]


def of(infos: Iterable[PolicyInfo | None]) -> Needs:
    """Return what those policies need; None is one that does not answer."""
    known = [info for info in infos if info is not None]
    first = (info.cameras[0] for info in known if info.cameras)
    more = (camera for info in known for camera in info.cameras[1:])
    return Needs(_once(first), _once(more), _once(part for info in known for part in info.state))


def _once(values: Iterable) -> tuple:
    return tuple(dict.fromkeys(values))


# --- the state as text: a line for each part, "position (m): -0.2 0 1.18" --------------------------------------------


def filled_in(parts: Sequence[Part], text: str | None = "", instruction: str = "") -> str:
    """Return the lines of those parts: as `text` has them, else as an example's moment has them."""
    typed, named = _lines(text), labels(parts)
    return "\n".join(
        f"{label}: {typed[label] if label in typed else _spelled(moments.state_of(part, instruction))}"
        for part, label in named.items()
    )


def explained(parts: Sequence[Part]) -> str:
    """Return what the numbers of those parts are."""
    return "; ".join(f"{part.name}: {part.size} × {part.unit}, {part.convention}" for part in parts)


def labels(parts: Sequence[Part]) -> dict[Part, str]:
    """Return what each part's line begins with; of two that are called alike it tells the convention, too."""
    short = {part: f"{part.name} ({part.unit})" for part in parts}
    alike = list(short.values())
    return {part: f"{part.name} ({part.unit}, {part.convention})" if alike.count(label) > 1 else label
            for part, label in short.items()}  # fmt: skip


def numbers(text: str | None, asked: Sequence[Part], offered: Sequence[Part]) -> np.ndarray | None:
    """Return the state float32 [n] of a policy with the parts `asked`, of a text with lines for those `offered`.

    None where it needs none. Raises StateError with a sentence for each part that is wrong, each on a line.
    """
    if not asked:
        return None
    typed, named, wrong, found = _lines(text), labels(offered), [], []
    for part in asked:
        try:
            found += _numbers(typed, named.get(part) or labels([part])[part], part)
        except StateError as error:
            wrong.append(str(error))
    if wrong:
        raise StateError("\n".join(wrong))
    return np.array(found, np.float32)


def _numbers(typed: dict[str, str], label: str, part: Part) -> list[float]:
    if label not in typed:
        raise StateError(f"The state has no line {label!r}{did_you_mean(label, list(typed))}.")
    words = typed[label].replace(",", " ").split()
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if len(values) != part.size or not all(math.isfinite(value) for value in values):
        raise StateError(f"The state's line {label!r} has {typed[label]!r}; expected {part.size} numbers.")
    return values


def _lines(text: str | None) -> dict[str, str]:
    pairs = (line.rpartition(":") for line in (text or "").splitlines() if ":" in line)
    return {label.strip(): values.strip() for label, _, values in pairs}


def _spelled(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)
