"""The local runtime: services of compose.yaml as supervised processes of this machine, without containers.

`up` starts one instance per service, under the service's name. An evaluation may start a private one, which ends with
it. The functions are those that `vlalab.runtimes.interface` lists.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlalab.description import compose, gpus, manifests, service_settings
from vlalab.description.compose import ComposeService
from vlalab.description.ports import port_variable, reachable, service_on_free_port
from vlalab.engine import volumes
from vlalab.environments import venvs
from vlalab.environments.venvs import LocalEnvironment
from vlalab.host import gl, library_variables, paths
from vlalab.host.console import LabError, log_info
from vlalab.host.processes import supervise
from vlalab.runtimes import logs, state_files
from vlalab.runtimes.state_files import HEALTHCHECK, Instance, instance
from vlalab.runtimes.state_files import NAME as NAME
from vlalab.runtimes.state_files import instances as instances

_ADDRESS = re.compile(r"(https?)://([A-Za-z_][\w-]*):(\d+)")


def service_variables(env: LocalEnvironment | None = None) -> dict[str, str]:
    """Return the variables of a program: the caller's usable ones, PYTHONPATH, and its environment's."""
    common = {**library_variables.usable(os.environ), "PYTHONPATH": paths.python_path(), "PYTHONUNBUFFERED": "1"}
    return {**common, **env.variables()} if env else common


# --- start --------------------------------------------------------------------------------------------------


def resolve(service: ComposeService, env: LocalEnvironment) -> tuple[list[str], dict[str, str]]:
    """Return the command and the variables of a service outside a container.

    `python` is the environment's, paths under a mount point become the mounted directory, and http://<service>:<port>
    becomes the address at which this machine reaches that service.
    """
    texts = [*service.command, *service.environment.values()]
    named = {match[2] for word in texts for match in _ADDRESS.finditer(word)} - {"localhost"}
    running = {name: instance(name) for name in named & set(compose.read() if named else ())}

    def reach(match: re.Match[str]) -> str:
        scheme, name, port = match.groups()
        if name not in running:
            return match[0]
        neighbour = running[name]
        return f"{scheme}://" + (neighbour.url.partition("//")[2] if neighbour else f"127.0.0.1:{port}")

    def translate(text: str) -> str:
        for source, target in service.mounts:
            if text == target or text.startswith(target + "/"):
                text = str((paths.ROOT / Path(source).expanduser()).resolve()) + text[len(target) :]
                break
        return _ADDRESS.sub(reach, text)

    command = [translate(word) for word in service.command]
    if command and command[0] == "python":
        command[0] = str(env.python)
    return command, {**service_variables(env), **{name: translate(v) for name, v in service.environment.items()}}


def check_url(service: ComposeService) -> str:
    """Return the URL of a health check, as this machine reaches it; "" if the service has none.

    Raise LabError for one that is not the contract's. Outside a container a service listens at its published address.
    """
    if not service.health or not service.ports:
        return ""
    test = service.health.test
    if len(test) != 4 or test[:3] != ("python", "-m", HEALTHCHECK.__name__):
        raise LabError(f"compose.yaml: '{service.name}' has the health check {test}, not the contract's")
    return test[3].replace("//127.0.0.1:", f"//{reachable(service.ports[0].bind)}:", 1)


def prepare(names: Sequence[str]) -> None:
    """Install the missing environments among these from their locks. Raises LabError if the volume is not readable."""
    volumes.require_reachable()
    for name in dict.fromkeys(names):
        venvs.ensure(name)


def start(
    service_name: str, variables: Mapping[str, str] | None = None, *, instance_name: str | None = None,
    attached: bool = False,
) -> Instance:  # fmt: skip
    """Start a service and return its instance, which may not be ready yet. A running one with these settings is kept.

    variables: on top of .env and the process's own. attached: it ends with this process, and takes any free port;
    otherwise the port of compose.yaml, or the next free one.
    """
    name = instance_name or service_name
    settings = {**compose.environment_variables(compose.FILE.parent), **(variables or {})}
    if current := instance(name):
        started_with = current.started_with()
        own = {key: settings.get(key, "") for key in started_with if service_settings.belongs_to(service_name, key)}
        if not service_settings.differing(service_name, started_with, own):
            return current
        current.stop()
    volumes.require_writable()
    for other in instances():  # one that still loads its weights does not listen on its port yet
        if other.service != service_name and not other.attached and other.url:
            settings[port_variable(other.service)] = other.url.rpartition(":")[2]
    service = service_on_free_port(compose.FILE, service_name, settings, any_port=attached)
    check = check_url(service)
    env = venvs.ensure(service.environment_name)
    if (manifest := manifests.services().get(service_name)) and manifest.draws:
        gl.ensure()
    command, environment = resolve(service, env)
    gpu, visible = gpus.visible(service_name, settings)
    port = service.ports[0] if service.ports else None
    logs.remove_stale()
    return launch(
        name, command, {**environment, **visible}, restart=service.restart,
        settings={key: settings.get(key, "") for key in service_settings.names_of(service_name)},
        service=service_name, attached=attached, role=service.role, gpu=gpu,
        url=f"http://{reachable(port.bind)}:{port.published}" if port else "",
        check=check, check_timeout_s=service.health.timeout_s if service.health else 0.0,
        stop_grace_s=service.stop_grace_s,
    )  # fmt: skip


def start_command(service_name: str, variables: Mapping[str, str] | None = None, *, attached: bool = False) -> str:
    """Return the command line that `start` runs, for a dry run."""
    settings = {**compose.environment_variables(), "VLALAB_LISTEN": "127.0.0.1", **(variables or {})}
    service = compose.read(variables=settings)[service_name]
    return shlex.join(resolve(service, venvs.get(service.environment_name))[0])


def launch(
    name: str, command: Sequence[str], environment: Mapping[str, str], *, state_path: Path | None = None,
    restart: str = "unless-stopped", settings: Mapping[str, str] | None = None, attached: bool = False,
    **fields: object,
) -> Instance:  # fmt: skip
    """Start a command under a supervisor and return its instance.

    restart: Compose's rule. settings: the result of `Instance.started_with`; kept in the supervisor's environment,
    private to its user. fields: further fields of the instance.
    """
    state_path, log_path = state_path or state_files.state_path(name), logs.log_path(name, attached, make=True)
    record = {"name": name, "service": name, "started_at": time.time(), "attached": attached, **fields}
    spec = {
        "record": record, "command": list(command), "environment": dict(environment), "restart": restart,
        "log_path": str(log_path),
    }  # fmt: skip
    try:
        log = logs.open_private(log_path)
    except OSError as error:
        raise LabError(f"cannot write the log {log_path}: {error.strerror or error}") from error
    with open(log, "ab") as errors:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", state_files.SUPERVISOR, str(state_path)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, cwd=paths.ROOT, start_new_session=True,
            env={**service_variables(), state_files.SETTINGS: json.dumps(settings or {})}, text=True,
        )  # fmt: skip
    assert supervisor.stdin is not None
    supervisor.stdin.write(json.dumps(spec) + "\n")
    supervisor.stdin.flush()
    if attached:
        _OWNER_PIPES.append(supervisor.stdin)  # closed when this process ends, however it ends
    else:
        supervisor.stdin.close()
    deadline = time.monotonic() + 20
    while (instance := state_files.load(state_path)) is None:
        if supervisor.poll() is not None or time.monotonic() > deadline:
            supervisor.kill()
            raise LabError(f"service '{name}' could not be started; see {log_path}")
        time.sleep(0.05)
    return instance


_OWNER_PIPES: list[object] = []


def keep_running(
    name: str, command: Sequence[str], environment: Mapping[str, str], *, state_path: Path,
    settings: Mapping[str, str], **fields: Any,
) -> Instance:  # fmt: skip
    """Return the process of a state file. It is started, or started anew if it runs with other settings."""
    if current := state_files.load(state_path):
        if current.started_with() == settings:
            return current
        current.stop()
    return launch(name, command, environment, state_path=state_path, settings=settings, **fields)


# --- programs and shells ------------------------------------------------------------------------------------


def run(
    service_name: str, command: Sequence[str], variables: Mapping[str, str] | None = None, *, listens: str = "",
    dry_run: bool = False,
) -> int:  # fmt: skip
    """Run a command with a service's environment and variables, in the foreground; return its exit code.

    listens: ignored; only a container needs it.
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
    arguments, environment = resolve(service, env)
    _, visible = gpus.visible(service_name, {**compose.environment_variables(), **(variables or {})})
    return supervise(arguments, {**environment, **visible, **(variables or {})})


