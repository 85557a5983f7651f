"""Setups that are broken on purpose on this very machine: the doctor finds each, and says how to mend it."""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vlalab.commands import doctor
from vlalab.doctor import runner
from vlalab.doctor.check import FAIL, PASS, SKIP, WARN, CheckResult, Context, Finding
from vlalab.doctor.machine import Disk, Machine
from vlalab.environments import venvs
from vlalab.host import paths
from vlalab.host.console import LabError


def look(check: str, machine: Machine | None = None, **case) -> Finding:
    (found,) = runner.run(runner.checks_by_id([check]), Context(machine or Machine(), **case))
    assert not found.error, found.error
    return found.finding


def wrong(found: Finding, verdict: str, words: str, fix: str = "") -> None:
    assert found.verdict == verdict and words in found.text and fix in found.fix, found


@pytest.fixture
def clone(fresh_clone, tmp_path) -> Path:
    """A clone of a test's own: hard links would be written through."""
    return Path(shutil.copytree(fresh_clone, tmp_path / "vla lab", symlinks=True))


@pytest.fixture
def volume(tmp_path) -> Path:
    (tmp_path / "volume" / "runs").mkdir(parents=True)
    return tmp_path / "volume"


# --- the volume ---------------------------------------------------------------------------------------------


def test_a_volume_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    wrong(look("volume", volume=tmp_path / "file" / "volume"), FAIL, "is not writable; set VLALAB_VOLUME")


def test_a_volume_of_another_owner(volume, monkeypatch):
    assert look("volume-owner", volume=volume).verdict in (PASS, FAIL)  # root's own default is 1000
    monkeypatch.setenv("VLALAB_UID", str(volume.stat().st_uid + 1))
    wrong(look("volume-owner", volume=volume), FAIL, "services run as", f"sudo chown {volume.stat().st_uid + 1}:")
    assert look("volume-owner", volume=volume / "none").verdict == SKIP


@pytest.mark.parametrize(("size", "verdict"), [(90_000_000, FAIL), (4_000_000_000, WARN), (60_000_000_000, PASS)])
def test_a_disk_that_is_full(tmp_path, size, verdict):
    class Small(Machine):
        def disk(self, path: str) -> Disk:
            return Disk(size, size)

    assert look("disk-volume", Small(), volume=tmp_path / "volume").verdict == verdict


# --- checkpoints --------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(volume) -> Path:
    directory = volume / "checkpoints" / "openvla-tiny"
    directory.mkdir(parents=True)
    content = {"config.json": b'{"model_type": "openvla"}', "model.safetensors": bytes(range(256)) * 64}
    for name, data in content.items():
        (directory / name).write_bytes(data)
    files = {name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for name, data in content.items()}
    (directory / "checkpoint.json").write_text(
        json.dumps({"repo": "random-tiny", "revision": "seed-0", "files": files})
    )
    return directory


def test_a_checkpoint_that_is_whole(checkpoint, volume):
    assert look("checkpoints", volume=volume, environments=("openvla",)) == Finding(
        PASS, "1 as their manifests say", ""
    )


def test_a_checkpoint_with_a_flipped_byte(checkpoint, volume):
    data = bytearray((checkpoint / "model.safetensors").read_bytes())
    data[1000] ^= 1
    (checkpoint / "model.safetensors").write_bytes(data)
    assert look("checkpoints", volume=volume).verdict == PASS, "sizes alone, where no environment is named"
    found = look("checkpoints", volume=volume, environments=("openvla",))
    wrong(found, FAIL, "model.safetensors has another sha256; remove it, and run the ./lab checkpoint command")
    assert f"rm -f {shlex.quote(f'{checkpoint}/model.safetensors')}" in found.fix


@pytest.mark.parametrize("text", ["{", "[]", '{"files": {"config.json": {}}}'])
def test_a_checkpoint_whose_manifest_is_damaged(checkpoint, volume, text):
    (checkpoint / "checkpoint.json").write_text(text)
    wrong(look("checkpoints", volume=volume), FAIL, "checkpoint.json cannot be read")


# --- the clone ----------------------------------------------------------------------------------------------


def test_an_environment_whose_python_is_gone(clone):
    env = venvs.get("ui", clone)
    env.python.parent.mkdir(parents=True)
    env.python.symlink_to("/nowhere/python3")
    wrong(look("environments", root=clone), FAIL, "the Python of environment ui does not run", "./lab env ui")


def test_an_environment_of_another_lock(clone):
    env = venvs.get("ui", clone)
    env.python.parent.mkdir(parents=True)
    env.python.symlink_to(sys.executable)
    wrong(look("environments", root=clone), WARN, "environment ui was installed from another lock", "./lab env ui")
    (env.venv / ".stamp").write_text(env.stamp())
    assert look("environments", root=clone).verdict == PASS


def test_a_secret_that_others_can_read_and_its_mending(clone):
    (clone / ".env").write_text("VLALAB_TOKEN=abcdefgh\n")
    (clone / ".env").chmod(0o644)
    (found,) = runner.run(runner.checks_by_id(["settings"]), Context(root=clone))
    wrong(found.finding, FAIL, "mode 644", "chmod 600")
    assert runner.apply_fixes([found]) == ["settings"], "it is safe, and asks nobody"
    assert look("settings", root=clone) == Finding(PASS, "1 settings in .env, mode 600", "")


