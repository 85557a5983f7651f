"""`cluster`: Ray on the lab's machines, a head and its nodes, each under a supervisor as a local service is.

Ray knows the machines and starts processes on them; `ray_placement` says which. Whoever has Ray's token may run
anything as the user who started it, so without --host nothing beyond this machine reaches it.
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
from vlalab.environments.venvs import exclusive
from vlalab.host import paths, state
from vlalab.host.borrowed import endings
from vlalab.host.console import LabError, say, status
from vlalab.runtimes import local, logs, supervised
from vlalab.runtimes.supervised import Instance

NAME = paths.CLUSTER.name
PORT = 6379  # Ray's own
LOOPBACK = "127.0.0.1"  # the one address that Ray keeps to; at any other it listens on all of the machine's
WORKERS_PORTS = range(10002, 20000)  # Ray's, for its processes
HEAD, HOST = "VLALAB_CLUSTER_HEAD", "VLALAB_CLUSTER_HOST"  # of the state file
STARTED = "Ray runtime started."
START_S, ANSWER_S, STOP_S = 120.0, 3.0, 15.0
STORE_BYTES = 80_000_000  # Ray's store of objects, which nothing here uses; the default is 30 % of the memory
PLAIN_WIDTH = 120
TOKEN = Path("~/.ray/auth_token")


@dataclass(frozen=True)
class Member:
    """This machine's part in a cluster: where the head is, and the address by which Ray knows this machine."""

    head: str
    node: str | None

    @property
    def variables(self) -> dict[str, str]:
        """Return Ray's variables for it."""
        return variables(self.head.startswith(f"{LOOPBACK}:"))


# --- what runs here -----------------------------------------------------------------------------------------


def _state_path(make: bool = True) -> Path:
    return state.directory(NAME, make=make) / f"{NAME}.json"  # not among the services'


def instance() -> Instance | None:
    """Return the head or node that this caller runs on this machine."""
    return supervised.load(_state_path(make=False))


def member() -> Member | None:
    """Return this machine's part in a cluster, None where it has none."""
    running = instance()
    return Member(running.variables[HEAD], running.variables[HOST]) if running else None


def variables(closed: bool) -> dict[str, str]:
    """Return Ray's variables: every call needs the token, nothing is reported, files lie in a directory of its own."""
    return {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # workers give their episodes back when they are told to end
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # workers draw on the GPU without asking Ray for one
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0" if closed else "1",  # how one says that 127.0.0.1 is meant
        "RAY_ROTATION_MAX_BYTES": "10000000",
        "RAY_ROTATION_BACKUP_COUNT": "1",
        "RAY_TMPDIR": str(_directory(make=False)),
        "VLALAB_LAB": str(paths.ROOT / "lab"),
        "PYTHONUNBUFFERED": "1",
    }


def _directory(make: bool = True) -> Path:
    """Return the directory of Ray's sockets and logs; its path has to be short (unix(7): 107 bytes)."""
    return state.short_directory(NAME, make=make) / "r"  # Ray opens it to all


def require_token(make: bool) -> None:
    """Make sure that Ray finds its token. Raise LabError where there is none and none is to be made."""
    path = TOKEN.expanduser()
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH") or path.is_file():
        return
    if not make:
        raise LabError(f"this machine lacks the cluster's token: copy {TOKEN} from its head to {TOKEN} here")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    state.write(path, secrets.token_hex(32))


# --- start and join -----------------------------------------------------------------------------------------


