"""The page as an application: request filter and password before it, probes beside it, nothing from the internet."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable

import gradio as gr
from fastapi import FastAPI
from gradio.routes import App
from starlette.requests import Request

from services.ui import images, page
from services.ui.link import PolicyLink
from services.ui.loading import Loading
from services.ui.request_filter import RequestFilter
from services.ui.uploads import Uploads


def create_app(link: PolicyLink, password: str | None = None) -> FastAPI:
    """Returns the application: `/livez` and `/readyz` for all, the page for those who know the password, if any.

    `/readyz` answers 200 as soon as the page serves, and says whether the policy answers: a page whose policy is away
    is in order, and tells its users so.
    """
    app, gradio_app = mounted(link, password)
    functions = {number: len(function.inputs) for number, function in gradio_app.get_blocks().fns.items()}
    app.add_middleware(Loading)
    app.add_middleware(RequestFilter, uploads=Uploads.of_gradio(), logged_in=login(gradio_app), functions=functions)
    return app


def mounted(link: PolicyLink, password: str | None) -> tuple[FastAPI, App]:
    """Returns the application without its request filter, and Gradio's part of it."""
    pages = {"docs_url": None, "redoc_url": None, "openapi_url": None}
    app = FastAPI(title="vla-lab page", **pages)

    @app.get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        status = await asyncio.to_thread(link.status)
        said = f"{status.info.name} answers" if status.info else f"{status.trouble.title}: {status.trouble.detail}"
        return {"status": "ready", "policy": said}

    blocks = page.build(link)
    blocks.has_launched = True  # else Gradio checks no path: a mounted page is never launched
    gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        auth=check(password) if password else None,
        footer_links=[],
        run_history=False,  # Gradio's own offers to keep it on a hub
        show_error=False,
        max_file_size=images.MAX_FILE_BYTES,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        allowed_paths=[str(page.EXAMPLES)],
        theme=page.theme(),
        css=page.css(),
        js=page.script(),
    )
    return app, app.routes[-1].app


def login(gradio_app: App) -> Callable[[Request], bool]:
    """Returns a function that tells whether a request comes from somebody who gave the password, if there is one."""
    names = [f"access-token-{gradio_app.cookie_id}", f"access-token-unsecure-{gradio_app.cookie_id}"]
    return lambda request: (
        gradio_app.auth is None or any(request.cookies.get(name) in gradio_app.tokens for name in names)
    )


def check(password: str) -> Callable[[str, str], bool]:
    """Returns a function that tells whether a login's password is right, whoever the user says to be."""
    expected = _digest(password)
    return lambda user, given: hmac.compare_digest(_digest(given), expected)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
