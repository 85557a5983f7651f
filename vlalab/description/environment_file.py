"""Takes the repository's .env into the process: its variables are those of the shell, which win over it."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from vlalab.description.compose import FILE
from vlalab.description.interpolation import read_dotenv
from vlalab.host.console import LabError, say
from vlalab.host.paths import CLONES_VOLUME, ROOT, default_volume, image_names

# Variables that hold a folder, and which of their values are none.
DIRECTORIES = {"VLALAB_VOLUME": ("",), "VLALAB_STATE": ("",), "VLALAB_LIBERO_ASSETS": ("", "official", "kit")}
EXAMPLE = ROOT / ".env.example"  # which documents every variable
PREFIX = "VLALAB_"


def load() -> None:
    """Puts .env under the process's variables, and makes folders absolute: what is started runs elsewhere.

    Says which names begin like the lab's and are none of its variables.
    """
    for name in DIRECTORIES.keys() & os.environ.keys():
        if os.environ[name] not in DIRECTORIES[name]:
            os.environ[name] = str(Path(os.environ[name]).expanduser().absolute())
    values = read_dotenv(ROOT / ".env")
    for name, value in values.items():
        is_directory = name in DIRECTORIES and value not in DIRECTORIES[name]
        os.environ.setdefault(name, str(ROOT / Path(value).expanduser()) if is_directory else value)
    if not os.environ.get("VLALAB_VOLUME") and (volume := default_volume()) != CLONES_VOLUME:
        os.environ["VLALAB_VOLUME"] = str(volume)  # for what is started: compose.yaml's own default is the clone's
    for name, replacement in removed().items():
        if os.environ.get(name):
            raise LabError(f"{name} was removed: {replacement}; unset it")
    for text in strangers(values, variable_names()) if values else ():
        say(f".env: {text}")


def variable_names() -> set[str]:
    """Return the names of the lab's variables: .env.example's, compose.yaml's, and a base image per environment."""
    texts = (path.read_text(encoding="utf-8") for path in (EXAMPLE, FILE))
    named = [name for text in texts for name in re.findall(rf"\b{PREFIX}[A-Z0-9_]*[A-Z0-9]\b", text)]
    return {*named, *(f"{PREFIX}BASE_{name.upper()}" for name in image_names())}


def documented() -> set[str]:
    """Return the names of the variables that .env.example has a line for."""
    return set(re.findall(r"(?m)^#?(\w+)=", EXAMPLE.read_text(encoding="utf-8")))


def removed() -> dict[str, str]:
    """Return the variables of earlier versions, each with what replaces it, from the end of .env.example."""
    return dict(re.findall(r"(?m)^# (\w+): removed; (.+)$", EXAMPLE.read_text(encoding="utf-8")))


def strangers(names: Mapping[str, str], valid: Collection[str]) -> list[str]:
    """Return a sentence for each name that begins like the lab's variables and is none of them."""
    sentences = []
    for name in names:
        if name.upper().startswith(PREFIX) and name not in valid:
            close = difflib.get_close_matches(name.upper(), valid, 1, 0.7)
            hint = f"did you mean {close[0]}?" if close else ".env.example has them all"
            sentences.append(f"{name} is no variable of the lab and changes nothing; {hint}")
    return sentences