def shell(service_name: str, command: str | None = None, dry_run: bool = False) -> int:
    """Open a shell in a service's environment, or run one command line in it; return the exit code."""
    arguments = ["bash", "-c", command] if command else ["bash", "--norc", *(["-i"] if sys.stdin.isatty() else [])]
    if dry_run:
        print(shlex.join(arguments))
        return 0
    service = compose.read()[service_name]
    env = venvs.ensure(service.environment_name)
    _, variables = resolve(service, env)
    prompt = {"PS1": f"({service.environment_name}) \\w\\$ "}
    return subprocess.run(arguments, env={**variables, **prompt}, cwd=paths.ROOT).returncode


def follow_log(name: str, lines: int, follow: bool) -> None:
    """Print the end of an instance's log; with `follow`, also new lines."""
    current = instance(name)
    path = logs.require(name, attached=bool(current and current.attached))
    subprocess.run(["tail", "-n", str(lines), *(["-F"] if follow else []), str(path)], check=False)


def close(private_instance: Instance, keep_log: bool) -> None:
    """Stop a private instance. keep_log: keep its log for the user."""
    name = private_instance.name
    (instance(name) or private_instance).stop()
    log = logs.log_path(name, attached=True)
    if keep_log:
        log = log.replace(logs.log_path(name, make=True))
        log_info(f"the policy's log: {log}")
    else:
        log.unlink(missing_ok=True)
    logs.older(logs.log_path(name, attached=True)).unlink(missing_ok=True)


def address(instance: Instance) -> str:
    """Return the URL of an instance for local programs."""
    return instance.url
