"""`up ui --share`: the pages on the network, and a QR code with a one-time login, for phones in a class."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from vlalab.commands import lifecycle
from vlalab.description import compose
from vlalab.host.console import LabError, log_info
from vlalab.runtimes.interface import Instance

ALL_ADDRESSES = {"VLALAB_BIND": "0.0.0.0"}
LOGIN_MIN = 10  # as services/ui/site/login.py has it
TIMEOUT_S = 10.0


def require_shareable(names: Sequence[str]) -> str:
    """Return the lab's token. Raises LabError without one, or if the pages are not among the services to start."""
    if compose.PAGE not in names:
        raise LabError(f"--share shows the pages; use: ./lab up {compose.PAGE} --share")
    token = compose.environment_variables().get("VLALAB_TOKEN", "")
    if not token:
        raise LabError(
            "--share lets the network reach the pages: first set VLALAB_TOKEN=… in .env (8 or more characters)"
        )
    return token


def share(page: Instance, runtime: str, token: str) -> None:
    """Let the running pages listen on the network, unless a proxy has them, and print address and QR code.

    Other services stay on loopback.
    """
    public = compose.page_url(compose.PAGE)
    if not public and page.started_with().get("VLALAB_BIND") != ALL_ADDRESSES["VLALAB_BIND"]:
        lifecycle.down([compose.PAGE])
        started = lifecycle.up([compose.PAGE], runtime, {compose.PAGE: ALL_ADDRESSES})
        page = next(instance for instance in started if instance.service == compose.PAGE)
    url = public or f"http://{network_address()}:{page.url.rpartition(':')[2]}"
    print_code(f"{url}/login/{new_login(page, token)}", url)


def new_login(page: Instance, token: str) -> str:
    """Return the code of a new one-time login, which the pages keep for LOGIN_MIN minutes."""
    import httpx  # slow import

    url = f"http://127.0.0.1:{page.url.rpartition(':')[2]}/login/share"
    answer = httpx.post(url, headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT_S, trust_env=False)
    if answer.is_error:
        raise LabError(f"the pages gave no login: {answer.text[:200]}; try: ./lab up {compose.PAGE} --restart --share")
    return str(answer.json()["code"])


def network_address() -> str:
    """Return this machine's address in its network. Raises LabError without a network."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # an address for documentation; sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LabError(f"this machine has no network: {error}; connect it, or set VLALAB_PUBLIC_URL") from error


def print_code(address: str, url: str) -> None:
    """Print the QR code of a login's address, and what to know about it."""
    import segno  # slow import

    print(f"pages: {url}")
    segno.make(address, error="l").terminal(out=sys.stdout, compact=True, border=2)
    print(f"the code logs in once, within {LOGIN_MIN} minutes; for another one, repeat the command")
    if url.startswith("http://"):
        log_info("plain HTTP: others on this network can read it, logins included; docs/ui.md has a proxy with TLS")
        log_info(f"to end: ./lab down {compose.PAGE}")
