"""Files that get their names on the volume together, or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from vlalab.bundles.manifest import VolumeFile
from vlalab.engine import volumes
from vlalab.host.console import LabError

NAME = ".restoring"  # on the volume; what a killed restore left there, the next one removes


class Staging:
    """A folder on the volume where files wait. Used as a context manager, which removes it.

    `add` writes files there, `place` moves them to where they belong; should one of them fail, all are taken back.
    """

    def __init__(self, volume: Path) -> None:
        self.folder = volume / NAME
        self._waiting: list[tuple[Path, Path]] = []
        self._undo: list[tuple[Path, Path | None]] = []  # (target, its predecessor or None); a folder has none

    def __enter__(self) -> Staging:
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise LabError(f"another restore works on {self.folder.parent}; wait for it") from error
        except OSError as error:
            raise LabError(f"cannot write to {self.folder.parent} ({error.strerror}); whose is it?") from error
        self._empty()
        return self

    def __exit__(self, *_: object) -> None:
        self._empty()
        with suppress(OSError):
            self.folder.rmdir()
        os.close(self._lock)

    def _empty(self) -> None:
        for path in list(self.folder.iterdir()):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def add(self, file: VolumeFile, target: Path, content: Iterable[bytes]) -> None:
        """Writes a file that waits for its place, `target`."""
        waiting = self.folder / f"{len(self._waiting)}.new"
        with waiting.open("xb") as stream:
            for block in content:
                stream.write(block)
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.utime(stream.fileno(), (file.mtime, file.mtime))
            os.fsync(stream.fileno())
        self._waiting.append((waiting, target))

    def place(self) -> None:
        """Moves every file to its place. Raises LabError where one cannot, with everything as it was."""
        try:
            for number, (waiting, target) in enumerate(self._waiting):
                self._make_folder(target.parent)
                before = self._keep(target, number) if os.path.lexists(target) else None
                os.replace(waiting, target)
                self._undo.append((target, before))
                volumes.give(target)
        except OSError as error:
            self._take_back()
            raise LabError(
                f"cannot place {target} ({error.strerror}); whose is its folder? Nothing was restored"
            ) from error
        except BaseException:
            self._take_back()
            raise

    def _keep(self, target: Path, number: int) -> Path:
        """Returns a second name of what lies at `target`, which stays in place: no reader finds it missing."""
        kept = self.folder / f"{number}.old"
        try:
            os.link(target, kept, follow_symlinks=False)
        except OSError:  # a file system without hard links
            shutil.copy2(target, kept, follow_symlinks=False)
        return kept

    def _make_folder(self, folder: Path) -> None:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir()
            self._undo.append((path, None))
            volumes.give(path)

    def _take_back(self) -> None:
        for target, before in reversed(self._undo):
            with suppress(OSError):
                if before:
                    os.replace(before, target)
                elif target.is_dir():
                    target.rmdir()
                else:
                    target.unlink()
