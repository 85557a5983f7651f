"""The public address of the pages: where a proxy with TLS shows them, when $VLALAB_PUBLIC_URL is set."""

from __future__ import annotations

from vlalab.description import compose
from vlalab.host import borrowed
from vlalab.host.console import LabError

ADDRESS = borrowed.module("vla_contract.server.public")


def page_url(service: str) -> str:
    """Return the public address of a service's pages, "" where it has none.

    Raises LabError for a bad $VLALAB_PUBLIC_URL, or one without a token.
    """
    try:
        url: str = ADDRESS.page_url(service, compose.environment_variables())
    except ValueError as error:
        raise LabError(str(error)) from None
    return url