def start(host: str | None, port: int, offer: list[str], dashboard: int | None = None) -> None:
    """Start the head of a cluster, and print how others join.

    offer: Ray's flags for what this machine offers. dashboard: the port of Ray's own page, None for none.
    """
    address = _address(host) if host else LOOPBACK
    if port in WORKERS_PORTS:
        raise LabError(f"--port {port} is among those that Ray's workers take; expected one below {WORKERS_PORTS[0]}")
    with _start_lock():
        require_token(make=True)
        # No monitor, which would start machines: these are there, or join by themselves.
        arguments = ["--head", f"--node-ip-address={address}", f"--port={port}", "--no-monitor"]
        arguments += [f"--include-dashboard={str(bool(dashboard)).lower()}"]
        _require_free(address, port, "--port")
        if dashboard:
            _require_free(address, dashboard, "--dashboard")
            arguments += [f"--dashboard-host={address}", f"--dashboard-port={dashboard}"]
        _launch([*arguments, *offer], Member(f"{address}:{port}", address))
    say(f"the cluster's head is at {address}:{port}" + dashboard_note(f"{address}:{dashboard}" if dashboard else ""))
    if address == LOOPBACK:
        say("it is this machine's alone (--host ADDRESS lets others join); ./lab eval SUITE --cluster uses it")
    else:
        say(f"other machines, which need its token ({TOKEN}), join by: ./lab cluster join {address}:{port}")


def join(head: str, host: str | None, offer: list[str]) -> None:
    """Make this machine a node of a cluster. Raise LabError for a head that does not answer, or keeps to itself."""
    address = read_head(head)
    if address.startswith(f"{LOOPBACK}:"):
        raise LabError(f"the head at {address} is its own machine's alone; start it there with --host ADDRESS")
    require_answer(address)
    membership = Member(address, _address(host) if host else local_address_for(address))
    with _start_lock():
        require_token(make=False)
        _ask("check", membership)
        _launch([f"--address={address}", f"--node-ip-address={membership.node}", *offer], membership)
    say(f"this machine ({membership.node}) is a node of the cluster at {address}")


def _start_lock() -> AbstractContextManager[None]:
    if membership := member():
        raise LabError(f"this machine is in the cluster at {membership.head} already; leave it by: ./lab cluster stop")
    return exclusive(state.directory() / f".{NAME}.lock", "another call is starting the cluster")


def _launch(arguments: list[str], membership: Member) -> None:
    """Start Ray under a supervisor and wait until it runs. Raise LabError, with its words, where it ended instead."""
    shutil.rmtree(_directory(), ignore_errors=True)
    # By a path without spaces: Ray starts one of its processes by a line of bash.
    python, link = venvs.ensure(NAME).python, state.short_directory(NAME) / "e"
    link.unlink(missing_ok=True)
    link.symlink_to(python.parent.parent)
    storage_flags = [
        f"--temp-dir={_directory()}",
        f"--object-store-memory={STORE_BYTES}",
        "--include-log-monitor=false",
    ]
    log_flags = ["--disable-usage-stats", "--log-style=record", "--log-color=false"]
    command = [
        str(link / "bin" / python.name),
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        *arguments,
        *storage_flags,
        *log_flags,
    ]
    launch_options = {"variables": {HEAD: membership.head, HOST: membership.node}, "stop_grace_s": STOP_S}
    with status("starting Ray"):
        running = local.launch(NAME, command, membership.variables, state_path=_state_path(), **launch_options)
        end = time.monotonic() + START_S
        try:
            while STARTED not in running.last_words(200):
                now = instance()
                if now is None or now.restarts or now.last_exit is not None or time.monotonic() > end:
                    reason = explain_output(running.last_words(200))
                    raise LabError(f"Ray did not start: {reason}\nits log: {running.log_path}")
                time.sleep(0.2)
        except BaseException:
            stop()
            raise


def explain_output(output: str) -> str:
    """Return the sentence that tells why Ray gave up, of all that it printed."""
    if "InvalidAuthToken" in output or "Unauthenticated" in output:
        return f"the cluster has another token; copy its head's {TOKEN} here, and try again"
    if "Version mismatch" in output:
        lines = output.partition("Version mismatch")[2].splitlines()
        versions = "; here: ".join(" ".join(line.split()) for line in lines if "Ray:" in line)
        return f"the cluster runs another Ray or Python ({versions}); bring both to one commit and one Python"
    return logs.cause(output) or "it said nothing"


def stay() -> None:
    """Wait until this machine's part ends by itself; leave the cluster when this process is told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as Slurm and Kubernetes tell it
    try:
        while instance():
            time.sleep(1.0)
    finally:
        stop()


def stop() -> bool:
    """End this machine's part in a cluster; return whether it had any."""
    running = instance()
    if running:
        running.stop()
    shutil.rmtree(_directory(make=False).parent, ignore_errors=True)
    return running is not None


