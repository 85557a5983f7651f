"""The volume's layout, its owner, and what happens where it is full or cannot be written."""

import errno
import os
from pathlib import Path

import pytest

from vla_contract import Volume
from vla_contract.volume import FOLDERS, VolumeError, main, make_folder, require_space


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


def test_a_prepared_volume_has_every_folder_and_is_left_alone_the_second_time(tmp_path):
    volume = Volume(tmp_path / "new")
    volume.prepare(os.geteuid(), os.getegid())
    assert all(volume.path(name).is_dir() for name in FOLDERS)
    before = {path: path.stat() for path in (tmp_path / "new").rglob("*")}
    assert volume.prepare(os.geteuid(), os.getegid()) == []
    assert {path: path.stat() for path in (tmp_path / "new").rglob("*")} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_root_prepares_the_volume_for_another_user(tmp_path):
    volume = Volume(tmp_path / "volume")
    (volume.root / "runs" / "old").mkdir(parents=True)
    (volume.root / "hf").mkdir(mode=0o777)
    os.chmod(volume.root / "hf", 0o777)
    given = volume.prepare(1234, 1235)
    owners = {name: volume.path(name).stat().st_uid for name in FOLDERS}
    assert owners == {name: 0 if name == "hf" else 1234 for name in FOLDERS}  # hf was open to everybody
    assert volume.path("runs") in given and (volume.root / "runs" / "old").stat().st_uid == 0  # what lies inside stays
    assert volume.prepare(1234, 1235) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_what_belongs_to_a_third_user_is_not_taken_away(tmp_path):
    volume = Volume(tmp_path)
    volume.prepare(1234, 1235)
    with pytest.raises(VolumeError, match=r"user 99 cannot write to .* sudo chown 99:99 .*or set VLALAB_VOLUME"):
        volume.prepare(99, 99)
    os.chmod(tmp_path / "runs", 0o500)  # the user's own, but closed: opened again
    assert volume.prepare(1234, 1235) == [tmp_path / "runs"]
    assert (tmp_path / "runs").stat().st_mode & 0o700 == 0o700


def test_the_command_prepares_the_volume_or_says_why_not(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    user = [str(os.geteuid()), str(os.getegid())]
    assert main(user) == 0 and (tmp_path / "volume" / "runs").is_dir()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "file" / "volume"))
    assert main(user) == 1
    assert "set VLALAB_VOLUME" in capsys.readouterr().err


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
