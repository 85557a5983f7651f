"""Adds flash-attn to /opt/venv from a wheel: a release's, a folder's (context flash-attn-wheel), or one built here.

FLASH_ATTN_URL names the release's wheel and FLASH_ATTN_SHA256 what it must be; without the latter the build says which
sha256 it got, and that nothing vouches for it. /opt/flash-attn.json keeps what was done.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from importlib import metadata
from pathlib import Path

sys.path.insert(0, "/build/python")
from settle import settle

FOLDER = Path("/wheels")  # the context, or what the compiling stage made
RECORD = Path("/opt/flash-attn.json")
NAME = re.compile(r"flash_attn-(?P<version>[^-+]+)(?:\+\S+?)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-[^-]+\.whl")
WITHOUT = "or build without it: ./lab build ENV --flash-attn none (services then use torch's SDPA)"


def wheel(url: str) -> tuple[Path, str]:
    """Returns the wheel's path and where it came from: the folder's only wheel, else the download of `url`."""
    found = sorted(FOLDER.glob("*.whl")) if FOLDER.is_dir() else []
    if len(found) > 1:
        raise ValueError(f"{len(found)} wheels in the flash-attn folder, expected one: {[p.name for p in found]}")
    if found:
        return found[0], "folder"
    target = Path("/tmp") / urllib.parse.unquote(url.rsplit("/", 1)[-1])
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, target.open("wb") as stream:
            shutil.copyfileobj(answer, stream)
    except (OSError, ValueError) as error:  # URLError is an OSError
        raise OSError(
            f"flash-attn's wheel cannot be had from {url}: {error}. Give another address (--build-arg "
            f"FLASH_ATTN_URL=…) or a folder with the wheel (--build-context flash-attn-wheel=FOLDER), {WITHOUT}"
        ) from error
    return target, url


def check_name(path: Path) -> str:
    """Returns the version that a wheel's name states. Raises ValueError when it is for another Python or torch."""
    match = NAME.fullmatch(path.name)
    if not match:
        raise ValueError(f"{path.name} is no wheel of flash-attn; expected flash_attn-…-cp310-cp310-linux_x86_64.whl")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    if match["python"] != tag:
        raise ValueError(f"{path.name} is for {match['python']}, this image's Python is {tag}")
    stated = dict(re.findall(r"(torch|cxx11abi)([0-9.]+|TRUE|FALSE)", path.name))
    for key, value in _torch().items():
        if key in stated and stated[key] != value:
            raise ValueError(f"{path.name} is for {key} {stated[key]}, this image has {value}; choose its match")
    return match["version"]


def _torch() -> dict[str, str]:
    import torch

    abi = "TRUE" if torch.compiled_with_cxx11_abi() else "FALSE"
    return {"torch": ".".join(torch.__version__.split(".")[:2]), "cxx11abi": abi}


def check_hash(path: Path, expected: str) -> str:
    """Returns the wheel's sha256. Raises ValueError where `expected` is given and differs."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if expected and expected.lower() != found:
        raise ValueError(f"{path.name} has sha256 {found}, FLASH_ATTN_SHA256 expects {expected}: it was not installed")
    if not expected:
        print(f"flash-attn: {path.name} has sha256 {found}. It was NOT checked; to pin it, build with")
        print(f"  --build-arg FLASH_ATTN_SHA256={found}", flush=True)
    return found


def install(path: Path) -> None:
    """Installs the wheel and settles the files that came with it."""
    before = set(_site_packages().iterdir())
    uv = ["/opt/tools/bin/uv", "pip", "install", "--offline", "--no-deps", "--no-cache", "--python", sys.executable]
    subprocess.run([*uv, str(path)], check=True, env={**os.environ, "UV_NO_CONFIG": "1", "UV_LINK_MODE": "copy"})
    for added in set(_site_packages().iterdir()) - before:
        settle(added)


def _site_packages() -> Path:
    return next(Path(sys.prefix).glob("lib/python3*/site-packages"))


def main(mode: str, url: str, expected: str) -> None:
    path, origin = wheel(url)
    version, found = check_name(path), check_hash(path, expected)
    install(path)
    installed = metadata.version("flash-attn")
    if installed.split("+")[0] != version:
        raise ValueError(f"{path.name} installs flash-attn {installed}; expected {version}")
    record = {"mode": mode, "version": installed, "url": origin, "sha256": found, "checked": bool(expected)}
    RECORD.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1], os.environ.get("FLASH_ATTN_URL", ""), os.environ.get("FLASH_ATTN_SHA256", ""))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