# --- Docker -------------------------------------------------------------------------------------------------

VERSION = '{"Server": {"Version": "27.5.1"}}'


def test_an_image_that_is_older_than_its_lock(speaking):
    image = {"Id": "sha256:1", "RepoTags": ["vla-lab/ui:dev"], "Created": "2026-01-02T03:04:05Z", "Size": 1,
             "Config": {"Labels": {"vla-lab.lock": "0" * 64}}}  # fmt: skip
    speaking(f"""case "$1" in
version) echo '{VERSION}';;
info) echo '{{"DockerRootDir": "/var/lib/docker"}}';;
image) echo '{json.dumps([image])}'; echo 'Error: No such image' >&2; exit 1;;
esac""")
    wrong(look("images"), WARN, "was built from another lock", "./lab build ui")


# --- network ------------------------------------------------------------------------------------------------


# --- mending ------------------------------------------------------------------------------------------------


def result(fix: str, verdict: str = WARN, safe: bool = False) -> CheckResult:
    (check,) = runner.checks_by_id(["settings"])
    return CheckResult(check, Finding(verdict, "something", fix, safe=safe), 0.0)


def test_what_is_not_safe_waits_for_a_yes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115  a pipe's end
    mark = tmp_path / "done"
    assert runner.apply_fixes([result(f"touch '{mark}'")]) == [] and not mark.exists()
    printed = capsys.readouterr().err
    assert f"touch '{mark}'" in printed and "--yes" in printed
    assert runner.apply_fixes([result(f"touch '{mark}'", PASS)], yes=True) == [] and not mark.exists()
    assert runner.apply_fixes([result(f"touch '{mark}'")], yes=True) == ["settings"] and mark.exists()


@pytest.mark.parametrize("fix", ["./lab restore FILE", "unset HTTPS_PROXY", "./lab up SERVICE --gpu none", ""])
def test_what_is_not_a_whole_command_is_never_typed(fix):
    assert runner.apply_fixes([result(fix)], yes=True) == []


# --- before a task, and as a command ------------------------------------------------------------------------


def test_a_task_stops_with_the_doctors_words(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "file" / "volume"))
    with pytest.raises(LabError) as refusal:
        doctor.require("up", {"names": ["oracle"]})
    assert look("volume").text in str(refusal.value) and "--no-check" in str(refusal.value)
    doctor.require("build", {"names": ["ui"]})


@pytest.mark.parametrize(
    ("task", "given", "asked"),
    [
        ("up", {"names": ["openvla"], "gpu": None}, True),
        ("up", {"names": ["oracle"], "gpu": None}, False),
        ("up", {"names": ["openvla"], "gpu": "none"}, False),
        ("train", {"lab": "transformer", "gpu": None, "device": "auto"}, True),
        ("train", {"lab": "transformer", "gpu": None, "device": "cpu"}, False),
        ("finetune", {"model": "gr00t", "gpu": None, "device": "auto"}, True),
        ("learn", {"suite": "libero_goal", "gpu": None}, True),
        ("build", {"names": ["openvla"]}, False),
        ("eval", {}, False),
    ],
)
def test_a_driver_that_is_too_old_stops_only_what_would_use_it(task, given, asked, monkeypatch, capsys):
    old = {"driver": "470.1", "devices": [{"index": 0, "name": "A", "capability": [8, 0]}]}
    monkeypatch.setattr(Machine, "gpus", lambda self: old)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if not asked:
        doctor.require(task, given)
        assert ("driver 470.1 is too old" in capsys.readouterr().err) == (task == "build")
        return
    with pytest.raises(LabError, match=r"driver 470.1 is too old .*or run on the CPU with --gpu none"):
        doctor.require(task, given)


def lab(*words: str, **variables: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-X", "utf8", "-I", "-m", "vlalab", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, cwd=paths.ROOT)


def test_the_command_prints_json_and_its_exit_code(tmp_path):
    done = lab("doctor", "--json", "--offline", VLALAB_VOLUME=str(tmp_path / "volume"))
    told = json.loads(done.stdout)
    assert told["schema"] == 1 and told["exit_code"] == done.returncode
    assert [one["id"] for one in told["checks"]] == [check.id for check in runner.checks()]
    assert {one["error"] for one in told["checks"] if "answer" not in one["error"]} <= {""}, (
        "late is what a check may be"
    )


def test_up_is_refused_before_anything_begins_and_no_check_continues(tmp_path):
    (tmp_path / "file").write_text("")
    variables = {"VLALAB_VOLUME": str(tmp_path / "file" / "volume")}
    done = lab("up", "oracle", "--runtime", "local", **variables)
    assert done.returncode == 1 and "is not writable" in done.stderr and "run ./lab doctor" in done.stderr
    assert "runtime local" not in done.stderr
    done = lab("up", "oracle", "--runtime", "local", "--no-check", **variables)
    assert done.returncode == 1 and "is not writable" in done.stderr and "./lab doctor" not in done.stderr
