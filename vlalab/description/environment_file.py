"""Load the repository's .env into the process; variables of the shell take precedence."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from vlalab.description.compose import FILE
from vlalab.description.interpolation import read_dotenv
from vlalab.host.console import LabError, log_info
from vlalab.host.paths import CLONES_VOLUME, ROOT, default_volume, image_names

# Variables with a directory → their values that are not directories.
DIRECTORIES = {"VLALAB_VOLUME": ("",), "VLALAB_STATE": ("",), "VLALAB_LIBERO_ASSETS": ("", "official", "kit")}
EXAMPLE = ROOT / ".env.example"  # documents every variable
PREFIX = "VLALAB_"


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
    for text in strangers(values, variable_names()) if values else ():
        log_info(f".env: {text}")


def variable_names() -> set[str]:
    """Return the names of the lab's variables: those in .env.example and compose.yaml, and one per base image."""
    texts = (path.read_text(encoding="utf-8") for path in (EXAMPLE, FILE))
    named = [name for text in texts for name in re.findall(rf"\b{PREFIX}[A-Z0-9_]*[A-Z0-9]\b", text)]
    return {*named, *(f"{PREFIX}BASE_{name.upper()}" for name in image_names())}


def documented() -> set[str]:
    """Return the names of the variables with a line in .env.example."""
    return set(re.findall(r"(?m)^#?(\w+)=", EXAMPLE.read_text(encoding="utf-8")))


def removed() -> dict[str, str]:
    """Return removed variable → its replacement, from the end of .env.example."""
    return dict(re.findall(r"(?m)^# (\w+): removed; (.+)$", EXAMPLE.read_text(encoding="utf-8")))


def strangers(names: Mapping[str, str], valid: Collection[str]) -> list[str]:
    """Return a message for each name with the lab's prefix that is not one of its variables."""
    sentences = []
    for name in names:
        if name.upper().startswith(PREFIX) and name not in valid:
            close = difflib.get_close_matches(name.upper(), valid, 1, 0.7)
            hint = f"did you mean {close[0]}?" if close else "see .env.example"
            sentences.append(f"unknown variable {name} has no effect; {hint}")
    return sentences
