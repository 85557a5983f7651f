"""Logs of local services: nobody else reads them, no link leads them elsewhere, and a full disk stops nobody."""

import os
import resource
import stat

import pytest

from vlalab.runtimes import logs
from vlalab.runtimes.logs import Log


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path():
    return logs.log_path("oracle", make=True)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("--- 2026-01-01 00:00:00 started python as process 3\nloading\nno such file", "no such file"),
        ("Traceback (most recent call last):\n  f()\nValueError: seq is 1\nbye\n--- ended", "ValueError: seq is 1"),
        ("INFO loading\nerror: port 8000 is taken\nINFO done", "error: port 8000 is taken"),
        (
            "2026-01-01 00:00:00,123 ERROR nobody answers at ws://h:1\n2026-01-01 00:00:01,456 INFO bye",
            "nobody answers at ws://h:1",
        ),
        ("", ""),
    ],
)
def test_the_cause_is_the_programs_error_else_its_last_line(words, cause):
    assert logs.cause(words) == cause


def test_every_log_is_the_callers_alone_also_an_older_and_a_rotated_one(path, monkeypatch):
    monkeypatch.setattr(logs, "MAX_BYTES", 10)
    older = path.with_name("oracle.log.1")
    path.write_text("of an earlier version\n")
    path.chmod(0o644)
    umask = os.umask(0)
    try:
        log = Log(path)
        log.write(b"moves the first\n")
    finally:
        os.umask(umask)
    assert path.read_text() == "moves the first\n" and older.read_text() == "of an earlier version\n"
    assert mode(path) == mode(older) == 0o600


@pytest.mark.parametrize("name", ["oracle.log", "oracle.log.1", "oracle.log.new"])
@pytest.mark.parametrize("how", ["link", "hard link", "folder", "pipe"])
def test_what_stands_in_a_logs_place_is_not_written_to(path, tmp_path, monkeypatch, name, how):
    monkeypatch.setattr(logs, "MAX_BYTES", 10)
    target, planted = tmp_path / "target", path.with_name(name)
    target.write_text("as it was")
    target.chmod(0o644)
    {
        "link": lambda: planted.symlink_to(target),
        "hard link": lambda: planted.hardlink_to(target),
        "folder": planted.mkdir,
        "pipe": lambda: os.mkfifo(planted),
    }[how]()
    if name == "oracle.log":
        with pytest.raises(OSError):
            Log(path)
    else:
        log = Log(path)
        log.write(b"more than ten bytes\n")
        log.write(b"so this one moves it\n")  # over what is planted as NAME.1; else it cannot, and is dropped
        is_moved = name == "oracle.log.1" and how != "folder"
        assert bool(log.dropped) != is_moved
        assert path.read_text() == ("so this one moves it\n" if is_moved else "more than ten bytes\n")
    assert target.read_text() == "as it was" and mode(target) == 0o644


def test_what_a_full_disk_takes_is_counted_and_told(path):
    """A limit on the size of files gives the errors of a full disk: a part is written, then nothing."""
    log, before = Log(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    log.write(b"first\n")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        for _ in range(5):
            log.write(b"x" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert log.dropped == 1000 and path.read_text() == "first\n"
    log.write(b"last\n")
    lines = path.read_text().splitlines()
    assert lines[0] == "first" and "1000 bytes of output were dropped: " in lines[1] and lines[2] == "last"
    assert log.dropped == 0
