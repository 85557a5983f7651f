"""The local runtime: services of compose.yaml as supervised processes of this machine, without containers.

`up` starts one instance per service, under the service's own name; an evaluation may start a private one that ends with
it. What runs is told by `supervised`. This module is one of the two that `both.Runtime` describes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vlalab.description import compose, gpus, manifests
from vlalab.description.compose import Service
from vlalab.description.ports import port_variable, service_on_free_port
from vlalab.engine import volumes
from vlalab.environments import venvs
from vlalab.environments.venvs import Environment
from vlalab.host import gl, library_variables, paths
from vlalab.host.console import LabError, say
from vlalab.host.processes import supervise
from vlalab.runtimes import logs, running, service_state, supervised
from vlalab.runtimes.supervised import NAME as NAME
from vlalab.runtimes.supervised import Instance, instance
from vlalab.runtimes.supervised import instances as instances


def service_variables(env: Environment | None = None) -> dict[str, str]:
    """Return the variables a program starts with: the caller's usable ones, where the code is, its environment's."""
    common = {**library_variables.usable(os.environ), "PYTHONPATH": paths.python_path(), "PYTHONUNBUFFERED": "1"}
    return {**common, **env.variables()} if env else common


# --- start --------------------------------------------------------------------------------------------------


def resolve(service: Service, env: Environment) -> tuple[list[str], dict[str, str]]:
    """Returns the command and the variables of a service outside a container.

    `python` is the environment's, paths under a mount point become the mounted host folder, and http://<service>:<port>
    becomes the address at which this machine reaches that service.
    """
    reach = _addresses([*service.command, *service.environment.values()])
    command = [reach(_on_host(word, service.mounts)) for word in service.command]
    if command and command[0] == "python":
        command[0] = str(env.python)
    declared = {name: reach(_on_host(value, service.mounts)) for name, value in service.environment.items()}
    return command, {**service_variables(env), **declared}


def _on_host(text: str, mounts: tuple[tuple[str, str], ...]) -> str:
    for source, target in mounts:
        if text == target or text.startswith(target + "/"):
            return str((paths.ROOT / Path(source).expanduser()).resolve()) + text[len(target) :]
    return text


_ADDRESS = re.compile(r"(https?)://([A-Za-z_][\w-]*):(\d+)")


def _addresses(words: Sequence[str]) -> Callable[[str], str]:
    """Return the function that puts reachable addresses for http://<service>:<port> into a text."""
    named = {found[2] for word in words for found in _ADDRESS.finditer(word)} - {"localhost"}
    up = {name: instance(name) for name in named & set(compose.read() if named else ())}
    at = {name: found.url.partition("//")[2] if found else "" for name, found in up.items()}

    def reach(text: str) -> str:
        return _ADDRESS.sub(lambda m: f"{m[1]}://{at[m[2]] or '127.0.0.1:' + m[3]}" if m[2] in at else m[0], text)

    return reach


def prepare(names: Sequence[str]) -> None:
    """Makes the environments of those names, from their locks, where they are not there, if the volume can be used."""
    volumes.require_reachable()
    for name in dict.fromkeys(names):
        venvs.ensure(name)


def start(
    service_name: str,
    variables: Mapping[str, str] | None = None,
    *,
    instance_name: str | None = None,
    attached: bool = False,
) -> Instance:
    """Returns an instance of a service, started but perhaps not ready yet; one that runs with these variables is kept.

    variables: on top of .env and the process's own. attached: it ends with this process, and takes any free port;
    otherwise the port of compose.yaml, or the next free one.
    """
    name = instance_name or service_name
    known = {**compose.environment_variables(compose.FILE.parent), **(variables or {})}
    if there := instance(name):
        if service_state.is_as_wanted(there, known):
            return there
        there.stop()
    volumes.require_writable()
    # One that loads does not listen on its port yet.
    others = [one for one in instances() if one.service != service_name and not one.attached and one.url]
    known |= {port_variable(one.service): one.url.rpartition(":")[2] for one in others}
    service = service_on_free_port(compose.FILE, service_name, known, any_port=attached)
    if service.health and service.ports and not supervised.check_url(service):
        raise LabError(f"compose.yaml: '{service_name}' has the health check {service.health.test}, not the contract's")
    env = venvs.ensure(service.environment_name)
    if (about := manifests.services().get(service_name)) and about.draws:
        gl.ensure()
    command, environment = resolve(service, env)
    gpu, visible = gpus.visible(service_name, known)
    port = service.ports[0] if service.ports else None
    placed = {"VLALAB_BIND": port.bind, port_variable(service_name): str(port.published)} if port else {}
    record = {
        "name": name,
        "service": service_name,
        "attached": attached,
        "started_at": time.time(),
        "gpu": gpu,
        "variables": {
            one: value for one, value in (variables or {}).items() if service_state.is_own(service_name, one)
        },
        "placed": placed,
    }
    spec = {
        "command": command,
        "environment": {**environment, **visible},
        "folder": str(paths.ROOT),
        "restart": service.restart,
        "stop_grace_s": service.stop_grace_s,
        "log_path": str(logs.place(name, attached, make=True)),
        "record": record,
    }
    logs.sweep()
    return launch(
        spec, supervised.state_path(name), {one: known.get(one, "") for one in service_state.names_of(service_name)}
    )


