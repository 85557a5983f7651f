"""Handing out, collecting, and GPU grants, without a running hub."""

import os
import stat
import time

import pytest

from tests.classroom.room import ClassDirectory, unmount

SMI = """#!/bin/sh
case "$1" in
  *compute-apps*) cat "$SMI_DIRECTORY/processes" ;;
  *) echo "0, GPU-aa, 24000, $(cat "$SMI_DIRECTORY/used")"; echo "1, GPU-bb, 8000, 10" ;;
esac
"""


@pytest.fixture
def room(tmp_path):
    made = ClassDirectory(tmp_path / "volume", disk_gb=0)
    made.admin("add", "anna", "ben")
    yield made
    unmount(made.path)


@pytest.fixture
def card(tmp_path, monkeypatch):
    """A stand-in for nvidia-smi; the result is the directory with what it prints."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI)
    program.chmod(0o755)
    (tmp_path / "used").write_text("15000")  # MiB, of the served model
    (tmp_path / "processes").write_text("")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SMI_DIRECTORY", str(tmp_path))
    return tmp_path


def home(room, name):
    return room.path / "homes" / room.accounts()[name]["id"]


def test_files_go_out_and_come_back_without_links(room, tmp_path):
    (tmp_path / "lesson.ipynb").write_text("{}")
    room.admin("hand-out", tmp_path / "lesson.ipynb")
    handed = home(room, "anna") / "notebooks" / "lesson.ipynb"
    assert handed.read_text() == "{}" and handed.stat().st_uid == room.accounts()["anna"]["uid"]
    handed.write_text("mine")
    room.admin("hand-out", tmp_path / "lesson.ipynb")
    assert handed.read_text() == "mine"
    work = home(room, "ben") / "notebooks" / "work"
    work.mkdir()
    (work / "a.py").write_text("1")
    (work / "stolen").symlink_to("/etc/shadow")
    (work / "host").symlink_to("/etc")
    os.chown(work, *[room.accounts()["ben"]["uid"]] * 2)
    room.admin("collect", "work", tmp_path / "in")
    found = {str(path.relative_to(tmp_path / "in")) for path in (tmp_path / "in").rglob("*") if not path.is_dir()}
    assert found == {"ben/work/a.py"} and (tmp_path / "in" / "anna").is_dir()
    # What a student made secret from themselves, root does not collect either.
    (home(room, "anna") / "notebooks" / "work").symlink_to("/root")
    room.admin("collect", "work", tmp_path / "again")
    assert not any((tmp_path / "again" / "anna").iterdir())


def test_a_student_sees_no_gpu_without_a_grant(room, card):
    room.admin("gpu", "grant", "anna", gb=4, hours=1)
    text = "from hub import grants; print(grants.variables('anna'), grants.variables('ben'))"
    assert room.python(text) == (
        "{'CUDA_DEVICE_ORDER': 'PCI_BUS_ID', 'CUDA_VISIBLE_DEVICES': '0', 'VLALAB_GPU_GB': '4'} {}\n"
    )
    room.admin("gpu", "revoke", "anna")
    assert room.python(text) == "{} {}\n"
    assert "no GPU grant" in room.admin("gpu", "revoke", "anna", code=1)


def test_a_grant_that_leaves_no_room_for_the_served_model_is_refused(room, card):
    """24,000 MiB, of which the model has 15,000: room for 9.4 GB with the context of each process."""
    assert "room for 8.9 GB, not 9" in room.admin("gpu", "grant", "anna", gb=9, code=1)
    room.admin("gpu", "grant", "anna", gb=5)
    assert "anna was granted 5.5" in room.admin("gpu", "grant", "ben", gb=4, code=1)
    room.admin("gpu", "grant", "ben", gb=4, gpu=1)
    assert "GPU 3 does not exist" in room.admin("gpu", "grant", "ben", gpu=3, code=1)
    # Memory that students use is theirs, not the services'.
    (card / "used").write_text("19000")
    (card / "processes").write_text(f"{os.getpid()}, GPU-aa, 4000")
    assert "services use 19.9" in room.admin("gpu", "grant", "anna", gb=6, code=1)


@pytest.mark.parametrize(("used_mib", "hours", "restarted"), [(4000, 1, []), (6000, 1, ["anna"]), (100, -1, ["anna"])])
def test_the_watcher_restarts_who_uses_more_or_longer(room, card, used_mib, hours, restarted):
    room.admin("gpu", "grant", "anna", gb=4)
    (card / "processes").write_text(f"{os.getpid()}, GPU-aa, {used_mib}")  # a process of root: made anna's below
    text = f"""
from hub import grants, limits, store
limits.uid_of = lambda pid: store.require('anna').uid
with store.editing('grants.json') as entries: entries['anna']['until'] = {time.time() + 3600 * hours}
names = []
grants.check_once(names.append)
print(names)
"""
    assert room.python(text).splitlines()[-1] == str(restarted)


def test_grants_and_homes_are_private(room, card):
    room.admin("gpu", "grant", "anna")
    assert stat.S_IMODE((room.path / "grants.json").stat().st_mode) == 0o600
