"""What a flag takes: how help names it, and what is read from the text that was typed.

`read(label, text)` returns the value, or raises LabError in one sentence: the value, what was expected, the next step.
The label is the flag as it is typed, or the name of a plain word.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from vlalab.description import runs
from vlalab.host import paths
from vlalab.host.borrowed import Interval
from vlalab.host.console import LabError, require_known, unknown


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
    """A number of an interval such as "[1, inf)"."""

    within: str = "(-inf, inf)"
    kind: type[float] = int
    shown: str = "N"

    def read(self, label: str, text: str) -> float:
        """Returns the number."""
        try:
            return Interval(self.within).read(label, text, self.kind)
        except ValueError as error:
            raise LabError(str(error)) from None


@dataclass(frozen=True)
class OneOf:
    """One of a few words."""

    known: Sequence[str]
    shown: str = "WHICH"
    aliases: Mapping[str, str] = field(default_factory=dict)

    def read(self, label: str, text: str) -> str:
        """Returns the word."""
        require_known(label, [text], self.known, self.aliases)
        return text


@dataclass(frozen=True)
class Like:
    """A text of a certain form; `expected` says it in words. A word that it nearly is, is offered."""

    pattern: str
    expected: str
    shown: str = "TEXT"
    known: Sequence[str] = ()

    def read(self, label: str, text: str) -> str:
        """Returns the text."""
        if text in self.known or re.fullmatch(self.pattern, text):
            return text
        close = difflib.get_close_matches(text, self.known, 1, 0.5)
        hint = f"did you mean '{close[0]}'? Expected" if close else "expected"
        raise LabError(f"{label} '{text}' makes no sense; {hint} {self.expected}")


@dataclass(frozen=True)
class OneRun:
    """A run on the volume: its name, the beginning of it, latest, or its folder."""

    shown: str = "RUN"

    def read(self, label: str, text: str) -> str:
        """Returns the whole name, or the folder's absolute path."""
        if "," in text and not Path(text).exists():  # plain words after a task arrive joined
            raise LabError(f"{label} is one run; expected one name, {text.count(',') + 1} were given: {text}")
        return runs.run(label, Text(self.shown).read(label, text))


@dataclass(frozen=True)
class Existing:
    """A keyword, or something that exists: a path, or a name below a folder of the volume."""

    known: tuple[str, ...] = ()
    folder: str = ""
    shown: str = "PATH"

    def read(self, label: str, text: str) -> str:
        """Returns the path, absolute, or what was typed."""
        path = Path(text).expanduser()
        if text in self.known or (text and self.folder and (paths.volume() / self.folder / text).exists()):
            return text
        if text and path.exists():
            return str(path.absolute())
        elsewhere = f", neither here nor in {paths.shown(paths.volume() / self.folder)}" if self.folder else ""
        if self.known and "/" not in text:
            raise LabError(unknown(label, text, self.known) + f", or {self.shown}")
        raise LabError(f"{label} '{text}' is not there{elsewhere}; expected a path that exists")


@dataclass(frozen=True)
class NewFile:
    """A file to write, of one of these endings; the folder around it exists. A file that is there is replaced."""

    endings: tuple[str, ...]
    shown: str = "FILE"

    def read(self, label: str, text: str) -> Path:
        """Returns the absolute path."""
        path = Path(text).expanduser().absolute()
        if path.suffix.lower() not in self.endings:
            raise LabError(f"{label} '{text}' is no {self.endings[0]} file; expected a name that ends so")
        if path.is_dir():
            raise LabError(
                f"{label} '{text}' is a folder; expected a file in it, as {path / 'leaderboard'}{path.suffix}"
            )
        if not path.parent.is_dir():
            raise LabError(f"{label} '{text}': there is no folder {path.parent}; make it, or choose another place")
        return path


@dataclass(frozen=True)
class Several:
    """A list, separated by commas or spaces. `joined`: it arrives as one text, for a program that takes it so."""

    of: Values = Text()
    shown: str = "A,B"
    joined: bool = False

    def read(self, label: str, text: str) -> list | str:
        """Returns the parts."""
        parts = [self.of.read(label, part) for part in split(text)]
        if not parts and self.joined:
            raise LabError(f"{label} is empty; expected {self.shown}")
        return ",".join(map(str, parts)) if self.joined else parts


@dataclass(frozen=True)
class Ranges:
    """Whole numbers from 0, as in 0,2-4; below `count`. `names`: a part may be a name or an instruction instead."""

    count: int | None = None
    names: bool = False
    shown: str = "0,2-4"

    def read(self, label: str, text: str) -> str:
        """Returns the text, without blanks."""
        parts = [part.strip() for part in text.split(",")]
        for part in parts:
            self._check(label, part)
        return ",".join(parts)

    def _check(self, label: str, part: str) -> None:
        if self.names and re.fullmatch(r"[A-Za-z]([\w '-]*\w)?\.?", part):
            return
        found = re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", part)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise LabError(f"{label} '{part}' is no number and no range; expected something like 0,2-4")
        if self.count is not None and int(found[2] or found[1]) >= self.count:
            raise LabError(f"{label} '{part}' is beyond the last one; expected 0 to {self.count - 1}")


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
