"""The docker runtime: services of compose.yaml as containers, by Docker Compose.

What Compose knows about a container (project, service, health) is read from the engine, so that a service started by
`docker compose up` is a service here too. This module is one of the two that `both.Runtime` describes.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from vlalab.description import compose, ports
from vlalab.engine import docker, guard, images, reservations, volumes
from vlalab.host import memory, paths
from vlalab.host.console import LabError, say
from vlalab.host.processes import Identity, identify, supervise
from vlalab.runtimes import held, logs, running

NAME = "docker"
MOUNT = "/volume"  # where compose.yaml mounts the volume
LABEL = "com.docker.compose."
OWNER = "vla-lab.owner"  # label of a private container: machine, pid, start and boot of the call it belongs to
RUNNING = ("running", "restarting", "paused")
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
NETWORK = (  # variables that a program needs where the network has a proxy or a mirror of its own
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "HF_ENDPOINT", "HF_TOKEN",
    "VLALAB_LIBERO_MIRROR",
)  # fmt: skip


@dataclass(frozen=True)
class Container:
    """A container of this project, as the engine describes it."""

    runtime: ClassVar[str] = NAME
    id: str
    container: str  # its own name
    service: str
    role: str
    attached: bool
    owner: str
    state: str  # running, restarting, paused, exited, created, dead
    exit_code: int
    docker_health: str  # starting, healthy, unhealthy; empty: it has no check
    url: str
    port: int  # inside
    started_at: float
    restarts: int
    pid: int
    image_id: str
    gpu: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # with the token
    command: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The service's name; a private one has its own."""
        return self.container if self.attached else self.service

    @property
    def is_up(self) -> bool:
        """Whether it runs, or is about to again."""
        return self.state in RUNNING

    def owns(self, pid: int) -> bool:
        """Returns whether a process of this machine runs in it."""
        return memory.belongs_to_container(pid, self.id)

    def is_healthy(self) -> bool:
        """Returns whether its health check succeeded when the engine ran it last: compose.yaml says how often."""
        return self.state == "running" and self.docker_health in ("healthy", "")

    def has_ended(self) -> bool:
        """Returns whether it ended and the engine will not start it again."""
        done = docker.run(["inspect", "--format", "{{.State.Status}}", self.container], check=False)
        if done.returncode != 0:
            return "no such" in done.stderr.lower()  # else the engine does not answer just now
        return done.stdout.strip() in ("exited", "dead")

    def started_with(self) -> dict[str, str]:
        """Returns the settings that its configuration shows."""
        return held.of_container(self.service, self.environment, list(self.command))

    def stop(self) -> None:
        """Ends it, with its grace period, and removes it."""
        docker.run(["stop", self.container], check=False)
        guard.remove(self.container)
        if self.attached and (watch := _GUARDS.pop(self.container, None)):
            guard.dismiss(watch)

    def last_words(self, lines: int = 15) -> str:
        """Returns the end of its log."""
        done = docker.run(["logs", "--tail", str(lines), self.container], check=False)
        return (done.stdout + done.stderr).strip()

    def is_abandoned(self) -> bool:
        """Returns whether the call it belonged to is gone, and was one of this machine. A job ends by itself."""
        machine, *rest = self.owner.split(" ")
        if machine != platform.node() or len(rest) != 3 or self.role == "job":
            return False
        return not Identity(int(rest[0]), int(rest[1]), rest[2]).is_alive()


_GUARDS: dict[str, object] = {}


# --- what runs ----------------------------------------------------------------------------------------------


def everything() -> list[Container]:
    """Returns all containers of this project, also those that ended; none where no engine answers. 40 ms."""
    if docker.available():
        return []
    ids = docker.run(["ps", "--all", "--quiet", "--filter", f"label={LABEL}project={compose.project()}"]).stdout.split()
    if not ids:
        return []
    done = docker.run(["inspect", *ids], check=False)  # one may have gone since
    found = [_container(record) for record in docker.parse_json(done.stdout)]
    abandoned = [one for one in found if one.attached and one.is_abandoned()]
    for one in abandoned:
        say(f"removing {one.container}: the call it belonged to is gone")
        guard.remove(one.container)
    return sorted((one for one in found if one not in abandoned), key=lambda one: one.name)


