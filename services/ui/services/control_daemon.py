"""Client of the control daemon, which starts and stops services: HTTP over a Unix socket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.ui.site import texts
from services.ui.site.requests import PageError
from services.ui.site.site import Site
from services.ui.site.upstream import detail

TIMEOUT_S = 130.0  # deleting a large run; `./lab status` with an engine that does not respond takes 40 s


class DaemonUnavailable(Exception):
    """The daemon is unreachable: `reason` is "none" (page started manually), "gone" or "closed" (no permission)."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


def may_act(site: Site, request: Request) -> bool:
    """Return whether the sender of a request may start, stop and delete: logged in, with a daemon."""
    return site.login.is_logged_in(request) and os.path.isdir(site.control_directory)


async def forward(site: Site, request: Request, *parts: str) -> Response:
    """Send a logged-in user's request to the daemon; parts: of the path, by default those of the request's.

    Raises PageError if it is refused or there is no daemon.
    """
    language = texts.language_of(request)
    path = "/".join(quote(part, safe="") for part in parts or request.scope["path"].strip("/").split("/"))
    if not site.login.is_logged_in(request):
        raise PageError(403, texts.text(language, "services.needs_token"))
    try:
        return JSONResponse(await ask(site.control_directory, f"/{path}", request.method))
    except DaemonUnavailable as error:
        raise PageError(502, texts.text(language, f"services.alone_{error.reason}").replace("`", "")) from error


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
