"""Under which Compose projects containers of this clone run that were started where it lay before.

A project is called by the clone's path, and a container stays where it is when the clone is moved. So each project is
noted with the path and the folder's device and inode; these two move along.
"""

from __future__ import annotations

import json
from pathlib import Path

from vlalab.description import compose
from vlalab.host import paths, state

SUFFIX = ".project"


def note() -> None:
    """Notes the project that this clone's containers belong to from now on."""
    state.write(state.folder() / f"{compose.project()}{SUFFIX}", json.dumps([str(paths.ROOT), *_identity()]))


def projects() -> list[str]:
    """Returns the projects that this clone had under another path."""
    own = compose.project()
    return [name for note in _notes() if (name := note.name.removesuffix(SUFFIX)) != own and _is_ours(note)]


def forget(project: str) -> None:
    """Forgets a project that has no containers any more."""
    for note in _notes():
        if note.name == project + SUFFIX:
            note.unlink(missing_ok=True)


def _notes() -> list[Path]:
    folders = [state.folder(make=False), *state.of_other_clones()]
    return [path for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}"))]


def _is_ours(note: Path) -> bool:
    try:
        path, *identity = json.loads(state.read(note) or "[null]")
    except (ValueError, TypeError):  # damaged, or nobody's of this kind
        return False
    return path != str(paths.ROOT) and identity == _identity()


def _identity() -> list[int]:
    status = paths.ROOT.stat()
    return [status.st_dev, status.st_ino]
