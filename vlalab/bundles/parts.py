"""A bundle's file: one plain tar of compressed parts, each with its sha256 in the manifest that ends it.

Streams of unknown length (docker save, a tar of files) are cut into pieces, and every piece is a gzip file of its own:
pieces are compressed on all cores, nothing is written twice, and without this tool the parts can still be read:
`tar -xOf FILE --wildcards 'images/libero/*' | gunzip | docker load`. `vlalab.bundles.unpacking` reads it back.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import time
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from vlalab.bundles.manifest import FORMAT, VERSION

MANIFEST, MANIFEST_SUM = "manifest.json", "manifest.sha256"
PIECE = 32 << 20  # bytes before compression
SAMPLE = 256 << 10
LEVEL = 1  # 77 MB/s per core and 0.39 of an image's size; level 6 takes three times as long for 0.35


def compress(piece: bytes) -> bytes:
    """Returns a piece as a gzip file; what does not shrink (weights, pictures) is stored as it is."""
    sample = piece[:SAMPLE]
    shrinks = len(zlib.compress(sample, LEVEL)) < 0.95 * len(sample)
    return gzip.compress(piece, LEVEL if shrinks else 0, mtime=0)


class Writer:
    """Writes a bundle. Used as a context manager: an error takes the unfinished file away; `finish` completes it.

    The file has another name (.unfinished) until it is complete.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.unfinished = path, path.with_name(path.name + ".unfinished")
        self.parts: dict[str, dict[str, object]] = {}
        self._tar = tarfile.open(self.unfinished, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115  # closed by __exit__
        self._pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._pool.shutdown(wait=True, cancel_futures=True)
        if kind is not None:
            self._tar.fileobj.close()
            self.unfinished.unlink(missing_ok=True)

    def stream(self, name: str) -> Stream:
        """Returns a file to write to, whose content becomes the parts NAME/000000.gz and so on."""
        return Stream(name, self._pool, self.add)

    def add(self, name: str, data: bytes, unpacked: int | None = None) -> None:
        """Writes one part; `unpacked` is its size in bytes before it was compressed."""
        member = tarfile.TarInfo(name)
        member.size, member.mtime, member.mode = len(data), int(time.time()), 0o644
        self._tar.addfile(member, io.BytesIO(data))
        sizes = {"size": len(data), "unpacked": len(data) if unpacked is None else unpacked}
        self.parts[name] = {"sha256": hashlib.sha256(data).hexdigest(), **sizes}

    def finish(self, about: dict[str, object]) -> None:
        """Writes the manifest (`about` and every part's sha256), and gives the file its name."""
        text = json.dumps({"format": FORMAT, "version": VERSION, **about, "parts": self.parts}, indent=1).encode()
        self.add(MANIFEST, text)
        self.add(MANIFEST_SUM, f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n".encode())
        self._tar.close()
        with open(self.unfinished, "rb") as file:
            os.fsync(file.fileno())
        self.unfinished.rename(self.path)


class Stream(io.RawIOBase):
    """A file that is written once, front to back; its pieces are compressed in threads and added in order."""

    def __init__(self, name: str, pool: ThreadPoolExecutor, add: Callable[[str, bytes, int], None]) -> None:
        self._name, self._pool, self._add = name, pool, add
        self._buffer = bytearray()
        self._waiting: deque[tuple[int, Future[bytes]]] = deque()  # size before compression, the gzip file
        self._count = 0

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self._buffer += data
        while len(self._buffer) >= PIECE:
            self._submit(bytes(self._buffer[:PIECE]))
            del self._buffer[:PIECE]
        return len(data)

    def _submit(self, piece: bytes) -> None:
        self._waiting.append((len(piece), self._pool.submit(compress, piece)))
        if len(self._waiting) > self._pool._max_workers + 1:
            self._emit()

    def _emit(self) -> None:
        unpacked, compressed = self._waiting.popleft()
        self._add(f"{self._name}/{self._count:06d}.gz", compressed.result(), unpacked)
        self._count += 1

    def end(self) -> None:
        """Writes what is left. A stream that is not ended is incomplete, and so is its bundle."""
        if self._buffer:
            self._submit(bytes(self._buffer))
            self._buffer.clear()
        while self._waiting:
            self._emit()
