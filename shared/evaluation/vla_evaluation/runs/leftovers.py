"""What a killed process leaves in a run's folder: half-written files, under names that nothing reads."""

from __future__ import annotations

import shutil
from pathlib import Path

PATTERNS = (
    "videos/.*.partial",
    "episodes/.*.npz.*",
    ".run.sqlite.*",  # a store that was never named, and its journal
    "work/.*.partial",
    "work/*/.*.partial",
)


def sweep(folder: Path) -> int:
    """Removes them and returns how many there were. Only whoever holds the run may call this."""
    found = [path for pattern in PATTERNS for path in folder.glob(pattern)]
    for path in found:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return len(found)
