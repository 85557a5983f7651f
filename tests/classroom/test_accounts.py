"""Accounts: one-time codes, names, ids and uids that are never used again."""

import json
import os
import shutil
import subprocess

import pytest

from tests.classroom.room import ClassDirectory, unmount
from tests.lab import run_lab


@pytest.fixture
def room(tmp_path):
    made = ClassDirectory(tmp_path / "volume", disk_gb=0)
    yield made
    unmount(made.path)


def codes(text):
    """Return name → code of what `class add` printed."""
    assert text.splitlines()[0] == "name,code"
    return dict(line.split(",") for line in text.splitlines()[1:])


def matches(room, name, secret):
    return room.python(f"from hub import store; print(store.require({name!r}).matches({secret!r}))") == "True\n"


@pytest.mark.parametrize(
    "text", ["anna\nben\n", "\ufeffname,full name\nanna,Anna 김\nben,Ben\n", "id,name\n1,Anna\n2,ben\n\n"]
)
def test_a_table_of_students_gets_one_time_codes(room, tmp_path, text):
    (tmp_path / "students.csv").write_text(text, encoding="utf-8")
    given = codes(room.admin("add", tmp_path / "students.csv"))
    assert sorted(given) == ["anna", "ben"] and matches(room, "anna", given["anna"])
    assert not matches(room, "anna", given["ben"])
    stored = (room.path / "accounts.json").read_text()
    assert given["anna"] not in stored and "$argon2id$" in stored
    assert os.stat(room.path / "accounts.json").st_mode & 0o777 == 0o600
    again = room.admin("add", tmp_path / "students.csv")  # to add latecomers to the same file
    assert codes(again) == {"anna": "(exists)", "ben": "(exists)"} and matches(room, "anna", given["anna"])


@pytest.mark.parametrize("name", ["root", "../x", "a b", "ä", "x" * 33])
def test_a_name_that_cannot_be_a_login_adds_nobody(room, tmp_path, name):
    (tmp_path / "students.csv").write_text(f"name\nanna\n{name}\n", encoding="utf-8")
    assert name in room.admin("add", tmp_path / "students.csv", code=1)
    assert not (room.path / "accounts.json").exists()


def test_a_new_student_with_an_old_name_gets_neither_files_nor_uid(room):
    room.admin("add", "anna")
    old = room.accounts()["anna"]
    room.python("from hub import store\nstore.remove('anna')")
    room.admin("add", "anna")
    new = room.accounts()["anna"]
    assert old["id"] != new["id"] and old["uid"] != new["uid"]


def test_a_unix_user_keeps_their_uid(room):
    """`nobody` is no system user by its number, and every machine has it."""
    room.admin("add", "nobody")
    assert room.accounts()["nobody"]["uid"] == 65534


def test_a_password_is_the_students_own(room):
    code = codes(room.admin("add", "anna"))["anna"]
    for short in ("short", code):
        with pytest.raises(Exception, match="CalledProcessError|non-zero"):
            room.python(f"from hub import store; store.set_password(store.require('anna'), {short!r})")
    room.python("from hub import store; store.set_password(store.require('anna'), 'sunflower')")
    assert matches(room, "anna", "sunflower") and not matches(room, "anna", code)
    assert room.accounts()["anna"]["is_code"] is False


@pytest.mark.parametrize("newer", [{"layout": 99}, {"jupyterhub": [99, 1]}])
def test_a_class_of_a_newer_lab_is_refused(room, newer):
    room.admin("check")
    versions = json.loads((room.path / "versions.json").read_text())
    (room.path / "versions.json").write_text(json.dumps({**versions, **newer}))
    assert "99" in room.admin("check", code=1) and "update the lab" in room.admin("check", code=1)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_for_the_boot_is_one_that_systemd_takes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "a volume"))
    assert run_lab("class", "unit") == 0
    unit = tmp_path / "vla-class.service"
    unit.write_text(capsys.readouterr().out)
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert done.returncode == 0 and "vla-class.service" not in done.stderr, done.stderr


def test_commands_without_a_running_class_say_so(room):
    room.admin("add", "anna")
    assert "./lab class up" in room.admin("reset", "anna", code=1)
    assert "./lab class list" in room.admin("remove", "bob", code=1)
    assert "anna" in room.admin("list")
