"""A bundle's file: one plain tar of compressed parts, each with its sha256 in the manifest that ends it.

Streams of unknown length (docker save, a tar of files) are cut into pieces, and every piece is a gzip file of its own:
pieces are compressed on all cores, nothing is written twice, and without this tool the parts can still be read:
`tar -xOf FILE --wildcards 'images/libero/*' | gunzip | docker load`.
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
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from vlalab.console import LabError

FORMAT = "vla-lab-bundle"
VERSION = 1
KEYS = {"created", "commit", "images", "files", "parts"}  # of the manifest, beside format and version
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

    def add(self, name: str, data: bytes) -> None:
        """Writes one part."""
        member = tarfile.TarInfo(name)
        member.size, member.mtime, member.mode = len(data), int(time.time()), 0o644
        self._tar.addfile(member, io.BytesIO(data))
        self.parts[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}

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

    def __init__(self, name: str, pool: ThreadPoolExecutor, add: Callable[[str, bytes], None]) -> None:
        self._name, self._pool, self._add = name, pool, add
        self._buffer = bytearray()
        self._waiting: deque[Future[bytes]] = deque()
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
        self._waiting.append(self._pool.submit(compress, piece))
        if len(self._waiting) > self._pool._max_workers + 1:
            self._emit()

    def _emit(self) -> None:
        self._add(f"{self._name}/{self._count:06d}.gz", self._waiting.popleft().result())
        self._count += 1

    def end(self) -> None:
        """Writes what is left. A stream that is not ended is incomplete, and so is its bundle."""
        if self._buffer:
            self._submit(bytes(self._buffer))
            self._buffer.clear()
        while self._waiting:
            self._emit()


class Reader:
    """Reads a bundle. Raises LabError that names the damaged part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._tar = tarfile.open(path, "r:")  # noqa: SIM115  # closed by close
            self._members = {member.name: member for member in self._tar}
        except FileNotFoundError as error:
            raise LabError(f"{path} is not there; expected a file that ./lab bundle made") from error
        except IsADirectoryError as error:
            raise LabError(f"{path} is a folder; expected a file that ./lab bundle made") from error
        except tarfile.TarError as error:
            raise LabError(f"{path} is no bundle, or it was cut off ({error}); copy or make it again") from error
        self.manifest = self._read_manifest()
        self.parts: dict[str, dict] = self.manifest["parts"]

    def close(self) -> None:
        """Closes the file."""
        self._tar.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_manifest(self) -> dict:
        if not {MANIFEST, MANIFEST_SUM} <= set(self._members):
            raise LabError(f"{self.path} has no manifest: it is no bundle or was cut off; copy or make it again")
        text, stated = self._bytes(MANIFEST), self._bytes(MANIFEST_SUM).decode(errors="replace").split()
        if not stated or stated[0] != hashlib.sha256(text).hexdigest():
            raise LabError(f"part {MANIFEST} of {self.path} is damaged; copy or make it again")
        found = json.loads(text)
        if found.get("format") != FORMAT or found.get("version") != VERSION:
            known = f"{FORMAT} version {VERSION}"
            raise LabError(
                f"{self.path} is {found.get('format')} version {found.get('version')}; this tool reads {known}"
            )
        if missing := KEYS - found.keys():
            raise LabError(f"the manifest of {self.path} lacks {', '.join(sorted(missing))}; make the bundle again")
        return found

    def _bytes(self, name: str) -> bytes:
        file = self._tar.extractfile(self._members[name])
        if file is None:
            raise LabError(f"part {name} of {self.path} is no file; make the bundle again")
        return file.read()

    def verify(self, progress: Callable[[str], None] = lambda text: None) -> None:
        """Raises LabError at the first part that is missing, or whose sha256 is not the manifest's."""
        for number, (name, wanted) in enumerate(self.parts.items(), 1):
            progress(f"part {number} of {len(self.parts)}")
            if name not in self._members:
                raise LabError(f"part {name} is missing in {self.path}; copy or make it again")
            if self._sha256(name) != wanted["sha256"]:
                raise LabError(f"part {name} of {self.path} is damaged (another sha256); copy or make it again")

    def _sha256(self, name: str) -> str:
        file, found = self._tar.extractfile(self._members[name]), hashlib.sha256()
        while file is not None and (block := file.read(1 << 20)):
            found.update(block)
        return found.hexdigest()

    def pieces(self, stream: str) -> Iterator[bytes]:
        """Yields the content of a stream, decompressed piece by piece."""
        for name in sorted(part for part in self.parts if part.rpartition("/")[0] == stream):
            yield gzip.decompress(self._bytes(name))


class PieceReader(io.RawIOBase):
    """The pieces of a stream as one file to read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
