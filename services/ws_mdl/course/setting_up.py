"""Puts the course's files where the labs look for them: whole or not at all, beside what is there and never over it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.ws_mdl.course.kinds import File
from vla_common.volume import put_whole, shown
from vla_modelkit.checkpoint import file_hash
from vla_modelkit.training.weights import IMPORTED

Write = Callable[[Path], object]  # writes a file at that path


@dataclass(frozen=True)
class Part:
    """A file to make of one of the course's; without `write` it is copied."""

    source: File
    write: Write | None = None


@dataclass(frozen=True)
class Piece:
    """A folder to set up: its files by their names there, what is said of it, and a command that uses it."""

    folder: Path
    parts: Mapping[str, Part]
    line: str
    next: str = ""


def set_up(piece: Piece) -> None:
    """Makes a piece's folder, with a list of what it was made of, and says so.

    What was imported before is left as it is. Raises ValueError where something else is there.
    """
    listed = {
        name: {"from": part.source.name, "sha256": file_hash(part.source.path)} for name, part in piece.parts.items()
    }
    there = piece.folder.exists()
    if there and _before(piece.folder) != _digests(listed):
        raise ValueError(f"{shown(piece.folder)} is there already, with other files; give another --name")
    if not there:
        put_whole(piece.folder, lambda draft: _fill(piece, draft, listed))
    print(f"{piece.line}\n  {'there already: ' if there else ''}{shown(piece.folder)}", flush=True)


def _before(folder: Path) -> dict[str, str] | None:
    path = folder / IMPORTED
    return _digests(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def _digests(listed: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {name: one["sha256"] for name, one in listed.items()}


def _fill(piece: Piece, draft: Path, listed: Mapping[str, object]) -> None:
    for name, part in piece.parts.items():
        place = draft / name
        place.parent.mkdir(parents=True, exist_ok=True)
        part.write(place) if part.write else shutil.copyfile(part.source.path, place)
    (draft / IMPORTED).write_text(json.dumps(listed, indent=1), encoding="utf-8")
