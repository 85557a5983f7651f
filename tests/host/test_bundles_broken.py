"""Bundles that were damaged, or made to do harm: each is refused in one sentence, and nothing of it is left behind."""

import hashlib
import io
import json
import os
import random
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from vlalab.bundles import packing, restoring
from vlalab.environments import venvs
from vlalab.host import state
from vlalab.host.console import LabError

FILES = {"checkpoints/a/weights.bin": random.Random(0).randbytes(150_000), "checkpoints/a/config.json": b"{}" * 4000}
HERE = {"checkpoints/a/config.json": b"older", "assets/mine": b"mine"}  # on the volume before


@pytest.fixture(autouse=True)
def volume(tmp_path, monkeypatch):
    """A volume that holds an older version of one of the files."""
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    for name, data in HERE.items():
        path = tmp_path / "volume" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (1, 1))
    return tmp_path / "volume"


def make(path, files=FILES, edit=lambda manifest: None, members=lambda members: members):
    """Write a bundle of `files` with right checksums; `edit` changes the manifest, or returns its text, `members` the
    list of (name or TarInfo, content) that goes into the bundle."""
    content = {"README.txt": b"read me", **{f"volume/{name}": data for name, data in files.items()}}
    manifest = {
        "format": packing.FORMAT, "created": "2026-01-01T00:00:00+00:00", "commit": "abc", "images": [],
        "members": {n: {"sha256": hashlib.sha256(d).hexdigest(), "size": len(d)} for n, d in content.items()},
    }  # fmt: skip
    edited = edit(manifest)
    text = edited if isinstance(edited, bytes) else json.dumps(manifest).encode()
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for member, data in members([*content.items(), ("manifest.json", text)]):
            if isinstance(member, str):
                member = tarfile.TarInfo(member)
                member.size, member.mtime = len(data), 100
            tar.addfile(member, io.BytesIO(data))
    return path


def refused(path, volume) -> str:
    """Asserts that a bundle is refused and the volume is as it was; returns the sentence."""
    with pytest.raises(LabError) as raised:
        restoring.restore(path, force=True)
    text = str(raised.value)
    assert text and "\n" not in text and len(text) < 1000 and text.isprintable()
    assert on(volume) == HERE
    assert not (volume / restoring.STAGING).exists()
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

WEIGHTS = "volume/checkpoints/a/weights.bin"


def entry(key, change):
    def edit(manifest):
        manifest["members"][WEIGHTS][key] = change(manifest["members"][WEIGHTS][key])

    return edit


def also(name):
    """State one more member, which is not in the bundle."""
    return lambda manifest: manifest["members"].update({name: manifest["members"][WEIGHTS]})


STATED = {
    "a file one byte larger": entry("size", lambda v: v + 1),
    "a file of a petabyte": entry("size", lambda v: 1 << 50),
    "another sha256": entry("sha256", lambda v: v[::-1]),
    "a file that is not there": also("volume/checkpoints/b"),
    "an image that is not there": also("images/ui.tar.gz"),
    "a file less": lambda m: m["members"].pop(WEIGHTS),
    "no files": lambda m: m["members"].clear(),
}


@pytest.mark.parametrize("change", STATED)
def test_a_manifest_that_states_something_else(tmp_path, volume, change):
    refused(make(tmp_path / "x", edit=STATED[change]), volume)


PATHS = (
    "../out", "checkpoints/../../out", "/out", "runs/r/episodes.jsonl", "services/x", "checkpoints", "", "out",
    "checkpoints/..", "checkpoints/\x1b[2J", "checkpoints/a//b",
)  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
def test_paths_outside_the_volume_are_rejected(tmp_path, volume, name):
    assert "not in checkpoints or assets" in refused(make(tmp_path / "x", files={name: b"harm"}), volume)


@pytest.mark.parametrize("name", ["checkpoints/a/config.json/x", "checkpoints/" + "x" * 5000])
def test_impossible_paths_are_rejected(tmp_path, volume, name):
    refused(make(tmp_path / "x", files={**FILES, name: b"harm"}), volume)


def special(name: str, kind: bytes, **facts) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    for key, value in facts.items():
        setattr(member, key, value)
    return member


