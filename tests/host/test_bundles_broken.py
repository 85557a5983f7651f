"""Bundles that were damaged, or made to do harm: each is refused in one sentence, and nothing of it is left behind."""

import gzip
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import zlib

import pytest

from vlalab.bundles import parts, restoring, staging
from vlalab.host import paths
from vlalab.host.console import LabError

FILES = {"checkpoints/a/weights.bin": random.Random(0).randbytes(150_000), "checkpoints/a/config.json": b"{}" * 4000}
HERE = {"checkpoints/a/config.json": b"older", "assets/mine": b"mine"}  # on the volume before


@pytest.fixture(autouse=True)
def volume(tmp_path, monkeypatch):
    """A volume that holds an older version of one of the files."""
    monkeypatch.setattr(parts, "PIECE", 64 << 10)
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    for name, data in HERE.items():
        path = tmp_path / "volume" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (1, 1))
    return tmp_path / "volume"


def inner_tar(members, trailer: bytes = b"") -> bytes:
    """The tar of volume files: (name or TarInfo, content) pairs."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, data in members:
            if isinstance(member, str):
                member = tarfile.TarInfo(member)
                member.size, member.mtime = len(data), 100
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue() + trailer


def make(path, files=FILES, tar: bytes | None = None, edit=lambda manifest: None, members=lambda members: members):
    """Writes a bundle with right checksums: of `files`, whose tar is `tar`; `edit` changes the manifest, `members` the
    list of (name or TarInfo, content) that goes into the bundle."""
    tar = inner_tar(files.items()) if tar is None else tar
    pieces = [tar[at : at + parts.PIECE] for at in range(0, len(tar), parts.PIECE)]
    content = {"README.txt": b"read me", **{f"volume/{n:06d}.gz": gzip.compress(p) for n, p in enumerate(pieces)}}
    unpacked = {"README.txt": 7, **{f"volume/{n:06d}.gz": len(p) for n, p in enumerate(pieces)}}
    manifest = {
        "format": "vla-lab-bundle", "version": 2, "created": "2026-01-01T00:00:00+00:00", "commit": "abc", "images": [],
        "files": [{"path": name, "size": len(data), "mtime": 100} for name, data in files.items()],
        "parts": {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "unpacked": unpacked[name]}
            for name, data in content.items()
        },
    }  # fmt: skip
    edited = edit(manifest)
    text = edited if isinstance(edited, bytes) else json.dumps(manifest).encode()
    listed = [*content.items(), ("manifest.json", text)]
    path.write_bytes(inner_tar(members([*listed, ("manifest.sha256", hashlib.sha256(text).hexdigest().encode())])))
    return path


def refused(path, volume) -> str:
    """Asserts that a bundle is refused and the volume is as it was; returns the sentence."""
    with pytest.raises(LabError) as raised:
        restoring.restore(path, force=True)
    text = str(raised.value)
    assert text and "\n" not in text and len(text) < 1000 and text.isprintable()
    assert on(volume) == HERE
    assert not (volume / staging.NAME).exists()
    return text


def on(volume) -> dict[str, bytes]:
    return {str(p.relative_to(volume)): p.read_bytes() for p in sorted(volume.rglob("*")) if p.is_file()}


def test_what_is_not_broken_is_restored(tmp_path, volume):
    restoring.restore(make(tmp_path / "x"))
    assert on(volume) == HERE | FILES


# --- bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_cut_off_anywhere(tmp_path, volume, seed):
    path = make(tmp_path / "x")
    os.truncate(path, random.Random(seed).randrange(path.stat().st_size - 11_000))  # else padding alone goes
    refused(path, volume)


@pytest.mark.parametrize("seed", range(40))
def test_one_bit_flipped_anywhere(tmp_path, volume, seed):
    """Refused, or a bit that says nothing: then everything is restored as it was."""
    path = make(tmp_path / "x")
    data, chance = bytearray(path.read_bytes()), random.Random(seed)
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    try:
        restoring.restore(path, force=True)
    except LabError:
        assert on(volume) == HERE
    else:
        assert on(volume) == HERE | FILES


# --- sizes, names and members -------------------------------------------------------------------------------

PIECE = "volume/000000.gz"


def part(key, change, name=PIECE):
    def edit(manifest):
        manifest["parts"][name][key] = change(manifest["parts"][name][key])

    return edit


def file(key, change):
    def edit(manifest):
        manifest["files"][0][key] = change(manifest["files"][0][key])

    return edit


STATED = {
    "a part one byte larger": part("size", lambda v: v + 1),
    "a part one byte smaller": part("size", lambda v: v - 1),
    "unpacks to one more": part("unpacked", lambda v: v + 1),
    "unpacks to one less": part("unpacked", lambda v: v - 1),
    "unpacks to nothing": part("unpacked", lambda v: 0),
    "unpacks to a petabyte": part("unpacked", lambda v: 1 << 50),
    "another sha256": part("sha256", lambda v: v[::-1]),
    "a file one byte larger": file("size", lambda v: v + 1),
    "a file one byte smaller": file("size", lambda v: v - 1),
    "a file of 300 MB": file("size", lambda v: 300_000_000),
    "a file of nothing": file("size", lambda v: 0),
    "a file of a petabyte": file("size", lambda v: 1 << 50),
    "a file by another name": file("path", lambda v: "checkpoints/b"),
    "a path out of the volume": file("path", lambda v: "checkpoints/../../b"),
    "a path with an escape code": file("path", lambda v: "checkpoints/\x1b[2J"),
    "a path that is no text": file("path", lambda v: "checkpoints/\ud800"),
    "a path with a zero": file("path", lambda v: "checkpoints/a\0b"),
    "a path too long": file("path", lambda v: "checkpoints/" + "x" * 5000),
    "a file beside what it lies in": lambda m: m["files"].append({"path": "checkpoints/a", "size": 0, "mtime": 1}),
    "a file twice": lambda m: m["files"].append(m["files"][0]),
    "a file that is not there": lambda m: m["files"].append({"path": "checkpoints/b", "size": 0, "mtime": 1}),
    "a file less": lambda m: m["files"].pop(),
    "no files": lambda m: m["files"].clear(),
    "a part less": lambda m: m["parts"].pop(PIECE),
    "a part of nothing": lambda m: m["parts"].update({"images/ui/000000.gz": m["parts"][PIECE]}),
    "a gap": lambda m: m["parts"].update({"volume/000009.gz": m["parts"].pop(PIECE)}),
    "an unknown part": lambda m: m["parts"].update({"../x": m["parts"][PIECE]}),
    "a file where a folder is": lambda m: m["files"].append({"path": "checkpoints/a", "size": 1, "mtime": 1}),
}


@pytest.mark.parametrize("change", STATED)
def test_a_manifest_that_states_something_else(tmp_path, volume, change):
    refused(make(tmp_path / "x", edit=STATED[change]), volume)


def special(name: str, kind: bytes, **facts) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    for key, value in facts.items():
        setattr(member, key, value)
    return member


MEMBERS = {
    "a member less": lambda members: [m for m in members if m[0] != PIECE],
    "a member twice": lambda members: [*members, members[1]],
    "a member more": lambda members: [*members, ("extra", b"more")],
    "no checksum": lambda members: members[:-1],
    "no manifest": lambda members: members[:-2],
    "an empty checksum": lambda members: [*members[:-1], ("manifest.sha256", b"")],
    "a checksum of bytes": lambda members: [*members[:-1], ("manifest.sha256", b"\xff\xfe\x00")],
    "a link": lambda members: [*members, (special("volume/link", tarfile.SYMTYPE), b"")],
    "a piece that is a link": lambda members: [(special(PIECE, tarfile.LNKTYPE), b""), *members[2:]],
    "a manifest that is a folder": lambda members: [*members[:-2], (special("manifest.json", tarfile.DIRTYPE), b"")],
    "a device": lambda members: [*members, (special("dev", tarfile.CHRTYPE), b"")],
    "a GNU member with holes": lambda members: [*members, (special("dev", tarfile.GNUTYPE_SPARSE), b"")],
    "holes by a header": lambda members: [
        *members, (special("h", tarfile.REGTYPE, pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}), b"")
    ],
    "a header of 10 MB": lambda members: [
        *members, (special("h", tarfile.REGTYPE, pax_headers={"comment": "x" * 10_000_000}), b"")
    ],
    "an empty file": lambda members: [],
}  # fmt: skip


@pytest.mark.parametrize("change", MEMBERS)
def test_an_archive_that_holds_something_else(tmp_path, volume, change):
    refused(make(tmp_path / "x", members=MEMBERS[change]), volume)


TARS = {
    "no tar": b"hello" * 20_000,
    "an empty tar": inner_tar([]),
    "a file less": inner_tar(list(FILES.items())[1:]),
    "a file more": inner_tar([*FILES.items(), ("checkpoints/more", b"more")]),
    "a file twice": inner_tar([*FILES.items(), *FILES.items()]),
    "a file out of the volume": inner_tar([*FILES.items(), ("../../out", b"more")]),
    "a link": inner_tar([*FILES.items(), (special("checkpoints/l", tarfile.SYMTYPE), b"")]),
    "a pipe in a file's place": inner_tar([(special("checkpoints/a/weights.bin", tarfile.FIFOTYPE), b"")]),
    "more behind its end": inner_tar(FILES.items(), b"x" * 1_000_000),
    "a long header": inner_tar(
        [*FILES.items(), (special("checkpoints/l", tarfile.REGTYPE, pax_headers={"comment": "x" * 9_000_000}), b"")]
    ),
    "many headers": inner_tar(
        [(special("checkpoints/l", tarfile.REGTYPE, pax_headers={"a": "x" * 60_000}), b"")] * 40 + [*FILES.items()]
    ),
    "cut off": inner_tar(FILES.items())[:-80_000],
    "cut off in a header": inner_tar(FILES.items())[:151_100],
    "damaged": inner_tar(FILES.items())[:150_700] + b"\xff" * 60_000,
}  # fmt: skip


@pytest.mark.parametrize("tar", TARS)
def test_files_that_are_not_those_of_the_manifest(tmp_path, volume, tar):
    refused(make(tmp_path / "x", tar=TARS[tar]), volume)


VALUES = [None, True, -1, 0, 1.5, 10**30, float("nan"), "", "x", "\ud800", [], [[]], {}, {"a": 1}]
PLACES = {
    "created": ("created",), "commit": ("commit",), "images": ("images",), "files": ("files",), "parts": ("parts",),
    "format": ("format",), "version": ("version",), "a file": ("files", 0), "path": ("files", 0, "path"),
    "size": ("files", 0, "size"), "mtime": ("files", 0, "mtime"), "a part": ("parts", PIECE),
    "sha256": ("parts", PIECE, "sha256"), "part's size": ("parts", PIECE, "size"),
    "unpacked": ("parts", PIECE, "unpacked"), "an image": ("images", 0), "image's name": ("images", 0, "name"),
    "reference": ("images", 0, "reference"), "image's size": ("images", 0, "size"), "labels": ("images", 0, "labels"),
    "image's date": ("images", 0, "created"), "image's id": ("images", 0, "id"),
}  # fmt: skip
MAY_BE = {"images": ([],), "created": ("", "x"), "commit": (None, "", "x"), "mtime": (0,)}
IMAGE = {"name": "ui", "reference": "vla-lab/ui:dev", "id": "1", "created": "2026-01-01T00:00:00+00:00", "size": 1}


@pytest.mark.parametrize("place", PLACES)
def test_a_manifest_of_every_type(tmp_path, volume, place):
    right = [repr(value) for value in MAY_BE.get(place, ())]
    for number, value in enumerate(value for value in VALUES if repr(value) not in right):

        def edit(manifest, value=value):
            if PLACES[place][0] == "images" and len(PLACES[place]) > 1:
                manifest["images"] = [IMAGE | {"labels": {}}]
                manifest["parts"]["images/ui/000000.gz"] = manifest["parts"][PIECE]
            *way, last = PLACES[place]
            for step in way:
                manifest = manifest[step]
            manifest[last] = value

        refused(make(tmp_path / f"x{number}", edit=edit), volume)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"null", b"3", b'"x"', b"[]", b"{}", b"[" * 200_000, b"\xff\xfe", b"NaN", b'{"format": [[[]]]}',
     b'{"format": "\\u001b[2J", "version": "\\n"}', b"9" * 10_000],
)  # fmt: skip
def test_a_manifest_that_is_something_else(tmp_path, volume, text):
    refused(make(tmp_path / "x", edit=lambda manifest: text), volume)


def test_references_that_an_engine_would_take_for_flags_are_refused(tmp_path, volume):
    def edit(manifest):
        manifest["images"] = [IMAGE | {"labels": {}, "reference": "--all:x"}]

    assert "reference" in refused(make(tmp_path / "x", edit=edit), volume)


# --- bombs --------------------------------------------------------------------------------------------------


BOMB_BYTES = 32 << 24  # three times what the restore may take
# Says the most memory that it had itself, in kB. What the system counts for a child begins with what its parent had.
RESTORES = """
import pathlib, re, sys
from vlalab.bundles import restoring
try:
    restoring.restore(pathlib.Path(sys.argv[1]))
