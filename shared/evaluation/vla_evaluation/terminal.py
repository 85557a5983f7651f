"""Text for a terminal: what a policy, a log or a damaged file says can neither steer it nor forge a line."""

from __future__ import annotations

import sys
from typing import TextIO

from vla_common.endings import one_line, plain

__all__ = ["one_line", "plain", "say"]


def say(text: object = "", file: TextIO | None = None) -> None:
    """Prints a text at once, plainly."""
    print(plain(text), file=file or sys.stdout, flush=True)
