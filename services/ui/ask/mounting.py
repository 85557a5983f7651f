"""The page in the site: Gradio below `/ask`, its request filter before it, nothing from the internet."""

from __future__ import annotations

from collections.abc import Callable

import gradio as gr
from fastapi import FastAPI
from gradio.routes import App
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from services.ui.ask import images, moments, page, style
from services.ui.ask.choice import Choice
from services.ui.ask.loading import Loading
from services.ui.ask.request_filter import PLACE, RequestFilter
from services.ui.ask.uploads import Uploads
from vla_contract.server.public import page_path


def mount(app: FastAPI, choice: Choice, navigation: Callable[[Request], str]) -> None:
    """Adds the page over policies to an application, with the filter that every request below PLACE passes."""
    functions = unfiltered(app, choice).get_blocks().fns.items()
    app.add_middleware(Loading, navigation=navigation)
    counts = {number: len(function.inputs) for number, function in functions}
    app.add_middleware(RequestFilter, uploads=Uploads.of_gradio(), functions=counts)


def unfiltered(app: FastAPI, choice: Choice) -> App:
    """Adds the page without its filter; returns Gradio's part of the application."""
    blocks = page.build(choice)
    blocks.has_launched = True  # else Gradio checks no path: a mounted page is never launched
    prefix = page_path("ui")
    gr.mount_gradio_app(
        app,
        blocks,
        path=PLACE,
        root_path=prefix + PLACE,  # else it forgets where it is when it names an upload
        footer_links=[],
        run_history=False,  # Gradio's own offers to keep it on a hub
        show_error=False,
        max_file_size=images.MAX_FILE_BYTES,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        allowed_paths=[str(moments.FOLDER)],
        theme=style.theme(),
        css=style.css(),
        js=style.script(),
    )
    mount = app.routes[-1]
    gradio = mount.app

    async def below_prefix(scope: Scope, receive: Receive, send: Send) -> None:
        await gradio({**scope, "path": prefix + scope["path"]}, receive, send)  # which it expects after its root_path

    mount.app = below_prefix
    return gradio
