"""The files of a folder or a zip archive, without following a link and without believing a name."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from vla_common.volume import require_space

MOST_FILES = 10_000
BOMB_BYTES, BOMB_TIMES = 1_000_000_000, 50  # so much, unpacked from that many times less: no weights pack so well
WEIGHTS = "/data.pkl"  # a file of torch.save is a zip archive too; this member tells it from others

Files = dict[str, Path]  # name in the folder or archive -> where its bytes can be read


@contextmanager
def files_of(path: Path, scratch: Path) -> Iterator[Files]:
    """Yields the regular files of a folder, or of a zip archive, unpacked below `scratch` until the block ends.

    Raises ValueError for what is neither, and for an archive that names a place outside itself or would fill the disk.
    """
    if path.is_dir():
        yield dict(_in_folder(path))
        return
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is neither a folder nor a zip archive; give the folder of the course's files")
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory(prefix=".import-", dir=scratch) as folder:
        members = _checked(archive, path)
        require_space(folder, sum(member.file_size for member in members))
        yield {member.filename: _unpacked(archive, member, path, Path(folder)) for member in members}


def _in_folder(folder: Path) -> Iterator[tuple[str, Path]]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent) / name
            if not name.startswith(".") and stat.S_ISREG(path.lstat().st_mode):  # no link, no pipe
                yield str(path.relative_to(folder)), path


def _checked(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    members = [member for member in archive.infolist() if not member.is_dir()]
    if any(member.filename.endswith(WEIGHTS) for member in members):
        raise ValueError(f"{path} is a weights file; give the folder it lies in, with its tokenizers beside it")
    for member in members:
        if reason := _what_is_wrong(member):
            raise ValueError(f"{path} was not opened: {member.filename!r} {reason}; pack the course's folder anew")
    size, packed = sum(member.file_size for member in members), path.stat().st_size
    if len(members) > MOST_FILES:
        raise ValueError(f"{path} has {len(members)} files; expected {MOST_FILES} at most")
    if size > BOMB_BYTES and size > BOMB_TIMES * packed:
        raise ValueError(f"{path} would unpack {packed:,} bytes to {size:,}: a bomb, and nothing was unpacked")
    return [member for member in members if not _is_hidden(member)]


def _what_is_wrong(member: zipfile.ZipInfo) -> str:
    name = PurePosixPath(member.filename)
    if name.is_absolute() or ".." in name.parts or "\\" in member.filename or ":" in name.parts[0]:
        return "points outside the archive"
    if stat.S_ISLNK(member.external_attr >> 16):
        return "is a link"
    return "is encrypted" if member.flag_bits & 1 else ""


def _is_hidden(member: zipfile.ZipInfo) -> bool:
    parts = PurePosixPath(member.filename).parts
    return parts[0] == "__MACOSX" or any(part.startswith(".") for part in parts)


def _unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, folder: Path) -> Path:
    """Returns the unpacked file, under a name of our own; zipfile reads no more bytes than the member declares."""
    place = folder / str(len(os.listdir(folder)))
    try:
        with archive.open(member) as packed, place.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except (zipfile.BadZipFile, EOFError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged at {member.filename!r} ({error}); copy it again") from error
    return place
