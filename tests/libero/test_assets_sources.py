"""Which assets an evaluation uses: order, errors in words, and one kit however many processes ask for it."""

import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.libero.assets import content, kit, official, resolve, sources
from services.libero.assets.kit import writer


@pytest.fixture(scope="module", autouse=True)
def drawn_once():
    """In this process the kit's files are thought up once and written as often as is asked for."""
    files = writer.files()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "files", files.copy)
        yield


@pytest.fixture(autouse=True)
def no_variable(monkeypatch, tmp_path):
    monkeypatch.delenv(sources.VARIABLE, raising=False)
    monkeypatch.setattr(sources, "BAKED", tmp_path / "image")  # in an image this folder may hold something


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    where = tmp_path_factory.mktemp("assets") / "mine"
    kit.build(where)
    return where


def test_kit_is_the_last_resort_and_is_written_once(tmp_path):
    first = resolve(None, tmp_path)
    stamp = (first.path / "KIT").stat().st_mtime_ns
    assert (first.kind, first.digest) == ("kit", kit.digest(first.path))
    assert first.path.parent == tmp_path / "assets"
    assert resolve(None, tmp_path) == first
    assert (first.path / "KIT").stat().st_mtime_ns == stamp


def test_order_is_flag_variable_volume_kit(tmp_path, directory, monkeypatch):
    shared = official.directory(tmp_path)
    shutil.copytree(directory, shared)
    assert (resolve(None, tmp_path).kind, resolve(None, tmp_path).path) == ("folder", shared)
    monkeypatch.setenv(sources.VARIABLE, str(directory))
    assert resolve(None, tmp_path).path == directory
    assert resolve(str(shared), tmp_path).path == shared
    assert resolve("kit", tmp_path).kind == "kit"
    monkeypatch.delenv(sources.VARIABLE)
    baked = tmp_path / "image"
    baked.mkdir()
    assert resolve(None, tmp_path / "other").kind == "kit"  # an image built without assets has an empty folder
    shutil.copytree(directory, baked, dirs_exist_ok=True)
    assert resolve(None, tmp_path / "other").path == baked and resolve(None, tmp_path).path == shared


def test_official_files_in_the_image_are_the_official_source(tmp_path, directory, monkeypatch):
    baked = tmp_path / "image"
    shutil.copytree(directory, baked)
    hashes = content.hashes(directory, content.files_below(directory))
    entries = [content.AssetFile(path, sha1, 0) for path, sha1 in hashes.items()]
    monkeypatch.setattr(official, "manifest", lambda: tuple(entries))
    for flag in (None, "official"):
        source = resolve(flag, tmp_path)
        assert (source.kind, source.path, source.digest) == ("official", baked, official.digest())


def test_digest_of_a_directory_follows_its_content(tmp_path, directory):
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    before = resolve(str(copy), tmp_path)
    assert before.digest == resolve(str(directory), tmp_path).digest
    for path in (sources.LANDMARKS[0], "textures/light-gray-floor-tile.png"):
        was = (copy / path).read_bytes()
        (copy / path).write_bytes(was[:-1] + bytes([was[-1] ^ 1]))
        assert resolve(str(copy), tmp_path).digest != before.digest, path
        (copy / path).write_bytes(was)
    assert resolve(str(copy), tmp_path).digest == before.digest


@pytest.mark.parametrize("origin", ["flag", "variable"])
def test_a_directory_that_is_not_an_asset_directory_is_named_with_what_it_lacks(tmp_path, monkeypatch, origin):
    (tmp_path / "libero" / "libero" / "assets").mkdir(parents=True)
    if origin == "variable":
        monkeypatch.setenv(sources.VARIABLE, str(tmp_path))
    with pytest.raises(ValueError) as raised:
        resolve(str(tmp_path) if origin == "flag" else None, tmp_path)
    text = str(raised.value)
    assert origin in text and repr(str(tmp_path)) in text
    assert "scenes/libero_tabletop_base_style.xml" in text
    assert "did you mean" in text


