"""Where the host tool keeps its notes: in folders of the caller's own, whatever its home looks like."""

import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from vlalab.host import paths, state
from vlalab.host.console import LabError


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    for name in (state.VARIABLE, "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_a_clone_has_a_name_of_its_own(tmp_path):
    one, two = state.clone_id(tmp_path / "a" / "My Lab!"), state.clone_id(tmp_path / "b" / "My Lab!")
    assert one != two and one == state.clone_id(tmp_path / "a" / "My Lab!")
    assert re.fullmatch(r"my-lab-[0-9a-f]{8}", one)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]*", state.clone_id(Path(name))) for name in ("/", "/…", "/-x-", "/ä b"))


@pytest.mark.parametrize("name", ["anna", "j.doe", "Anna", "a" * 40, "-x", None])
def test_an_owner_is_a_user_in_a_clone(name, monkeypatch):
    def entry(uid):
        if name is None:
            raise KeyError(uid)
        return pwd.struct_passwd([name, "", uid, uid, "", "/", "/bin/sh"])

    monkeypatch.setattr(state.pwd, "getpwuid", entry)
    user, _, clone = state.owner().rpartition("-")
    assert user == ("anna" if name == "anna" else f"uid{os.geteuid()}")
    assert clone == state.clone_id()[-8:]
    assert len(f"vla-lab-{'a' * 16}-{clone}-tensorboard-4194304") <= 63, "a private policy's name is a host's name"


def test_it_lies_where_the_variables_say(tmp_path, monkeypatch):
    monkeypatch.setattr(state.platform, "node", lambda: "this/machine")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    clone = state.clone_id(paths.ROOT)
    assert state.directory() == tmp_path / "home" / ".local" / "state" / "vla-lab" / clone / "this_machine"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state.directory() == tmp_path / "xdg" / "vla-lab" / clone / "this_machine"
    monkeypatch.setenv("VLALAB_STATE", str(tmp_path / "named"))
    assert state.directory() == tmp_path / "named" / "this_machine"
    assert state.directory("logs") == state.directory() / "logs"


def test_nobody_else_reads_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    old = os.umask(0)
    try:
        found = state.directory("logs")
    finally:
        os.umask(old)
    for directory in (found, *list(found.parents)[:3]):
        assert (stat.S_IMODE(directory.stat().st_mode), directory.stat().st_uid) == (0o700, os.geteuid())
    state.directory().chmod(0o755)
    assert stat.S_IMODE(state.directory().stat().st_mode) == 0o700


@pytest.mark.parametrize("place", ["named", "named/machine", "named/machine/logs"])
@pytest.mark.parametrize("how", ["link", "file", "open", "another's"])
def test_what_others_might_have_a_hand_in_is_refused(tmp_path, monkeypatch, place, how):
    monkeypatch.setattr(state.platform, "node", lambda: "machine")
    monkeypatch.setenv("VLALAB_STATE", str(tmp_path / "named"))
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if how == "link":
        (tmp_path / "target").mkdir()
        (tmp_path / place).symlink_to(tmp_path / "target")
    elif how == "file":
        (tmp_path / place).write_text("")
    else:
        (tmp_path / place).mkdir()
        (tmp_path / place).chmod(0o777 if how == "open" else 0o700)
    if how == "another's":
        if os.geteuid() != 0:
            pytest.skip("only root can give folders away")
        os.chown(tmp_path / place, 4321, 4321)
    words = {"link": "is a link", "file": "cannot create", "open": "writable by other", "another's": "user 4321"}[how]
    with pytest.raises(LabError, match=rf"{words}.*set VLALAB_STATE"):
        state.directory("logs")
    assert not (tmp_path / "target").exists() or not list((tmp_path / "target").iterdir())


CODE = """
import os, sys
from vlalab.host import state
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
print(state.directory())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("home", [None, "", "/nonexistent", "/root", "/proc"])
def test_a_caller_without_a_home_has_a_place_too(tmp_path, home):
    """HOME is unset, missing, somebody else's (as under sudo), or cannot be written to."""
    uid = 54321  # no entry in /etc/passwd
    variables = {k: v for k, v in os.environ.items() if k != "HOME"} | ({} if home is None else {"HOME": home})
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(uid)], capture_output=True, text=True, cwd="/",
        env={**variables, "PYTHONPATH": paths.python_path()},
    )  # fmt: skip
    try:
        assert done.stdout.startswith(f"/tmp/vla-lab-{uid}/{state.clone_id()}/"), done.stderr
        assert Path(done.stdout.strip()).stat().st_uid == uid
    finally:
        shutil.rmtree(f"/tmp/vla-lab-{uid}", ignore_errors=True)


def test_what_is_written_is_the_callers_alone(tmp_path):
    old = os.umask(0)
    try:
        state.write(tmp_path / "file", "text")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    assert state.read(tmp_path / "file") == "text" and state.read(tmp_path / "none") is None


@pytest.mark.parametrize("what", ["link", "folder", "pipe", "another's"])
def test_what_is_not_a_file_of_the_callers_is_not_read(tmp_path, what):
    path = tmp_path / "file"
    if what == "link":
        path.symlink_to("/etc/passwd")
    elif what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif os.geteuid() == 0:
        path.write_text("text")
        os.chown(path, 4321, 4321)
    else:
        pytest.skip("only root can give files away")
    with pytest.raises(ValueError, match="file"):
        state.read(path)
