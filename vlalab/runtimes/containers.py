"""The docker runtime: services of compose.yaml as containers, by Docker Compose.

The engine's list of containers is the state; it includes services that Compose started by hand. The functions are those
that `vlalab.runtimes.interface` lists.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from vlalab.description import compose, gpus, ports, service_settings
from vlalab.engine import docker, guard, images, volumes
from vlalab.host import library_variables, memory, paths, state
from vlalab.host.console import LabError, log_info
from vlalab.host.processes import Identity, identify, supervise
from vlalab.runtimes import control, logs

NAME = "docker"
LABEL = "com.docker.compose."
OWNER = "vla-lab.owner"  # label of a private container: machine, pid, start and boot of the call it belongs to
MOUNT = "/volume"  # where compose.yaml mounts the volume
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
        """Whether it runs or is being restarted."""
        return self.state in ("running", "restarting", "paused")

    def owns(self, pid: int) -> bool:
        """Return whether a process of this machine runs in this container."""
        return memory.belongs_to_container(pid, self.id)

    def memory(self) -> int | None:
        """Return the bytes that it uses, None where unknown."""
        return memory.of_container(self.pid)

    def is_healthy(self) -> bool:
        """Return the result of the engine's last health check; compose.yaml sets the interval."""
        return self.state == "running" and self.docker_health in ("healthy", "")

    def has_ended(self) -> bool:
        """Return whether it ended and the engine will not restart it."""
        done = docker.run(["inspect", "--format", "{{.State.Status}}", self.container], check=False)
        return done.stdout.strip() in ("exited", "dead") or "no such" in done.stderr.lower()

    def started_with(self) -> dict[str, str]:
        """Return the settings in its configuration."""
        return service_settings.of_container(self.service, self.environment, list(self.command))

    def stop(self) -> None:
        """Stop it, with its grace period, and remove it."""
        docker.run(["stop", self.container], check=False)
        guard.remove(self.container)
        if watch := _GUARDS.pop(self.container, None):
            guard.release(watch)

    def log_tail(self, lines: int = 15) -> str:
        """Return the end of its log."""
        done = docker.run(["logs", "--tail", str(lines), self.container], check=False)
        return (done.stdout + done.stderr).strip()


_GUARDS: dict[str, guard.Guard] = {}  # of the private containers that this process started


def everything() -> list[Container]:
    """Return the containers of this project, also ended ones; none if no engine answers. 40 ms.

    Private ones of a call of this machine that has ended are removed; a job ends by itself.
    """
    if docker.available():
        return []
    ids = docker.run(["ps", "--all", "--quiet", "--filter", f"label={LABEL}project={compose.project()}"]).stdout.split()
    if not ids:
        return []
    done = docker.run(["inspect", *ids], check=False)  # one may have gone since
    containers = []
    for container in map(_container, docker.parse_json(done.stdout)):
        machine, *caller = container.owner.split(" ")
        is_private = container.attached and container.role != "job" and machine == platform.node() and len(caller) == 3
        if is_private and not Identity(int(caller[0]), int(caller[1]), caller[2]).is_alive():
            log_info(f"removing {container.container}: the command that started it has ended")
            guard.remove(container.container)
        else:
            containers.append(container)
    return sorted(containers, key=lambda container: container.name)


def instances() -> list[Container]:
    """Return the running containers of this project."""
    return [container for container in everything() if container.is_up]


def instance(name: str) -> Container | None:
    """Return the running instance of that name."""
    return next((container for container in instances() if container.name == name), None)


