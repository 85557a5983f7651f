"""The page as an application: probes beside it, a password before it, nothing asked of the internet."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable

import gradio as gr
from fastapi import FastAPI

from services.ui import page, pictures
from services.ui.link import PolicyLink

LOGIN = "Any user name; the password is the lab's token (VLALAB_TOKEN)."


def create_app(link: PolicyLink, password: str | None = None) -> FastAPI:
    """Returns the application: `/livez` and `/readyz` for all, the page for those who know the password, if any.

    `/readyz` answers 200 as soon as the page serves, and says whether the policy answers: a page whose policy is away
    is in order, and tells its users so.
    """
    pages = {"docs_url": None, "redoc_url": None, "openapi_url": None}
    app = FastAPI(title="vla-lab page", **pages)

    @app.get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        sight = await asyncio.to_thread(link.look)
        said = f"{sight.info.name} answers" if sight.info else f"{sight.trouble.title}: {sight.trouble.detail}"
        return {"status": "ready", "policy": said}

    return gr.mount_gradio_app(
        app,
        page.build(link),
        path="/",
        auth=check(password) if password else None,
        auth_message=LOGIN,
        footer_links=[],
        run_history=False,  # Gradio's own offers to keep it on a hub
        show_error=False,
        max_file_size=pictures.MAX_FILE_BYTES,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        theme=page.theme(),
        css=page.css(),
    )


def check(password: str) -> Callable[[str, str], bool]:
    """Returns a function that tells whether a login's password is right, whoever the user says to be."""
    expected = _digest(password)
    return lambda user, given: hmac.compare_digest(_digest(given), expected)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
