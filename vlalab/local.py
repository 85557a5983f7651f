"""The local runtime: services of compose.yaml as supervised processes of this machine, without containers.

Each instance has a state file under services/<machine> on the volume and a log under logs/. `up` starts one instance
per service, under the service's own name; an evaluation may start a private one that ends with it.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vlalab import compose, environments, paths
from vlalab.compose import Health, Service
from vlalab.console import LabError, say
from vlalab.environments import Environment
from vlalab.ports import reachable, service_on_free_port
from vlalab.processes import Identity


@dataclass(frozen=True)
class Instance:
    """A running service: what its state file says."""

    name: str
    service: str
    url: str
    role: str
    attached: bool
    log_path: Path
    health: tuple[str, ...]
    health_timeout_s: float
    stop_grace_s: float
    started_at: float
    supervisor: Identity
    child: Identity | None
    starts: int
    last_exit: int | None

    def is_healthy(self) -> bool:
        """Returns whether its health check succeeds."""
        if self.child is None or not self.child.is_alive():
            return False
        try:
            done = subprocess.run(
                self.health, env=service_variables(), cwd=paths.ROOT, timeout=self.health_timeout_s + 5,
                stdin=subprocess.DEVNULL, capture_output=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def stop(self) -> None:
        """Stops it: SIGTERM, its grace period, then SIGKILL. Somebody else's process is never touched."""
        self.supervisor.send(signal.SIGTERM)
        if not self.supervisor.wait_gone(self.stop_grace_s + 3):
            self.supervisor.send(signal.SIGKILL)
        if self.child and not self.child.wait_gone(1.0):
            self.child.send(signal.SIGKILL)
        _state_path(self.name).unlink(missing_ok=True)

    def last_words(self, lines: int = 15) -> str:
        """Returns the end of its log."""
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return f"({self.log_path} cannot be read)"


def service_variables(env: Environment | None = None) -> dict[str, str]:
    """Returns the variables a program starts with: the caller's own, where the code lies, and its environment's."""
    common = {**os.environ, "PYTHONPATH": paths.python_path(), "PYTHONUNBUFFERED": "1"}
    return {**common, **env.variables()} if env else common


# --- what runs ----------------------------------------------------------------------------------------------


def _state_folder() -> Path:
    return paths.volume() / "services" / platform.node()  # the volume may be shared with other machines


def _state_path(name: str) -> Path:
    return _state_folder() / f"{name}.json"


def instances() -> list[Instance]:
    """Returns what runs on this machine; state files of processes that are gone are taken away."""
    return [found for path in sorted(_state_folder().glob("*.json")) if (found := _load(path))]


def instance(name: str) -> Instance | None:
    """Returns the running instance of that name."""
    return _load(_state_path(name))


def _load(path: Path) -> Instance | None:
    try:
        state = json.loads(path.read_text())
        child = Identity(**state.pop("child")) if state.get("child") else state.pop("child")
        found = Instance(
            supervisor=Identity(**state.pop("supervisor")), child=child, log_path=Path(state.pop("log_path")),
            health=tuple(state.pop("health")), **state,
        )  # fmt: skip
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        say(f"{path} is no state file of this version; ignoring it")
        return None
    if not found.supervisor.is_alive():
        path.unlink(missing_ok=True)
        return None
    return found


# --- start --------------------------------------------------------------------------------------------------


def resolve(service: Service, env: Environment) -> tuple[list[str], dict[str, str]]:
    """Returns the command and the variables of a service outside a container.

    `python` is the environment's, and paths under a mount point become the mounted host folder.
    """
    command = [_on_host(word, service.mounts) for word in service.command]
    if command and command[0] == "python":
        command[0] = str(env.python)
    declared = {name: _on_host(value, service.mounts) for name, value in service.environment.items()}
    return command, {**service_variables(env), **declared}


def _on_host(text: str, mounts: tuple[tuple[str, str], ...]) -> str:
    for source, target in mounts:
        if text == target or text.startswith(target + "/"):
            return str((paths.ROOT / Path(source).expanduser()).resolve()) + text[len(target) :]
    return text


