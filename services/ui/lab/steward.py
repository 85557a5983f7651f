"""The machine's own side, asked over a Unix socket: the control daemon, which starts and stops services."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx

from services.ui.site.problem import Problem
from services.ui.site.upstream import detail

TIMEOUT_S = 40.0  # `./lab status` with an engine that does not answer


class Alone(Exception):
    """The daemon cannot be asked: `why` is "none" (the page was started by hand), "gone" or "closed"."""

    def __init__(self, why: str):
        super().__init__(why)
        self.why = why


async def ask(directory: str, path: str, method: str = "GET") -> Any:
    """Return what the daemon answers with the secret in its directory. Raises Alone, or Problem with its own words."""
    if not os.path.isdir(directory):
        raise Alone("none")
    opened = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        # Under a short name: the address of a socket has 107 characters at most.
        place = Path(f"/proc/self/fd/{opened}")
        headers = {"Authorization": f"Bearer {(place / 'secret').read_text()}"}
        transport = httpx.AsyncHTTPTransport(uds=str(place / "socket"), verify=False)  # no TLS, which is slow to set up
        async with httpx.AsyncClient(transport=transport, base_url="http://steward", timeout=TIMEOUT_S) as client:
            answer = await client.request(method, path, headers=headers)
    except (OSError, httpx.HTTPError) as error:
        is_closed = isinstance(error, PermissionError) or isinstance(error.__cause__, PermissionError)
        raise Alone("closed" if is_closed else "gone") from error
    finally:
        os.close(opened)
    if answer.is_error:
        raise Problem(answer.status_code, detail(answer))
    return answer.json()