def _container(record: dict) -> Container:
    config, host, state = record["Config"], record["HostConfig"], record["State"]
    labels = config["Labels"]
    inside = re.search(r"://[^/]*:(\d+)/", " ".join((config.get("Healthcheck") or {}).get("Test") or []))
    bindings = [entry for group in (host.get("PortBindings") or {}).values() for entry in group or ()]
    published = [
        f"http://{ports.reachable(binding.get('HostIp') or '0.0.0.0')}:{binding['HostPort']}" for binding in bindings
    ]
    devices = [device for entry in host.get("DeviceRequests") or () for device in entry.get("DeviceIDs") or ["all"]]
    return Container(
        id=record["Id"], container=record["Name"].lstrip("/"), service=labels.get(f"{LABEL}service", ""),
        role=labels.get(compose.ROLE, "service"), attached=labels.get(f"{LABEL}oneoff") == "True",
        owner=labels.get(OWNER, ""), state=state["Status"], exit_code=int(state.get("ExitCode", 0)),
        docker_health=(state.get("Health") or {}).get("Status", ""), url=published[0] if published else "",
        port=int(inside[1]) if inside else 0, started_at=images.parse_time(state["StartedAt"]).timestamp(),
        restarts=int(record.get("RestartCount", 0)), pid=int(state.get("Pid", 0)), image_id=record["Image"],
        gpu=",".join(devices) or "none", command=tuple(config.get("Cmd") or ()),
        environment=dict(line.partition("=")[::2] for line in config.get("Env") or ()),
    )  # fmt: skip


# --- start --------------------------------------------------------------------------------------------------


def prepare(names: Sequence[str]) -> None:
    """Prepare the volume. Raises LabError if the image of one of these environments is missing.

    Prints a warning for an image of another lock.
    """
    built = images.existing(list(dict.fromkeys(names)))
    for name in dict.fromkeys(names):
        if problem := images.unusable(name, built.get(name)):
            if name not in built:
                raise LabError(problem)
            log_info(problem)
    if problem := docker.volume_problem(docker.info()):
        raise LabError(problem)
    volumes.prepare()


