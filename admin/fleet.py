"""Run one command on several machines at once over SSH, and print each one's answer as a line of JSON.

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

MAX_ERRORS = 8000  # characters of stderr that are passed on


def main() -> None:
    """Run the command on all machines; the first answers are printed while others are still awaited."""
    request = json.load(sys.stdin)
    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its errors are in the answers
    threading.excepthook = lambda _: None  # a timer that closes a channel which has just closed by itself
    with ThreadPoolExecutor(request["parallel"]) as pool:
        for answer in as_completed([pool.submit(run, machine, request) for machine in request["machines"]]):
            print(json.dumps(answer.result()), flush=True)


def run(machine: dict, request: dict) -> dict:
    """Return one machine's exit code and output, or why it gave none. One without a known host key is refused."""
    started, connect_s, timeout_s = time.monotonic(), request["connect_s"], request["timeout_s"]
    waits = {name: connect_s for name in ("banner_timeout", "auth_timeout", "channel_timeout")}
    key = {"key_filename": machine["key"]} if machine.get("key") else {}
    try:
        with fabric.Connection(  # by what ~/.ssh/config says of it too
            machine["host"], machine.get("user"), machine.get("port"), connect_timeout=connect_s,
            connect_kwargs={**waits, **key},
        ) as connection:  # fmt: skip
            connection.client.load_system_host_keys()
            connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())  # Fabric's own would take any
            connection.open()
            opened = time.monotonic()
            command = f"cd {shlex.quote(machine['root'])} && {request['command']}"
            done = connection.run(command, hide=True, warn=True, in_stream=False, timeout=timeout_s)
            if done.exited < 0:  # closed without an exit code; Fabric may see this before its own timer has ended
                if time.monotonic() - opened >= timeout_s:
                    raise invoke.CommandTimedOut(done, timeout_s)
                raise ConnectionError("the connection broke off before the command had ended")
        answer = {"code": done.exited, "out": done.stdout, "err": done.stderr[-MAX_ERRORS:]}
    except Exception as error:  # whatever is wrong with a machine concerns no other
        answer = {"error": explain(error, machine, request)}
    return {"name": machine["name"], "seconds": round(time.monotonic() - started, 2), **answer}


def explain(error: Exception, machine: dict, request: dict) -> str:
    """Return why a machine gave no answer, and what to do."""
    port, user = machine.get("port"), machine.get("user")
    target = (f"-p {port} " if port else "") + (f"{user}@" if user else "") + machine["host"]
    text = str(error) or type(error).__name__
    if isinstance(error, invoke.CommandTimedOut):
        return f"no end within {request['timeout_s']:g} s; --timeout gives it more"
    if isinstance(error, paramiko.BadHostKeyException):
        known_as = machine["host"] if port in (None, 22) else f"'[{machine['host']}]:{port}'"
        return f"its host key is another than the known one; if it was installed again: ssh-keygen -R {known_as}"
    if isinstance(error, paramiko.AuthenticationException):
        return f"it accepts none of these keys: ssh-copy-id {target}"
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        return f"nothing answers at port {port or 22}; it is off, or has no SSH server"
    if "not found in known_hosts" in text:
        return f"its host key is not known here; check it and accept it once: ssh {target}"
    if isinstance(error, TimeoutError) or re.search("banner|timed out|no existing session", text, re.IGNORECASE):
        return f"no answer within {request['connect_s']:g} s"
    return text


if __name__ == "__main__":
    main()
