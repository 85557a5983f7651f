"""Where users reach what is up: public addresses, the token of notebooks, reports (`report --serve`), also by SSH."""

from __future__ import annotations

import os
import platform
import pwd
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from vlalab.commands import lifecycle
from vlalab.description import compose, ports
from vlalab.host import paths
from vlalab.host.console import LabError
from vlalab.runtimes import both
from vlalab.runtimes.both import Instance

LOG_LINES = 5000  # a notebook server says its address when it starts, and little afterwards


def line(instance: Instance, on_terminal: bool | None = None) -> str:
    """Returns a service's name and address, for the end of `up`.

    A notebook server says its token in its log, which is the caller's alone; it is repeated on a terminal (default:
    where the output is one), and not in a file or a pipe, which others may read later.
    """
    address = with_token(instance)
    if address == page_of(instance):
        return f"{instance.name} {address}"
    if sys.stdout.isatty() if on_terminal is None else on_terminal:
        return f"{instance.name} {address}"
    return f"{instance.name} {instance.url} (the token is in its log: ./lab logs {instance.name})"


def with_token(instance: Instance) -> str:
    """Returns the address with the token, as the log says it, or the mere address where it says none."""
    if compose.page_url(instance.service):  # with a token of the caller's, which is printed nowhere
        return page_of(instance)
    port = instance.url.rpartition(":")[2]
    urls = re.findall(rf"https?://\S+:{port}/\S*[?]token=[\w-]+", instance.last_words(LOG_LINES)) if port else []
    return urls[-1] if urls else instance.url


def page_of(instance: Instance) -> str:
    """Return where a person reaches a service: at its public address where it has one, else at its own."""
    return compose.page_url(instance.service) or instance.url


def open_page(service: str, path: str = "") -> str:
    """Return "open URL" for a service that a browser shows; empty where it is not up."""
    instance = both.find(service)
    if not instance or not instance.is_healthy():
        return ""
    return f"open {page_of(instance)}{path}" if path else f"open {with_token(instance)}"


# --- reports ------------------------------------------------------------------------------------------------


def serve_reports(run: str | None, runtime: str) -> None:
    """Start the service unless it is up, and print where the report, or the list of all, can be seen."""
    route = "runs"
    if run:
        runs, name = paths.volume() / "runs", Path(run).resolve().name if "/" in run else run
        if "/" in run and Path(run).resolve().parent != runs.resolve():
            raise LabError(f"{run} is not in {runs}, where --serve looks; open the report.html in it as a file")
        route = f"runs/{name}/report.html"
    page = next(instance for instance in lifecycle.up([compose.PAGE], runtime) if instance.service == compose.PAGE)
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a user of a container, without a name
        user = "USER"
    for text in report_addresses(page_of(page), route, user, os.environ):
        print(text)
    if compose.environment_variables().get("VLALAB_TOKEN"):
        print("they ask for a password: VLALAB_TOKEN")
    print(f"stop it: ./lab down {compose.PAGE}")


def report_addresses(url: str, route: str, user: str, variables: Mapping[str, str]) -> list[str]:
    """Return where a service at `url` is seen: from here and, where only this machine reaches it, by SSH from others.

    user: whose login here. variables: sshd says in SSH_CONNECTION at which address the caller reached this machine.
    """
    parts = urlsplit(url)
    lines = [f"reports: {url}/{route}"]
    if not ports.is_loopback(parts.hostname or ""):
        return lines
    reached = variables.get("SSH_CONNECTION", "").split()
    machine = reached[2] if len(reached) == 4 else platform.node()
    tunnel = f"ssh -N -L {parts.port}:127.0.0.1:{parts.port} {user}@{machine}"
    return [*lines, f"from another machine, there: {tunnel}", f"and then, there: http://127.0.0.1:{parts.port}/{route}"]
