"""Add flash-attn to /opt/venv from a wheel: a release's, a directory's (context flash-attn-wheel), or one built here.

FLASH_ATTN_URL names the release's wheel and FLASH_ATTN_SHA256 its hash; without the latter the build prints the sha256,
and that nothing vouches for it. /opt/flash-attn.json records what was done.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from importlib import metadata
from pathlib import Path

DIRECTORY = Path("/wheels")  # the context, or what the compiling stage made


def wheel(url: str) -> tuple[Path, str]:
    """Return the wheel's path and where it came from: the directory's only wheel, else the download of `url`."""
    wheels = sorted(DIRECTORY.glob("*.whl"))
    if len(wheels) > 1:
        raise ValueError(f"{len(wheels)} wheels in the flash-attn directory, expected one: {[p.name for p in wheels]}")
    if wheels:
        return wheels[0], "folder"
    target = Path("/tmp") / urllib.parse.unquote(url.rsplit("/", 1)[-1])
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, target.open("wb") as stream:
            shutil.copyfileobj(answer, stream)
    except (OSError, ValueError) as error:  # URLError is an OSError
        raise OSError(
            f"flash-attn's wheel cannot be downloaded from {url}: {error}. Use another address (--build-arg "
            "FLASH_ATTN_URL=…) or a directory with the wheel (--build-context flash-attn-wheel=DIRECTORY), or build "
            "without it: ./lab build ENV --flash-attn none (services then use torch's SDPA)"
        ) from error
    return target, url


def check_hash(path: Path, expected: str) -> str:
    """Return the wheel's sha256. Raises ValueError where it differs from `expected`; "" expects nothing."""
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    if not expected:
        print(f"flash-attn: {path.name} has sha256 {sha256}. It was NOT checked; to pin it, build with")
        print(f"  --build-arg FLASH_ATTN_SHA256={sha256}", flush=True)
    elif expected.lower() != sha256:
        raise ValueError(f"{path.name} has sha256 {sha256}, FLASH_ATTN_SHA256 expects {expected}: it was not installed")
    return sha256


def main(mode: str, url: str, expected: str) -> None:
    """Install the wheel and record it. uv refuses one of another Python, the self-test one of another torch."""
    path, origin = wheel(url)
    sha256 = check_hash(path, expected)
    uv = ["/opt/tools/bin/uv", "pip", "install", "--offline", "--no-deps", "--no-cache", "--python", sys.executable]
    subprocess.run([*uv, str(path)], check=True, env={**os.environ, "UV_NO_CONFIG": "1", "UV_LINK_MODE": "copy"})
    version = metadata.version("flash-attn")
    record = {"mode": mode, "version": version, "url": origin, "sha256": sha256, "checked": bool(expected)}
    Path("/opt/flash-attn.json").write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1], os.environ.get("FLASH_ATTN_URL", ""), os.environ.get("FLASH_ATTN_SHA256", ""))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
