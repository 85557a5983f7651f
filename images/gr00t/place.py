"""Places Isaac-GR00T's package at /opt/gr00t/gr00t, after checking that every file is the one of GR00T_COMMIT.

GR00T_DIGEST is the sha256 over the git hash and path of each file of the package. Empty: whatever is there is taken,
and /opt/sources/gr00t says so. A folder without a package (GR00T_SOURCE=none) leaves /opt/gr00t empty.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, "/build/python")

SOURCE, TARGET, RECORD = Path("/source"), Path("/opt/gr00t"), Path("/opt/sources/gr00t")


def blob_hash(path: Path) -> str:
    """Returns the hash that git gives the file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def digest(package: Path) -> str:
    """Returns the sha256 over git hash and path of every file below `package`, bytecode aside."""
    files = sorted(path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file())
    kept = (name for name in files if "__pycache__" not in name)
    return hashlib.sha256("".join(f"{blob_hash(package / name)} {name}\n" for name in kept).encode()).hexdigest()


def place(commit: str, expected: str) -> str:
    """Copies the package and returns what is noted of it. Raises ValueError when it is not the expected one."""
    package = SOURCE / "gr00t"
    TARGET.mkdir(exist_ok=True)
    if not package.is_dir():
        raise ValueError("the build context gr00t-source holds no folder gr00t/; give a checkout of Isaac-GR00T")
    if not any(package.iterdir()):
        return "none"
    found = digest(package)
    if expected and found != expected:
        raise ValueError(
            f"the source's package gr00t has digest {found}, commit {commit[:12]} has {expected}: check that commit "
            "out without changes, or accept this one with --build-arg GR00T_DIGEST= --build-arg GR00T_COMMIT=its-name"
        )
    shutil.copytree(package, TARGET / "gr00t", ignore=shutil.ignore_patterns("__pycache__"))
    if (SOURCE / "LICENSE").exists():
        shutil.copy(SOURCE / "LICENSE", TARGET)
    return f"{commit} {'checked' if expected else f'unchecked, digest {found}'}"


if __name__ == "__main__":
    from settle import settle

    try:
        note = place(os.environ["GR00T_COMMIT"], os.environ.get("GR00T_DIGEST", ""))
    except ValueError as error:
        sys.exit(f"error: {error}")
    settle(TARGET)
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(note + "\n")
    print(f"Isaac-GR00T: {note}")
