"""Brings the course's files: `python -m services.ws_mdl.course.bring FOLDER|ZIP --name course`.

Files are told by their content and read as numbers only; the originals stay where they are.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

import tyro

from services.ws_mdl.course.kinds import File, recognise
from services.ws_mdl.course.pieces import pieces_of
from services.ws_mdl.course.setting_up import set_up
from services.ws_mdl.course.sources import Files, files_of
from vla_common import endings
from vla_common.volume import Volume, require_space


@dataclass
class ImportCommand:
    """Which files, and what the things made of them are called."""

    path: Annotated[Path, tyro.conf.Positional]
    name: str = "course"  # the names of what is set up begin so

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(f"name {self.name!r} cannot name a folder; use letters, digits, '-', '_' and '.'")


def bring(path: Path, name: str, volume: Volume) -> list[str]:
    """Sets up all of the course's files below a folder or in an archive; returns the reasons why some could not be.

    Raises ValueError where there are none at all.
    """
    wrong: list[str] = []
    with files_of(path, volume.datasets) as files:
        found, others = _recognised(files, wrong)
        require_space(volume.root, sum(file.path.stat().st_size for file in found))
        refuse = lambda file, reason: wrong.append(f"{file.name} {reason}")  # noqa: E731  the list is here
        commands = []
        for piece in pieces_of(found, name, volume, refuse):
            try:
                set_up(piece)
                commands.append(piece.next)
            except ValueError as error:
                wrong.append(f"{', '.join(part.source.name for part in piece.parts.values())}: {error}")
    if others:
        kinds = ", ".join(f"{suffix or 'no ending'} {count}" for suffix, count in others.most_common(6))
        print(f"left where they are: {sum(others.values())} files of other kinds ({kinds})")
    if not commands and not wrong:
        raise ValueError(f"{path} holds none of the course's files: weights, tokenizers, .npy, idx or event files")
    print("\n".join(["now:", *(f"  {command}" for command in commands)]) if commands else "nothing was brought")
    return wrong


def _recognised(files: Files, wrong: list[str]) -> tuple[list[File], Counter]:
    """Returns the course's files, and how many others there are, by ending."""
    found, others = [], Counter()
    for name, path in files.items():
        try:
            file = recognise(name, path)
        except ValueError as error:
            wrong.append(f"{name} {error}")
            continue
        if file:
            found.append(file)
        else:
            others[PurePosixPath(name).suffix] += 1
    return found, others


def main() -> int:
    """Brings the files; returns 1 where one could not be."""
    command = tyro.cli(ImportCommand, prog="course import", description=__doc__)
    wrong = bring(command.path, command.name, Volume())
    for reason in wrong:
        print(f"not brought: {reason}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    endings.run(main)