MEMBERS = {
    "a member less": lambda members: [m for m in members if m[0] != WEIGHTS],
    "a member twice": lambda members: [*members, members[1]],
    "a member more": lambda members: [*members, ("extra", b"more")],
    "no manifest": lambda members: members[:-1],
    "a link": lambda members: [*members, (special("volume/checkpoints/l", tarfile.SYMTYPE), b"")],
    "a hard link": lambda members: [(special(WEIGHTS, tarfile.LNKTYPE), b""), *members[2:]],
    "a pipe": lambda members: [(special(WEIGHTS, tarfile.FIFOTYPE), b""), *members[2:]],
    "a manifest that is a directory": lambda members: [
        *members[:-1], (special("manifest.json", tarfile.DIRTYPE), b"")
    ],
    "a device": lambda members: [*members, (special("dev", tarfile.CHRTYPE), b"")],
    "a GNU member with holes": lambda members: [*members, (special("dev", tarfile.GNUTYPE_SPARSE), b"")],
    "holes by a header": lambda members: [
        *members, (special("h", tarfile.REGTYPE, pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}), b"")
    ],
    "an empty file": lambda members: [],
}  # fmt: skip


@pytest.mark.parametrize("change", MEMBERS)
def test_an_archive_that_holds_something_else(tmp_path, volume, change):
    refused(make(tmp_path / "x", members=MEMBERS[change]), volume)


VALUES = [None, True, -1, 0, 1.5, 10**30, float("nan"), "", "x", "\ud800", [], [[]], {}, {"a": 1}]
PLACES = {
    "created": ("created",), "commit": ("commit",), "images": ("images",), "members": ("members",),
    "format": ("format",), "a member": ("members", WEIGHTS), "size": ("members", WEIGHTS, "size"),
    "sha256": ("members", WEIGHTS, "sha256"), "an image": ("images", 0), "image's name": ("images", 0, "name"),
    "reference": ("images", 0, "reference"), "image's size": ("images", 0, "size"), "labels": ("images", 0, "labels"),
    "image's date": ("images", 0, "created"),
}  # fmt: skip
MAY_BE = {"images": ([], "", {}), "commit": ("", "x", "\ud800")}
IMAGE = {"name": "ui", "reference": "vla-lab/ui:dev", "id": "1", "created": "2026-01-01T00:00:00+00:00", "size": 1}


@pytest.mark.parametrize("place", PLACES)
def test_a_manifest_of_every_type(tmp_path, volume, place):
    right = [repr(value) for value in MAY_BE.get(place, ())]
    for number, value in enumerate(value for value in VALUES if repr(value) not in right):

        def edit(manifest, value=value):
            if PLACES[place][0] == "images" and len(PLACES[place]) > 1:
                manifest["images"] = [IMAGE | {"labels": {}}]
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


def test_image_references_that_look_like_flags_are_rejected(tmp_path, volume):
    def edit(manifest):
        manifest["images"] = [IMAGE | {"labels": {}, "reference": "--all:x"}]

    assert "reference" in refused(make(tmp_path / "x", edit=edit), volume)


# --- beside the volume's own files ----------------------------------------------------------------------------


def test_what_a_killed_restore_left_is_removed_by_the_next(tmp_path, volume):
    (volume / restoring.STAGING / "folder").mkdir(parents=True)
    (volume / restoring.STAGING / "0.new").write_bytes(b"half")
    restoring.restore(make(tmp_path / "x"))
    assert on(volume) == HERE | FILES and not (volume / restoring.STAGING).exists()


def test_two_restores_at_once_do_not_mix(tmp_path, volume, capsys):
    path = make(tmp_path / "x")
    with ThreadPoolExecutor() as pool, venvs.file_lock(state.directory() / ".restore.lock", ""):
        second = pool.submit(restoring.restore, path)
        while "another restore is running" not in capsys.readouterr().err and not second.done():
            time.sleep(0.05)
        assert on(volume) == HERE and not second.done()
    second.result()
    assert on(volume) == HERE | FILES


def test_directory_in_place_of_a_file_is_reported(tmp_path, volume):
    (volume / "checkpoints/a/weights.bin").mkdir()
    assert "is a directory here" in refused(make(tmp_path / "x"), volume)


def test_the_staging_directory_is_not_a_link(tmp_path, volume):
    (tmp_path / "outside").mkdir()
    (volume / restoring.STAGING).symlink_to(tmp_path / "outside")
    with pytest.raises(LabError, match="nothing was restored"):
        restoring.restore(make(tmp_path / "x"))
    assert on(volume) == HERE and list((tmp_path / "outside").iterdir()) == []