finally:
    print(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
"""


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """A gzip file of that many zeros, a thousandth as large."""
    packer, block = zlib.compressobj(9, wbits=31), bytes(1 << 24)
    return b"".join(packer.compress(block) for _ in range(BOMB_BYTES >> 24)) + packer.flush()


@pytest.mark.parametrize("honest", [False, True], ids=["size of the files stated", "its own size stated"])
def test_a_bomb_is_refused_in_little_memory(tmp_path, volume, bomb, honest):
    assert len(bomb) < 1_000_000

    def edit(manifest):
        entry = manifest["parts"][PIECE]
        entry |= {"sha256": hashlib.sha256(bomb).hexdigest(), "size": len(bomb)}
        entry["unpacked"] = BOMB_BYTES if honest else entry["unpacked"]

    def members(listed):
        return [(name, bomb if name == PIECE else data) for name, data in listed]

    path = make(tmp_path / "x", edit=edit, members=members)
    done = subprocess.run([sys.executable, "-c", RESTORES, str(path)], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "LabError" in done.stderr.splitlines()[-1], done.stderr
    assert 0 < int(done.stdout.splitlines()[-1]) < 100_000, done.stdout
    assert on(volume) == HERE


# --- taking back --------------------------------------------------------------------------------------------


def test_what_was_placed_is_taken_back_when_a_later_file_cannot_be(tmp_path, volume, monkeypatch):
    names = ["checkpoints/a/config.json", "checkpoints/new/deep/x", "checkpoints/b"]
    path = make(tmp_path / "x", files=dict.fromkeys(names, b"new"))
    placed = []

    def replace(source, target, really=os.replace):
        if str(target).endswith("checkpoints/b"):
            assert (volume / "checkpoints/new/deep/x").read_bytes() == b"new"
            raise OSError(5, "Input/output error")
        placed.append(target)
        return really(source, target)

    monkeypatch.setattr(staging.os, "replace", replace)
    assert "Nothing was restored" in refused(path, volume)
    assert len(placed) >= 2 and not (volume / "checkpoints/new").exists()


def test_what_a_killed_restore_left_is_removed_by_the_next(tmp_path, volume):
    (volume / staging.NAME / "folder").mkdir(parents=True)
    (volume / staging.NAME / "0.new").write_bytes(b"half")
    restoring.restore(make(tmp_path / "x"))
    assert on(volume) == HERE | FILES and not (volume / staging.NAME).exists()


def test_two_restores_at_once_do_not_mix(tmp_path, volume):
    path = make(tmp_path / "x")
    with staging.Staging(volume), pytest.raises(LabError, match="another restore"):
        restoring.restore(path)
    assert on(volume) == HERE


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path, volume):
    (volume / "checkpoints/a/weights.bin").mkdir()
    assert "is a folder here" in refused(make(tmp_path / "x"), volume)


def test_the_staging_folder_is_no_link(tmp_path, volume):
    (tmp_path / "outside").mkdir()
    (volume / staging.NAME).symlink_to(tmp_path / "outside")
    with pytest.raises(LabError, match="cannot write"):
        restoring.restore(make(tmp_path / "x"))
    assert on(volume) == HERE and list((tmp_path / "outside").iterdir()) == []
