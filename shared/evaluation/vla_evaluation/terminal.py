"""Text for a terminal: control characters in a policy's name, a log or a damaged file have no effect."""

from __future__ import annotations

import sys
from typing import TextIO

from vla_common.entrypoint import folded, plain, single_line

__all__ = ["plain", "say", "single_line"]


def say(text: object = "", file: TextIO | None = None) -> None:
    """Print a text without control characters, and flush."""
    file = file or sys.stdout
    print(folded(plain(text), file), file=file, flush=True)
