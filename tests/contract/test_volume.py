"""The volume's layout, its owner, and what happens where it is full or cannot be written."""

import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest

from vla_common.volume import (
    DIRECTORIES,
    Volume,
    VolumeError,
    display_path,
    main,
    make_directory,
    make_directory_without_links,
    require_space,
)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_directories_are_made_on_demand(tmp_path, name):
    volume = Volume(tmp_path / "new")
    assert volume.path(name) == tmp_path / "new" / name and not (tmp_path / "new").exists()
    assert getattr(volume, name) == volume.path(name) and volume.path(name).is_dir()
    assert getattr(volume, name).is_dir()


def test_unknown_directories_are_named(tmp_path):
    with pytest.raises(ValueError, match="no directory 'rnus'; choose one of checkpoints"):
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
    import vla_common.volume as module

    monkeypatch.delenv("VLALAB_VOLUME", raising=False)
    monkeypatch.setattr(module, "__file__", "/usr/lib/python3/site-packages/vla_common/volume.py")
    with pytest.raises(ValueError, match="set VLALAB_VOLUME"):
        Volume()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_what_root_makes_belongs_to_the_owner_of_the_volume(tmp_path):
    os.chown(tmp_path, 1234, 1235)
    made = make_directory(tmp_path / "a" / "b")
    for directory in (made, made.parent):
        assert (directory.stat().st_uid, directory.stat().st_gid) == (1234, 1235)


def test_a_prepared_volume_has_every_directory_and_is_left_alone_the_second_time(tmp_path):
    volume = Volume(tmp_path / "new")
    volume.prepare(os.geteuid(), os.getegid())
    assert all(volume.path(name).is_dir() for name in DIRECTORIES)
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
    owners = {name: volume.path(name).stat().st_uid for name in DIRECTORIES}
    assert owners == {name: 0 if name == "hf" else 1234 for name in DIRECTORIES}  # hf was open to everybody
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
    with pytest.raises(VolumeError, match=r"cannot create the directory .*runs.*set VLALAB_VOLUME"):
        _ = Volume(tmp_path).runs


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch, number):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(VolumeError, match=os.strerror(number)) as caught:
        _ = Volume(tmp_path).runs
    assert caught.value.errno == number


def test_space_is_requested_before_it_is_used(tmp_path):
    require_space(tmp_path / "not" / "there" / "yet", 1)
    with pytest.raises(VolumeError, match=r"GB free at .*1000000.0 GB needed") as caught:
        require_space(tmp_path / "not" / "there" / "yet", 10**15)
    assert caught.value.errno == errno.ENOSPC


# --- links that a container, or a notebook in one, may have put there -----------------------------------------


@pytest.fixture
def target(tmp_path) -> Path:
    """What must stay as it is: a folder outside the volume."""
    (tmp_path / "etc").mkdir(mode=0o755)
    return tmp_path / "etc"


def untouched(target: Path) -> bool:
    facts = target.stat()
    return (facts.st_uid, facts.st_mode & 0o777, list(target.iterdir())) == (os.geteuid(), 0o755, [])


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_link_in_a_directories_place_is_refused_and_its_target_left_alone(tmp_path, target, name):
    volume = Volume(tmp_path / "volume")
    volume.root.mkdir()
    volume.path(name).symlink_to(target)
    words = rf"cannot create the directory .*volume/{name}: at .*volume/{name} it is a link to .*etc"
    with pytest.raises(VolumeError, match=words):
        getattr(volume, name)
    with pytest.raises(VolumeError, match=words):
        volume.prepare(*((4321, 4321) if os.geteuid() == 0 else (os.geteuid(), os.getegid())))
    assert untouched(target)


@pytest.mark.parametrize("at", ["logs", "logs/tensorboard", "logs/tensorboard/run"])
def test_a_link_on_the_way_to_a_directory_is_refused(tmp_path, target, monkeypatch, at):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    (tmp_path / "volume" / at).parent.mkdir(parents=True)
    (tmp_path / "volume" / at).symlink_to(target)
    with pytest.raises(VolumeError, match=r"is a link to .*etc.*mount a directory"):
        make_directory(tmp_path / "volume" / "logs" / "tensorboard" / "run")
    assert untouched(target)


def test_a_link_to_nothing_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path))
    (tmp_path / "runs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(VolumeError, match="is a link to"):
        make_directory(tmp_path / "runs" / "first")
    assert not (tmp_path / "elsewhere").exists()


def test_the_root_of_the_volume_may_be_a_link(tmp_path, monkeypatch):
    """It is the caller's own choice, and nobody who may write to the volume can change it."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "volume").symlink_to(tmp_path / "disk")
    volume = Volume(tmp_path / "volume")
    volume.prepare(os.geteuid(), os.getegid())
    assert volume.runs.is_dir() and (tmp_path / "disk" / "runs").is_dir()
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    assert make_directory(volume.path("runs") / "a" / "b").is_dir()


def test_links_outside_the_volume_are_their_owners(tmp_path, target, monkeypatch):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    (tmp_path / "out").symlink_to(target)
    assert make_directory(tmp_path / "out" / "pictures").is_dir() and (target / "pictures").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_link_exchanged_for_a_directory_in_a_hurry_changes_nothing_elsewhere(tmp_path, target):
    """Somebody swaps a folder and a link as fast as they can, while root prepares the volume again and again."""
    volume = Volume(tmp_path / "volume")
    volume.root.mkdir()
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for step in (
                lambda: volume.path("hf").symlink_to(target),
                volume.path("hf").unlink,
                volume.path("hf").rmdir,
            ):
                with contextlib.suppress(OSError):
                    step()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(500):
            with contextlib.suppress(OSError):
                volume.prepare(4321, 4321)
    finally:
        stop.set()
        thread.join()
    assert untouched(target)


@pytest.mark.skipif(os.geteuid() != 0, reason="others are led to nothing but what is theirs")
@pytest.mark.parametrize("at", ["", "model.safetensors", "deep/er/x"])
def test_root_writes_in_no_directory_that_holds_a_link(tmp_path, target, monkeypatch, at):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    own = tmp_path / "volume" / "checkpoints" / "mine"
    (own / at).parent.mkdir(parents=True)
    (own / at).symlink_to(target / "file")
    with pytest.raises(VolumeError, match=r"is a link to .*etc/file"):
        make_directory_without_links(own)
    assert untouched(target)
    (own / at).unlink()
    assert make_directory_without_links(own) == own


def test_a_path_below_the_callers_directory_is_shown_from_there(tmp_path, monkeypatch):
    monkeypatch.delenv("VLALAB_HERE", raising=False)
    report = tmp_path / "volume" / "runs" / "a" / "report.html"
    assert display_path(report) == str(report)
    monkeypatch.setenv("VLALAB_HERE", str(tmp_path))
    assert display_path(report) == "volume/runs/a/report.html"
    assert display_path(tmp_path) == str(tmp_path)
    monkeypatch.setenv("VLALAB_HERE", str(tmp_path / "elsewhere"))
    assert display_path(report) == str(report)
