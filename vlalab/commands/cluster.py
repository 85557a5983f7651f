"""`cluster`: a Ray cluster of a head and nodes, each run by a supervisor like a local service.

Ray starts processes on the machines; `ray_placement` decides which. Ray's token lets its holder run anything as the
user who started the cluster, so without --host only this machine can connect.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlalab.environments import venvs
from vlalab.environments.venvs import file_lock
from vlalab.host import paths, state
from vlalab.host.console import LabError, log_info, status
from vlalab.host.shared_code import entrypoint
from vlalab.runtimes import local, logs, state_files
from vlalab.runtimes.state_files import Instance

NAME = paths.CLUSTER.name
PORT = 6379  # Ray's own
LOOPBACK = "127.0.0.1"  # at any other address Ray listens on all interfaces
WORKERS_PORTS = range(10002, 20000)  # of Ray's worker processes
HEAD, HOST = "VLALAB_CLUSTER_HEAD", "VLALAB_CLUSTER_HOST"  # in the state file
STARTED = "Ray runtime started."
START_S, ANSWER_S, STOP_S = 120.0, 3.0, 15.0
STORE_BYTES = 80_000_000  # Ray's object store, unused here; its default is 30 % of the memory
PLAIN_WIDTH = 120
TOKEN = Path("~/.ray/auth_token")


@dataclass(frozen=True)
class Member:
    """This machine's membership of a cluster: the head's address, and the address by which Ray knows this machine."""

    head: str
    node: str | None

    @property
    def variables(self) -> dict[str, str]:
        """Ray's environment: token required, usage reports off, temporary files in their own directory."""
        is_closed = self.head.startswith(f"{LOOPBACK}:")
        return {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # workers return their episodes on SIGTERM
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # workers render on a GPU that Ray does not reserve
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0" if is_closed else "1",  # 0 makes Ray accept 127.0.0.1
            "RAY_ROTATION_MAX_BYTES": "10000000",
            "RAY_ROTATION_BACKUP_COUNT": "1",
            "RAY_TMPDIR": str(_directory(make=False)),
            "VLALAB_LAB": str(paths.ROOT / "lab"),
            "PYTHONUNBUFFERED": "1",
        }


def _state_path(make: bool = True) -> Path:
    return state.directory(NAME, make=make) / f"{NAME}.json"  # separate from the services' state


def instance() -> Instance | None:
    """Return the head or node that this user runs on this machine, None without one."""
    return state_files.load(_state_path(make=False))


def member() -> Member | None:
    """Return this machine's membership, None if it is not in a cluster."""
    running = instance()
    return Member(running.variables[HEAD], running.variables[HOST]) if running else None


def _directory(make: bool = True) -> Path:
    """Return the directory of Ray's sockets and logs; its path must be short (unix(7): 107 bytes)."""
    return state.short_directory(NAME, make=make) / "r"  # Ray makes it world-readable


def require_token(make: bool) -> None:
    """Create Ray's token if there is none and `make` is set, else raise LabError."""
    path = TOKEN.expanduser()
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH") or path.is_file():
        return
    if not make:
        raise LabError(f"the cluster's token was not found; copy {TOKEN} from the head to {TOKEN} on this machine")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    state.write(path, secrets.token_hex(32))


