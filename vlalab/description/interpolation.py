"""Variables as Compose fills them in: those of compose.yaml, and those of .env."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from pathlib import Path

from dotenv.parser import Binding, parse_stream

from vlalab.host.console import LabError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Returns `text` with $NAME, ${NAME}, ${NAME:-default}, ${NAME-default}, ${NAME:+other} and ${NAME:?error} filled.

    Defaults may hold variables themselves; $$ is a dollar sign.
    """
    filled, position = [], 0
    while (found := text.find("$", position)) >= 0:
        filled.append(text[position:found])
        value, position = _variable(text, found + 1, variables)
        filled.append(value)
    return "".join([*filled, text[position:]])


def _variable(text: str, start: int, variables: Mapping[str, str]) -> tuple[str, int]:
    """Returns the value of the variable written at `start` (behind its dollar sign) and where the text goes on."""
    if text.startswith("$", start):
        return "$", start + 1
    if text.startswith("{", start):
        end = _closing_brace(text, start)
        return _expression(text[start + 1 : end], variables), end + 1
    name = _NAME.match(text, start)
    if not name:
        raise LabError(f"compose.yaml: {text!r} has a '$' that begins no variable; write '$$' for a dollar sign")
    return variables.get(name[0], ""), name.end()


def _closing_brace(text: str, start: int) -> int:
    depth = 0
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
    raise LabError(f"compose.yaml: {text!r} has a '${{' without its '}}'")


def _expression(text: str, variables: Mapping[str, str]) -> str:
    name = _NAME.match(text)
    operator = re.match(r":?[-+?]|$", text[name.end() :]) if name else None
    if not name or not operator:
        raise LabError(f"compose.yaml: '${{{text}}}' is no variable; expected ${{NAME}} or ${{NAME:-default}}")
    value, rest = variables.get(name[0]), text[name.end() + operator.end() :]
    present = bool(value) if operator[0].startswith(":") else value is not None
    kind = operator[0][-1:]
    if kind == "-":
        return value or "" if present else interpolate(rest, variables)
    if kind == "+":
        return interpolate(rest, variables) if present else ""
    if kind == "?" and not present:
        raise LabError(f"compose.yaml needs the variable {name[0]}: {interpolate(rest, variables) or 'it is not set'}")
    return value or ""


# --- .env ---------------------------------------------------------------------------------------------------


def read_dotenv(path: Path) -> dict[str, str]:
    """Returns the variables of a .env file as Compose reads them; empty when there is none.

    python-dotenv takes the lines apart (quotes, comments, several lines); what stands for a variable is filled in as
    Compose does, from the process and the lines above, but in single quotes. Raises LabError for what is no NAME=value.
    """
    found: dict[str, str] = {}
    with io.StringIO(_text(path)) as file:
        for binding in parse_stream(file):
            if binding.error:
                # The line itself is not repeated: it may hold a token, and this text goes into `./lab support`.
                where = f"{path}, line {binding.original.line}"
                raise LabError(f"{where} is not a variable; expected NAME=value, quotes closed at the end")
            if binding.key is not None and binding.value is not None:
                found[binding.key] = _expanded(binding, {**found, **os.environ}, path)
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise LabError(f"{path} is not UTF-8 text (line {line}); save it as UTF-8") from None


def _expanded(binding: Binding, known: Mapping[str, str], path: Path) -> str:
    raw, value = binding.original.string.partition("=")[2].lstrip(), binding.value or ""
    if raw.startswith("'"):
        return value
    if raw.startswith('"'):
        value = value.replace(r"\$", "$$")
    value = re.sub(r"\$\$|\$(?![A-Za-z_{])", "$$", value)  # a dollar sign that begins no name is one
    try:
        return interpolate(value, known)
    except LabError as error:
        raise LabError(f"{path}, line {binding.original.line}: {str(error).removeprefix('compose.yaml: ')}") from None
