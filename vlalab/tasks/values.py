"""What a flag takes: how help names it, and what is read from the text that was typed.

`read(label, text)` returns the value, or raises LabError in one sentence: the value, what was expected, the next step.
The label is the flag as it is typed, or the name of a plain word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vlalab import programs
from vlalab.console import LabError, unknown


class Values(Protocol):
    """What every kind of value offers."""

    shown: str

    def read(self, label: str, text: str) -> object: ...


@dataclass(frozen=True)
class Text:
    """Any text but none at all."""

    shown: str = "TEXT"

    def read(self, label: str, text: str) -> str:
        """Returns the text as it is."""
        if not text.strip():
            raise LabError(f"{label} is empty; expected {self.shown}")
        return text


@dataclass(frozen=True)
class Number:
    """A number from `least` to `most`, both included; whole ones are int."""

    least: float | None = None
    most: float | None = None
    whole: bool = True
    shown: str = "N"

    def read(self, label: str, text: str) -> float:
        """Returns the number."""
        kind = int if self.whole else float
        try:
            value = kind(text)
        except ValueError as error:
            raise LabError(f"{label} '{text}' is no {'whole ' * self.whole}number; expected {self.bounds}") from error
        below, above = self.least is not None and value < self.least, self.most is not None and value > self.most
        if below or above or not math.isfinite(value):
            raise LabError(f"{label} {text} makes no sense; expected {self.bounds}")
        return value

    @property
    def bounds(self) -> str:
        """What is expected, in words."""
        if self.least is None:
            return "one, as in 7"
        return f"{self.least:g} or more" if self.most is None else f"{self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class OneOf:
    """One of a few words."""

    known: Sequence[str]
    shown: str = "WHICH"

    def read(self, label: str, text: str) -> str:
        """Returns the word."""
        if text not in self.known:
            raise LabError(unknown(label, text, self.known))
        return text


@dataclass(frozen=True)
class PathOr:
    """A path, made absolute since programs run in the repository; a keyword, or a name that is no path, stays."""

    keywords: tuple[str, ...] = ()
    shown: str = "PATH"

    def read(self, label: str, text: str) -> str:
        """Returns the path or the keyword."""
        return programs.absolute_if_path(Text(self.shown).read(label, text), self.keywords) or ""


@dataclass(frozen=True)
class Several:
    """A list, separated by commas or spaces."""

    of: Values = Text()
    shown: str = "A,B"

    def read(self, label: str, text: str) -> list:
        """Returns the parts."""
        return [self.of.read(label, part) for part in split(text)]


@dataclass(frozen=True)
class Checked:
    """A text that `check(label, text)` reads."""

    check: Callable[[str, str], object]
    shown: str = "TEXT"

    def read(self, label: str, text: str) -> object:
        """Returns what the check returns."""
        return self.check(label, Text(self.shown).read(label, text))


def split(words: str) -> list[str]:
    """Returns the parts of a list that is separated by commas or spaces."""
    return [word for word in words.replace(" ", ",").split(",") if word]
