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
    """Arguments that the code is called with.

    module: the arguments of a module class, whose instance is then called, in train mode if `train`.
    hint: for a result that differs in this call, instead of the exercise's hint.
    """

    shown: str
    args: tuple[Any, ...]
    module: tuple[Any, ...] | None = None
    train: bool = False
    hint: Both | None = None


@dataclass(frozen=True)
class Exercise:
    """A function or class of a lesson to be written, or with `bug` to be mended: it names the slip that is in it.

    calls: made when they are needed, since they need torch, which takes seconds to import. Sizes, constants and cases
    differ from call to call and, where they can, within a call: otherwise a wrong solution passes.
    learned: the parameters whose gradients must be the lesson's; a module's own always are, if any is named.
    """

    name: str
    target: str  # what the student's file defines
    text: Both
    hint: Both
    calls: Callable[[], list[Call]]
    slips: tuple[Slip, ...]
    bug: str = ""
    learned: tuple[str, ...] = ()

    @property
    def lesson(self) -> str:
        """The lesson that it is made of."""
        return self.name.partition(".")[0]

    def slip(self, name: str) -> Slip:
        """Returns the slip of that name."""
        return next(slip for slip in self.slips if slip.name == name)
