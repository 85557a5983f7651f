"""HTTP client of another service of the lab: JSON, and streamed files and events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from services.ui.site.requests import ServiceUnavailable

TIMEOUT_S = 10.0
REQUEST_HEADERS = ("range", "if-range", "if-none-match", "if-modified-since", "accept")  # forwarded from the browser
RESPONSE_HEADERS = (
    "content-type", "content-length", "content-range", "accept-ranges", "etag", "last-modified", "cache-control",
    "content-security-policy", "content-disposition",
)  # fmt: skip


class Upstream:
    """A service. The lab's token is sent with every request."""

    def __init__(self, name: str, url: str, token: str | None = None):
        self.name, self.url = name, url.rstrip("/")
        # Loading certificates takes 20 ms: skip it without TLS.
        self._http = httpx.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {token}"} if token else {}, timeout=TIMEOUT_S,
            limits=httpx.Limits(max_connections=256, max_keepalive_connections=32), trust_env=False,
            verify=self.url.startswith("https://"),
        )  # fmt: skip

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def json(self, path: str, method: str = "GET", **settings: Any) -> Any:
        """Return a path's JSON. Raises ServiceUnavailable, with the service's own message if it has one."""
        answer = await self._answer(method, path, **settings)
        try:
            return answer.json()
        except ValueError as error:
            reason = f"the server at {self.url} is not the {self.name} of this lab"
            raise ServiceUnavailable(self.name, reason, 502) from error

    async def text(self, path: str, **settings: Any) -> str:
        """Return a path's text. Raises ServiceUnavailable as `json` does."""
        text: str = (await self._answer("GET", path, **settings)).text
        return text

    async def status(self, path: str, timeout_s: float) -> tuple[int | None, str]:
        """Return a path's HTTP status and error message; (None, "") if there is no response in time."""
        try:
            answer = await self._http.get(path, timeout=timeout_s)
        except httpx.HTTPError:
            return None, ""
        return answer.status_code, "" if answer.is_success else detail(answer)

    async def proxy(self, request: Request, path: str) -> Response:
        """Forward a request. Return the streamed answer: parts of videos, and events."""
        headers = {name: value for name, value in request.headers.items() if name in REQUEST_HEADERS}
        headers["accept-encoding"] = "identity"
        timeout = httpx.Timeout(TIMEOUT_S, read=None)
        outgoing = self._http.build_request(request.method, path, headers=headers, timeout=timeout)
        answer = await self._send(outgoing, stream=True)

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in answer.aiter_raw():
                    yield piece
            except httpx.HTTPError:
                return  # incomplete: the browser notices
            finally:
                await answer.aclose()

        forwarded = {name: answer.headers[name] for name in RESPONSE_HEADERS if name in answer.headers}
        return StreamingResponse(pieces(), answer.status_code, forwarded)

    async def _answer(self, method: str, path: str, **settings: Any) -> httpx.Response:
        answer = await self._send(self._http.build_request(method, path, **settings))
        if answer.is_error:
            raise ServiceUnavailable(self.name, detail(answer), answer.status_code)
        return answer

    async def _send(self, request: httpx.Request, stream: bool = False) -> httpx.Response:
        try:
            return await self._http.send(request, stream=stream)
        except httpx.HTTPError as error:
            raise ServiceUnavailable(self.name, f"{self.name} does not respond at {self.url}") from error


def detail(answer: httpx.Response) -> str:
    """Return the message of an error response."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.text.strip()[:500] or f"status {answer.status_code}"
