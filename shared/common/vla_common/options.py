"""A program's options, declared once: a dataclass whose fields have a help text and a range of values.

Two command lines are made from such a class: the program's own (tyro) and `./lab TASK`, which adds checks, suggestions
and completion. `./lab` imports the class without the program's packages, so a module that defines one imports the
standard library and other such modules only.

    @dataclass(frozen=True)
    class Export(Options):
        dtype: Literal["fp32", "fp16"] = option("fp32", "number format of the modules")
        steps: int = option(20, "denoising steps", within="[1, 500]")
"""

from __future__ import annotations

import math
import re
import types
import typing
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Any, Literal


def option(default: Any = MISSING, help: str = MISSING, within: str = MISSING, **more: Any) -> Any:  # type: ignore[assignment]
    """Return a dataclass field with its option. `within` and `more` are fields of `Option`.

    A subclass that declares the field again changes what it names here and inherits the rest.
    """
    stated = {"summary": help, "within": within, **more}
    return _field(default, {name: value for name, value in stated.items() if value is not MISSING})


def _field(default: Any, stated: dict[str, Any]) -> Any:
    """Return a field; tyro reads `help` of its metadata."""
    help = "; default: ".join(text for text in (stated.get("summary"), stated.get("default_help")) if text)
    return field(default=default, metadata={**stated, "help": help})


def device_option() -> Any:
    """Return the field of the device that a program computes on."""
    return option("auto", "auto, cpu, cuda, cuda:1 or mps", kind="device")


@dataclass(frozen=True)
class Option:
    """A field's declaration for a command line."""

    name: str  # of the field: max_steps
    type: Any  # str, int, float, bool or Path
    choices: tuple[object, ...]  # of a Literal, else none
    default: Any  # MISSING: required
    summary: str = ""  # its help
    within: str = ""  # the interval of a number: "[0, 1)" contains 0 and not 1
    negated: str = ""  # help of --no-NAME, for a switch that is on
    default_help: str = ""  # help for the default, if the value does not explain itself
    metavar: str = ""  # the name of its value in a help
    kind: str = ""  # a check of ./lab: KINDS in vlalab/tasks/flags.py
    keywords: tuple[str, ...] = ()  # further accepted values
    pattern: str = ""  # a regular expression that the value must match
    expected: str = ""  # the pattern as text
    optional_value: bool = False  # the flag may stand alone
    # In the help of ./lab. word: a plain word after the task; internal: not a flag of it.
    group: Literal["word", "common", "advanced", "internal"] = "common"

    @property
    def flag(self) -> str:
        """The flag's name: max-steps; a name like a Python keyword ends with "_"."""
        return self.name.rstrip("_").replace("_", "-")


class Options:
    """Base of a dataclass whose fields are a program's options."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Inherit the metadata of fields that a subclass redeclares, often with another default."""
        super().__init_subclass__(**kwargs)
        inherited: dict[str, Field[Any]] = {}
        for base in reversed(cls.__mro__[1:]):
            inherited |= vars(base).get("__dataclass_fields__", {})
        for name in vars(cls).get("__annotations__", {}):
            if name in inherited and name in vars(cls):
                redeclared = vars(cls)[name]
                is_field = isinstance(redeclared, Field)
                default, stated = (redeclared.default, redeclared.metadata) if is_field else (redeclared, {})
                setattr(cls, name, _field(default, {**inherited[name].metadata, **stated}))

    def check_options(self) -> None:
        """Raise ValueError for the first value outside its interval or choices; None is skipped."""
        kind: Any = type(self)  # mypy does not accept a class as hashable
        for opt in options(kind).values():
            value = getattr(self, opt.name)
            if value is None:
                continue
            if opt.choices and value not in opt.choices:
                raise ValueError(f"{opt.name} {value!r} not found; expected {', '.join(map(str, opt.choices))}")
            if opt.within and value not in Interval(opt.within):
                raise ValueError(f"{opt.name} is {value}; expected {Interval(opt.within).description}")


@cache
def options(kind: type) -> dict[str, Option]:
    """Return the options of a dataclass, by field."""
    hints = typing.get_type_hints(kind)
    by_name = {}
    for member in fields(kind):
        hint = hints[member.name]
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            hint = next(part for part in typing.get_args(hint) if part is not type(None))
        choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
        stated = {name: value for name, value in member.metadata.items() if name != "help"}
        by_name[member.name] = Option(
            member.name, type(choices[0]) if choices else hint, choices, member.default, **stated
        )
    return by_name


@dataclass(frozen=True)
class Interval:
    """An interval of numbers as mathematics writes it: "[0, 1)" contains 0 and not 1."""

    text: str = "(-inf, inf)"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\[(][^,]+, [^,]+[\])]", self.text):
            raise ValueError(f"interval {self.text!r}; expected for example '[0, 1)'")

    @property
    def ends(self) -> tuple[float, float]:
        """Its lower and its upper end."""
        low, high = self.text[1:-1].split(", ")
        return float(low), float(high)

    def __contains__(self, value: float) -> bool:
        low, high = self.ends
        above = value > low or (self.text[0] == "[" and value == low)
        below = value < high or (self.text[-1] == "]" and value == high)
        return math.isfinite(value) and above and below

    @property
    def description(self) -> str:
        """The interval as text: "1 to 50", "0 or more"."""
        low, high = self.text[1:-1].split(", ")
        if self.text[0] + self.text[-1] == "[]":
            return f"{low} to {high}"
        lower = "" if low == "-inf" else f"{low} or more" if self.text[0] == "[" else f"more than {low}"
        upper = "" if high == "inf" else f"at most {high}" if self.text[-1] == "]" else f"less than {high}"
        return ", ".join(text for text in (lower, upper) if text) or "a number such as 7"

    def read(self, label: str, text: str, kind: type[float]) -> float:
        """Return the number in a text. Raises ValueError for anything else, and for a number outside the interval."""
        try:
            value = kind(text)
        except ValueError:
            noun = "an integer" if kind is int else "a number"
            raise ValueError(f"{label} '{text}' is not {noun}; expected {self.description}") from None
        if value not in self:
            raise ValueError(f"{label} {text} is out of range; expected {self.description}")
        return value
