"""Variables as Compose fills them in: those of compose.yaml, and those of .env."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from pathlib import Path

from dotenv.parser import Binding, parse_stream

from vlalab.host.console import LabError

_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_NESTED = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"  # a default may hold variables, whose defaults may again
_VARIABLE = re.compile(rf"\$(?:(\$)|({_NAME})|\{{({_NAME})(?:(:?[-+?])({_NESTED}))?\}}|)")


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with $NAME, ${NAME}, ${NAME:-default}, ${NAME-default}, ${NAME:+other} and ${NAME:?error} filled.

    $$ is a dollar sign. Raises LabError for a required variable that is not set, and for another form.
    """

    def fill(found: re.Match[str]) -> str:
        dollar, plain, braced, operator, rest = found.groups()
        if dollar or plain:
            return dollar or variables.get(plain, "")
        if not braced:
            raise LabError(f"compose.yaml: {_why_malformed(text, found.end())}")
        value = variables.get(braced)
        present = bool(value) if operator and operator.startswith(":") else value is not None
        if operator and operator.endswith("+"):
            return interpolate(rest, variables) if present else ""
        if not operator or present:
            return value or ""
        default = interpolate(rest, variables)
        if operator.endswith("?"):
            raise LabError(f"compose.yaml needs the variable {braced}: {default or 'it is not set'}")
        return default

    return _VARIABLE.sub(fill, text)


def _why_malformed(text: str, position: int) -> str:
    if not text.startswith("{", position):
        return f"{text!r} has a '$' that begins no variable; write '$$' for a dollar sign"
    if "}" not in text[position:]:
        return f"{text!r} has a '${{' without its '}}'"
    return f"{text!r} has a '${{…}}' that is no variable; expected ${{NAME}} or ${{NAME:-default}}"


# --- .env ---------------------------------------------------------------------------------------------------


def read_dotenv(path: Path) -> dict[str, str]:
    """Return the variables of a .env file as Compose reads them; empty when there is none.

    python-dotenv parses the lines (quotes, comments, several lines); variables in values are filled in as Compose
    does, from the process and the lines above, but in single quotes. Raises LabError for a line that is not NAME=value.
    """
    found: dict[str, str] = {}
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise LabError(f"{path} is not UTF-8 text (line {line}); save it as UTF-8") from None
    for binding in parse_stream(io.StringIO(text)):
        where = f"{path}, line {binding.original.line}"
        if binding.error:
            # The line itself is not repeated: it may hold a token, and this text goes into `./lab support`.
            raise LabError(f"{where} is not a variable; expected NAME=value, quotes closed at the end")
        if binding.key is not None and binding.value is not None:
            try:
                found[binding.key] = _expanded(binding, {**found, **os.environ})
            except LabError as error:
                raise LabError(f"{where}: {str(error).removeprefix('compose.yaml: ')}") from None
    return found


def _expanded(binding: Binding, known: Mapping[str, str]) -> str:
    raw, value = binding.original.string.partition("=")[2].lstrip(), binding.value or ""
    if raw.startswith("'"):
        return value
    if raw.startswith('"'):
        value = value.replace(r"\$", "$$")
    return interpolate(re.sub(r"\$\$|\$(?![A-Za-z_{])", "$$", value), known)  # a "$" before no name is itself
