"""The docker runtime: services of compose.yaml as containers, by Docker Compose.

What runs is told by `contained`. This module is one of the two that `both.Runtime` describes.
"""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from vlalab.description import compose, ports
from vlalab.engine import docker, guard, images, reservations, volumes
from vlalab.host import library_variables, paths
from vlalab.host.console import LabError, say
from vlalab.host.processes import identify, supervise
from vlalab.runtimes import logs, running, steward
from vlalab.runtimes.contained import GUARDS, OWNER, Container, everything, instance
from vlalab.runtimes.contained import NAME as NAME
from vlalab.runtimes.contained import instances as instances

MOUNT = "/volume"  # where compose.yaml mounts the volume
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
NETWORK = (  # variables that a program needs where the network has a proxy or a mirror of its own
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "HF_ENDPOINT", "HF_TOKEN",
    "VLALAB_LIBERO_MIRROR",
)  # fmt: skip


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
    if problem := docker.why_no_volume(docker.info()):
        raise LabError(problem)
    volumes.prepare()


def _variables(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the variables that Compose gets beside the process's own: whose the files are, where, and `given`."""
    uid, gid = volumes.container_user()
    known = {"VLALAB_UID": str(uid), "VLALAB_GID": str(gid), "VLALAB_VOLUME": str(paths.volume())}
    known[compose.PROJECT] = compose.project()
    known |= {name: _on_volume(name, value) for name, value in (given or {}).items()}
    return {**known, **compose.discovered({**compose.environment_variables(), **(given or {})})}


def _on_volume(name: str, value: str) -> str:
    """Returns a value whose path on this machine's volume has become the container's."""
    volume = str(paths.volume())
    if name == steward.FOLDER:  # mounted from where it is
        return value
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


def _placed(service: str, given: Mapping[str, str], any_port: bool) -> dict[str, str]:
    """Returns `given` with the ports that are in use: those of what runs, and a free one for `service`."""
    there = instances()
    others = [one for one in there if one.service != service and not one.attached and one.port]
    used = {ports.port_variable(one.service): str(one.port) for one in others}
    known = {**compose.environment_variables(), **used, **given}
    mine = next((one.port for one in there if one.name == service and one.port and not any_port), None)
    placed = ports.service_on_free_port(compose.FILE, service, known, any_port=any_port, mine=mine, by_engine=True)
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
    publishes a port only at an address of the network: any free one.
    """
    given = _known(variables)
    opened = attached and ports.is_of_network({**compose.environment_variables(), **given}.get("VLALAB_BIND", ""))
    if not attached or opened:
        given = _placed(service_name, given, any_port=attached)
    name = instance_name or service_name
    if attached:
        name = f"{compose.project()}-{name}"
        GUARDS[name] = guard.start(name)
    words, files = _start_words(service_name, name, attached, _me(), opened), _files(service_name, given)
    docker.compose(words, files=files, variables=_variables(given))
    if attached:  # `compose run` drops the restart rule
        docker.run(["update", "--restart", compose.read()[service_name].restart, name])
    found = instance(name)
    if found is None:
        ended = next((one for one in everything() if one.service == service_name), None)
        words = ended.last_words() if ended else "(it left no log)"
        raise LabError(f"service '{service_name}' ended at once:\n{words}")
    return found


def _start_words(service: str, name: str, attached: bool, owner: str, opened: bool = False) -> list[str]:
    if not attached:
        return ["up", "--detach", "--no-deps", service]
    published = ["--service-ports"] if opened else []
    return ["run", "--detach", "--no-deps", *published, "--name", name, "--label", f"{OWNER}={owner}", service]


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


def run(
    service_name: str,
    command: Sequence[str],
    variables: Mapping[str, str] | None = None,
    *,
    listens: str = "",
    dry_run: bool = False,
) -> int:
    """Run a command in a service's image with its variables and restrictions; return its exit code.

    listens: "host:port" of this machine's network, where a command that listens on that port of all addresses is asked.
    The volume is mounted at its own path too, and so is what the command names, so that every path a person reads or
    types means the same inside. A signal goes into the container; `compose run` itself would let go of it.
    """
    host, _, port = listens.rpartition(":")
    given = {**(variables or {}), **({"VLALAB_BIND": host} if listens else {})}
    name = f"{compose.project()}-{service_name}-{'PID' if dry_run else os.getpid()}"
    volume = str(paths.volume())
    seen = {"VLALAB_VOLUME": volume, **given}
    words = [
        "--progress", "quiet", "run", "--rm", "--no-deps", "--interactive=false", "--name", name,
        "--label", f"{OWNER}={'PID' if dry_run else _me()}",
        *(word for item in seen.items() for word in ("--env", "=".join(item))),
        *(["--publish", f"{listens}:{port}"] if listens else []),
        *_network(),
        *(word for path in (volume, *_paths_in(command)) for word in _mount(path)),
        service_name, *command,
    ]  # fmt: skip
    files = _files(service_name, given)
    if dry_run:
        print(_shown(words, files))
        return 0

    def deliver(number: int) -> bool:
        return docker.run(["kill", "--signal", str(int(number)), name], check=False).returncode == 0

    with guard.guarded(name):
        line = docker.command(docker.compose_args(words, files))
        return supervise(line, {**os.environ, **_variables(), **given}, deliver=deliver)


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
    words, files = ["--progress", "quiet", "run", "--rm", "--no-deps", service_name, *inner], _files(service_name, {})
    if dry_run:
        print(_shown(words, files))
        return 0
    return docker.stream(docker.compose_args(words, files), variables=_variables())


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


def address_for_all(found: Container) -> str:
    """Returns where containers and other machines reach an instance. Raises LabError for one that they do not."""
    if ports.is_of_network(urlsplit(found.url).hostname or ""):
        return found.url
    raise LabError(
        f"{found.name} is at {found.url or 'no address of this machine'}, where no other machine reaches it; "
        f"start it with VLALAB_BIND set to this machine's address: ./lab up {found.service} --restart"
    )


def wait_ready(name: str, timeout_s: float = running.READY_TIMEOUT_S, on_wait=lambda: None) -> Container:
    """Returns the instance once its health check succeeds; see `running.wait_ready`."""
    return running.wait_ready(name, lambda: instance(name), timeout_s, on_wait)