# --- addresses ----------------------------------------------------------------------------------------------


def read_head(text: str) -> str:
    """Return "address:port" of HEAD[:PORT]. Raise LabError for an invalid one."""
    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(PORT))
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise LabError(f"'{text}' is not an address of a cluster's head; expected HOST[:PORT], as gpu01:{PORT}")
    return f"{_address(host)}:{port}"


def _address(host: str) -> str:
    """Return the IPv4 address of a name. Raise LabError where it cannot be resolved."""
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise LabError(f"nobody knows '{host}' ({error}); expected an address in the cluster's network") from error


def require_answer(head: str) -> None:
    """Raise LabError where nothing listens at a head's address: Ray itself would try for a minute."""
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        fix = f"start its head there: ./lab cluster start --host {host}"
        raise LabError(f"no cluster answers at {head} ({error.strerror or error}); {fix}") from error


def local_address_for(head: str) -> str:
    """Return the address by which others reach this machine, on its way to the head."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((head.rpartition(":")[0], 9))  # sends nothing
        return str(probe.getsockname()[0])


def _require_free(host: str, port: int, flag: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            fix = f"choose one with {flag}, or with --host an address of this machine (`ip address`)"
            raise LabError(f"port {port} at {host} cannot be used ({error.strerror}); {fix}") from error


# --- asking Ray ---------------------------------------------------------------------------------------------


def find_membership(address: str | None) -> Member:
    """Return this machine's part in the cluster at that address, else in the one it runs. Raise LabError for none."""
    membership = member()
    if address is None:
        if membership is None:
            raise LabError("this machine is in no cluster: ./lab cluster start, or ./lab cluster join HEAD")
        return membership
    head = read_head(address)
    return membership if membership and membership.head == head else Member(head, None)


def command(action: str) -> list[str]:
    """Return the command that asks Ray."""
    return [str(venvs.ensure(NAME).python), str(paths.CLUSTER / "drive.py"), action]


def nodes(membership: Member) -> tuple[list[dict[str, Any]], str]:
    """Return the live machines of a cluster, as drive.py prints them, and the address of its dashboard or "".

    Raises LabError where Ray gives no answer.
    """
    require_answer(membership.head)
    require_token(make=False)
    answer = json.loads(_ask("nodes", membership).splitlines()[-1])
    return [node for node in answer["nodes"] if node["alive"]], answer["dashboard"]


def dashboard_note(dashboard: str) -> str:
    """Return the end of a message about a cluster that has a dashboard at an address."""
    return f"; Ray's dashboard: http://{dashboard} (its token: {TOKEN})" if dashboard else ""


def _ask(action: str, membership: Member) -> str:
    """Return what drive.py answers. Raise LabError, in words, where Ray refuses."""
    request = json.dumps({"address": membership.head, "node": membership.node})
    done = subprocess.run(command(action), input=request, env=membership.variables, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"the cluster at {membership.head} gives no answer: {explain_output(done.stdout + done.stderr)}")
    return done.stdout


def show(as_json: bool) -> None:
    """Print the machines of the cluster that this one is in."""
    membership = find_membership(None)
    machines, dashboard = nodes(membership)
    if as_json:
        print(json.dumps({"head": membership.head, "dashboard": dashboard, "nodes": machines}))
        return
    from rich.table import Table  # here, for it takes a fifth of the tool's start

    table = Table("machine", "address", "cores", "GPUs", "memory", "", box=None, pad_edge=False)
    for machine in machines:
        cells = (
            machine["host"],
            machine["address"],
            f"{machine['cores']:g}",
            f"{machine['gpus']:g}",
            f"{machine['memory_gb']:g} GB",
        )
        table.add_row(*cells, "head" if machine["is_head"] else "")
    endings.console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)
    if dashboard:
        say(f"the head is at {membership.head}{dashboard_note(dashboard)}")
