"""The public URL of the lab's pages, behind a reverse proxy with TLS: a path for each service.

The host tool imports this module, so it needs the standard library only.
"""

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

VARIABLE = "VLALAB_PUBLIC_URL"
PATHS = {
    "ui": "",
    "tensorboard": "/tensorboard",
    "ws_mdl": "/notebook/ws_mdl",
    "hf": "/notebook/hf",
    "libero_notebook": "/notebook/libero",
    "openvla_notebook": "/notebook/openvla",
    "gr00t_notebook": "/notebook/gr00t",
    "lerobot_notebook": "/notebook/lerobot",
}
_URL = re.compile(
    r"https://[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*/?"
)
Channel = Callable[..., Awaitable[Any]]
_ROOT_COOKIE = re.compile(rb"; path=/(?=;|$)", re.IGNORECASE)


def public_url(variables: Mapping[str, Any] = os.environ) -> str:
    """Return $VLALAB_PUBLIC_URL without a slash at its end, "" where it is not set.

    Raises ValueError for an invalid URL, and for a URL without a token: other users can reach the proxy.
    """
    url = (variables.get(VARIABLE) or "").strip()
    if not url:
        return ""
    if not _URL.fullmatch(url):
        raise ValueError(f"{VARIABLE} must be like https://lab.example.org or https://lab.example.org/vla, got {url!r}")
    if not variables.get("VLALAB_TOKEN"):
        raise ValueError(
            f"{VARIABLE}={url} makes this lab reachable without a token: set VLALAB_TOKEN (8 or more characters), "
            f"or unset {VARIABLE}"
        )
    return url.rstrip("/")


def page_url(service: str, variables: Mapping[str, Any] = os.environ) -> str:
    """Return the public address of a service's pages, "" where it has none. Raises ValueError as `public_url` does."""
    url = public_url(variables)
    return url + PATHS[service] if url and service in PATHS else ""


def page_path(service: str) -> str:
    """Return the path of a service's public address, "" without one. Raises ValueError as `public_url` does."""
    return urlsplit(page_url(service)).path


class PublicPath:
    """ASGI middleware that serves an application below the path of its public address too.

    The application sees paths without that prefix. Its redirects and cookies get the prefix, and cookies `Secure`
    where the request came by the public address: a proxy passes `Host` and path unchanged. Without $VLALAB_PUBLIC_URL
    every request passes as it is. The prefix alone is redirected to the same with a slash.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], service: str) -> None:
        url = urlsplit(page_url(service))
        self._app, self._host, self._prefix = app, url.netloc.lower().encode(), url.path

    async def __call__(self, scope: dict[str, Any], receive: Channel, send: Channel) -> None:
        """Answer one request."""
        if not self._host or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host = dict(scope["headers"]).get(b"host", b"")
        secure = host.lower() == self._host
        path, prefix = scope["path"], self._prefix
        if prefix and path == prefix:  # a page's relative addresses need the slash
            headers = [(b"location", prefix.encode() + b"/"), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 307, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        if f"{path}/".startswith(f"{prefix}/"):
            path = path[len(prefix) :]
        scope = {**scope, "path": path, "scheme": "https" if secure else scope["scheme"]}

        def placed(name: bytes, value: bytes) -> tuple[bytes, bytes]:
            if name == b"set-cookie":
                value = _ROOT_COOKIE.sub(b"; Path=" + prefix.encode() + b"/", value) + (b"; Secure" if secure else b"")
            if name == b"location":
                url = urlsplit(value)
                if url.netloc in (b"", host) and url.path.startswith(b"/"):
                    value = url._replace(scheme=b"", netloc=b"", path=prefix.encode() + url.path).geturl()
            return name, value

        async def send_placed(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [placed(name.lower(), value) for name, value in message["headers"]]}
            await send(message)

        await self._app(scope, receive, send_placed)
