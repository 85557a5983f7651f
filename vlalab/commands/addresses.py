"""Where a person reaches what is up: the address, public where one is set, and for notebooks the token."""

from __future__ import annotations

import re
import sys

from vlalab.description import compose
from vlalab.runtimes.running import Instance

LOG_LINES = 5000  # a notebook server says its address when it starts, and little afterwards


def line(found: Instance, on_terminal: bool | None = None) -> str:
    """Returns a service's name and address, for the end of `up`.

    A notebook server says its token in its log, which is the caller's alone; it is repeated on a terminal (default:
    where the output is one), and not in a file or a pipe, which others may read later.
    """
    address = with_token(found)
    if address == page_of(found):
        return f"{found.name} {address}"
    if sys.stdout.isatty() if on_terminal is None else on_terminal:
        return f"{found.name} {address}"
    return f"{found.name} {found.url} (the token is in its log: ./lab logs {found.name})"


def with_token(found: Instance) -> str:
    """Returns the address with the token, as the log says it, or the mere address where it says none."""
    if compose.page_url(found.service):  # with a token of the caller's, which is printed nowhere
        return page_of(found)
    port = found.url.rpartition(":")[2]
    told = re.findall(rf"https?://\S+:{port}/\S*[?]token=[\w-]+", found.last_words(LOG_LINES)) if port else []
    return told[-1] if told else found.url


def page_of(found: Instance) -> str:
    """Return where a person reaches a service: at its public address where it has one, else at its own."""
    return compose.page_url(found.service) or found.url
