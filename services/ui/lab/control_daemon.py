"""Client of the control daemon, which starts and stops services: HTTP over a Unix socket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx

from services.ui.site.requests import PageError
from services.ui.site.upstream import detail

TIMEOUT_S = 40.0  # `./lab status` with an engine that does not respond


class DaemonUnavailable(Exception):
    """The daemon is unreachable: `reason` is "none" (page started manually), "gone" or "closed" (no permission)."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


async def ask(directory: str, path: str, method: str = "GET") -> Any:
    """Send a request to the daemon. Raises DaemonUnavailable, or PageError with the daemon's message."""
    if not os.path.isdir(directory):
        raise DaemonUnavailable("none")
    opened = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        short = Path(f"/proc/self/fd/{opened}")  # a socket address has at most 107 characters
        headers = {"Authorization": f"Bearer {(short / 'secret').read_text()}"}
        # no TLS, which is slow to set up
        transport = httpx.AsyncHTTPTransport(uds=str(short / "socket"), verify=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://steward", timeout=TIMEOUT_S) as client:
            answer = await client.request(method, path, headers=headers)
    except (OSError, httpx.HTTPError) as error:
        is_closed = isinstance(error, PermissionError) or isinstance(error.__cause__, PermissionError)
        raise DaemonUnavailable("closed" if is_closed else "gone") from error
    finally:
        os.close(opened)
    if answer.is_error:
        raise PageError(answer.status_code, detail(answer))
    return answer.json()
