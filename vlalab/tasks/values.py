"""The values that flags accept: their name in the help, and how typed text is parsed.

`read(label, text)` returns the value, or raises LabError with the value, what was expected and the next step. The label
is the flag as typed, or the name of the positional argument.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlalab.host import paths
from vlalab.host.console import LabError, check_choices, unknown
from vlalab.host.shared_code import Interval


def read_text(label: str, text: str) -> str:
    """Return the text. Raise LabError for an empty one."""
    if not text.strip():
        raise LabError(f"{label} must not be empty")
    return text


@dataclass(frozen=True)
class Values:
    """The values of a flag."""

    metavar: str = "TEXT"
    read: Callable[[str, str], object] = read_text
    choices: Sequence[str] = ()  # for completion, and for help without a summary
    is_list: bool = False  # separated by commas, and the flag may be typed more than once


def number(within: str = "(-inf, inf)", kind: type[float] = int, metavar: str = "N") -> Values:
    """Return the numbers of an interval such as "[1, inf)"."""

    def read(label: str, text: str) -> float:
        try:
            return Interval(within).read(label, text, kind)
        except ValueError as error:
            raise LabError(str(error)) from None

    return Values(metavar, read)


def choice(choices: Sequence[str], aliases: Mapping[str, str] | None = None, metavar: str = "WHICH") -> Values:
    """Return the values of a fixed set. aliases: other names → the value to suggest."""

    def read(label: str, text: str) -> str:
        check_choices(label, [text], choices, aliases or {})
        return text

    return Values(metavar, read, choices)


def matching(pattern: str, expected: str, metavar: str = "TEXT", keywords: Sequence[str] = ()) -> Values:
    """Return texts that match a pattern, which `expected` describes, or a keyword; a close keyword is suggested."""

    def read(label: str, text: str) -> str:
        if text in keywords or re.fullmatch(pattern, text):
            return text
        close = difflib.get_close_matches(text, keywords, 1, 0.5)
        hint = f"did you mean '{close[0]}'? Expected" if close else "expected"
        raise LabError(f"invalid {label} '{text}'; {hint} {expected}")

    return Values(metavar, read, keywords)


def existing(keywords: Sequence[str] = (), directory: str = "", metavar: str = "PATH", pattern: str = "") -> Values:
    """Return a keyword, something that exists (a path, or a name in a directory of the volume), or a matching text."""

    def read(label: str, text: str) -> str:
        path = Path(text).expanduser()
        if text in keywords or (text and directory and (paths.volume() / directory / text).exists()):
            return text
        if text and path.exists():
            return str(path.absolute())
        if pattern and re.fullmatch(pattern, text):
            return text
        if keywords and "/" not in text:
            raise LabError(unknown(label, text, keywords) + f", or {metavar}")
        elsewhere = f" here or in {paths.display_path(paths.volume() / directory)}" if directory else ""
        repository = " or a repository (OWNER/NAME)" if pattern else ""
        raise LabError(f"{label} '{text}' not found{elsewhere}; expected an existing path{repository}")

    return Values(metavar, read, keywords)


def ranges(count: int | None = None, names: bool = False, metavar: str = "0,2-4") -> Values:
    """Return non-negative integers and ranges of them, below `count`. names: accept names and instructions too."""

    def read(label: str, text: str) -> str:
        if names and re.fullmatch(r"[A-Za-z]([\w '-]*\w)?\.?", text):
            return text
        match = re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", text)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise LabError(f"{label} '{text}' is not a number or a range; expected for example 0,2-4")
        if count is not None and int(match[2] or match[1]) >= count:
            raise LabError(f"{label} '{text}' does not exist; expected 0 to {count - 1}")
        return text

    return Values(metavar, read, is_list=True)
