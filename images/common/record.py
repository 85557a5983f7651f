"""Write /opt/vla-lab/image.json, the image's record. The build's last step but one."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path("/opt/vla-lab")


def record(env: str) -> dict:
    """Return the content of image.json. "system": the distribution's packages, name → version.

    Raises ValueError if the build argument LOCK_HASH differs from the lock's sha256.
    """
    lock = hashlib.sha256((ROOT / "images" / env / "requirements.lock").read_bytes()).hexdigest()
    if (stated := os.environ.get("LOCK_HASH", "")) not in ("", lock):
        raise ValueError(f"LOCK_HASH is {stated}, but the sha256 of images/{env}/requirements.lock is {lock}")
    query = ["dpkg-query", "-W", "-f", "${Package}\t${Version}\n"]
    packages = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    flash_attn = Path("/opt/flash-attn.json")  # left by the step that installed it
    return {
        "env": env,
        "variant": os.environ["VLALAB_VARIANT"],
        "lock": lock,
        "commit": os.environ.get("COMMIT", ""),
        "flash_attn": json.loads(flash_attn.read_text()) if flash_attn.exists() else {"mode": "none"},
        "python": sys.version.split()[0],
        "system": dict(line.split("\t") for line in sorted(packages)),
    }


if __name__ == "__main__":
    (ROOT / "image.json").write_text(json.dumps(record(sys.argv[1]), indent=1) + "\n")
