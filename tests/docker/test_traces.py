"""What containers leave behind: files of the caller's on the volume, and after `down` nothing on the engine."""

import os
import subprocess
import sys

import pytest

from tests.docker.conftest import USER
from tests.docker.watching import listening
from vlalab.engine import docker
from vlalab.host import paths

pytestmark = pytest.mark.docker


def test_everything_on_the_volume_is_the_callers(up):
    found = [up.volume, *up.volume.rglob("*")]
    others = {str(path): owner for path in found if (owner := (path.lstat().st_uid, path.lstat().st_gid)) != USER}
    assert len(found) > 20 and others == {}


def test_the_volume_has_its_layout_and_nothing_else(up):
    source = "from vla_common.volume import DIRECTORIES; print(*DIRECTORIES)"
    command = [sys.executable, "-c", source]
    variables = {**os.environ, "PYTHONPATH": paths.python_path()}
    known = subprocess.run(command, capture_output=True, text=True, env=variables, check=True).stdout.split()
    assert {path.name for path in up.volume.iterdir() if not path.name.startswith(".")} <= set(known)
    assert (up.volume / "checkpoints" / "openvla-tiny").is_dir()
    assert {path.name for path in (up.volume / "runs").iterdir()} >= {"two", "killed", "oracle"}


def test_down_leaves_nothing(up):
    up("down")
    assert up.ids() == []
    label = f"label=com.docker.compose.project=vlalab-{up.name}"
    for kind in ("network", "volume"):
        assert docker.run([kind, "ls", "--quiet", "--filter", label]).stdout == ""
    assert {port: listening(port) for port in up.ports.values() if listening(port)} == {}
    assert "no services are running" in up("down").text
