"""The folder of uploads: this user's alone, of bounded size, and the only place that a file is read from."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gradio.utils import get_upload_folder

MAX_BYTES = 512 * 2**20
MAX_FILES = 2000
VARIABLE = "GRADIO_TEMP_DIR"  # where Gradio keeps uploads


class Uploads:
    """Gradio's folder of uploads. What lies in it now belongs to the page and stays; the rest goes oldest first.

    Raises ValueError for a folder that others can read or write.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(os.path.realpath(folder))
        _check_private(self.folder)
        self._kept = {path for path, _ in self._files()}

    @classmethod
    def of_gradio(cls) -> Uploads:
        """Returns the folder that Gradio uses, made if need be."""
        folder = Path(get_upload_folder())
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(folder)

    def find(self, path: object) -> str | None:
        """Returns where that path leads, if that is a plain file in the folder; else None. Nothing is opened."""
        if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
            return None
        try:
            real = os.path.realpath(path, strict=True)
            plain = stat.S_ISREG(os.lstat(real).st_mode)
        except (OSError, ValueError):  # not there, a loop of links, a name too long
            return None
        return real if plain and Path(real).is_relative_to(self.folder) else None

    def make_room(self, size: int) -> None:
        """Removes uploads, oldest first, until one of `size` bytes more keeps to MAX_BYTES and MAX_FILES."""
        files = sorted(self._files(), key=lambda found: found[1].st_mtime)
        held, count = sum(_taken(status) for _, status in files), len(files)
        for path, status in files:
            if held + size <= MAX_BYTES and count < MAX_FILES:
                return
            if path not in self._kept:
                _remove(path)
                held, count = held - _taken(status), count - 1

    def drop_parts(self) -> None:
        """Removes what lies in the folder itself: whole uploads have folders of their own, these were cut off."""
        for path, _ in self._files():
            if path.parent == self.folder and path not in self._kept:
                path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder, name)
                try:
                    found.append((path, path.lstat()))
                except FileNotFoundError:  # Gradio's own cleaning was faster
                    continue
        return found


def _check_private(folder: Path) -> None:
    status = folder.stat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise ValueError(
            f"uploads would lie in {folder}, of user {status.st_uid} and mode {mode:o}; "
            f"expected user {os.getuid()} and mode 700: set {VARIABLE} to such a folder"
        )


def _taken(status: os.stat_result) -> int:
    return max(status.st_size, 4096)  # an empty file takes room as well


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    try:
        path.parent.rmdir()  # Gradio gives each upload a folder
    except OSError:
        return  # others lie there too
