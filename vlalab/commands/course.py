"""The settings of the course's labs, for `train --set`: listed and checked here, before an environment is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vlalab.description import declared, manifests
from vlalab.description.declared import Field
from vlalab.description.intervals import Interval
from vlalab.host import paths
from vlalab.host.console import LabError, require_known

SERVICE = next(name for name, one in manifests.services().items() if one.labs)
PRACTICE = manifests.services()[SERVICE].practice
LABS = (*manifests.services()[SERVICE].labs, *PRACTICE)
IMPORTER = f"services.{manifests.folder_of(SERVICE)}.course_files"
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")


def config_file(lab: str) -> Path:
    """Returns the file with a lab's settings."""
    return paths.ROOT.joinpath("services", *_place(lab), "config.py")


def module(lab: str, program: str) -> str:
    """Returns the module of a lab's program: train, sample …"""
    return ".".join(("services", *_place(lab), program))


def _place(lab: str) -> tuple[str, ...]:
    """Returns the folders below services/ in which a lab lies."""
    return manifests.folder_of(SERVICE), *(["practice"] if lab in PRACTICE else []), lab


def exercises() -> tuple[str, ...]:
    """Returns the names of the lessons' exercises."""
    return tuple(declared.constant(paths.ROOT / "lessons" / "exercises" / "__init__.py", "NAMES"))


def described_exercises() -> list[tuple[str, str]]:
    """Returns each exercise with what is to be done."""
    return [(name, "find the bug" if ".bug_" in name else "fill the blank") for name in exercises()]


def exercises_folder() -> Path:
    """Returns where a student's files lie: JupyterLab shows that folder."""
    return paths.volume() / "notebooks" / "exercises"


def settings(lab: str) -> dict[str, Field]:
    """Returns a lab's settings by name as it is typed: batch-size."""
    return {name.replace("_", "-"): field for name, field in declared.fields(config_file(lab), "Config").items()}


def allowed(lab: str) -> dict[str, Interval]:
    """Returns what numbers may be, by the name of the field."""
    files = declared.files(config_file(lab), "Config")
    tables = (declared.constant(file, "ALLOWED") for file in files)
    return {name: Interval(text) for table in tables for name, text in table.items()}


def flags(lab: str, typed: Sequence[str]) -> list[str]:
    """Returns the trainer's flags for what --set was given, NAME=VALUE or the NAME of a switch.

    Raises LabError for a name that the lab does not have and for a value that its type or its bounds exclude.
    """
    return [_flag(lab, text) for text in typed]


def _flag(lab: str, text: str) -> str:
    name, equals, value = text.partition("=")
    name, known = name.replace("_", "-"), settings(lab)
    require_known(f"train {lab} --set", [name], known)
    field = known[name]
    if field.type == "bool":
        return _switch(name, value.lower() if equals else "true")
    if not value:
        raise LabError(f"--set {name} has no value; expected {name}={example(field)}")
    _check(field, name, value, allowed(lab).get(field.name))
    return f"--{name}={value}"


def _switch(name: str, value: str) -> str:
    if value not in TRUE + FALSE:
        raise LabError(f"--set {name}={value} makes no sense; expected {name}=true or {name}=false")
    return f"--{name}" if value in TRUE else f"--no-{name}"


def _check(field: Field, name: str, value: str, interval: Interval | None) -> None:
    if field.choices:
        return require_known(f"--set {name}", [value], [str(one) for one in field.choices])
    kind = next((kind for kind in (int, float) if field.type.split(" ")[0] == kind.__name__), None)
    if kind:
        (interval or Interval()).read(f"--set {name}", value, kind)


def example(field: Field) -> str:
    """Returns what a setting takes, in a word: its choices, or its default."""
    if field.choices:
        return "|".join(str(one) for one in field.choices)
    number = isinstance(field.default, float)
    return "N" if field.default is None else f"{field.default:g}" if number else str(field.default)


def rows(lab: str, but: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Returns a line for each setting but those: name, what it takes, what it means."""
    found = []
    for name, field in settings(lab).items():
        if field.name not in but:
            takes = name if field.type == "bool" else f"{name}={example(field)}"
            default = f"default: {field.default}" if field.choices and field.default is not None else ""
            found.append((takes, "; ".join(text for text in (field.comment, default) if text)))
    return found
