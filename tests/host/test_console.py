"""The line that a person looks at while something takes long."""

import sys

from tests.screen import Screen

SILENT = """
import sys, threading
from vlalab.host.console import status
with status("fetching") as line:
    line.update("the first of two")
    sys.stdin.readline()
"""


def test_the_seconds_move_on_although_nothing_new_is_told():
    with Screen([sys.executable, "-c", SILENT]) as screen:
        screen.wait_for("lab: fetching … 1 s  the first of two")
        screen.wait_for("lab: fetching … 2 s  the first of two")
        screen.send("\n")
        screen.wait_for("lab: fetching: done in")
        assert screen.wait() == 0
