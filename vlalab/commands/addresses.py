"""Where a person reaches what is up: the address, and for notebooks the token, shown to nobody else."""

from __future__ import annotations

import re
import sys

from vlalab.runtimes.running import Instance

LOG_LINES = 5000  # a notebook server says its address when it starts, and little afterwards


def line(found: Instance, on_terminal: bool | None = None) -> str:
    """Returns a service's name and address, for the end of `up`.

    A notebook server says its token in its log, which is the caller's alone; it is repeated on a terminal (default:
    where the output is one), and not in a file or a pipe, which others may read later.
    """
    address = with_token(found)
    if address == found.url:
        return f"{found.name} {found.url}"
    if sys.stdout.isatty() if on_terminal is None else on_terminal:
        return f"{found.name} {address}"
    return f"{found.name} {found.url} (the token is in its log: ./lab logs {found.name})"


def with_token(found: Instance) -> str:
    """Returns the address with the token, as the log says it, or the mere address where it says none."""
    port = found.url.rpartition(":")[2]
    told = re.findall(rf"https?://\S+:{port}/\S*[?]token=[\w-]+", found.last_words(LOG_LINES)) if port else []
    return told[-1] if told else found.url
