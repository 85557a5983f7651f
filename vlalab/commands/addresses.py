"""Addresses of running services: public URLs, notebook tokens, reports (`report --serve`), SSH tunnels."""

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
from vlalab.runtimes import interface
from vlalab.runtimes.interface import Instance

LOG_LINES = 5000  # a notebook server logs its address at the start, and little afterwards


def line(instance: Instance, on_terminal: bool | None = None) -> str:
    """Return the line with a service's name and address that `up` prints at the end.

    The token of a notebook server is in its log, which only the caller can read. It is repeated on a terminal only
    (default: whether stdout is one): other users may read a file or a pipe later.
    """
    address = with_token(instance)
    if address == page_of(instance):
        return f"{instance.name} {address}"
    if sys.stdout.isatty() if on_terminal is None else on_terminal:
        return f"{instance.name} {address}"
    return f"{instance.name} {instance.url} (the token is in its log: ./lab logs {instance.name})"


def with_token(instance: Instance) -> str:
    """Return the address with the token from the log, or the plain address if the log has none."""
    if compose.page_url(instance.service):  # its token is the caller's own and never printed
        return page_of(instance)
    port = instance.url.rpartition(":")[2]
    urls = re.findall(rf"https?://\S+:{port}/\S*[?]token=[\w-]+", instance.log_tail(LOG_LINES)) if port else []
    return urls[-1] if urls else instance.url


def page_of(instance: Instance) -> str:
    """Return a service's public address if it has one, else its local one."""
    return compose.page_url(instance.service) or instance.url


def open_page(service: str, path: str = "") -> str:
    """Return "open URL" for a service with a web page; "" if it is not up."""
    instance = interface.find(service)
    if not instance or not instance.is_healthy():
        return ""
    return f"open {page_of(instance)}{path}" if path else f"open {with_token(instance)}"


# --- reports ------------------------------------------------------------------------------------------------


def serve_reports(run: str | None, runtime: str) -> None:
    """Start the web pages unless they are up, and print the address of the report, or of the list of all."""
    route = "runs"
    if run:
        runs, name = paths.volume() / "runs", Path(run).resolve().name if "/" in run else run
        if "/" in run and Path(run).resolve().parent != runs.resolve():
            raise LabError(
                f"{run} is not in {runs}, the only directory that --serve shows; open its report.html as a file"
            )
        route = f"runs/{name}/report.html"
    page = next(instance for instance in lifecycle.up([compose.PAGE], runtime) if instance.service == compose.PAGE)
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a user of a container without an entry
        user = "USER"
    for text in report_addresses(page_of(page), route, user, os.environ):
        print(text)
    if compose.environment_variables().get("VLALAB_TOKEN"):
        print("log in with the value of VLALAB_TOKEN")
    print(f"stop with: ./lab down {compose.PAGE}")


def report_addresses(url: str, route: str, user: str, variables: Mapping[str, str]) -> list[str]:
    """Return lines with the address of a page and, if the service listens on loopback, an SSH tunnel to it.

    user: login name for SSH. variables: sshd sets SSH_CONNECTION, which has this machine's address.
    """
    parts = urlsplit(url)
    lines = [f"reports: {url}/{route}"]
    if not ports.is_loopback(parts.hostname or ""):
        return lines
    reached = variables.get("SSH_CONNECTION", "").split()
    machine = reached[2] if len(reached) == 4 else platform.node()
    tunnel = f"ssh -N -L {parts.port}:127.0.0.1:{parts.port} {user}@{machine}"
    return [
        *lines,
        f"from another machine, run there: {tunnel}",
        f"then open there: http://127.0.0.1:{parts.port}/{route}",
    ]
