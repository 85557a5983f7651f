"""Is the package of Isaac-GR00T that lies here the one of the pinned commit?"""

from __future__ import annotations

import hashlib
from pathlib import Path

COMMIT = "4af2b622892f7dcb5aae5a3fb70bcb02dc217b96"  # branch n1.5-release
DIGEST = "60b2666015ce36c2f9f359eca284101929de94b07e0e7100cc6e99031d6eb263"  # of its folder gr00t


def digest(package: Path) -> str:
    """Returns the sha256 over git hash and path of every file below `package`, bytecode aside."""
    files = sorted(path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file())
    kept = (name for name in files if "__pycache__" not in name)
    return hashlib.sha256("".join(f"{_blob_hash(package / name)} {name}\n" for name in kept).encode()).hexdigest()


def changed(package: Path) -> str | None:
    """Returns why `package` is not what this service was made for and what to do, or None where it is."""
    found = digest(package)
    if found == DIGEST:
        return None
    return (
        f"{package} has digest {found}; commit {COMMIT[:12]} of Isaac-GR00T has {DIGEST}: check that commit out "
        "without changes"
    )


def _blob_hash(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
