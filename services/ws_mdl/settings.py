"""What the settings of every lab have in common: which values they may have, and where a run's files lie.

Numbers are held to intervals, "[0, 1)" holding 0 and not 1. Each config.py names them in its constant ALLOWED, literals
only: `./lab train --set` reads that without running it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from vla_common.volume import Volume, make_own_folder


class RunSettings:
    """Base of a lab's `Config`, a dataclass with `name` and `preload`.

    LAB: its name. FIXED: what a run's weights depend on, so that a run that goes on must not differ in it.
    """

    LAB = ""
    FIXED: tuple[str, ...] = ()

    def check(self, allowed: Mapping[str, str]) -> None:
        """Raises ValueError for a number outside its interval, and for a name or a `preload` that cannot be."""
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(f"name {self.name!r} cannot name a folder; use letters, digits, '-', '_' and '.'")
        check(vars(self), allowed)
        if self.preload not in ("latest", "none") and not self.preload.isdecimal():
            raise ValueError(f"preload {self.preload!r} is not known; expected latest, none, or an epoch such as 7")

    @classmethod
    def of(cls, stored: Mapping[str, Any]):
        """Returns the configuration that a weights file holds; settings of other versions are left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in known})

    def stored(self) -> dict[str, Any]:
        """Returns the configuration as plain values for a weights file."""
        return asdict(self)

    def refuse_drift(self, stored: Mapping[str, Any], path: Path) -> None:
        """Raises ValueError naming both sides where a run would go on under other settings than it began with."""
        ours = self.stored()
        differ = [name for name in self.FIXED if stored.get(name) != ours[name]]
        if differ:
            theirs, asked = (", ".join(f"{name} {side.get(name)}" for name in differ) for side in (stored, ours))
            raise ValueError(
                f"{path} was trained with {theirs}; asked for is {asked}; give another --name to start anew"
            )

    @classmethod
    def runs_folder(cls, volume: Volume) -> Path:
        """Returns where the lab's runs keep their weights."""
        return volume.path("checkpoints") / cls.LAB

    def run_folder(self, volume: Volume) -> Path:
        """Returns this run's folder, made if needed."""
        return make_own_folder(self.runs_folder(volume) / self.name)

    def tensorboard_folder(self, volume: Volume) -> Path:
        """Returns where this run's curves go: `./lab up tensorboard` shows all that lies under logs/tensorboard."""
        return make_own_folder(volume.path("logs") / "tensorboard" / self.LAB / self.name)


def holds(interval: str, value: float) -> bool:
    """Returns whether a number lies in an interval."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = value > low or (interval[0] == "[" and value == low)
    return above and (value < high or (interval[-1] == "]" and value == high))


def in_words(interval: str) -> str:
    """Returns an interval as a message says it: "[1, inf)" is "at least 1"."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    least = f"at least {low:g}" if interval[0] == "[" else f"above {low:g}"
    most = "" if high == float("inf") else f"at most {high:g}" if interval[-1] == "]" else f"below {high:g}"
    return " and ".join(text for text in (least, most) if text)


def check(values: Mapping[str, float], allowed: Mapping[str, str]) -> None:
    """Raises ValueError for the first of these values that lies outside its interval; None is no value."""
    for name, interval in allowed.items():
        if values[name] is not None and not holds(interval, values[name]):
            raise ValueError(f"{name} is {values[name]}; expected {in_words(interval)}")
