"""Reads a bundle that anybody may have written: in blocks, never more than the manifest says, every size compared.

Whatever is wrong with it is a LabError of one sentence; nothing here needs more than some megabytes of memory.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vlalab.bundles import manifest
from vlalab.bundles.manifest import Manifest, VolumeFile
from vlalab.bundles.parts import MANIFEST, MANIFEST_SUM
from vlalab.host.console import LabError

BLOCK = 256 << 10
HEADER_BYTES = 64 << 10  # of the extended header that a long name needs
SLACK = 4 * BLOCK  # what a stream may hold beyond its files: headers of one member, padding, read-ahead


class PlainMember(tarfile.TarInfo):
    """A tar member as ./lab bundle writes them: a plain file, maybe behind a short extended header."""

    @classmethod
    def frombuf(cls, buf: bytes, encoding: str, errors: str) -> PlainMember:
        """Returns the member of a header block. Raises LabError for any other kind: links, devices, holes."""
        member = super().frombuf(buf, encoding, errors)
        if member.type == tarfile.XHDTYPE and member.size <= HEADER_BYTES:
            return member
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise LabError(f"the bundle holds {member.name[:200]!a}, which is no plain file; make the bundle again")
        return member


@contextmanager
def well_formed(what: object) -> Iterator[None]:
    """Turns whatever tarfile says of a tar that is none into a LabError."""
    try:
        yield
    except (tarfile.TarError, zlib.error, EOFError, ValueError, LookupError, OverflowError, RecursionError) as error:
        words = f"{type(error).__name__}: {error}"
        raise LabError(f"{what} is no bundle, or it was cut off ({words[:200]!a}); copy or make it again") from error


class Reader:
    """An open bundle. Its members are those that its manifest names, no more and no less."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with well_formed(path):
                self._tar = tarfile.open(path, "r:", tarinfo=PlainMember)  # noqa: SIM115  # closed by close
        except FileNotFoundError as error:
            raise LabError(f"{path} is not there; expected a file that ./lab bundle made") from error
        except IsADirectoryError as error:
            raise LabError(f"{path} is a folder; expected a file that ./lab bundle made") from error
        except OSError as error:
            raise LabError(f"{path} cannot be read: {error.strerror}") from error
        try:
            self._members = self._listed()
            self.manifest = self._read_manifest()
            self._check_names()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._tar.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listed(self) -> dict[str, tarfile.TarInfo]:
        members: dict[str, tarfile.TarInfo] = {}
        with well_formed(self.path):
            for member in self._tar:
                if member.name in members or member.issparse():
                    raise LabError(f"{self.path} holds {member.name[:200]!a} twice or with holes; make it again")
                members[member.name] = member
        return members

    def _read_manifest(self) -> Manifest:
        if not {MANIFEST, MANIFEST_SUM} <= set(self._members):
            raise LabError(f"{self.path} has no manifest: it is no bundle or was cut off; copy or make it again")
        if max(self._members[name].size for name in (MANIFEST, MANIFEST_SUM)) > manifest.MOST_BYTES:
            raise LabError(f"the manifest of {self.path} is too long to be one; make the bundle again")
        text, stated = b"".join(self._blocks(MANIFEST)), b"".join(self._blocks(MANIFEST_SUM)).split()
        if not stated or stated[0].decode(errors="replace") != hashlib.sha256(text).hexdigest():
            raise LabError(f"part {MANIFEST} of {self.path} is damaged; copy or make it again")
        return manifest.parse(text, self.path)

    def _check_names(self) -> None:
        stated, there = self.manifest.parts, self._members.keys() - {MANIFEST, MANIFEST_SUM}
        for name in stated:
            if name not in there:
                raise LabError(f"part {name} is missing in {self.path}; copy or make it again")
            if self._members[name].size != stated[name].size:
                raise LabError(f"part {name} of {self.path} is damaged (another size); copy or make it again")
        if extra := sorted(there - stated.keys()):
            raise LabError(f"{self.path} holds {extra[0][:200]!a}, which its manifest does not name; make it again")

    def _blocks(self, name: str) -> Iterator[bytes]:
        """Yields a member as it lies there. Raises LabError where the file ends before it."""
        left = self._members[name].size
        with well_formed(self.path):
            file = self._tar.extractfile(self._members[name])
            while left and (block := file.read(min(BLOCK, left))):
                left -= len(block)
                yield block
        if left:
            raise LabError(f"{self.path} was cut off in part {name}; copy or make it again")

    def verify(self, progress: Callable[[str], None] = lambda text: None) -> None:
        """Raises LabError at the first part whose sha256 is not the manifest's."""
        for number, (name, wanted) in enumerate(self.manifest.parts.items(), 1):
            progress(f"part {number} of {len(self.manifest.parts)}")
            found = hashlib.sha256()
            for block in self._blocks(name):
                found.update(block)
            if found.hexdigest() != wanted.sha256:
                raise LabError(f"part {name} of {self.path} is damaged (another sha256); copy or make it again")

    def stream(self, name: str) -> Iterator[bytes]:
        """Yields a stream's content in blocks. Raises LabError at the first byte more or less than is stated."""
        for piece in self.manifest.pieces(name):
            yield from self._unpacked(piece)

    def _unpacked(self, name: str) -> Iterator[bytes]:
        wrong = LabError(f"part {name} of {self.path} unpacks to another size than is stated; make the bundle again")
        left, gzip = self.manifest.parts[name].unpacked, zlib.decompressobj(wbits=31)
        with well_formed(f"part {name} of {self.path}"):
            for compressed in self._blocks(name):
                while compressed and not gzip.eof:
                    block = gzip.decompress(compressed, BLOCK)
                    compressed = gzip.unconsumed_tail
                    left -= len(block)
                    if left < 0:
                        raise wrong
                    if block:
                        yield block
                if gzip.unused_data or (gzip.eof and compressed):
                    raise wrong
        if left or not gzip.eof:
            raise wrong

    def files(self) -> Iterator[tuple[VolumeFile, Iterator[bytes]]]:
        """Yields the volume's files with their content, in the order in which they lie there.

        Raises LabError for a member that the manifest does not name or names with another size, and, at the end, for
        one that is missing. A content that is not read is skipped.
        """
        wanted = {file.path: file for file in self.manifest.files}
        source = Metered(self.stream("volume"))
        with well_formed(self.path), tarfile.open(fileobj=source, mode="r|", bufsize=BLOCK, tarinfo=PlainMember) as tar:
            for member in tar:
                file = wanted.pop(manifest.volume_path(member.name), None)
                if file is None or file.size != member.size or member.issparse():
                    raise LabError(f"{self.path} holds {member.name!a} twice, unnamed or with another size than stated")
                source.allow(member.offset_data + file.size + SLACK)
                yield file, _content(tar, member)
        if wanted:
            raise LabError(f"{next(iter(wanted))} is named in {self.path} but not in it; make the bundle again")
        if source.holds_more_than(tarfile.RECORDSIZE + BLOCK):
            raise LabError(f"{self.path} holds more behind its files; make the bundle again")


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    file, left = tar.extractfile(member), member.size
    with well_formed(f"the content of {member.name!a}"):
        while left and (block := file.read(min(BLOCK, left))):
            left -= len(block)
            yield block
    if left:
        raise LabError(f"the bundle was cut off in {member.name!a}; copy or make it again")


class Metered(io.RawIOBase):
    """Blocks as one file to read, no further than allowed: a tar's headers cannot ask for gigabytes."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, memoryview(b"")
        self._place, self._limit = 0, SLACK

    def allow(self, limit: int) -> None:
        """Allows reading up to that place."""
        self._limit = limit

    def readable(self) -> bool:
        return True

    def readinto(self, target) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(target), len(self._rest))
        self._place += count
        if self._place > self._limit:
            raise LabError("the bundle's files are not laid out as ./lab bundle does it; make the bundle again")
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def holds_more_than(self, count: int) -> bool:
        """Returns whether more than that many bytes have not been read."""
        left = len(self._rest)
        while left <= count and (block := next(self._blocks, None)) is not None:
            left += len(block)
        return left > count
