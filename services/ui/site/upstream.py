"""Another service of the lab, asked over HTTP: its JSON, its files in parts, its events as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from services.ui.site.problem import Away

TIMEOUT_S = 10.0
PASSED = ("range", "if-range", "if-none-match", "if-modified-since", "accept")  # of the browser's request
BACK = (
    "content-type", "content-length", "content-range", "accept-ranges", "etag", "last-modified", "cache-control",
    "content-security-policy", "content-disposition",
)  # fmt: skip


class Upstream:
    """One service. The lab's token goes with every request."""

    def __init__(self, name: str, url: str, token: str | None = None):
        self.name, self.url = name, url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=32)
        # Certificates take 20 ms to read: none are where nothing is encrypted.
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=TIMEOUT_S, limits=limits, trust_env=False,
            verify=self.url.startswith("https://"),
        )  # fmt: skip

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def json(self, path: str, method: str = "GET", **settings: Any) -> Any:
        """Return what a path answers. Raises Away, with the service's own words where it has some."""
        try:
            answer = await self._http.request(method, path, **settings)
        except httpx.HTTPError as error:
            raise Away(self.name, f"{self.name} does not answer at {self.url}") from error
        if answer.is_error:
            raise Away(self.name, detail(answer), answer.status_code)
        try:
            return answer.json()
        except ValueError as error:
            raise Away(self.name, f"what answers at {self.url} is no {self.name} of this lab", 502) from error

    async def status(self, path: str, timeout_s: float) -> tuple[int | None, str]:
        """Return the status and the first words that a path answers; None and nothing where nobody does in time."""
        try:
            answer = await self._http.get(path, timeout=timeout_s)
        except httpx.HTTPError:
            return None, ""
        return answer.status_code, "" if answer.is_success else detail(answer)

    async def passed(self, request: Request, path: str) -> Response:
        """Return the service's answer to this request, streamed: parts of films, and events."""
        asked = {name: value for name, value in request.headers.items() if name in PASSED}
        timeout = httpx.Timeout(TIMEOUT_S, read=None)
        outgoing = self._http.build_request(
            request.method, path, headers={**asked, "accept-encoding": "identity"}, timeout=timeout
        )
        try:
            answer = await self._http.send(outgoing, stream=True)
        except httpx.HTTPError as error:
            raise Away(self.name, f"{self.name} does not answer at {self.url}") from error
        headers = {name: answer.headers[name] for name in BACK if name in answer.headers}
        return StreamingResponse(_pieces(answer), answer.status_code, headers)


async def _pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    except httpx.HTTPError:
        return  # cut off: the browser sees that the rest is missing
    finally:
        await answer.aclose()


def detail(answer: httpx.Response) -> str:
    """Return a service's own words about an error."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.text.strip()[:500] or f"status {answer.status_code}"
