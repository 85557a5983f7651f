"""State files: what is in them is never run, and what is wrong with them never breaks anything."""

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from vlalab.commands import lifecycle, overview
from vlalab.host import paths, state
from vlalab.host.processes import Identity, identify
from vlalab.runtimes import local, state_files
from vlalab.runtimes.state_files import Instance

NOBODY = 54321


def record(supervisor: Identity, child: Identity | None = None, **other) -> Instance:
    known = Instance(
        name="oracle", service="oracle", started_at=1.0, url="http://127.0.0.1:8001", supervisor=supervisor,
        child=child, starts=1, last_exit=None,
    )  # fmt: skip
    return replace(known, **other)


@pytest.fixture
def bystander():
    """A process that is this user's, but was never started by the lab."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_what_is_written_is_read_again():
    me = identify(os.getpid())
    path = state_files.state_path("oracle")
    state_files.write(path, record(me, me))
    assert state_files.read(path) == record(me, me)
    assert path.stat().st_mode & 0o777 == 0o600


def test_any_user_who_writes_to_the_volume_runs_nothing(tmp_path, monkeypatch, capsys, bystander):
    """A state file with a health check of its own, as earlier versions believed it, beside one of a stranger's pid."""
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    trace, victim = tmp_path / "trace", asdict(identify(bystander.pid))
    planted = {
        "name": "oracle", "service": "oracle", "url": "http://127.0.0.1:8001", "role": "policy", "attached": False,
        "log_path": str(tmp_path / "log"), "health": ["/bin/sh", "-c", f"touch {trace}"], "health_timeout_s": 5.0,
        "stop_grace_s": 1.0, "started_at": 1.0, "supervisor": victim, "child": victim, "starts": 1, "last_exit": None,
    }  # fmt: skip
    on_volume = tmp_path / "volume" / "services" / state.directory().name / "oracle.json"
    for path in (on_volume, state.directory() / "oracle.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(planted))
        overview.show()
        assert local.instances() == [] and lifecycle.down([]) == []
    assert not trace.exists() and bystander.poll() is None
    assert "ignoring" in capsys.readouterr().err


def test_a_process_that_the_lab_did_not_start_is_never_ended(bystander):
    """Pid, start and boot fit, as a forger would know them; but that process is no supervisor of this file."""
    victim = identify(bystander.pid)
    state_files.write(state_files.state_path("oracle"), record(victim, victim))
    assert local.instance("oracle") is None and bystander.poll() is None


def test_a_supervisor_of_another_state_file_is_not_this_ones(monkeypatch):
    mine, other, me = state_files.state_path("oracle"), state_files.state_path("other"), identify(os.getpid())
    monkeypatch.setattr(state_files, "command", lambda pid: ["python", "-m", state_files.SUPERVISOR, str(mine)])
    state_files.write(mine, record(me))
    state_files.write(other, record(me, name="other"))
    assert state_files.instance("oracle") and state_files.instance("other") is None


def test_a_child_that_is_not_the_supervisors_is_never_ended(bystander, monkeypatch):
    path, me = state_files.state_path("oracle"), identify(os.getpid())
    monkeypatch.setattr(state_files, "command", lambda pid: ["python", "-m", state_files.SUPERVISOR, str(path)])
    own = subprocess.Popen(["sleep", "60"])
    stranger = subprocess.Popen(["/bin/sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    try:
        state_files.write(path, record(me, identify(own.pid)))
        assert state_files.instance("oracle").child == identify(own.pid)
        state_files.write(path, record(me, identify(int(stranger.stdout.readline()))))
        assert state_files.instance("oracle").child is None
    finally:
        own.kill()
        own.wait()
        stranger.kill()
        stranger.wait()
        stranger.stdout.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could end another user's process")
def test_another_users_process_is_never_ended():
    process = subprocess.Popen(["sleep", "60"], user=NOBODY, cwd="/")
    try:
        other = identify(process.pid)
        assert other.is_alive() and not other.belongs_to_caller() and not other.send(signal.SIGKILL)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


WRONG = [
    "", "null", "[]", "7", "{", '"text"', "[" * 100_000, "\x00", "{}", '{"version": 1}', '{"version": 2}',
    '{"version": 2, "name": "oracle", "supervisor": {"pid": 1}}',
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_damaged_state_file_is_reported_and_breaks_nothing(text, capsys):
    (state.directory() / "oracle.json").write_text(text)
    overview.show()
    assert "ignoring" in capsys.readouterr().err and local.instances() == []


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"}, {"name": "../oracle"}, {"supervisor": None}, {"supervisor": {}}, {"health": ["true"]},
        {"supervisor": {"pid": -1, "start_ticks": 1, "boot_id": ""}}, {"child": {"pid": 1}},
        {"supervisor": {"pid": 2**70, "start_ticks": 1, "boot_id": ""}}, {"supervisor": 7}, {"child": []},
    ],
    ids=str,
)  # fmt: skip
def test_a_fact_that_makes_no_sense_is_not_believed(change, capsys):
    me = asdict(record(identify(os.getpid())))
    path = state.directory() / "oracle.json"
    path.write_text(json.dumps({"version": state_files.VERSION, **me, **change}))
    assert local.instances() == []


def test_no_mutation_of_a_state_file_breaks_anything(bystander):
    path = state.directory() / "oracle.json"
    victim = identify(bystander.pid)
    state_files.write(path, record(victim, victim))
    whole, draw = path.read_bytes(), random.Random(0)
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])]))
        assert local.instances() == []
    assert bystander.poll() is None


def test_a_link_in_a_state_files_place_is_not_followed(tmp_path, capsys):
    me = identify(os.getpid())
    state_files.write(tmp_path / "oracle.json", record(me, me))
    (state.directory() / "oracle.json").symlink_to(tmp_path / "oracle.json")
    assert local.instances() == [] and "ignoring" in capsys.readouterr().err
    state_files.write(state.directory() / "oracle.json", record(me, me))  # takes the link's place
    assert not (state.directory() / "oracle.json").is_symlink() and (tmp_path / "oracle.json").exists()


def test_a_state_directory_in_which_others_write_is_refused(capsys):
    state.directory().chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-m", "vlalab", "status"], cwd=paths.ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": paths.python_path()},
    )  # fmt: skip
    assert done.returncode != 0 and "is writable by other users" in done.stderr and "Traceback" not in done.stderr
