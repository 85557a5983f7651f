"""The page loads itself again where a part of it was lost on its way to the browser: `loading.js` says why that is."""

from __future__ import annotations

from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

SCRIPT = f"<head><script>{Path(__file__).with_suffix('.js').read_text()}</script>".encode()


class Loading:
    """ASGI middleware that has the page begin with that script: Gradio's `head` arrives with the parts themselves."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on; what comes back for the page itself gets the script."""
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("GET", "/"):
            await self._app(scope, receive, send)
            return
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            messages.append(message)

        plain = [header for header in scope["headers"] if header[0] != b"accept-encoding"]
        # without extensions there are no messages but start and body: Starlette's test client asks for others
        await self._app({**scope, "headers": plain, "extensions": {}}, receive, keep)
        start, *parts = messages
        body = b"".join(part.get("body", b"") for part in parts).replace(b"<head>", SCRIPT, 1)
        headers = [header for header in start["headers"] if header[0] != b"content-length"]
        await send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await send({"type": "http.response.body", "body": body})
