"""A real cluster of Ray's, two machines of one core each on this one, and an evaluation that is spread over it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.terminal.conftest import Terminal
from vlalab.commands import cluster
from vlalab.environments import venvs
from vlalab.host import paths
from vlalab.host.processes import identify

SHORT = (
    "eval", "libero_goal", "--policy", "oracle", "--tasks", "0", "--trials", "4", "--max-steps", "12",
    "--video", "none",
)  # fmt: skip


WATCH = """
import os, signal, sys
from pathlib import Path

def there():
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(f"VLALAB_STATE={sys.argv[1]}/") in (path / "environ").read_bytes():
                yield int(path.name)
        except OSError:
            continue

if sys.stdin.read() != "done":
    while found := list(there()):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
"""


@contextlib.contextmanager
def ended_with_me(directory: Path) -> Iterator[None]:
    """Sees to it that machines whose state is in `folder` do not outlive this process, even where it is killed: what
    `cluster start` leaves running is nobody's child.
    """
    command = [sys.executable, "-c", WATCH, str(directory)]
    watch = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield
    finally:
        watch.communicate("done")


class Machine(Terminal):
    """A machine of the cluster: a state of its own, and the home and volume that all of them have."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory)
        (directory / "home").mkdir(exist_ok=True)
        self.state = str(directory / name)
        self.variables |= {"VLALAB_STATE": self.state, "HOME": str(directory / "home"), "RAY_AUTH_TOKEN": None}

    def joining(self) -> set[int]:
        """Returns the processes of `eval --join` that Ray started on this machine, and none of their own children."""
        mine = os.fsencode(f"VLALAB_STATE={self.state}")
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mine in (path / "environ").read_bytes() and b"--join" in (path / "cmdline").read_bytes():
                    found[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
        return {parent for pid, parent in found.items() if parent not in found}

    def policies(self) -> set[int]:
        """Returns the processes of this machine's own policies."""
        return self.processes(b"\0services.libero.policies\0")

    def processes(self, words: bytes = b"") -> set[int]:
        """Returns this machine's processes whose command has these words."""
        mine, found = os.fsencode(f"VLALAB_STATE={self.state}"), set()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if words in (path / "cmdline").read_bytes():
                    found |= {int(path.name)} if mine in (path / "environ").read_bytes() else set()
        return found

    def lose(self) -> None:
        """Ends all of it at once, as a power cut does."""
        while there := self.processes():
            for pid in there:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cluster")
    one, two = Machine(directory, "one"), Machine(directory, "two")
    address = f"127.0.0.2:{free_ports(1)[0]}"
    host, port = address.split(":")
    with ended_with_me(directory):
        try:
            one.done("cluster", "start", "--host", host, "--port", port, "--cpus", "1")
            two.done("cluster", "join", address, "--host", "127.0.0.3", "--cpus", "1")
            yield one, two, address
        finally:
            for machine in (two, one):
                machine("cluster", "stop").wait()


def test_a_cluster_does_not_outlive_tests_that_are_killed(tmp_path):
    code = (
        "import os, pathlib, signal, subprocess, sys\n"
        "from tests.terminal.test_cluster import ended_with_me\n"
        "with ended_with_me(pathlib.Path(sys.argv[1])):\n"
        "    state = {'VLALAB_STATE': f'{sys.argv[1]}/one'}\n"
        "    left = subprocess.Popen(['sleep', '600'], env=state, start_new_session=True)\n"
        "    print(left.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    tests = subprocess.run(command, cwd=paths.ROOT, stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    assert tests.returncode == -signal.SIGKILL
    left = identify(int(tests.stdout))
    assert left is None or left.wait_gone(60)


@pytest.fixture(scope="module")
def alone(machines):
    """What each episode does in a run of one worker and one policy."""
    machines[0].done(*SHORT, "--workers", "1", "--run-id", "alone")
    found = rows(machines[0].volume, "alone")
    assert len(found) == 4
    return found


def rows(volume: Path, run: str) -> list[tuple]:
    """Returns what each episode of a run did, in order."""
    keys = ("task", "episode", "success", "steps", "start_hash", "end_hash", "actions_hash")
    found = [json.loads(line) for line in (volume / "runs" / run / "episodes.jsonl").read_text().splitlines()]
    return [tuple(row[key] for key in keys) for row in found]


def test_its_machines_are_listed(machines):
    _, two, address = machines
    told = json.loads(two.done("cluster", "status", "--json", columns=2000).text.splitlines()[0])
    assert told["head"] == address
    assert [(row["address"], row["cores"]) for row in told["nodes"]] == [("127.0.0.2", 1.0), ("127.0.0.3", 1.0)]


def test_a_run_on_two_machines_has_the_rows_of_one_also_where_a_worker_is_killed(machines, alone):
    one, two, _ = machines
    with one(*SHORT, "--cluster", "--workers", "2", "--run-id", "spread") as run:
        deadline = time.monotonic() + 300
        while not (placed := two.joining()):
            assert time.monotonic() < deadline and run.process.poll() is None, run.transcript
            time.sleep(0.05)
        for pid in placed:
            os.kill(pid, signal.SIGKILL)
        assert run.wait() == 0, run.transcript
    assert "2 machines, 2 cores" in run.transcript
    assert rows(one.volume, "spread") == alone


def test_policies_are_placed_too_and_one_that_is_killed_exists_again(machines, alone):
    one, two, address = machines
    guest = Machine(one.volume.parent, "third")
    words = (*SHORT, "--cluster", "--replicas", "2", "--workers", "1")
    assert "must be less than the cluster's 2 cores" in one.done(*words, code=1, columns=300).transcript
    try:
        guest.done("cluster", "join", address, "--host", "127.0.0.5", "--cpus", "1")
        with one(*words, "--run-id", "replicas", columns=300) as run:
            run.wait_for("policy oracle at 2 addresses")
            there = set().union(*(machine.policies() for machine in (one, two, guest)))
            assert len(there) == 2
            os.kill(min(there), signal.SIGKILL)
            assert run.wait() == 0, run.transcript
    finally:
        guest("cluster", "stop").wait()
    assert rows(one.volume, "replicas") == alone
    assert not [pid for machine in (one, two, guest) for pid in machine.policies()]


def test_a_machine_is_in_one_cluster_and_needs_its_token(machines, tmp_path):
    _, two, address = machines
    assert f"is already in the cluster at {address}" in two.done("cluster", "join", address, code=1).transcript
    stranger = Machine(tmp_path, "stranger")
    assert "copy ~/.ray/auth_token" in stranger.done("cluster", "join", address, code=1, columns=300).transcript
    other = stranger.done("cluster", "join", address, code=1, columns=300, RAY_AUTH_TOKEN="f" * 64)
    assert "wrong token" in other.transcript and "Traceback" not in other.transcript
    outside = stranger.done(*SHORT, "--cluster", address, code=1, columns=300, RAY_AUTH_TOKEN="f" * 64)
    assert "wrong token" in outside.transcript


def test_another_ray_is_reported_with_both_versions(machines, tmp_path):
    """Ray's own comparison refuses a node that says it is older; `./lab cluster join` says so in these words."""
    one, _, address = machines
    start = "runpy.run_module('ray.scripts.scripts', run_name='__main__')"
    older = f"import ray, runpy\nray.__version__ = '2.59.0'\n{start}"
    words = [
        "start",
        f"--address={address}",
        "--node-ip-address=127.0.0.6",
        "--disable-usage-stats",
        "--log-color=false",
    ]
    variables = {**cluster.Member(address, None).variables, **one.variables, "RAY_TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [venvs.ensure(cluster.NAME).python, "-c", older, *words], capture_output=True, text=True, timeout=120,
        env={name: value for name, value in variables.items() if value is not None},
    )  # fmt: skip
    said = cluster.explain_output(done.stdout + done.stderr)
    assert done.returncode != 0
    assert "another version of Ray or Python (Ray: 2.60.0" in said and "Ray: 2.59.0" in said
    assert "use the same commit" in said


def listening(machine: Machine) -> set[str]:
    """Returns the addresses, as the kernel's table has them, at which processes of that machine's Ray listen."""
    mine = os.fsencode(f"VLALAB_STATE={machine.state}")
    sockets = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mine in (path / "environ").read_bytes():
                sockets |= {os.readlink(one) for one in (path / "fd").iterdir()}
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


def status_of_nodes(page: str, token: str) -> int:
    """Returns the status of the dashboard's answer to who asks for the machines with that token, once it answers."""
    request = urllib.request.Request(f"http://127.0.0.1:{page}/nodes?view=summary")
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_without_a_host_nothing_listens_beyond_this_machine_and_one_without_assets_takes_no_part(tmp_path):
    alone = Machine(tmp_path, "alone")
    port, page = map(str, free_ports(2))
    words = ["cluster", "start", "--port", port, "--cpus", "1", "--dashboard"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = str(taken.getsockname()[1])
        assert "choose another with --dashboard" in alone.done(*words, busy, code=1, columns=300).transcript
    try:
        alone.done(*words, page, VLALAB_LIBERO_ASSETS=str(tmp_path))
        assert f"Ray's dashboard: http://127.0.0.1:{page}" in alone.done("cluster", "status", columns=300).transcript
        assert status_of_nodes(page, "f" * 64) == 403
        assert status_of_nodes(page, (tmp_path / "home/.ray/auth_token").read_text().strip()) == 200
        assert listening(alone) and listening(alone) <= {"0100007F", "0000000000000000FFFF00000100007F"}
        assert "accepts only its own machine" in alone.done("cluster", "join", f"localhost:{port}", code=1).transcript
        said = alone.done(*SHORT, "--cluster", "--run-id", "none", code=1, columns=300).transcript
        assert "cannot join: " in said and str(tmp_path) in said.partition("cannot join: ")[2]
        assert "no machine of the cluster can join" in said and "--resume none" in said
    finally:
        alone("cluster", "stop").wait()


def test_one_that_stays_leaves_when_it_is_reported_to_end(machines):
    one, _, address = machines
    guest = Machine(one.volume.parent, "guest")
    with guest("cluster", "join", address, "--host", "127.0.0.4", "--cpus", "0", "--foreground") as joining:
        joining.wait_for("is a node of the cluster")
        assert listening(guest)
        joining.process.send_signal(signal.SIGTERM)
        assert joining.wait() == 0, joining.transcript
    assert not listening(guest)


def test_a_machine_that_is_lost_with_its_policy_costs_no_episode(machines, alone):
    """The other policy does its episodes again."""
    one, two, address = machines
    guest = Machine(one.volume.parent, "lost")
    try:
        guest.done("cluster", "join", address, "--host", "127.0.0.7", "--cpus", "1")
        words = (*SHORT, "--cluster", "--replicas", "2", "--workers", "1", "--run-id", "power")
        with one(*words, columns=300) as run:
            run.wait_for("policy oracle at 2 addresses")
            lost = next(machine for machine in (guest, two) if machine.policies())
            lost.lose()
            assert run.wait() == 0, run.transcript
        assert not lost.processes()
    finally:
        guest("cluster", "stop").wait()  # where it was the other that was lost, it is there
    assert rows(one.volume, "power") == alone
    assert not guest.processes()