def start(host: str | None, port: int, offer: list[str], dashboard: int | None = None) -> None:
    """Start the head of a cluster, and print how other machines join.

    offer: Ray's flags for the resources to offer. dashboard: port of Ray's dashboard, None for none.
    """
    address = _address(host) if host else LOOPBACK
    if port in WORKERS_PORTS:
        raise LabError(f"--port must be below {WORKERS_PORTS[0]}, got {port}; Ray's workers use those from there on")
    with _start_lock():
        require_token(make=True)
        for flag, number in (("--port", port), ("--dashboard", dashboard)):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((address, number or 0))
                except OSError as error:
                    fix = f"choose another with {flag}, or an address of this machine with --host (run `ip address`)"
                    raise LabError(f"port {number} at {address} cannot be used ({error.strerror}); {fix}") from error
        # The monitor would start machines; ours join by themselves.
        arguments = ["--head", f"--node-ip-address={address}", f"--port={port}", "--no-monitor"]
        arguments += [f"--include-dashboard={str(bool(dashboard)).lower()}"]
        arguments += [f"--dashboard-host={address}", f"--dashboard-port={dashboard}"] if dashboard else []
        _launch([*arguments, *offer], Member(f"{address}:{port}", address))
    note = dashboard_note(f"{address}:{dashboard}" if dashboard else "")
    log_info(f"the cluster's head is at {address}:{port}{note}")
    if address == LOOPBACK:
        log_info("only this machine can use it (--host ADDRESS lets others join): ./lab eval SUITE --cluster")
    else:
        log_info(f"copy its token ({TOKEN}) to other machines, and run there: ./lab cluster join {address}:{port}")


def join(head: str, host: str | None, offer: list[str]) -> None:
    """Make this machine a node of a cluster. Raise LabError if the head does not answer or is on loopback."""
    address = read_head(head)
    if address.startswith(f"{LOOPBACK}:"):
        raise LabError(f"the head at {address} accepts only its own machine; start it with --host ADDRESS")
    require_answer(address)
    membership = Member(address, _address(host) if host else local_address_for(address))
    with _start_lock():
        require_token(make=False)
        _ask("check", membership)
        _launch([f"--address={address}", f"--node-ip-address={membership.node}", *offer], membership)
    log_info(f"this machine ({membership.node}) is a node of the cluster at {address}")


def _start_lock() -> AbstractContextManager[None]:
    if existing := member():
        raise LabError(f"this machine is already in the cluster at {existing.head}; leave it with: ./lab cluster stop")
    return file_lock(state.directory() / f".{NAME}.lock", "another command is starting the cluster")


def _launch(arguments: list[str], membership: Member) -> None:
    """Start Ray with a supervisor and wait until it runs. Raise LabError with Ray's message if it exits."""
    shutil.rmtree(_directory(), ignore_errors=True)
    # Through a path without spaces, since Ray starts one of its processes with a shell command.
    python, link = venvs.ensure(NAME).python, state.short_directory(NAME) / "e"
    link.unlink(missing_ok=True)
    link.symlink_to(python.parent.parent)
    command = [str(link / "bin" / python.name), "-m", "ray.scripts.scripts", "start", "--block", *arguments]
    command += [f"--temp-dir={_directory()}", f"--object-store-memory={STORE_BYTES}", "--include-log-monitor=false"]
    command += ["--disable-usage-stats", "--log-style=record", "--log-color=false"]
    options: dict[str, Any] = {"variables": {HEAD: membership.head, HOST: membership.node}, "stop_grace_s": STOP_S}
    with status("starting Ray"):
        running = local.launch(NAME, command, membership.variables, state_path=_state_path(), **options)
        end = time.monotonic() + START_S
        try:
            while STARTED not in running.log_tail(200):
                now = instance()
                if now is None or now.restarts or now.last_exit is not None or time.monotonic() > end:
                    reason = explain_output(running.log_tail(200))
                    raise LabError(f"Ray did not start: {reason}\nlog: {logs.log_path(NAME)}")
                time.sleep(0.2)
        except BaseException:
            stop()
            raise


def explain_output(output: str) -> str:
    """Return the cause of a failure from Ray's output."""
    if "InvalidAuthToken" in output or "Unauthenticated" in output:
        return f"wrong token; copy {TOKEN} from the cluster's head to this machine"
    if "Version mismatch" in output:
        lines = output.partition("Version mismatch")[2].splitlines()
        versions = "; here: ".join(" ".join(line.split()) for line in lines if "Ray:" in line)
        return f"the cluster has another version of Ray or Python ({versions}); use the same commit and Python on both"
    return logs.cause(output) or "no output"


