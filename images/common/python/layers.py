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


def cut(lock: str) -> dict[str, str]:
    """Return the parts of a lock: layer → its pins (version, marker and hashes) without comments; "" if it has none."""
    lines = [line for line in lock.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    entries = [entry.rstrip("\\\n ") + "\n" for entry in re.split(r"(?m)^(?=[A-Za-z0-9])", "\n".join(lines))[1:]]
    torch = [entry for entry in entries if entry.partition("==")[0] in TORCH]
    nvidia = [entry for entry in entries if entry.startswith("nvidia-") and entry not in torch]
    return {"nvidia": "".join(nvidia), "torch": "".join(torch)}


def write(lock: Path, directory: Path) -> None:
    """Write the parts of a lock below `directory`."""
    for layer, part in cut(lock.read_text()).items():
        (directory / layer).mkdir(parents=True, exist_ok=True)
        (directory / layer / "requirements.lock").write_text(part)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
