"""Text for a terminal: what a policy, a log or a damaged file says can neither steer it nor forge a line."""

from __future__ import annotations

import sys
from typing import TextIO

from vla_common.endings import folded, one_line, plain

__all__ = ["one_line", "plain", "say"]


def say(text: object = "", file: TextIO | None = None) -> None:
    """Prints a text at once, plainly."""
    file = file or sys.stdout
    print(folded(plain(text), file), file=file, flush=True)
