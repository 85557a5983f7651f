"""A server extension: `/api` answers health checks also if the server has a public base path."""

from __future__ import annotations

from jupyter_server.base.handlers import APIVersionHandler
from jupyter_server.serverapp import ServerApp


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: ServerApp) -> None:
    server.web_app.add_handlers(".*$", [("/api", APIVersionHandler)])
