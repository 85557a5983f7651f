"""Copies the assets of the build's source to /opt/libero-assets, and says what they are.

An empty source leaves an empty folder, and runs use the volume's assets or the kit. A run judges the files by their
content, so nothing has to be marked here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from services.libero.assets import official
from services.libero.assets.sources import BAKED

SOURCE = Path("/source")


def main() -> None:
    shutil.copytree(SOURCE, BAKED, dirs_exist_ok=True)
    if not any(BAKED.iterdir()):
        print("assets: none in the image")
    elif differing := official.problems(BAKED):
        print(f"assets: a folder; {len(differing)} files are not those of {official.COMMIT[:8]} ({differing[0]}, …)")
    else:
        print("assets: the official files")


if __name__ == "__main__":
    main()
