"""The volume's layout, its owner, and what happens where it is full or cannot be written."""

import errno
import os
from pathlib import Path

import pytest

from vla_contract import Volume
from vla_contract.volume import FOLDERS, VolumeError, make_folder, require_space


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_are_made_on_demand(tmp_path, name):
    volume = Volume(tmp_path / "new")
    assert volume.path(name) == tmp_path / "new" / name and not (tmp_path / "new").exists()
    assert getattr(volume, name) == volume.path(name) and volume.path(name).is_dir()
    assert getattr(volume, name).is_dir()


def test_unknown_folders_are_named(tmp_path):
    with pytest.raises(ValueError, match="no folder 'rnus'; it has checkpoints"):
        Volume(tmp_path).path("rnus")


def test_the_root_comes_from_argument_variable_or_repository(tmp_path, monkeypatch):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "from variable"))
    assert Volume().root == tmp_path / "from variable"
    assert Volume(tmp_path / "given").root == tmp_path / "given"
    monkeypatch.setenv("VLALAB_VOLUME", "~/lab")
    assert Volume().root == Path.home() / "lab"
    monkeypatch.setenv("VLALAB_VOLUME", "")
    assert Volume().root == Path(__file__).resolve().parents[2] / "shared" / "volume"


def test_an_installed_package_asks_for_the_variable(monkeypatch):
    import vla_contract.volume as module

    monkeypatch.delenv("VLALAB_VOLUME", raising=False)
    monkeypatch.setattr(module, "__file__", "/usr/lib/python3/site-packages/vla_contract/volume.py")
    with pytest.raises(ValueError, match="set VLALAB_VOLUME"):
        Volume()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_what_root_makes_belongs_to_the_owner_of_the_volume(tmp_path):
    os.chown(tmp_path, 1234, 1235)
    made = make_folder(tmp_path / "a" / "b")
    for folder in (made, made.parent):
        assert (folder.stat().st_uid, folder.stat().st_gid) == (1234, 1235)


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(VolumeError, match=r"cannot make the folder .*runs.*set VLALAB_VOLUME"):
        _ = Volume(tmp_path).runs


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch, number):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(VolumeError, match=os.strerror(number)) as caught:
        _ = Volume(tmp_path).runs
    assert caught.value.errno == number


def test_space_is_asked_for_before_it_is_used(tmp_path):
    require_space(tmp_path / "not" / "there" / "yet", 1)
    with pytest.raises(VolumeError, match=r"GB free at .*1000000.0 GB needed") as caught:
        require_space(tmp_path / "not" / "there" / "yet", 10**15)
    assert caught.value.errno == errno.ENOSPC
