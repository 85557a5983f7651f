"""What the page begins with: the site's navigation, and a script that loads it again where a part of it was lost.

`loading.js` says how that can be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.ui.ask.request_filter import PLACE
from services.ui.site import words

SCRIPT = f"<script>{Path(__file__).with_suffix('.js').read_text()}</script>"
LOOK = '<link rel="stylesheet" href="../static/site/nav.css"><link rel="icon" href="../static/site/icon.svg">'
MANIFEST = '<link rel="manifest" href="/manifest.json" />'  # Gradio's, of an app that this is none of


class Loading:
    """ASGI middleware that gives the page its beginning: Gradio's `head` arrives with the parts themselves.

    navigation: the site's, as HTML, for a request.
    """

    def __init__(self, app: ASGIApp, navigation: Callable[[Request], str]):
        self._app, self._navigation = app, navigation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on; what comes back for the page itself gets its beginning."""
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("GET", f"{PLACE}/"):
            await self._app(scope, receive, send)
            return
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            messages.append(message)

        plain = [header for header in scope["headers"] if header[0] != b"accept-encoding"]
        # without extensions there are no messages but start and body: Starlette's test client asks for others
        await self._app({**scope, "headers": plain, "extensions": {}}, receive, keep)
        start, *parts = messages
        body = self._begun(b"".join(part.get("body", b"") for part in parts).decode(), Request(scope)).encode()
        headers = [header for header in start["headers"] if header[0] != b"content-length"]
        await send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await send({"type": "http.response.body", "body": body})

    def _begun(self, html: str, request: Request) -> str:
        begin = f"<head>{SCRIPT}{LOOK}{_translating(words.language_of(request))}"
        html = html.replace(MANIFEST, "").replace("<head>", begin, 1)
        return re.sub(r"<body[^>]*>", lambda found: found[0] + self._navigation(request), html, count=1)


def _translating(language: str) -> str:
    """Returns the script that puts the page into a language; nothing for the one that it is written in."""
    table = words.said_table(language, "ask")
    script = Path(__file__).with_name("translating.js").read_text()
    said = json.dumps(dict(table), ensure_ascii=False).replace("<", "\\u003c")
    filled = script.replace("SENTENCES", said).replace("LANGUAGE", json.dumps(language))
    return f"<script>{filled}</script>" if table else ""