def _variables(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return Compose's variables in addition to the process's own: the files' owner, the volume, and `overrides`.

    A path on this machine's volume becomes the container's. Raises LabError for one elsewhere.
    """
    (uid, gid), volume = volumes.container_user(), str(paths.volume())
    variables = {"VLALAB_UID": str(uid), "VLALAB_GID": str(gid), "VLALAB_VOLUME": volume}
    variables[compose.PROJECT] = compose.project()
    for name, value in overrides.items():
        if name == control.DIRECTORY:  # mounted from its own path
            pass
        elif value == volume or value.startswith(volume + "/"):
            value = MOUNT + value[len(volume) :]
        elif value.startswith("/") and not value.startswith(MOUNT + "/") and Path(value).exists():
            raise LabError(f"{name} is {value}, which is outside the container; move it to the volume, {volume}")
        variables[name] = value
    return {**variables, **compose.filled_in({**compose.environment_variables(), **overrides})}


def _with_path_variables(overrides: Mapping[str, str] | None) -> dict[str, str]:
    """Return `overrides` on top of the process's own variables with paths, which have to be translated."""
    suffixes = ("CHECKPOINT", "REPLAY_RUN")
    inherited = {
        name: value for name, value in os.environ.items() if name.startswith("VLALAB_") and name.endswith(suffixes)
    }
    return {**inherited, **(overrides or {})}


def gpu_files(service: str, variables: Mapping[str, str]) -> list[Path]:
    """Return the Compose file that gives a service its GPUs: by its variable, or by default where there are GPUs.

    compose.gpu.yaml names one device; for several, which need a list, a file is generated from it. Raises LabError if
    the choice names no device, or if there is no choice and nvidia-smi fails.
    """
    choice = gpus.selection(service, {**compose.environment_variables(), **variables})
    if service not in compose.gpu_services() or choice == "none":
        return []
    if not choice:
        gpus.check(service)
        if not gpus.count():
            return []
        if not docker.has_gpu_runtime():
            log_info(f"'{service}' runs without a GPU: {docker.gpu_problem()}")
            return []
    devices = choice.split(",")
    if len(devices) == 1:
        return [compose.GPU_FILE]
    request = {**compose.device_request(service), "device_ids": devices}
    body = {"deploy": {"resources": {"reservations": {"devices": [request]}}}}
    text = json.dumps({"services": {service: body}}, indent=1) + "\n"  # JSON is valid YAML
    path = state.directory("gpus") / f"{service}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    state.write(path, text)
    return [path]


def start(
    service_name: str, variables: Mapping[str, str] | None = None, *, instance_name: str | None = None,
    attached: bool = False,
) -> Container:  # fmt: skip
    """Start a service and return its container, which may not be ready yet; a new one if its settings changed.

    variables: on top of .env and the process's own. attached: it ends with this process and has its own name. It
    publishes a port, any free one, only at a network address.
    """
    settings = _with_path_variables(variables)
    published = attached and ports.is_of_network({**compose.environment_variables(), **settings}.get("VLALAB_BIND", ""))
    if not attached or published:
        settings = _with_ports(service_name, settings, any_port=attached)
    name = instance_name or service_name
    if attached:
        name = f"{compose.project()}-{name}"
        _GUARDS[name] = guard.start(name)
    arguments = _start_arguments(service_name, name, attached, _caller_identity(), published)
    docker.compose(arguments, files=gpu_files(service_name, settings), variables=_variables(settings))
    if attached:  # `compose run` drops the restart rule
        docker.run(["update", "--restart", compose.read()[service_name].restart, name])
    container = instance(name)
    if container is None:
        ended = next((candidate for candidate in everything() if candidate.service == service_name), None)
        text = ended.log_tail() if ended else "(no log)"
        raise LabError(f"service '{service_name}' ended at once:\n{text}")
    return container


def _with_ports(service: str, settings: Mapping[str, str], any_port: bool) -> dict[str, str]:
    """Return `settings` with the ports of running services, and a free one for `service`."""
    listening = [container for container in instances() if container.port]
    used = {
        ports.port_variable(container.service): str(container.port)
        for container in listening
        if container.service != service and not container.attached
    }
    current = None if any_port else next((c.port for c in listening if c.name == service), None)
    variables = {**compose.environment_variables(), **used, **settings}
    placed = ports.service_on_free_port(
        compose.FILE, service, variables, any_port=any_port, current_port=current, by_engine=True
    )
    port = {ports.port_variable(service): str(placed.ports[0].published)} if placed.ports else {}
    return {**used, **settings, **port}


def _start_arguments(service: str, name: str, attached: bool, owner: str, published: bool = False) -> list[str]:
    if not attached:
        return ["up", "--detach", "--no-deps", service]
    flags = ["--service-ports"] if published else []
    return ["run", "--detach", "--no-deps", *flags, "--name", name, "--label", f"{OWNER}={owner}", service]


def _caller_identity() -> str:
    me = identify(os.getpid())
    assert me is not None
    return f"{platform.node()} {me.pid} {me.start_ticks} {me.boot_id}"


def start_command(service_name: str, variables: Mapping[str, str] | None = None, *, attached: bool = False) -> str:
    """Return the command line that `start` runs, for a dry run."""
    settings = _with_path_variables(variables)
    arguments = _start_arguments(service_name, f"{compose.project()}-{service_name}-PID", attached, "PID")
    return _command_line(arguments, gpu_files(service_name, settings), settings)


def _command_line(arguments: Sequence[str], files: Sequence[Path], settings: Mapping[str, str]) -> str:
    variables = [f"{name}={value}" for name, value in _variables(settings).items() if os.environ.get(name) != value]
    return shlex.join([*variables, *docker.command(docker.compose_args(arguments, files))])


# --- programs and shells ------------------------------------------------------------------------------------


def run(
    service_name: str, command: Sequence[str], variables: Mapping[str, str] | None = None, *, listens: str = "",
    dry_run: bool = False,
) -> int:  # fmt: skip
    """Run a command in a service's image with its variables and restrictions; return its exit code.

    listens: "host:port" at which this machine's network reaches a command that listens on that port of all addresses.
    The volume and the paths in the command (files read-only) are mounted at their own paths, so a path means the same
    inside. Signals are sent to the container, since `compose run` does not forward them.
    """
    host, _, port = listens.rpartition(":")
    settings = {**(variables or {}), **({"VLALAB_BIND": host} if listens else {})}
    name = f"{compose.project()}-{service_name}-{'PID' if dry_run else os.getpid()}"
    volume = str(paths.volume())
    values = [word.partition("=")[2] if word.startswith("--") else word for word in command]
    values.append(os.environ.get("VLALAB_LIBERO_ASSETS", ""))
    outside = [value for value in values if value.startswith("/") and not Path(value).is_relative_to(volume)]
    mounted = [volume, *(path for path in dict.fromkeys(outside) if Path(path).exists())]
    arguments = [
        "--progress", "quiet", "run", "--rm", "--no-deps", "--interactive=false", "--name", name,
        "--label", f"{OWNER}={'PID' if dry_run else _caller_identity()}",
        *(word for item in {"VLALAB_VOLUME": volume, **settings}.items() for word in ("--env", "=".join(item))),
        *(["--publish", f"{listens}:{port}"] if listens else []),
        *_network(),
        *(word for path in mounted for word in ("--volume", f"{path}:{path}" + ":ro" * Path(path).is_file())),
        service_name, *command,
    ]  # fmt: skip
    files = gpu_files(service_name, settings)
    if dry_run:
        print(_command_line(arguments, files, {}))
        return 0

    def deliver(number: int) -> bool:
        return docker.run(["kill", "--signal", str(int(number)), name], check=False).returncode == 0

    with guard.guarded(name):
        line = docker.command(docker.compose_args(arguments, files))
        return supervise(line, {**os.environ, **_variables({}), **settings}, deliver=deliver)


def _network() -> list[str]:
    """Return the flags that pass this machine's proxy, mirror and certificate authority."""
    variables = library_variables.usable(os.environ)
    flags = [word for name in NETWORK if variables.get(name) for word in ("--env", name)]
    bundle = next((os.environ[name] for name in CA_VARIABLES if os.environ.get(name)), None)
    if bundle and Path(bundle).is_file():
        inside = "/etc/ssl/certs/vla-lab-host.crt"
        flags += ["--volume", f"{bundle}:{inside}:ro"]
        flags += [word for name in CA_VARIABLES for word in ("--env", f"{name}={inside}")]
    return flags


def shell(service_name: str, command: str | None = None, dry_run: bool = False) -> int:
    """Open a shell in a service's image, with its restrictions, or run one command line; return the exit code."""
    inner = ["bash", "-c", command] if command else ["bash"]
    arguments = ["--progress", "quiet", "run", "--rm", "--no-deps", service_name, *inner]
    files = gpu_files(service_name, {})
    if dry_run:
        print(_command_line(arguments, files, {}))
        return 0
    return docker.stream(docker.compose_args(arguments, files), variables=_variables({}))


def follow_log(name: str, lines: int, follow: bool) -> None:
    """Print the end of a container's log, also of an ended one; with `follow`, also new lines."""
    container = next((candidate for candidate in everything() if candidate.name == name), None)
    if container is None:
        raise LabError(f"no container of '{name}'; start it: ./lab up {name}")
    docker.stream(["logs", "--tail", str(lines), *(["--follow"] if follow else []), container.container])


def close(container: Container, keep_log: bool) -> None:
    """Stop a private instance. keep_log: save its log for the user."""
    if keep_log:
        path = logs.log_path(container.name, make=True)
        state.write(path, f"{container.log_tail(lines=10_000)}\n")
        log_info(f"the policy's log: {path}")
    container.stop()


def address(container: Container) -> str:
    """Return the URL of an instance for containers of this project: its name on their network."""
    return f"http://{container.name}:{container.port}"


def address_for_all(container: Container) -> str:
    """Return the URL of an instance for containers and other machines. Raises LabError if they cannot reach it."""
    if ports.is_of_network(urlsplit(container.url).hostname or ""):
        return container.url
    raise LabError(
        f"{container.name} is at {container.url or 'no address of this machine'}, which other machines cannot reach; "
        f"start it with VLALAB_BIND set to this machine's address: ./lab up {container.service} --restart"
    )
