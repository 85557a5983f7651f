"""Which assets an evaluation uses: order, errors in words, and one kit however many processes ask for it."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.libero.assets import kit, official, resolve, sources


@pytest.fixture(autouse=True)
def no_variable(monkeypatch, tmp_path):
    monkeypatch.delenv(sources.VARIABLE, raising=False)
    monkeypatch.setattr(sources, "BAKED", tmp_path / "image")  # in an image this folder may hold something


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("assets") / "mine"
    kit.build(where)
    return where


def test_kit_is_the_last_resort_and_is_written_once(tmp_path):
    first = resolve(None, tmp_path)
    stamp = (first.path / "KIT").stat().st_mtime_ns
    assert (first.kind, first.digest) == ("kit", kit.digest())
    assert first.path.parent == tmp_path / "assets"
    assert resolve(None, tmp_path) == first
    assert (first.path / "KIT").stat().st_mtime_ns == stamp


def test_order_is_flag_variable_volume_kit(tmp_path, folder, monkeypatch):
    shared = official.folder(tmp_path)
    shutil.copytree(folder, shared)
    assert (resolve(None, tmp_path).kind, resolve(None, tmp_path).path) == ("folder", shared)
    monkeypatch.setenv(sources.VARIABLE, str(folder))
    assert resolve(None, tmp_path).path == folder
    assert resolve(str(shared), tmp_path).path == shared
    assert resolve("kit", tmp_path).kind == "kit"


def test_what_the_image_brings_comes_after_the_volume_and_before_the_kit(tmp_path, folder):
    baked = tmp_path / "image"
    baked.mkdir()
    assert resolve(None, tmp_path / "volume").kind == "kit"  # an image built without assets has an empty folder
    shutil.copytree(folder, baked, dirs_exist_ok=True)
    assert (resolve(None, tmp_path).kind, resolve(None, tmp_path).path) == ("folder", baked)
    shared = official.folder(tmp_path)
    shutil.copytree(folder, shared)
    assert resolve(None, tmp_path).path == shared


def test_official_files_in_the_image_are_the_official_source(tmp_path, folder):
    baked = tmp_path / "image"
    shutil.copytree(folder, baked)
    (baked / official.MARKER).write_text("")
    for flag in (None, "official"):
        source = resolve(flag, tmp_path)
        assert (source.kind, source.path, source.digest) == ("official", baked, official.digest())


def test_digest_of_a_folder_follows_its_content(tmp_path, folder):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    before = resolve(str(copy), tmp_path)
    assert before.digest == resolve(str(folder), tmp_path).digest
    (copy / sources.LANDMARKS[0]).write_text("<mujoco/>")
    assert resolve(str(copy), tmp_path).digest != before.digest


@pytest.mark.parametrize("origin", ["flag", "variable"])
def test_a_folder_that_is_no_asset_folder_is_named_with_what_it_lacks(tmp_path, monkeypatch, origin):
    (tmp_path / "libero" / "libero" / "assets").mkdir(parents=True)
    if origin == "variable":
        monkeypatch.setenv(sources.VARIABLE, str(tmp_path))
    with pytest.raises(ValueError) as raised:
        resolve(str(tmp_path) if origin == "flag" else None, tmp_path)
    text = str(raised.value)
    assert origin in text and repr(str(tmp_path)) in text
    assert "scenes/libero_tabletop_base_style.xml" in text
    assert "did you mean" in text


def test_a_missing_folder_and_missing_official_files_are_errors(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        resolve(str(tmp_path / "nowhere"), tmp_path)
    with pytest.raises(ValueError, match="invoke assets libero"):
        resolve("official", tmp_path)


def test_a_kit_with_missing_files_is_written_anew(tmp_path):
    source = resolve(None, tmp_path)
    shutil.rmtree(source.path / "scenes")
    assert kit.complete(resolve(None, tmp_path).path)
    assert os.listdir(source.path.parent) == [source.path.name]


def test_many_processes_write_one_kit(tmp_path):
    code = "import sys; from services.libero.assets import resolve; print(resolve('kit', sys.argv[1]).path)"
    run = [sys.executable, "-c", code, str(tmp_path)]
    started = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    paths = {Path(process.communicate(timeout=120)[0].strip()) for process in started}
    assert [process.returncode for process in started] == [0] * 4
    assert len(paths) == 1
    assert kit.complete(paths.pop())
    assert len(os.listdir(tmp_path / "assets")) == 1


def test_a_full_disk_is_said_with_the_way_out(tmp_path, monkeypatch):
    def full(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(kit, "build", full)
    with pytest.raises(OSError, match="No space left.*VLALAB_VOLUME") as raised:
        resolve(None, tmp_path)
    assert raised.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path / "assets") == []


def test_a_volume_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "assets").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="VLALAB_VOLUME"):
        resolve(None, tmp_path)
