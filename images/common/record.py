"""Write /opt/vla-lab/image.json, the image's record. The build's last step but one."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path("/opt/vla-lab")
FLASH_ATTN = Path("/opt/flash-attn.json")  # left by the step that installed it


def lock_hash(env: str) -> str:
    """Return the lock's sha256. Raises ValueError if the build argument LOCK_HASH differs."""
    actual = hashlib.sha256((ROOT / "images" / env / "requirements.lock").read_bytes()).hexdigest()
    stated = os.environ.get("LOCK_HASH", "")
    if stated not in ("", actual):
        raise ValueError(f"LOCK_HASH is {stated}, but the sha256 of images/{env}/requirements.lock is {actual}")
    return actual


def record(env: str) -> dict:
    """Return the content of image.json. "system": the distribution's packages, name → version."""
    query = ["dpkg-query", "-W", "-f", "${Package}\t${Version}\n"]
    packages = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    return {
        "env": env,
        "variant": os.environ["VLALAB_VARIANT"],
        "lock": lock_hash(env),
        "commit": os.environ.get("COMMIT", ""),
        "flash_attn": json.loads(FLASH_ATTN.read_text()) if FLASH_ATTN.exists() else {"mode": "none"},
        "python": sys.version.split()[0],
        "system": dict(line.split("\t") for line in sorted(packages)),
    }


if __name__ == "__main__":
    (ROOT / "image.json").write_text(json.dumps(record(sys.argv[1]), indent=1) + "\n")
