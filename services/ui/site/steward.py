"""The machine's own side, asked over a Unix socket: the host tool's steward, which starts and stops services."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from services.ui.site.upstream import detail

TIMEOUT_S = 40.0  # `./lab status` with an engine that does not answer


class Alone(Exception):
    """The steward cannot be asked: `why` is "none" (the page was started by hand), "gone" or "closed"."""

    def __init__(self, why: str):
        super().__init__(why)
        self.why = why


class Refused(Exception):
    """The steward did not do it; `status` is HTTP's."""

    def __init__(self, why: str, status: int):
        super().__init__(why)
        self.why, self.status = why, status


class Steward:
    """What the machine answers in one folder, with the secret that lies there: read anew each time, as it is renewed.

    folder: "" where the page has none.
    """

    def __init__(self, folder: str):
        self._folder = folder

    async def ask(self, path: str, method: str = "GET") -> Any:
        """Returns what it answers. Raises Alone, or Refused with its own words."""
        try:
            with _opened(self._folder) as place:
                return await _asked(place, path, method)
        except PermissionError as error:
            raise Alone("closed") from error
        except (OSError, httpx.HTTPError) as error:
            raise Alone("closed" if isinstance(error.__cause__, PermissionError) else "gone") from error


@contextmanager
def _opened(folder: str) -> Iterator[Path]:
    """Gives the folder under a short name: the address of a socket has 107 characters at most."""
    if not os.path.isdir(folder):
        raise Alone("none")
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{opened}")
    finally:
        os.close(opened)


async def _asked(place: Path, path: str, method: str) -> Any:
    headers = {"Authorization": f"Bearer {(place / 'secret').read_text()}"}
    transport = httpx.AsyncHTTPTransport(uds=str(place / "socket"), verify=False)  # no TLS, whose set-up takes long
    async with httpx.AsyncClient(transport=transport, base_url="http://steward", timeout=TIMEOUT_S) as client:
        answer = await client.request(method, path, headers=headers)
    if answer.is_error:
        raise Refused(detail(answer), answer.status_code)
    return answer.json()
