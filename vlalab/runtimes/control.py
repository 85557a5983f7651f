"""Start and stop the page's control daemon: a process on this machine that starts and stops services for the page.

It runs while the page runs, in either runtime, under a supervisor like that of a local service. The daemon itself is
vlalab.control_daemon. The page reaches it through a socket in a directory that compose.yaml mounts only into the page.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vlalab.description import compose
from vlalab.environments.venvs import file_lock
from vlalab.host import paths, state
from vlalab.runtimes import local, state_files
from vlalab.runtimes.state_files import Instance

NAME = "steward"
OFF = "VLALAB_STEWARD"  # "off": the page cannot start or stop services
DIRECTORY = "VLALAB_STEWARD_FOLDER"  # what compose.yaml mounts
LAB_NAME = "VLALAB_NAME"  # what the pages call this lab
ACTING = "VLALAB_STEWARD_ACTS"  # set for the daemon's own commands, which do not manage the daemon
TAKEN = ("VLALAB_TOKEN", "VLALAB_BIND")  # settings of the page that its services inherit


def directory() -> Path:
    """Return the directory of the socket and its secret; create it if missing. It is mounted, so never replaced."""
    path = state.directory(NAME) / "socket"
    path.mkdir(exist_ok=True)
    path.chmod(0o711)  # for another user in a container; outside, the parent directory is private
    return path


def variables(service: str) -> dict[str, str]:
    """Return the variables of a service's description: for the page, the socket's directory and the clone's name."""
    if service != compose.PAGE:
        return {}
    return {DIRECTORY: str(directory()), LAB_NAME: compose.environment_variables().get(LAB_NAME) or paths.ROOT.name}


def start(page: Instance) -> None:
    """Start the daemon for this page, with the page's token; stop it if VLALAB_STEWARD is off."""
    if os.environ.get(ACTING):
        return
    if compose.environment_variables().get(OFF, "").lower() == "off":
        return stop()
    settings = page.started_with()
    variables = {**os.environ, **{name: settings[name] for name in TAKEN if name in settings}}
    compared = {name: variables.get(name, "") for name in (*TAKEN, "VLALAB_VOLUME", "VLALAB_PROJECT")}
    compared["runtime"] = page.runtime
    with file_lock(state.directory() / f".{NAME}.lock", "another call is starting the page's control daemon"):
        command = [sys.executable, "-m", "vlalab.control_daemon", str(directory()), page.runtime]
        environment = {**variables, ACTING: "1", "PYTHONUNBUFFERED": "1"}
        path = state.directory(NAME) / f"{NAME}.json"  # separate from the services' state files
        local.keep_running(NAME, command, environment, state_path=path, settings=compared, gpu="none", stop_grace_s=2.0)


def running_daemon() -> Instance | None:
    """Return the running daemon, or None."""
    return state_files.load(state.directory(NAME, make=False) / f"{NAME}.json")


def stop() -> None:
    """Stop the daemon if it runs. The daemon's own commands do not stop it."""
    if not os.environ.get(ACTING) and (daemon := running_daemon()):
        daemon.stop()
