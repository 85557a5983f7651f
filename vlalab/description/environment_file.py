"""Variables in compose.yaml and .env as Compose reads them; .env is loaded into the process, below the shell's."""

from __future__ import annotations

import difflib
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path

from dotenv.parser import parse_stream

from vlalab.host.console import LabError, log_info
from vlalab.host.paths import CLONES_VOLUME, ROOT, default_volume, image_names

# Variables with a directory → their values that are not directories.
DIRECTORIES = {"VLALAB_VOLUME": ("",), "VLALAB_STATE": ("",), "VLALAB_LIBERO_ASSETS": ("", "official", "kit")}
EXAMPLE = ROOT / ".env.example"  # documents every variable
NAMING = (EXAMPLE, ROOT / "compose.yaml")
PREFIX = "VLALAB_"
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_NESTED = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"  # defaults may contain variables with defaults
_VARIABLE = re.compile(rf"\$(?:(\$)|({_NAME})|\{{({_NAME})(?:(:?[-+?])({_NESTED}))?\}}|)")


def load() -> None:
    """Set the variables of .env unless they are set, and make directories absolute for programs run elsewhere.

    Report unknown variables of .env. Raise LabError for a removed variable.
    """
    for name in DIRECTORIES.keys() & os.environ.keys():
        if os.environ[name] not in DIRECTORIES[name]:
            os.environ[name] = str(Path(os.environ[name]).expanduser().absolute())
    values = read_dotenv(ROOT / ".env")
    for name, value in values.items():
        is_directory = name in DIRECTORIES and value not in DIRECTORIES[name]
        os.environ.setdefault(name, str(ROOT / Path(value).expanduser()) if is_directory else value)
    if not os.environ.get("VLALAB_VOLUME") and (volume := default_volume()) != CLONES_VOLUME:
        os.environ["VLALAB_VOLUME"] = str(volume)  # the default in compose.yaml is the clone's
    for name, replacement in removed().items():
        if os.environ.get(name):
            raise LabError(f"{name} was removed: {replacement}; unset it")
    texts = (path.read_text(encoding="utf-8") for path in NAMING) if values else ()
    valid = {name for text in texts for name in re.findall(rf"\b{PREFIX}[A-Z0-9_]*[A-Z0-9]\b", text)}
    valid |= {f"{PREFIX}BASE_{name.upper()}" for name in image_names()}
    for name in values:
        if name.upper().startswith(PREFIX) and name not in valid:
            close = difflib.get_close_matches(name.upper(), valid, 1, 0.7)
            hint = f"did you mean {close[0]}?" if close else "see .env.example"
            log_info(f".env: unknown variable {name} has no effect; {hint}")


def documented() -> set[str]:
    """Return the names of the variables with a line in .env.example."""
    return set(re.findall(r"(?m)^#?(\w+)=", EXAMPLE.read_text(encoding="utf-8")))


def removed() -> dict[str, str]:
    """Return removed variable → its replacement, from the end of .env.example."""
    return dict(re.findall(r"(?m)^# (\w+): removed; (.+)$", EXAMPLE.read_text(encoding="utf-8")))


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with $NAME, ${NAME}, ${NAME:-default}, ${NAME-default}, ${NAME:+other} and ${NAME:?error} filled.

    $$ is a dollar sign. Raise LabError for a required variable that is not set, and for other syntax.
    """

    def fill(match: re.Match[str]) -> str:
        dollar, plain, braced, operator, rest = match.groups()
        if dollar or plain:
            return dollar or variables.get(plain, "")
        if not braced:
            raise LabError(
                f"compose.yaml: {text!r} has a '$' without a valid name; expected ${{NAME}} or ${{NAME:-default}}, "
                "or $$ for a dollar sign"
            )
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
