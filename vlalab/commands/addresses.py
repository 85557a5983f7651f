"""Addresses of running services: public URLs, notebook tokens, reports (`report --serve`), SSH tunnels."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from vlalab.commands import lifecycle
from vlalab.description import compose, ports
from vlalab.host import paths
from vlalab.host.console import LabError
from vlalab.runtimes.interface import Instance

LOG_LINES = 5000  # a notebook server logs its address at the start, and little afterwards


def line(instance: Instance, on_terminal: bool | None = None) -> str:
    """Return the line with a service's name and address that `up` prints at the end.

    The token of a notebook server is in its log, which only the caller can read. It is repeated on a terminal only
    (default: whether stdout is one): other users may read a file or a pipe later.
    """
    page, port = page_of(instance), instance.url.rpartition(":")[2]
    if page != instance.url or not port:  # the token of a public page is the caller's own and never printed
        return f"{instance.name} {page}"
    urls = re.findall(rf"https?://\S+:{port}/\S*[?]token=[\w-]+", instance.log_tail(LOG_LINES))
    if not urls:
        return f"{instance.name} {page}"
    if sys.stdout.isatty() if on_terminal is None else on_terminal:
        return f"{instance.name} {urls[-1]}"
    return f"{instance.name} {instance.url} (the token is in its log: ./lab logs {instance.name})"


def page_of(instance: Instance) -> str:
    """Return a service's public address if it has one, else its local one."""
    return compose.page_url(instance.service) or instance.url


def serve_reports(run: str | None, runtime: str) -> None:
    """Start the web pages unless they are up, and print the address of the report, or of the list of all."""
    route, runs = "runs", paths.volume() / "runs"
    if run and "/" in run and Path(run).resolve().parent != runs.resolve():
        raise LabError(f"{run} is not in {runs}, the only directory that --serve shows; open its report.html as a file")
    if run:
        route = f"runs/{Path(run).resolve().name if '/' in run else run}/report.html"
    page = next(instance for instance in lifecycle.up([compose.PAGE], runtime) if instance.service == compose.PAGE)
    print("\n".join(report_addresses(page_of(page), route, os.environ)))
    if compose.environment_variables().get("VLALAB_TOKEN"):
        print("log in with the value of VLALAB_TOKEN")
    print(f"stop with: ./lab down {compose.PAGE}")


def report_addresses(url: str, route: str, variables: Mapping[str, str]) -> list[str]:
    """Return lines with the address of a page and, if the service listens on loopback, an SSH tunnel to it.

    variables: the environment; sshd sets SSH_CONNECTION, which has this machine's address.
    """
    parts = urlsplit(url)
    if not ports.is_loopback(parts.hostname or ""):
        return [f"reports: {url}/{route}"]
    user, reached = variables.get("USER", "USER"), variables.get("SSH_CONNECTION", "").split()
    machine = reached[2] if len(reached) == 4 else platform.node()
    return [
        f"reports: {url}/{route}",
        f"from another machine, run there: ssh -N -L {parts.port}:127.0.0.1:{parts.port} {user}@{machine}",
        f"then open there: http://127.0.0.1:{parts.port}/{route}",
    ]
