"""`report --serve`: reports in a browser, on this machine or on another one that reaches it by ssh."""

from __future__ import annotations

import os
import platform
import pwd
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from vlalab.commands import lifecycle
from vlalab.commands.addresses import page_of
from vlalab.description import compose, ports
from vlalab.host import paths
from vlalab.host.console import LabError

SERVICE = "ui"


def check_run(run: str | None, serve: bool) -> None:
    """Raises LabError for no run, which only a list of all makes sense of."""
    if run is None and not serve:
        raise LabError("which run? ./lab runs lists them, and ./lab report --serve shows all of them in a browser")


def serve(run: str | None, runtime: str) -> None:
    """Starts the service unless it is up, and prints where the report, or the list of all, can be seen."""
    route = f"runs/{_name_of(run)}/report.html" if run else "runs"
    found = next(one for one in lifecycle.up([SERVICE], runtime) if one.service == SERVICE)
    for line in addresses(page_of(found), route, _me(), os.environ):
        print(line)
    if compose.environment_variables().get("VLALAB_TOKEN"):
        print("they ask for a password: VLALAB_TOKEN")
    print(f"stop it: ./lab down {SERVICE}")


def _name_of(run: str) -> str:
    """Returns a run's name on the volume, which is what the service shows. Raises LabError for a folder elsewhere."""
    if "/" not in run:
        return run
    runs = paths.volume() / "runs"
    if Path(run).resolve().parent != runs.resolve():
        raise LabError(f"{run} is not in {runs}, where --serve looks; open the report.html in it as a file")
    return Path(run).resolve().name


def addresses(url: str, route: str, user: str, variables: Mapping[str, str]) -> list[str]:
    """Returns where a service at `url` is seen: from here and, where only this machine reaches it, by ssh from there.

    user: whose login here. variables: sshd tells in SSH_CONNECTION at which address the caller reached this machine.
    """
    place = urlsplit(url)
    lines = [f"reports: {url}/{route}"]
    if not ports.is_loopback(place.hostname or ""):
        return lines
    reached = variables.get("SSH_CONNECTION", "").split()
    machine = reached[2] if len(reached) == 4 else platform.node()
    tunnel = f"ssh -N -L {place.port}:127.0.0.1:{place.port} {user}@{machine}"
    return [*lines, f"from another machine, there: {tunnel}", f"and then, there: http://127.0.0.1:{place.port}/{route}"]


def _me() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a user of a container, whom nothing names
        return "USER"
