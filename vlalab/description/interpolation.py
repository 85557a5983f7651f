"""Variables in compose.yaml and .env, interpolated as Compose does."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from pathlib import Path

from dotenv.parser import parse_stream

from vlalab.host.console import LabError

_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_NESTED = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"  # defaults may contain variables with defaults
_VARIABLE = re.compile(rf"\$(?:(\$)|({_NAME})|\{{({_NAME})(?:(:?[-+?])({_NESTED}))?\}}|)")


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with $NAME, ${NAME}, ${NAME:-default}, ${NAME-default}, ${NAME:+other} and ${NAME:?error} filled.

    $$ is a dollar sign. Raise LabError for a required variable that is not set, and for other syntax.
    """

    def fill(match: re.Match[str]) -> str:
        dollar, plain, braced, operator, rest = match.groups()
        if dollar or plain:
            return dollar or variables.get(plain, "")
        if not braced:
            reason = "has a '${' without '}', or an invalid name in it"
            reason = (
                reason
                if text.startswith("{", match.end())
                else "has a '$' without a name; write '$$' for a dollar sign"
            )
            raise LabError(f"compose.yaml: {text!r} {reason}; expected ${{NAME}} or ${{NAME:-default}}")
        value = variables.get(braced)
        present = bool(value) if operator and operator.startswith(":") else value is not None
        if operator and operator.endswith("+"):
            return interpolate(rest, variables) if present else ""
        if not operator or present:
            return value or ""
        default = interpolate(rest, variables)
        if operator.endswith("?"):
            raise LabError(f"compose.yaml requires the variable {braced}: {default or 'it is not set'}")
        return default

    return _VARIABLE.sub(fill, text)


def read_dotenv(path: Path) -> dict[str, str]:
    """Return the variables of a .env file as Compose reads them; empty if there is no file.

    python-dotenv parses the lines (quotes, comments, multi-line values). Values without single quotes are interpolated
    from the process and the lines above, as Compose does. Raise LabError for a line that is not NAME=value.
    """
    values: dict[str, str] = {}
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise LabError(f"{path} is not UTF-8 text (line {line}); save it as UTF-8") from None
    for binding in parse_stream(io.StringIO(text)):
        location = f"{path}, line {binding.original.line}"
        if binding.error:
            # Without the line itself: it may contain a token, and messages go into `./lab support`.
            raise LabError(f"{location} is not a variable; expected NAME=value, with closed quotes")
        if binding.key is None or binding.value is None:
            continue
        raw, value = binding.original.string.partition("=")[2].lstrip(), binding.value
        if not raw.startswith("'"):
            value = value.replace(r"\$", "$$") if raw.startswith('"') else value
            value = re.sub(r"\$\$|\$(?![A-Za-z_{])", "$$", value)  # a "$" without a name is literal
            try:
                value = interpolate(value, {**values, **os.environ})
            except LabError as error:
                raise LabError(f"{location}: {str(error).removeprefix('compose.yaml: ')}") from None
        values[binding.key] = value
    return values
