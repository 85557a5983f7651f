"""What an exercise is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Both:
    """The same text in English and Korean; terms of the field stay English."""

    en: str
    ko: str


@dataclass(frozen=True)
class Slip:
    """A mistake that circulates: the lesson's code with some of it replaced, and what is said to who makes it."""

    name: str
    says: Both
    edits: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Call:
    """One way to try the code. use: called with the function or class and the arguments; default: just calls it."""

    shown: str
    args: tuple[Any, ...]
    use: Callable[..., Any] = lambda code, *args: code(*args)


@dataclass(frozen=True)
class Exercise:
    """A function or class of a lesson to be written, or with `bug` to be mended: it names the slip that is in it.

    calls: made when they are needed, since they need torch, which takes seconds to import.
    """

    name: str
    target: str  # what the student's file defines
    text: Both
    hint: Both
    calls: Callable[[], list[Call]]
    slips: tuple[Slip, ...]
    bug: str = ""

    @property
    def lesson(self) -> str:
        """The lesson that it is made of."""
        return self.name.partition(".")[0]

    def slip(self, name: str) -> Slip:
        """Returns the slip of that name."""
        return next(slip for slip in self.slips if slip.name == name)
