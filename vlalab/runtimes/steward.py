"""The life of the page's control daemon: a process of this machine that starts and stops services for the page.

It is up while the page is, in either runtime: a supervisor like that of a local service keeps it. What it does is
vlalab.steward's. The page reaches it by a socket in a directory that compose.yaml shows to the page alone.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from vlalab.description import compose
from vlalab.environments.venvs import exclusive
from vlalab.host import paths, state
from vlalab.runtimes import local, logs, supervised
from vlalab.runtimes.running import Instance

PAGE = "ui"  # the service that it is there for
NAME = "steward"
OFF = "VLALAB_STEWARD"  # "off": nobody starts anything from the page
FOLDER = "VLALAB_STEWARD_FOLDER"  # what compose.yaml mounts
ACTING = "VLALAB_STEWARD_ACTS"  # set for the commands that it runs, which leave it alone
TAKEN = ("VLALAB_TOKEN", "VLALAB_BIND")  # settings of the page that what is started from it gets too
COMPARED = (*TAKEN, "VLALAB_VOLUME", "VLALAB_PROJECT")


def folder() -> Path:
    """Return the directory of the socket and its secret, made if missing. It is never replaced: it is mounted."""
    place = state.folder(NAME) / "socket"
    place.mkdir(exist_ok=True)
    place.chmod(0o711)  # in a container another user may pass through; out here the directory above lets nobody
    return place


def variables(service: str) -> dict[str, str]:
    """Return what a service's description needs to know of it: the directory, for the page."""
    return {FOLDER: str(folder())} if service == PAGE else {}


def attend(page: Instance) -> None:
    """Have a daemon run for this page, with its token, or none where that is wanted."""
    if os.environ.get(ACTING):
        return
    if not is_wanted():
        dismiss()
        return
    had = page.started_with()
    variables = {**os.environ, **{name: had[name] for name in TAKEN if name in had}}
    with exclusive(state.folder() / f".{NAME}.lock", "another call is starting the page's steward"):
        if found := there():
            lines = Path(f"/proc/{found.supervisor.pid}/environ").read_bytes().split(b"\0")
            before = dict(os.fsdecode(line).partition("=")[::2] for line in lines)
            same = all(before.get(name, "") == variables.get(name, "") for name in COMPARED)
            if same and found.words()[-1:] == [page.runtime]:
                return
            found.stop()
        record = {
            "name": NAME, "service": NAME, "attached": False, "started_at": time.time(), "gpu": "none",
            "variables": {}, "placed": {},
        }  # fmt: skip
        spec = {
            "command": [sys.executable, "-m", "vlalab.steward", str(folder()), page.runtime],
            "environment": {**variables, ACTING: "1", "PYTHONUNBUFFERED": "1"},
            "folder": str(paths.ROOT), "restart": "unless-stopped", "stop_grace_s": 2.0,
            "log_path": str(logs.place(NAME, make=True)), "record": record,
        }  # fmt: skip
        local.launch(spec, _state_path(), {name: variables.get(name, "") for name in TAKEN})


def is_wanted() -> bool:
    """Return whether the page may start and stop services: unless VLALAB_STEWARD=off."""
    return compose.environment_variables().get(OFF, "").lower() != "off"


def there() -> Instance | None:
    """Return the daemon, where one runs."""
    return supervised.load(_state_path(make=False))


def dismiss() -> None:
    """End it, where one runs. A command of its own does not."""
    if not os.environ.get(ACTING) and (found := there()):
        found.stop()


def _state_path(make: bool = True) -> Path:
    return state.folder(NAME, make=make) / f"{NAME}.json"  # not among the services'
