"""Split a lock into the image's layers: NVIDIA's packages, and torch. The last layer uses the whole lock.

    python layers.py requirements.lock DIRECTORY

writes DIRECTORY/nvidia/requirements.lock and DIRECTORY/torch/requirements.lock. They have no comments, so locks with
equal pins give equal bytes, and their layer is built once.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TORCH = ("torch", "triton", "nvidia-cusparselt-cu12")  # the last: of torch 2.6 alone, the others are gr00t's as well


def pins(lock: str) -> dict[str, str]:
    """Return a lock's pins: name → its lines (version, marker and hashes) without comments."""
    lines = [line for line in lock.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", "\n".join(lines))[1:]
    return {re.match(r"[\w.-]+", text)[0]: text.rstrip("\\\n ") + "\n" for text in entries}  # type: ignore[index]


def cut(lock: str) -> dict[str, str]:
    """Return the parts of a lock: layer → its lines; empty if it has none."""
    entries = pins(lock)
    torch = [name for name in entries if name in TORCH]
    nvidia = [name for name in entries if name.startswith("nvidia-") and name not in torch]
    return {layer: "".join(entries[name] for name in names) for layer, names in (("nvidia", nvidia), ("torch", torch))}


def write(lock: Path, directory: Path) -> None:
    """Write the parts of a lock below `directory`."""
    for layer, part in cut(lock.read_text()).items():
        (directory / layer).mkdir(parents=True, exist_ok=True)
        (directory / layer / "requirements.lock").write_text(part)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