def instances() -> list[Container]:
    """Returns what runs."""
    return [one for one in everything() if one.is_up]


def instance(name: str) -> Container | None:
    """Returns the running instance of that name."""
    return next((one for one in instances() if one.name == name), None)


def _container(record: dict) -> Container:
    labels, state = record["Config"]["Labels"], record["State"]
    test = (record["Config"].get("Healthcheck") or {}).get("Test") or []
    inside = re.search(r"://[^/]*:(\d+)/", " ".join(test))
    return Container(
        id=record["Id"],
        container=record["Name"].lstrip("/"),
        service=labels.get(f"{LABEL}service", ""),
        role=labels.get(compose.ROLE, "service"),
        attached=labels.get(f"{LABEL}oneoff") == "True",
        owner=labels.get(OWNER, ""),
        state=state["Status"],
        exit_code=int(state.get("ExitCode", 0)),
        docker_health=(state.get("Health") or {}).get("Status", ""),
        url=_published(record),
        port=int(inside[1]) if inside else 0,
        started_at=images.parse_time(state["StartedAt"]).timestamp(),
        restarts=int(record.get("RestartCount", 0)),
        pid=int(state.get("Pid", 0)),
        image_id=record["Image"],
        gpu=_devices(record),
        environment=dict(line.partition("=")[::2] for line in record["Config"].get("Env") or ()),
        command=tuple(record["Config"].get("Cmd") or ()),
    )


def _published(record: dict) -> str:
    """Returns the URL at which this machine reaches the container's published port."""
    for bindings in (record["HostConfig"].get("PortBindings") or {}).values():
        for binding in bindings or ():
            return f"http://{ports.reachable(binding.get('HostIp') or '0.0.0.0')}:{binding['HostPort']}"
    return ""


def _devices(record: dict) -> str:
    requests = record["HostConfig"].get("DeviceRequests") or ()
    return ",".join(device for request in requests for device in request.get("DeviceIDs") or ["all"]) or "none"


# --- variables and files for Compose ------------------------------------------------------------------------


def prepare(names: Sequence[str]) -> None:
    """Prepares the volume, and raises LabError where the image of one of those environments is missing.

    Says where one was built from another lock.
    """
    found = images.found(list(dict.fromkeys(names)))
    for name in dict.fromkeys(names):
        if problem := images.unusable(name, found.get(name)):
            if name not in found:
                raise LabError(problem)
            say(problem)
    volumes.prepare()


