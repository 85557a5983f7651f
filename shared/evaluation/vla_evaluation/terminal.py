"""Text for a terminal: what a policy, a log or a damaged file says can neither steer it nor forge a line."""

from __future__ import annotations

import re
import sys
from typing import TextIO

# C0 and C1 controls, DEL, what turns the direction of writing, and halves of characters
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: object) -> str:
    """Returns a text in which only line ends and tabs do anything; other control characters are shown, as in \\x1b."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def one_line(text: object) -> str:
    """Returns a text from outside that is one part of a line of ours."""
    return " ".join(plain(text).split())


def say(text: object = "", file: TextIO | None = None) -> None:
    """Prints a text at once, plainly."""
    print(plain(text), file=file or sys.stdout, flush=True)
