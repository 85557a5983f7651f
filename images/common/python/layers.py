"""Cuts a lock into the image's layers: what NVIDIA's packages are, and torch. The last layer takes the whole lock.

    python3.10 layers.py requirements.lock FOLDER

writes FOLDER/nvidia/requirements.lock and FOLDER/torch/requirements.lock, without comments, so that two locks with the
same pins give the same bytes, and the build makes their layer once.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TORCH = ("torch", "triton", "nvidia-cusparselt-cu12")  # the last: of torch 2.6 alone, the others are gr00t's as well


def pins(lock: str) -> dict[str, str]:
    """Returns a lock's pins, name → its lines: version, marker and hashes, without comments."""
    lines = [line for line in lock.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", "\n".join(lines))[1:]
    return {re.match(r"[\w.-]+", text)[0]: text.rstrip("\\\n ") + "\n" for text in entries}  # type: ignore[index]


def cut(lock: str) -> dict[str, str]:
    """Returns layer → the part of a lock that it holds; empty where the lock has nothing of it."""
    entries = pins(lock)
    torch = [name for name in entries if name in TORCH]
    nvidia = [name for name in entries if name.startswith("nvidia-") and name not in torch]
    return {layer: "".join(entries[name] for name in names) for layer, names in (("nvidia", nvidia), ("torch", torch))}


def write(lock: Path, directory: Path) -> None:
    """Writes the parts of a lock below `folder`."""
    for layer, part in cut(lock.read_text()).items():
        (directory / layer).mkdir(parents=True, exist_ok=True)
        (directory / layer / "requirements.lock").write_text(part)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