def _variables(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the variables that Compose gets beside the process's own: whose the files are, where, and `given`."""
    uid, gid = volumes.container_user()
    known = {"VLALAB_UID": str(uid), "VLALAB_GID": str(gid), "VLALAB_VOLUME": str(paths.volume())}
    known[compose.PROJECT] = compose.project()
    return {**known, **{name: _on_volume(name, value) for name, value in (given or {}).items()}}


def _on_volume(name: str, value: str) -> str:
    """Returns a value whose path on this machine's volume has become the container's."""
    volume = str(paths.volume())
    if value == volume or value.startswith(volume + "/"):
        return MOUNT + value[len(volume) :]
    if value.startswith("/") and not value.startswith(MOUNT + "/") and Path(value).exists():
        raise LabError(f"{name} is {value}, which a container does not see; put it on the volume, {volume}")
    return value


_PATHS = ("CHECKPOINT", "REPLAY_RUN")  # variables that may hold a path of this machine


def _known(given: Mapping[str, str] | None) -> dict[str, str]:
    """Returns `given` over the process's own variables that may hold a path, which have to be translated."""
    own = {name: value for name, value in os.environ.items() if name.startswith("VLALAB_") and name.endswith(_PATHS)}
    return {**own, **(given or {})}


def _files(service: str, given: Mapping[str, str]) -> list[Path]:
    """Returns the Compose files beside compose.yaml: one for a service that gets a GPU."""
    return reservations.files(service, {**compose.environment_variables(), **given})


def _placed(service: str, given: Mapping[str, str]) -> dict[str, str]:
    """Returns `given` with the ports that are in use: those of what runs, and a free one for `service`."""
    up = {one.service: one for one in instances() if not one.attached and one.port}
    used = {ports.port_variable(name): str(one.port) for name, one in up.items() if name != service}
    known = {**compose.environment_variables(), **used, **given}
    mine = up[service].port if service in up else None
    placed = ports.service_on_free_port(compose.FILE, service, known, any_port=False, mine=mine, by_engine=True)
    port = {ports.port_variable(service): str(placed.ports[0].published)} if placed.ports else {}
    return {**used, **given, **port}


# --- start --------------------------------------------------------------------------------------------------


def start(
    service_name: str,
    variables: Mapping[str, str] | None = None,
    *,
    instance_name: str | None = None,
    attached: bool = False,
) -> Container:
    """Returns the container of a service, started but perhaps not ready yet; made anew where something has changed.

    variables: on top of .env and the process's own. attached: it ends with this process, under a name of its own, and
    publishes no port.
    """
    given = _placed(service_name, _known(variables)) if not attached else _known(variables)
    name = instance_name or service_name
    if attached:
        name = f"{compose.project()}-{name}"
        _GUARDS[name] = guard.start(name)
    words, files = _start_words(service_name, name, attached, _me()), _files(service_name, given)
    docker.compose(words, files=files, variables=_variables(given))
    if attached:  # `compose run` drops the restart rule
        docker.run(["update", "--restart", compose.read()[service_name].restart, name])
    found = instance(name)
    if found is None:
        raise LabError(f"service '{service_name}' ended at once:\n{_words_of(service_name)}")
    return found


def _start_words(service: str, name: str, attached: bool, owner: str) -> list[str]:
    if not attached:
        return ["up", "--detach", "--no-deps", service]
    return ["run", "--detach", "--no-deps", "--name", name, "--label", f"{OWNER}={owner}", service]


def _words_of(service: str) -> str:
    found = next((one for one in everything() if one.service == service), None)
    return found.last_words() if found else "(it left no log)"


def _me() -> str:
    me = identify(os.getpid())
    assert me is not None
    return f"{platform.node()} {me.pid} {me.start_ticks} {me.boot_id}"


def start_command(service_name: str, variables: Mapping[str, str] | None = None, *, attached: bool = False) -> str:
    """Returns the command line that `start` runs, for a dry run."""
    given = _known(variables)
    words = _start_words(service_name, f"{compose.project()}-{service_name}-PID", attached, "PID")
    return _shown(words, _files(service_name, given), given)


def _shown(words: Sequence[str], files: Sequence[Path], given: Mapping[str, str] | None = None) -> str:
    variables = [f"{name}={value}" for name, value in _variables(given).items() if os.environ.get(name) != value]
    return shlex.join([*variables, *docker.command(docker.compose_args(words, files))])


# --- programs and shells ------------------------------------------------------------------------------------


def run(service_name: str, command: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
    """Runs a command in a service's image with its variables and restrictions; returns its exit code.

    The volume is mounted at its own path too, and so is what the command names, so that every path a person reads or
    types means the same inside. A signal goes into the container; `compose run` itself would let go of it.
    """
    name = f"{compose.project()}-{service_name}-{os.getpid()}"
    given = variables or {}
    words = _run_words(service_name, name, command, given, _me())
    line = docker.command(docker.compose_args(words, _files(service_name, given)))

    def deliver(number: int) -> bool:
        return docker.run(["kill", "--signal", str(int(number)), name], check=False).returncode == 0

    with guard.guarded(name):
        return supervise(line, {**os.environ, **_variables(), **given}, deliver=deliver)


def _run_words(service: str, name: str, command: Sequence[str], variables: Mapping[str, str], owner: str) -> list[str]:
    volume = str(paths.volume())
    seen = {"VLALAB_VOLUME": volume, **variables}
    flags = [word for item in seen.items() for word in ("--env", "=".join(item))]
    mounts = [word for path in (volume, *_paths_in(command)) for word in _mount(path)]
    return [
        "--progress", "quiet", "run", "--rm", "--no-deps", "--interactive=false", "--name", name,
        "--label", f"{OWNER}={owner}", *flags, *_network(), *mounts, service, *command,
    ]  # fmt: skip


def _paths_in(command: Sequence[str]) -> list[str]:
    """Returns the files and folders outside the volume that a command, or the variable for assets, names."""
    words = [word.partition("=")[2] if word.startswith("--") else word for word in command]
    words.append(os.environ.get("VLALAB_LIBERO_ASSETS", ""))
    outside = [word for word in words if word.startswith("/") and not Path(word).is_relative_to(paths.volume())]
    return [word for word in dict.fromkeys(outside) if Path(word).exists()]


def _mount(path: str) -> list[str]:
    """Returns the flags that show a path at its own place. A file is somebody's input, and is only read."""
    return ["--volume", f"{path}:{path}" + (":ro" if Path(path).is_file() else "")]


def _network() -> list[str]:
    """Returns the flags that hand over proxy, mirror and certificate authority of this machine."""
    flags = [word for name in NETWORK if os.environ.get(name) for word in ("--env", name)]
    bundle = next((os.environ[name] for name in CA_VARIABLES if os.environ.get(name)), None)
    if bundle and Path(bundle).is_file():
        inside = "/etc/ssl/certs/vla-lab-host.crt"
        flags += ["--volume", f"{bundle}:{inside}:ro"]
        flags += [word for name in CA_VARIABLES for word in ("--env", f"{name}={inside}")]
    return flags


def run_command(service_name: str, command: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    """Returns the command line that `run` runs, for a dry run."""
    words = _run_words(service_name, f"{compose.project()}-{service_name}-PID", command, variables or {}, "PID")
    return _shown(words, _files(service_name, variables or {}))


def shell(service_name: str, command: str | None = None) -> int:
    """Opens a shell in a service's image, with its restrictions, or runs one command line; returns the exit code."""
    words, files = _shell_words(service_name, command), _files(service_name, {})
    return docker.stream(docker.compose_args(words, files), variables=_variables())


def _shell_words(service: str, command: str | None) -> list[str]:
    inner = ["bash", "-c", command] if command else ["bash"]
    return ["--progress", "quiet", "run", "--rm", "--no-deps", service, *inner]


def shell_command(service_name: str, command: str | None = None) -> str:
    """Returns the command line that `shell` runs, for a dry run."""
    return _shown(_shell_words(service_name, command), _files(service_name, {}))


def follow_log(name: str, lines: int, follow: bool) -> None:
    """Prints the end of a container's log, also of one that ended, and what is added to it if `follow`."""
    found = next((one for one in everything() if one.name == name), None)
    if found is None:
        raise LabError(f"no container of '{name}'; start it: ./lab up {name}")
    docker.stream(["logs", "--tail", str(lines), *(["--follow"] if follow else []), found.container])


def close(found: Container, keep_log: bool) -> None:
    """Stops a private instance; its log is kept where somebody will want to read it."""
    if keep_log:
        say(f"the policy's log: {logs.keep(found.name, found.last_words(lines=10_000))}")
    found.stop()


def address(found: Container) -> str:
    """Returns where containers of this project reach an instance: by its name on their network."""
    return f"http://{found.name}:{found.port}"


def wait_ready(name: str, timeout_s: float = running.READY_TIMEOUT_S, on_wait=lambda: None) -> Container:
    """Returns the instance once its health check succeeds; see `running.wait_ready`."""
    return running.wait_ready(name, lambda: instance(name), timeout_s, on_wait)
