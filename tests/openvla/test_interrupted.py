"""A checkpoint is there whole or not at all: made again after what interrupted it, and told in a sentence."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import forked
from vla_modelkit.checkpoint import RECORD, changed_files, read_record

HELD = """
import pathlib, sys, time
pathlib.Path.rename = lambda *_: time.sleep(600)
sys.argv = ["checkpoints", "--tiny"]
from services.openvla import checkpoints
checkpoints.main(checkpoints.CheckpointSettings, checkpoints.get)
"""
SMALL = 'mount -t tmpfs -o size=20m none "$VLALAB_VOLUME" && exec "$@"'
IN_A_SMALL_DISK = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL, "sh"]


def make(volume: Path, before: list[str] | None = None) -> subprocess.CompletedProcess:
    command = [*(before or []), *forked.python("-m", "services.openvla.checkpoints", "--tiny")]
    return subprocess.run(command, env={**os.environ, "VLALAB_VOLUME": str(volume)}, capture_output=True, text=True)


def is_whole(directory: Path) -> bool:
    return (directory / RECORD).is_file() and not changed_files(directory, read_record(directory))


def test_one_that_was_interrupted_or_damaged_or_is_half_there_is_made_again_and_what_was_there_is_kept(tmp_path):
    """Interrupted: killed when it is written and not yet put in place, where it is held."""
    variables = {**os.environ, "VLALAB_VOLUME": str(tmp_path)}
    process = subprocess.Popen(forked.python("-c", HELD), env=variables, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("checkpoints/.*.draft/*")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    directory = tmp_path / "checkpoints" / "openvla-tiny"
    assert not directory.exists()
    assert make(tmp_path).returncode == 0 and is_whole(directory)
    assert sorted(path.name for path in directory.parent.iterdir()) == ["openvla-tiny"]
    assert "exists already" in make(tmp_path).stdout
    weights = next(directory.glob("*.safetensors"))
    os.truncate(weights, 1000)
    assert make(tmp_path).returncode == 0 and is_whole(directory)
    (directory / RECORD).unlink()
    assert make(tmp_path).returncode == 0 and is_whole(directory)
    kept = [directory.with_name(f"openvla-tiny.before-{number}") for number in (1, 2)]
    assert (kept[0] / weights.name).stat().st_size == 1000 and not (kept[1] / RECORD).exists()


def test_full_disk_is_reported_and_leaves_no_partial_result(tmp_path):
    if not shutil.which("unshare") or make(tmp_path, [*IN_A_SMALL_DISK[:-2], "exit 7", "sh"]).returncode != 7:
        pytest.skip("a small disk of its own needs user namespaces, which are not allowed here")
    done = make(tmp_path, IN_A_SMALL_DISK)
    assert (done.returncode, done.stdout) == (1, "")
    place = tmp_path / "checkpoints"
    assert done.stderr == (
        f"error: {place} has no space left for openvla-tiny: free some space or set VLALAB_VOLUME to another disk\n"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_volume_of_another_user_is_reported():
    done = make(Path("/usr/share"))
    assert done.returncode == 1 and "Traceback" not in done.stderr and "VLALAB_VOLUME" in done.stderr
