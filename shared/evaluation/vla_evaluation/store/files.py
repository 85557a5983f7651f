"""Files that are complete or absent, even after a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Force a file's content, or a directory's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(draft: Path, final: Path) -> None:
    """Rename a written and synced draft, durably: without the directory a power cut undoes the rename."""
    os.replace(draft, final)
    sync(final.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file, complete or not at all; half of a surrogate pair, as in a policy's name, is escaped."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    partial.replace(path)
