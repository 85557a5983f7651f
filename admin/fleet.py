"""Runs one command on several machines at once over SSH, and prints each one's answer as a line of JSON.

stdin: {"machines": [{"name", "host", "port", "user", "key", "root"}], "command", "parallel", "connect_s", "timeout_s"}.
A line: {"name", "seconds", "code", "out", "err"}, or {"name", "seconds", "error"} for a machine that gave no answer.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import fabric
import invoke
import paramiko

ENDS = 8000  # characters of stderr that are handed on


def main() -> None:
    """Asks all of them; the first answers are printed while others are still awaited."""
    asked = json.load(sys.stdin)
    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its errors are in the answers
    threading.excepthook = lambda _: None  # a timer that closes a channel which has just gone by itself
    with ThreadPoolExecutor(asked["parallel"]) as pool:
        for answer in as_completed([pool.submit(ask, machine, asked) for machine in asked["machines"]]):
            print(json.dumps(answer.result()), flush=True)


def ask(machine: dict, asked: dict) -> dict:
    """Returns one machine's answer, or why it gave none; whatever is wrong with it concerns no other."""
    began = time.monotonic()
    try:
        found = run(machine, asked)
    except Exception as error:
        found = {"error": explain(error, machine, asked)}
    return {"name": machine["name"], "seconds": round(time.monotonic() - began, 2), **found}


def run(machine: dict, asked: dict) -> dict:
    """Returns the exit code and what was printed. A machine whose host key is not known is not spoken to."""
    line = f"cd {shlex.quote(machine['root'])} && {asked['command']}"
    with connection(machine, asked["connect_s"]) as there:
        there.open()
        began = time.monotonic()
        done = there.run(line, hide=True, warn=True, in_stream=False, timeout=asked["timeout_s"])
        seconds = time.monotonic() - began
    if done.exited < 0:  # closed without an exit code; Fabric may see this before it knows that its own timer did it
        if seconds >= asked["timeout_s"]:
            raise invoke.CommandTimedOut(done, asked["timeout_s"])
        raise ConnectionError("the connection broke off before the command had ended")
    return {"code": done.exited, "out": done.stdout, "err": done.stderr[-ENDS:]}


def connection(machine: dict, connect_s: float) -> fabric.Connection:
    """Returns the connection to a machine, by what ~/.ssh/config says of it too; nothing is sent yet."""
    waits = {name: connect_s for name in ("banner_timeout", "auth_timeout", "channel_timeout")}
    key = {"key_filename": machine["key"]} if machine.get("key") else {}
    made = fabric.Connection(
        machine["host"], machine.get("user"), machine.get("port"), connect_timeout=connect_s,
        connect_kwargs={**waits, **key},
    )  # fmt: skip
    made.client.load_system_host_keys()
    made.client.set_missing_host_key_policy(paramiko.RejectPolicy())  # Fabric's own would take any
    return made


def explain(error: Exception, machine: dict, asked: dict) -> str:
    """Returns why a machine gave no answer, and what to do."""
    if isinstance(error, invoke.CommandTimedOut):
        return f"no end within {asked['timeout_s']:g} s; --timeout gives it more"
    if isinstance(error, paramiko.BadHostKeyException):
        return f"its host key is another than the known one; if it was set up anew: ssh-keygen -R {_known_as(machine)}"
    if isinstance(error, paramiko.AuthenticationException):
        return f"it lets nobody in with these keys: ssh-copy-id {_target(machine)}"
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        return f"nothing answers at port {machine.get('port') or 22}; it is off, or has no SSH server"
    text = str(error) or type(error).__name__
    if "not found in known_hosts" in text:
        return f"its host key is not known here; look at it and say yes once: ssh {_target(machine)}"
    if isinstance(error, TimeoutError) or re.search("banner|timed out|no existing session", text, re.IGNORECASE):
        return f"no answer within {asked['connect_s']:g} s"
    return text


def _target(machine: dict) -> str:
    """Returns the machine as ssh takes it."""
    port = f"-p {machine['port']} " if machine.get("port") else ""
    return port + (f"{machine['user']}@" if machine.get("user") else "") + machine["host"]


def _known_as(machine: dict) -> str:
    """Returns the machine as it stands in known_hosts."""
    return f"'[{machine['host']}]:{machine['port']}'" if machine.get("port") not in (None, 22) else machine["host"]


if __name__ == "__main__":
    main()
