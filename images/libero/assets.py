"""Copies the assets of the build's source to /opt/libero-assets, and marks them where they are LIBERO's official files.

They are marked only when every file of the pinned commit is there with its git hash; runs then say "official".
An empty source leaves an empty folder, and runs use the volume's assets or the kit.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from services.libero.assets import official
from services.libero.assets.sources import BAKED

SOURCE = Path("/source")


def wrong(folder: Path) -> list[str]:
    """Returns the official files that `folder` lacks or has with another content."""
    entries = official.manifest()
    return [e.path for e in entries if not (folder / e.path).is_file() or official.git_sha1(folder / e.path) != e.sha1]


def mark(folder: Path) -> None:
    """Writes the sha256 manifest that says: these are the official files."""
    paths = sorted(entry.path for entry in official.manifest())
    lines = [f"{hashlib.sha256((folder / path).read_bytes()).hexdigest()}  {path}\n" for path in paths]
    (folder / official.MARKER).write_text("".join(lines))


def main() -> None:
    shutil.copytree(SOURCE, BAKED, dirs_exist_ok=True)
    if not any(BAKED.iterdir()):
        print("assets: none in the image")
    elif differing := wrong(BAKED):
        print(f"assets: a folder; {len(differing)} files are not those of {official.COMMIT[:8]} ({differing[0]}, …)")
    else:
        mark(BAKED)
        print("assets: the official files")


if __name__ == "__main__":
    main()