def start(
    service_name: str,
    *,
    instance_name: str | None = None,
    attached: bool = False,
    log_path: Path | None = None,
    compose_path: Path = paths.ROOT / "compose.yaml",
) -> Instance:
    """Returns a new instance of a service, started but perhaps not ready yet.

    attached: it ends with this process, and takes any free port; otherwise the port of compose.yaml, or the next
    free one.
    """
    name = instance_name or service_name
    known = compose.environment_variables(compose_path.parent)
    service = service_on_free_port(compose_path, service_name, known, any_port=attached)
    env = environments.ensure(service.environment_name)
    state_path = _writable(_state_path(name))
    command, environment = resolve(service, env)
    facts = {
        "name": name,
        "service": service_name,
        "role": service.role,
        "attached": attached,
        "log_path": str(log_path or paths.volume() / "logs" / f"{name}.log"),
        "stop_grace_s": service.stop_grace_s,
        "started_at": time.time(),
        **_reach(service, env),
    }
    spec = {
        "command": command,
        "environment": environment,
        "folder": str(paths.ROOT),
        "restart": service.restart,
        "state_path": str(state_path),
        "facts": facts,
    }
    return _launch(spec, state_path)


def _reach(service: Service, env: Environment) -> dict[str, object]:
    """Returns where the service answers, and its health check as this machine runs it."""
    port = service.ports[0] if service.ports else None
    address = reachable(port.bind) if port else ""
    check = service.health or Health((), 10.0, 5.0, 3, 0.0)
    words, _ = resolve(replace(service, command=check.test), env)
    return {
        "url": f"http://{address}:{port.published}" if port else "",
        "health": [word.replace("//127.0.0.1:", f"//{address}:") for word in words],  # inside is outside here
        "health_timeout_s": check.timeout_s,
    }


def _launch(spec: dict, state_path: Path) -> Instance:
    log_path = Path(spec["facts"]["log_path"])
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("a") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "vlalab.supervisor"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log,
            cwd=paths.ROOT, env=service_variables(), start_new_session=True, text=True,
        )  # fmt: skip
    assert supervisor.stdin is not None
    supervisor.stdin.write(json.dumps(spec) + "\n")
    supervisor.stdin.flush()
    if spec["facts"]["attached"]:
        _HELD.append(supervisor.stdin)  # closed when this process ends, however it ends
    else:
        supervisor.stdin.close()
    deadline = time.monotonic() + 20
    while (found := _load(state_path)) is None:
        if supervisor.poll() is not None or time.monotonic() > deadline:
            supervisor.kill()
            raise LabError(f"service '{spec['facts']['name']}' could not be started; see {log_path}")
        time.sleep(0.05)
    return found


_HELD: list[object] = []


def _writable(state_path: Path) -> Path:
    try:
        state_path.parent.mkdir(parents=True, exist_ok=True)
        (state_path.parent / ".writable").touch()
    except OSError as error:
        raise LabError(
            f"the volume {paths.volume()} cannot be written to ({error.strerror}); "
            "set VLALAB_VOLUME to a folder that can"
        ) from error
    return state_path


# --- wait ---------------------------------------------------------------------------------------------------


def wait_ready(name: str, timeout_s: float, on_wait: Callable[[], None] = lambda: None) -> Instance:
    """Returns the instance once its health check succeeds.

    Raises LabError, with the end of its log, when it ended, or was not ready in time; the caller stops it then.
    """
    deadline = time.monotonic() + timeout_s
    found = instance(name)
    last = found
    while True:
        if found is None or found.starts > 1:
            words = last.last_words() if last else ""
            raise LabError(f"service '{name}' ended before it was ready; the end of its log:\n{words}")
        if found.is_healthy():
            return found
        if time.monotonic() > deadline:
            raise LabError(
                f"service '{name}' was not ready within {timeout_s:.0f} s; the end of {found.log_path}:\n"
                f"{found.last_words()}"
            )
        on_wait()
        time.sleep(0.2)
        last, found = found, instance(name)
