"""The parts of an exercise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bilingual:
    """A text in English and Korean; technical terms stay English."""

    en: str
    ko: str


@dataclass(frozen=True)
class Mistake:
    """A common mistake: (old, new) replacements in the lesson's code, and advice for the student."""

    name: str
    edits: tuple[tuple[str, str], ...]
    advice: Bilingual


def mistake(name: str, *edits: tuple[str, str], en: str, ko: str) -> Mistake:
    """Return a mistake with its advice in English and Korean."""
    return Mistake(name, edits, Bilingual(en, ko))


@dataclass(frozen=True)
class FunctionCall:
    """Arguments for one call of the code.

    module: the arguments of a module class, whose instance is then called, in train mode if `train`.
    hint: replaces the exercise's hint if the result of this call differs.
    """

    label: str
    args: tuple[Any, ...]
    module: tuple[Any, ...] | None = None
    train: bool = False
    hint: Bilingual | None = None


@dataclass(frozen=True)
class Exercise:
    """A function or class of a lesson to write, or to fix if `bug` names the mistake in it.

    calls: built on demand, because importing torch takes seconds. Sizes and constants differ between and within calls;
    otherwise a wrong solution passes.
    learned: arguments whose gradients are compared too. If there are any, so are those of a module's parameters.
    """

    name: str
    target: str  # name that the student's file defines
    calls: Callable[[], list[FunctionCall]]
    mistakes: tuple[Mistake, ...]
    text: Bilingual
    hint: Bilingual
    bug: str = ""
    learned: tuple[str, ...] = ()

    @property
    def lesson(self) -> str:
        return self.name.partition(".")[0]

    def mistake(self, name: str) -> Mistake:
        return next(mistake for mistake in self.mistakes if mistake.name == name)
