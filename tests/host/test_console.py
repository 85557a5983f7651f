"""The line that a person looks at while something takes long."""

import os
import subprocess
import sys

from tests.screen import Screen
from vlalab.host import paths
from vlalab.host.shared_code import entrypoint

SILENT = """
import sys, threading
from vlalab.host.console import status
with status("fetching") as line:
    line.update("the first of two")
    sys.stdin.readline()
"""


def test_the_seconds_move_on_although_nothing_new_is_reported():
    with Screen([sys.executable, "-c", SILENT]) as screen:
        screen.wait_for("lab: fetching … 1 s  the first of two")
        screen.wait_for("lab: fetching … 2 s  the first of two")
        screen.send("\n")
        screen.wait_for("lab: fetching: done in")
        assert screen.wait() == 0


EVIL = "a\x1b[2J\x1b]0;owned\x07\r\u202e"
DRAWN = """
import sys
from rich.live import Live
from rich.table import Table
from rich.text import Text
from vlalab.host.shared_code import entrypoint
from vlalab.host.console import log_info, status

def main():
    evil = sys.argv[1]
    with status(f"fetching {evil}") as line:
        line.update(evil)
    log_info(evil)
    console = entrypoint.console()
    table = Table("name", style="bold")
    table.add_row(Text(evil))
    console.print(table)
    console.print(evil, markup=False)
    with Live(Text("moving"), console=console, auto_refresh=False) as live:
        live.update(Text(evil), refresh=True)

entrypoint.run(main)
"""


def test_text_from_outside_steers_no_terminal_and_our_own_colours_and_progress_do():
    with Screen([sys.executable, "-c", DRAWN, EVIL], columns=200) as screen:
        assert screen.wait() == 0
    sent = screen.sent.decode()
    assert "\r\x1b[K" in sent and "\x1b[1m" in sent and "\x1b[?25l" in sent
    assert "\x1b[2J" not in sent and "\x07" not in sent and "\u202e" not in sent
    assert sent.count(r"a\x1b[2J") >= 6


def test_a_name_in_an_error_steers_no_terminal(tmp_path):
    command = [paths.ROOT / "lab", "dataset", EVIL]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "VLALAB_VOLUME": str(tmp_path)})
    assert done.returncode == 1 and r"a\x1b[2J" in done.stderr
    assert not entrypoint.CONTROL.search(done.stdout + done.stderr)