def start_command(service_name: str, variables: Mapping[str, str] | None = None, *, attached: bool = False) -> str:
    """Returns the command line that `start` runs, for a dry run."""
    known = {**compose.environment_variables(), "VLALAB_LISTEN": "127.0.0.1", **(variables or {})}
    service = compose.read(variables=known)[service_name]
    return shlex.join(resolve(service, venvs.named(service.environment_name))[0])


def launch(spec: dict, state_path: Path, settings: Mapping[str, str]) -> Instance:
    """Starts a supervisor. Its environment is where `settings`, a token among them, can be read again: by its user."""
    log_path = Path(spec["log_path"])
    try:
        log = logs.open_private(log_path)
    except OSError as error:
        raise LabError(f"cannot write the log {log_path}: {error.strerror or error}") from error
    with open(log, "ab") as errors:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", supervised.SUPERVISOR, str(state_path)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
            cwd=paths.ROOT, env={**service_variables(), **settings}, start_new_session=True, text=True,
        )  # fmt: skip
    assert supervisor.stdin is not None
    supervisor.stdin.write(json.dumps(spec) + "\n")
    supervisor.stdin.flush()
    if spec["record"]["attached"]:
        _HELD.append(supervisor.stdin)  # closed when this process ends, however it ends
    else:
        supervisor.stdin.close()
    deadline = time.monotonic() + 20
    while (found := supervised.load(state_path)) is None:
        if supervisor.poll() is not None or time.monotonic() > deadline:
            supervisor.kill()
            raise LabError(f"service '{spec['record']['name']}' could not be started; see {log_path}")
        time.sleep(0.05)
    return found


_HELD: list[object] = []


# --- programs and shells ------------------------------------------------------------------------------------


def run(
    service_name: str,
    command: Sequence[str],
    variables: Mapping[str, str] | None = None,
    *,
    listens: str = "",
    dry_run: bool = False,
) -> int:
    """Run a command with a service's environment and variables, in the foreground; return its exit code.

    listens: what a container has to be told; a process listens itself.
    """
    if dry_run:
        print(shlex.join(command))
        return 0
    declared = compose.read()[service_name]
    service = replace(declared, command=tuple(command))
    env = venvs.ensure(service.environment_name)
    is_job = service.role == "job" and service.command[: len(declared.command)] == declared.command
    if is_job and manifests.environment(service.environment_name).needs_gl:
        gl.ensure()
    words, environment = resolve(service, env)
    _, visible = gpus.visible(service_name, {**compose.environment_variables(), **(variables or {})})
    return supervise(words, {**environment, **visible, **(variables or {})})


def shell(service_name: str, command: str | None = None, dry_run: bool = False) -> int:
    """Open a shell in a service's environment, or run one command line in it; return the exit code."""
    words = ["bash", "-c", command] if command else ["bash", "--norc", *(["-i"] if sys.stdin.isatty() else [])]
    if dry_run:
        print(shlex.join(words))
        return 0
    service = compose.read()[service_name]
    env = venvs.ensure(service.environment_name)
    _, variables = resolve(service, env)
    prompt = {"PS1": f"({service.environment_name}) \\w\\$ "}
    return subprocess.run(words, env={**variables, **prompt}, cwd=paths.ROOT).returncode


def follow_log(name: str, lines: int, follow: bool) -> None:
    """Prints the end of an instance's log, and what is added to it if `follow`."""
    found = instance(name)
    path = logs.require(name, attached=bool(found and found.attached))
    subprocess.run(["tail", "-n", str(lines), *(["-F"] if follow else []), str(path)], check=False)


def close(found: Instance, keep_log: bool) -> None:
    """Stops a private instance; its log stays where somebody will want to read it."""
    (instance(found.name) or found).stop()
    if keep_log:
        say(f"the policy's log: {logs.keep(found.name)}")
    else:
        logs.drop(found.name)


def address(found: Instance) -> str:
    """Returns where this runtime's programs reach an instance."""
    return found.url


def wait_ready(
    name: str, timeout_s: float = running.READY_TIMEOUT_S, on_wait: Callable[[], None] = lambda: None
) -> Instance:
    """Returns the instance once its health check succeeds; see `running.wait_ready`."""
    return running.wait_ready(name, lambda: instance(name), timeout_s, on_wait)
