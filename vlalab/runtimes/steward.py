"""The life of the page's control daemon: a process of this machine that starts and stops services for the page.

It is up while the page is, in either runtime: a supervisor like that of a local service keeps it. What it does is
vlalab.steward's. The page reaches it by a socket in a directory that compose.yaml shows to the page alone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vlalab.description import compose
from vlalab.description.compose import PAGE as PAGE  # the service that it is there for
from vlalab.environments.venvs import exclusive
from vlalab.host import state
from vlalab.runtimes import local, supervised
from vlalab.runtimes.supervised import Instance

NAME = "steward"
OFF = "VLALAB_STEWARD"  # "off": nobody starts anything from the page
DIRECTORY = "VLALAB_STEWARD_FOLDER"  # what compose.yaml mounts
ACTING = "VLALAB_STEWARD_ACTS"  # set for the commands that it runs, which leave it alone
TAKEN = ("VLALAB_TOKEN", "VLALAB_BIND")  # settings of the page that what is started from it gets too


def directory() -> Path:
    """Return the directory of the socket and its secret, made if missing. It is never replaced: it is mounted."""
    path = state.directory(NAME) / "socket"
    path.mkdir(exist_ok=True)
    path.chmod(0o711)  # in a container another user may pass through; out here the directory above lets nobody
    return path


def variables(service: str) -> dict[str, str]:
    """Return what a service's description needs to know of it: the directory, for the page."""
    return {DIRECTORY: str(directory())} if service == PAGE else {}


def attend(page: Instance) -> None:
    """Have a daemon run for this page, with its token, or none where that is wanted."""
    if os.environ.get(ACTING):
        return
    if not is_enabled():
        dismiss()
        return
    settings = page.started_with()
    variables = {**os.environ, **{name: settings[name] for name in TAKEN if name in settings}}
    compared = {name: variables.get(name, "") for name in (*TAKEN, "VLALAB_VOLUME", "VLALAB_PROJECT")}
    compared["runtime"] = page.runtime
    with exclusive(state.directory() / f".{NAME}.lock", "another call is starting the page's steward"):
        if daemon := there():
            if daemon.started_with() == compared:
                return
            daemon.stop()
        command = [sys.executable, "-m", "vlalab.steward", str(directory()), page.runtime]
        environment = {**variables, ACTING: "1", "PYTHONUNBUFFERED": "1"}
        path = _state_path()
        local.launch(NAME, command, environment, state_path=path, settings=compared, gpu="none", stop_grace_s=2.0)


def is_enabled() -> bool:
    """Return whether the page may start and stop services: unless VLALAB_STEWARD=off."""
    return compose.environment_variables().get(OFF, "").lower() != "off"


def there() -> Instance | None:
    """Return the daemon, where one runs."""
    return supervised.load(_state_path(make=False))


def dismiss() -> None:
    """End it, where one runs. A command of its own does not."""
    if not os.environ.get(ACTING) and (daemon := there()):
        daemon.stop()


def _state_path(make: bool = True) -> Path:
    return state.directory(NAME, make=make) / f"{NAME}.json"  # not among the services'
