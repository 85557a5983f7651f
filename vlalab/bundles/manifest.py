"""A bundle's manifest: what is in it and how large, read from a file that anybody may have written.

`parse` lets through only what a restore can rely on; everything else is a LabError that names the place.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

from vlalab.host.console import LabError

FORMAT = "vla-lab-bundle"
VERSION = 2
FOLDERS = ("checkpoints", "assets")  # of the volume; runs and logs stay where they were made
KEYS = {"created", "commit", "images", "files", "parts"}  # beside format and version
MOST_BYTES = 64 << 20  # of the manifest itself
LARGEST = 1 << 50  # bytes of anything a bundle names
LATEST = 1 << 40  # seconds
REFERENCE = re.compile(r"[a-z0-9][a-z0-9._/-]*:[A-Za-z0-9_][A-Za-z0-9._-]*")
IMAGE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
PIECE_NAME = re.compile(r"(volume|images/[a-z0-9_-]+)/(\d{6})\.gz")


@dataclass(frozen=True)
class VolumeFile:
    """A file of the volume that goes into a bundle; `path` is relative to the volume's root."""

    path: str
    size: int
    mtime: int


@dataclass(frozen=True)
class Part:
    """One member of the bundle: sha256 (hex) and size as it lies there, and its size unpacked."""

    sha256: str
    size: int
    unpacked: int


@dataclass(frozen=True)
class Manifest:
    """What a bundle holds. An image is a record with name, reference, id, created, size and labels."""

    created: str
    commit: str
    images: list[dict]
    files: list[VolumeFile]
    parts: dict[str, Part]

    def pieces(self, stream: str) -> list[str]:
        """Returns the parts that make up a stream ("volume", "images/ui"), in order."""
        return sorted(name for name in self.parts if name.rpartition("/")[0] == stream)

    def unpacked(self, stream: str) -> int:
        """Returns the size of a whole stream in bytes, unpacked."""
        return sum(self.parts[name].unpacked for name in self.pieces(stream))


class Bad(ValueError):
    """Something in a manifest is not as it has to be; the text names it."""


def parse(text: bytes, source: object) -> Manifest:
    """Returns the manifest in `text`. Raises LabError, naming `source`, for any other than ./lab bundle writes."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LabError(f"the manifest of {source} is no JSON; make the bundle again") from error
    if not isinstance(found, dict):
        raise LabError(f"the manifest of {source} is a {type(found).__name__}, no object; make the bundle again")
    if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        named = f"{found.get('format')!s:.40} version {found.get('version')!s:.40}"
        shown = named if named.isprintable() else "of another format"
        raise LabError(f"{source} is {shown}; this tool reads {FORMAT} version {VERSION}")
    if missing := KEYS - found.keys():
        raise LabError(f"the manifest of {source} lacks {', '.join(sorted(missing))}; make the bundle again")
    try:
        return _checked(found)
    except Bad as error:
        raise LabError(f"the manifest of {source} makes no sense: {error}; make the bundle again") from error


def _checked(found: Mapping) -> Manifest:
    images = [_image(record, f"images[{place}]") for place, record in enumerate(_of(list, found["images"], "images"))]
    files = [_file(record, f"files[{place}]") for place, record in enumerate(_of(list, found["files"], "files"))]
    parts = {name: _part(value, name) for name, value in _of(dict, found["parts"], "parts").items()}
    commit = "unknown" if found["commit"] is None else _words(found["commit"], "commit")
    _no_path_twice([file.path for file in files])
    manifest = Manifest(_words(found["created"], "created"), commit, images, files, parts)
    _streams_complete(manifest)
    return manifest


def _image(record: object, where: str) -> dict:
    record = _of(dict, record, where)
    labels = _of(dict, record.get("labels"), f"{where}.labels")
    if not all(isinstance(value, str) for value in labels.values()):
        raise Bad(f"{where}.labels are not all texts")
    return {
        "name": _matching(IMAGE_NAME, record.get("name"), f"{where}.name"),
        "reference": _matching(REFERENCE, record.get("reference"), f"{where}.reference"),
        "id": _words(record.get("id"), f"{where}.id"),
        "created": _moment(record.get("created"), f"{where}.created"),
        "size": _number(record.get("size"), LARGEST, f"{where}.size"),
        "labels": labels,
    }


def _file(record: object, where: str) -> VolumeFile:
    record = _of(dict, record, where)
    return VolumeFile(
        volume_path(_of(str, record.get("path"), f"{where}.path")),
        _number(record.get("size"), LARGEST, f"{where}.size"),
        _number(record.get("mtime"), LATEST, f"{where}.mtime"),
    )


def volume_path(name: str) -> str:
    """Returns a path below a folder of the volume as it is. Raises LabError for one that would lead elsewhere."""
    path = PurePosixPath(name)
    if (
        not can_be_named(name)
        or str(path) != name
        or ".." in path.parts
        or len(path.parts) < 2
        or path.parts[0] not in FOLDERS
    ):
        raise LabError(
            f"the bundle holds {name[:200]!a}, which is no file below {' or '.join(FOLDERS)}; nothing was restored"
        )
    return name


def can_be_named(path: str) -> bool:
    """Returns whether a path is free of control characters and of bytes that are no UTF-8."""
    return not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in path)


def _part(value: object, name: str) -> Part:
    value = _of(dict, value, f"part {name[:80]!a}")
    numbers = [_number(value.get(key), LARGEST, f"part {name[:80]!a}: {key}") for key in ("size", "unpacked")]
    return Part(_matching(re.compile("[0-9a-f]{64}"), value.get("sha256"), f"part {name[:80]!a}: sha256"), *numbers)


def _streams_complete(manifest: Manifest) -> None:
    """Raises Bad unless the parts are those of the images and files named, each stream without a gap."""
    wanted = {f"images/{image['name']}" for image in manifest.images} | ({"volume"} if manifest.files else set())
    if len({image["name"] for image in manifest.images}) < len(manifest.images):
        raise Bad("an image is named twice")
    for name in manifest.parts:
        piece = PIECE_NAME.fullmatch(name)
        if not (piece and piece[1] in wanted) and name != "README.txt" and not name.startswith("host/"):
            raise Bad(f"part {name[:80]!a} belongs to nothing in it")
    for stream in wanted:
        names = manifest.pieces(stream)
        if not names or names != [f"{stream}/{number:06d}.gz" for number in range(len(names))]:
            raise Bad(f"{stream} has no parts, or not all of them")


def _no_path_twice(paths: list[str]) -> None:
    known = set(paths)
    if len(known) < len(paths):
        raise Bad("a file is named twice")
    for path in paths:
        if folder := next((str(parent) for parent in PurePosixPath(path).parents if str(parent) in known), None):
            raise Bad(f"{folder!a} is a file and a folder")


def _of(kind: type, value: object, where: str):
    if not isinstance(value, kind):
        raise Bad(f"{where} is {type(value).__name__}, not {kind.__name__}")
    return value


def _number(value: object, most: int, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise Bad(f"{where} is no whole number from 0 to {most}")
    return value


def _words(value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) > 1000 or not value.isprintable():
        raise Bad(f"{where} is no printable text")
    return value


def _matching(pattern: re.Pattern, value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) > 1000 or not pattern.fullmatch(value):
        raise Bad(f"{where} does not look like one")
    return value


def _moment(value: object, where: str) -> str:
    try:
        moment = datetime.fromisoformat(_words(value, where))
    except ValueError as error:
        raise Bad(f"{where} is no date") from error
    if moment.tzinfo is None:
        raise Bad(f"{where} has no time zone")
    return value