def test_a_missing_directory_and_missing_official_files_are_errors(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        resolve(str(tmp_path / "nowhere"), tmp_path)
    with pytest.raises(ValueError, match="./lab assets libero"):
        resolve("official", tmp_path)


# --- damage ---------------------------------------------------------------------------------------------------


def names_below(directory: Path) -> list[str]:
    """Return the names in a directory, without lock files."""
    return [name for name in os.listdir(directory) if not name.endswith(".lock")]


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def move_a_geom(kit_directory: Path) -> None:
    """Moves one collider of one object by a millimetre, keeping size and date of its file."""
    file = next(f for f in sorted(kit_directory.rglob("*.xml")) if 'pos="0.0' in f.read_text())
    facts, text = file.stat(), file.read_text()
    place = text.index('pos="0.0') + 8
    file.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert file.stat().st_size == facts.st_size


DAMAGE = {
    "every file cut off": lambda k: [f.write_bytes(b"") for f in k.rglob("*") if f.is_file()],
    "an empty KIT": lambda k: (k / "KIT").write_bytes(b""),
    "half a KIT": lambda k: (k / "KIT").write_text((k / "KIT").read_text()[:3000]),
    "a KIT of another kind": lambda k: (k / "KIT").write_bytes(b"\xff\xfe 12\n\0"),
    "a KIT of the version alone": lambda k: (k / "KIT").write_text(kit.version() + "\n"),
    "a KIT that is a folder": lambda k: ((k / "KIT").unlink(), (k / "KIT").mkdir()),
    "one file cut off": lambda k: (k / sources.LANDMARKS[0]).write_bytes(b"<mujoco>"),
    "one bit of a texture": lambda k: flip(k / "textures/light-gray-floor-tile.png"),
    "one geom": move_a_geom,
    "one file gone": lambda k: (k / sources.LANDMARKS[3]).unlink(),
    "one file too many": lambda k: (k / "scenes/extra.xml").write_text("<mujoco/>"),
    "a pipe for a file": lambda k: ((k / sources.LANDMARKS[1]).unlink(), os.mkfifo(k / sources.LANDMARKS[1])),
    "an empty folder": lambda k: [shutil.rmtree(f) if f.is_dir() else f.unlink() for f in k.iterdir()],
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_kit_is_reported_and_made_again(tmp_path, directory, damage, capsys):
    target = tmp_path / "assets" / f"libero-kit-{kit.version()[:12]}"
    shutil.copytree(directory, target)
    before = resolve("kit", tmp_path)
    assert capsys.readouterr().err == ""
    DAMAGE[damage](target)
    assert kit.damage(target)
    assert resolve("kit", tmp_path) == before
    assert not kit.damage(target)
    assert names_below(tmp_path / "assets") == [target.name]
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "was damaged" in said and "created again" in said


def test_a_kit_that_was_changed_with_its_manifest_has_another_digest(tmp_path):
    before = resolve("kit", tmp_path)
    move_a_geom(before.path)
    there = content.hashes(before.path, [p for p in content.files_below(before.path) if p != "KIT"])
    lines = [kit.version(), *(f"{value} {path}" for path, value in there.items())]
    (before.path / "KIT").write_text("\n".join(lines) + "\n")
    assert resolve("kit", tmp_path).digest != before.digest


def test_a_builder_that_is_killed_leaves_no_half_kit_and_nothing_that_stays(tmp_path):
    """SIGKILL at five moments of the second that a kit takes; whatever was named by then is whole."""
    code = "import sys; from services.libero.assets import resolve; print(flush=True); resolve('kit', sys.argv[1])"
    moments, named = random.Random(0), 0
    for _ in range(5):
        builder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        builder.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            builder.wait(moments.uniform(0, 2.0))
        builder.kill()
        builder.wait()
        builder.stdout.close()
        for found in (tmp_path / "assets").glob("libero-kit-*"):
            assert not kit.damage(found)
            named += 1
            shutil.rmtree(found)
    assert not kit.damage(resolve("kit", tmp_path).path)
    assert len(names_below(tmp_path / "assets")) == 1


# --- what is remembered ---------------------------------------------------------------------------------------


def test_unchanged_files_are_read_once_and_a_change_is_noticed_even_with_the_old_date(tmp_path, directory, monkeypatch):
    copy, notes = tmp_path / "copy", tmp_path / "notes.json"
    shutil.copytree(directory, copy)
    paths = content.files_below(copy)
    read = []
    really = content.git_sha1
    monkeypatch.setattr(content, "git_sha1", lambda data: read.append(data) or really(data))
    content.hashes(copy, paths, notes)
    assert not notes.exists(), "what was written a moment ago is not remembered"
    read.clear()
    monkeypatch.setattr(content, "SETTLED_NS", -1)
    first = content.hashes(copy, paths, notes)
    assert len(read) == len(first) == len(paths)
    assert content.hashes(copy, paths, notes) == first and len(read) == len(paths)
    assert content.hashes(copy, paths, notes, reread=True) == first and len(read) == 2 * len(paths)
    read.clear()
    move_a_geom(copy)
    second = content.hashes(copy, paths, notes)
    changed = [path for path in paths if first[path] != second[path]]
    assert len(changed) == 1 and read == [(copy / changed[0]).read_bytes()]


@pytest.mark.parametrize(
    "notes", ["", "{", "[]", "[" * 100_000, '{"a.xml": 1}', '{"a.xml": []}', '{"a.xml": [8, 0, 0, 0, null]}', "\0"]
)
def test_notes_that_make_no_sense_are_as_none(tmp_path, notes):
    (tmp_path / "a.xml").write_text("<mujoco/>")
    (tmp_path / "notes.json").write_text(notes)
    expected = {"a.xml": content.git_sha1(b"<mujoco/>")}
    assert content.hashes(tmp_path, ["a.xml", "gone.xml"], tmp_path / "notes.json") == expected


def test_notes_are_read_through_no_link_and_no_pipe(tmp_path):
    (tmp_path / "a.xml").write_text("<mujoco/>")
    (tmp_path / "link").symlink_to(tmp_path / "a.xml")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        assert len(content.hashes(tmp_path, ["a.xml"], tmp_path / name)) == 1
    assert (tmp_path / "a.xml").read_text() == "<mujoco/>"


def test_many_processes_write_one_kit(tmp_path):
    code = "import sys; from services.libero.assets import resolve; print(resolve('kit', sys.argv[1]).path)"
    run = [sys.executable, "-c", code, str(tmp_path)]
    started = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {Path(process.communicate(timeout=120)[0].strip()) for process in started}
    assert [process.returncode for process in started] == [0] * 3
    assert len(paths) == 1
    assert not kit.damage(paths.pop())
    assert len(names_below(tmp_path / "assets")) == 1


def test_a_full_disk_is_reported_with_the_way_out(tmp_path, monkeypatch):
    def full(directory):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(kit, "build", full)
    with pytest.raises(OSError, match="no space left.*VLALAB_VOLUME") as raised:
        resolve(None, tmp_path)
    assert raised.value.errno == errno.ENOSPC
    assert names_below(tmp_path / "assets") == []


def test_a_volume_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "assets").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="VLALAB_VOLUME"):
        resolve(None, tmp_path)
