"""The tests' own engine: it gives back everything when the tests end however they end, and says why there is none."""

import ipaddress
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker import builds, disk, keeper, network
from tests.docker import engine as engines
from tests.docker.lab import wait_until
from vlalab.host import paths

HOLD_ONE = """
import pathlib, subprocess, sys
from tests.docker.engine import engine
with engine(programs=pathlib.Path(sys.argv[1])) as found:
    answer = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True)
    print("up", found.directory, answer.stdout.strip(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def second_engine(engine):
    """Another private engine beside the one of this run, held by a process of its own: that process, and its folder."""
    if engine.directory is None or (problem := engines.may_be_private()):
        pytest.skip(f"no private engine: {problem if engine.directory else 'the one that answers is used'}")
    variables = {**os.environ, engines.CHOICE: "private"}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_ONE, str(engine.directory)], cwd=paths.ROOT, env=variables, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        said = next((line for line in holder.stdout if line.startswith("up ")), "").split()
        assert len(said) == 3, "the second engine did not come up"
        yield holder, Path(said[1])
    finally:
        holder.kill()
        holder.wait()


def subnet_of(directory: Path) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(json.loads((directory / keeper.OWNER).read_text())["subnet"])


def processes_of(directory: Path) -> list[str]:
    """Returns the command lines that name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(directory) in words:
            found.append(words)
    return found


@pytest.mark.docker
def test_two_at_once_share_nothing_and_a_killed_run_leaves_nothing(engine, second_engine):
    holder, directory = second_engine
    subnet, other = subnet_of(directory), subnet_of(engine.directory)
    bridge = network.Network(subnet).bridge
    assert directory != engine.directory and not subnet.overlaps(other)
    assert processes_of(directory) and Path(f"/sys/class/net/{bridge}").exists()

    holder.send_signal(signal.SIGKILL)  # no time to clean up: its keeper does
    wait_until(
        lambda: not directory.exists() and not processes_of(directory), "the engine of a killed run to be taken away"
    )
    assert not Path(f"/sys/class/net/{bridge}").exists()
    assert str(directory) not in Path("/proc/self/mountinfo").read_text()
    rules = subprocess.run(["iptables", "-w", "-t", "nat", "-S"], capture_output=True, text=True).stdout
    assert str(other) in rules and str(subnet) not in rules


@pytest.mark.docker
def test_the_engine_is_answered_by_what_was_chosen(engine):
    """Nothing of a private engine lies where a system's one would keep it."""
    root = disk.engine_root()
    assert root is None or engine.directory is None or root.is_relative_to(engine.directory)


def test_what_a_killed_keeper_left_is_swept(tmp_path):
    """A folder whose owner runs stays, one whose owner is gone goes."""
    for name, identity in (("t-alive", None), ("t-gone", [os.getpid(), 1, "another boot"])):
        directory = tmp_path / name
        (directory / "data").mkdir(parents=True)
        keeper.claim(directory)
        if identity:
            (directory / keeper.OWNER).write_text(json.dumps({"identity": identity, "subnet": None}))
    keeper.sweep(tmp_path, "t-")
    assert [path.name for path in tmp_path.iterdir()] == ["t-alive"]


# --- what a build says --------------------------------------------------------------------------------------

SAID = """\
#67 [metaworld] exporting to image
#67 exporting layers 4.3s done
#67 naming to docker.io/vla-lab/metaworld:test-1 done
#69 naming to docker.io/vla-lab/ui:test-1 0.0s done
#73 [libero libero-environment 2/3] RUN … naming to docker.io/vla-lab/libero:no
#73 DONE 58.1s
#67 DONE 4.3s
#69 DONE 2.4s
"""


def test_an_image_is_reported_when_it_is_exported_and_not_before():
    told = []
    hear = builds.Exports(told.append)
    for line in SAID.splitlines():
        hear(line)
        assert told == [] or line.endswith(("4.3s", "2.4s"))
    assert told == ["metaworld", "ui"]