def stay() -> None:
    """Wait until Ray exits; leave the cluster on SIGTERM or Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # sent by Slurm and Kubernetes
    try:
        while instance():
            time.sleep(1.0)
    finally:
        stop()


def stop() -> bool:
    """Leave the cluster; return whether this machine was in one."""
    running = instance()
    if running:
        running.stop()
    shutil.rmtree(_directory(make=False).parent, ignore_errors=True)
    return running is not None


def read_head(text: str) -> str:
    """Return "address:port" of HEAD[:PORT]. Raise LabError for an invalid one."""
    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(PORT))
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise LabError(f"'{text}' is not an address of a cluster's head; expected HOST[:PORT], such as gpu01:{PORT}")
    return f"{_address(host)}:{port}"


def _address(host: str) -> str:
    """Return the IPv4 address of a host name. Raise LabError if it cannot be resolved."""
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise LabError(f"host '{host}' not found ({error}); expected an address in the cluster's network") from error


def require_answer(head: str) -> None:
    """Raise LabError if nothing listens at the head's address; Ray itself would try for a minute."""
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        fix = f"start its head with: ./lab cluster start --host {host}"
        raise LabError(f"no cluster answers at {head} ({error.strerror or error}); {fix}") from error


def local_address_for(head: str) -> str:
    """Return this machine's address on the route to the head."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((head.rpartition(":")[0], 9))  # sends nothing
        return str(probe.getsockname()[0])


def find_membership(address: str | None) -> Member:
    """Return this machine's membership of the cluster at an address, else of its own. Raise LabError without one."""
    membership = member()
    if address is None:
        if membership is None:
            raise LabError("this machine is not in a cluster; run ./lab cluster start, or ./lab cluster join HEAD")
        return membership
    head = read_head(address)
    return membership if membership and membership.head == head else Member(head, None)


def command(action: str) -> list[str]:
    """Return the command that runs an action of cluster/drive.py."""
    return [str(venvs.ensure(NAME).python), str(paths.CLUSTER / "drive.py"), action]


def nodes(membership: Member) -> tuple[list[dict[str, Any]], str]:
    """Return the live machines of a cluster, as drive.py prints them, and the address of its dashboard or "".

    Raise LabError if Ray does not answer.
    """
    require_answer(membership.head)
    require_token(make=False)
    answer = json.loads(_ask("nodes", membership).splitlines()[-1])
    return [node for node in answer["nodes"] if node["alive"]], answer["dashboard"]


def dashboard_note(dashboard: str) -> str:
    """Return the part of a message that names a cluster's dashboard; "" without one."""
    return f"; Ray's dashboard: http://{dashboard} (its token: {TOKEN})" if dashboard else ""


def _ask(action: str, membership: Member) -> str:
    """Return the output of drive.py. Raise LabError with the cause if it fails."""
    request = json.dumps({"address": membership.head, "node": membership.node})
    done = subprocess.run(command(action), input=request, env=membership.variables, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"the cluster at {membership.head} does not answer: {explain_output(done.stdout + done.stderr)}")
    return done.stdout


def show(as_json: bool) -> None:
    """Print the machines of this machine's cluster."""
    membership = find_membership(None)
    machines, dashboard = nodes(membership)
    if as_json:
        print(json.dumps({"head": membership.head, "dashboard": dashboard, "nodes": machines}))
        return
    from rich.table import Table  # slow import

    table = Table("machine", "address", "cores", "GPUs", "memory", "", box=None, pad_edge=False)
    for machine in machines:
        numbers = (f"{machine['cores']:g}", f"{machine['gpus']:g}", f"{machine['memory_gb']:g} GB")
        table.add_row(machine["host"], machine["address"], *numbers, "head" if machine["is_head"] else "")
    entrypoint.console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)
    if dashboard:
        log_info(f"the head is at {membership.head}{dashboard_note(dashboard)}")
