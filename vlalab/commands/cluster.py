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
HERE = "127.0.0.1"  # the one address that Ray keeps to; at any other it listens on all of the machine's
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
        return variables(self.head.startswith(f"{HERE}:"))


# --- what runs here -----------------------------------------------------------------------------------------


def _state_path(make: bool = True) -> Path:
    return state.directory(NAME, make=make) / f"{NAME}.json"  # not among the services'


def instance() -> Instance | None:
    """Return the head or node that this caller runs on this machine."""
    return supervised.load(_state_path(make=False))


def member() -> Member | None:
    """Return this machine's part in a cluster, None where it has none."""
    found = instance()
    return Member(found.variables[HEAD], found.variables[HOST]) if found else None


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
    own = _address(host) if host else HERE
    if port in WORKERS_PORTS:
        raise LabError(f"--port {port} is among those that Ray's workers take; expected one below {WORKERS_PORTS[0]}")
    with _alone():
        require_token(make=True)
        # No monitor, which would start machines: these are there, or join by themselves.
        words = ["--head", f"--node-ip-address={own}", f"--port={port}", "--no-monitor"]
        words += [f"--include-dashboard={str(bool(dashboard)).lower()}"]
        _require_free(own, port, "--port")
        if dashboard:
            _require_free(own, dashboard, "--dashboard")
            words += [f"--dashboard-host={own}", f"--dashboard-port={dashboard}"]
        _launch([*words, *offer], Member(f"{own}:{port}", own))
    say(f"the cluster's head is at {own}:{port}" + page_of(f"{own}:{dashboard}" if dashboard else ""))
    if own == HERE:
        say("it is this machine's alone (--host ADDRESS lets others join); ./lab eval SUITE --cluster uses it")
    else:
        say(f"other machines, which need its token ({TOKEN}), join by: ./lab cluster join {own}:{port}")


def join(head: str, host: str | None, offer: list[str]) -> None:
    """Make this machine a node of a cluster. Raise LabError for a head that does not answer, or keeps to itself."""
    address = read_head(head)
    if address.startswith(f"{HERE}:"):
        raise LabError(f"the head at {address} is its own machine's alone; start it there with --host ADDRESS")
    require_answer(address)
    here = Member(address, _address(host) if host else towards(address))
    with _alone():
        require_token(make=False)
        _ask("check", here)
        _launch([f"--address={address}", f"--node-ip-address={here.node}", *offer], here)
    say(f"this machine ({here.node}) is a node of the cluster at {address}")


def _alone() -> AbstractContextManager[None]:
    if here := member():
        raise LabError(f"this machine is in the cluster at {here.head} already; leave it by: ./lab cluster stop")
    return exclusive(state.directory() / f".{NAME}.lock", "another call is starting the cluster")


def _launch(words: list[str], here: Member) -> None:
    """Start Ray under a supervisor and wait until it runs. Raise LabError, with its words, where it ended instead."""
    shutil.rmtree(_directory(), ignore_errors=True)
    # By a path without spaces: Ray starts one of its processes by a line of bash.
    python, link = venvs.ensure(NAME).python, state.short_directory(NAME) / "e"
    link.unlink(missing_ok=True)
    link.symlink_to(python.parent.parent)
    own = [f"--temp-dir={_directory()}", f"--object-store-memory={STORE_BYTES}", "--include-log-monitor=false"]
    plain = ["--disable-usage-stats", "--log-style=record", "--log-color=false"]
    command = [str(link / "bin" / python.name), "-m", "ray.scripts.scripts", "start", "--block", *words, *own, *plain]
    facts = {"variables": {HEAD: here.head, HOST: here.node}, "stop_grace_s": STOP_S}
    with status("starting Ray"):
        found = local.launch(NAME, command, here.variables, state_path=_state_path(), **facts)
        end = time.monotonic() + START_S
        try:
            while STARTED not in found.last_words(200):
                now = instance()
                if now is None or now.restarts or now.last_exit is not None or time.monotonic() > end:
                    why = in_words(found.last_words(200))
                    raise LabError(f"Ray did not start: {why}\nits log: {found.log_path}")
                time.sleep(0.2)
        except BaseException:
            stop()
            raise


def in_words(output: str) -> str:
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
    found = instance()
    if found:
        found.stop()
    shutil.rmtree(_directory(make=False).parent, ignore_errors=True)
    return found is not None


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


def towards(head: str) -> str:
    """Return the address by which others reach this machine, on its way to the head."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((head.rpartition(":")[0], 9))  # sends nothing
        return str(way.getsockname()[0])


def _require_free(host: str, port: int, flag: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            fix = f"choose one with {flag}, or with --host an address of this machine (`ip address`)"
            raise LabError(f"port {port} at {host} cannot be used ({error.strerror}); {fix}") from error


# --- asking Ray ---------------------------------------------------------------------------------------------


def joined(address: str | None) -> Member:
    """Return this machine's part in the cluster at that address, else in the one it runs. Raise LabError for none."""
    here = member()
    if address is None:
        if here is None:
            raise LabError("this machine is in no cluster: ./lab cluster start, or ./lab cluster join HEAD")
        return here
    head = read_head(address)
    return here if here and here.head == head else Member(head, None)


def command(action: str) -> list[str]:
    """Return the command that asks Ray."""
    return [str(venvs.ensure(NAME).python), str(paths.CLUSTER / "drive.py"), action]


def nodes(here: Member) -> tuple[list[dict[str, Any]], str]:
    """Return the live machines of a cluster, as drive.py prints them, and the address of its dashboard or "".

    Raises LabError where Ray gives no answer.
    """
    require_answer(here.head)
    require_token(make=False)
    answer = json.loads(_ask("nodes", here).splitlines()[-1])
    return [one for one in answer["nodes"] if one["alive"]], answer["dashboard"]


def page_of(dashboard: str) -> str:
    """Return the end of a message about a cluster that has a dashboard at an address."""
    return f"; Ray's dashboard: http://{dashboard} (its token: {TOKEN})" if dashboard else ""


def _ask(action: str, here: Member) -> str:
    """Return what drive.py answers. Raise LabError, in words, where Ray refuses."""
    request = json.dumps({"address": here.head, "node": here.node})
    done = subprocess.run(command(action), input=request, env=here.variables, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"the cluster at {here.head} gives no answer: {in_words(done.stdout + done.stderr)}")
    return done.stdout


def show(as_json: bool) -> None:
    """Print the machines of the cluster that this one is in."""
    here = joined(None)
    found, dashboard = nodes(here)
    if as_json:
        print(json.dumps({"head": here.head, "dashboard": dashboard, "nodes": found}))
        return
    from rich.table import Table  # here, for it takes a fifth of the tool's start

    table = Table("machine", "address", "cores", "GPUs", "memory", "", box=None, pad_edge=False)
    for one in found:
        cells = (one["host"], one["address"], f"{one['cores']:g}", f"{one['gpus']:g}", f"{one['memory_gb']:g} GB")
        table.add_row(*cells, "head" if one["is_head"] else "")
    endings.console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)
    if dashboard:
        say(f"the head is at {here.head}{page_of(dashboard)}")
