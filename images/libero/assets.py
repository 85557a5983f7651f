"""Copy the build's assets to /opt/libero-assets, and print their origin.

An empty source leaves an empty directory, and runs use the volume's assets or the kit. A run identifies the files by
their content, so nothing is recorded here.
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
        print(f"assets: a directory; {len(differing)} files are not those of {official.COMMIT[:8]} ({differing[0]}, …)")
    else:
        print("assets: the official files")


if __name__ == "__main__":
    main()
