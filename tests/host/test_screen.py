"""The terminal that other tests read: it shows what a person sees, now and in between, and takes keys."""

import sys

import pytest

from tests.screen import CTRL_C, ENTER, Screen, show

PYTHON = [sys.executable, "-c"]


def test_it_is_a_terminal_of_80_by_24_and_text_beyond_its_edge_is_on_the_next_row():
    screen = show([*PYTHON, "import os, sys; print(sys.stdout.isatty(), *os.get_terminal_size()); print('x' * 85)"])
    assert screen.lines[:3] == ["True 80 24", "x" * 80, "x" * 5]
    assert len(screen.lines) == 24
    assert show([*PYTHON, "import os; print(*os.get_terminal_size())"], columns=60, rows=10).text == "60 10"


def test_what_was_overwritten_is_in_the_frames_only_and_what_scrolled_away_in_the_transcript():
    lines = "import time\nfor i in range(3): print('\\r\\033[K', i, end='', flush=True); time.sleep(0.3)\n"
    screen = show([*PYTHON, lines + "print(*['', *range(40)], sep='\\n')"])
    assert {" 0", " 1", " 2"} <= set(screen.frames)
    assert screen.transcript.splitlines() == [" 2", *map(str, range(40))]
    assert screen.text.splitlines()[-1] == "39" and "\n5\n" not in screen.text


def test_it_types_waits_and_interrupts():
    program = "print('hello', input('who? '))\ntry:\n import time; time.sleep(60)\nexcept KeyboardInterrupt: exit(7)"
    with Screen([*PYTHON, program]) as screen:
        screen.wait_for("who?")
        screen.send("me" + ENTER)
        screen.wait_for("hello me")
        screen.send(CTRL_C)
        assert screen.wait() == 7


def test_waiting_for_what_does_not_come_ends_with_the_command_and_shows_all_it_said():
    with (
        Screen([*PYTHON, "print('other', *range(30), sep='\\n')"]) as screen,
        pytest.raises(AssertionError, match="the command ended without 'this' on the screen:\nother"),
    ):
        screen.wait_for("this")


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_a_line_that_changes_in_place_keeps_its_seconds_and_says_what_it_is_at(columns):
    program = (
        "from vlalab.host.console import status; import time\n"
        "with status(\"installing environment 'ws_mdl' (202 pinned packages, hash-checked)\") as line:\n"
        "    time.sleep(0.1); line.update('Downloading torch (731.0MiB)'); time.sleep(0.3)"
    )
    screen = show([*PYTHON, program], columns=columns)
    frame = next(frame for frame in screen.frames if "Downloading" in frame)
    assert "lab: installing" in frame and " … 0 s  Downloading to" in frame and "\n" not in frame, frame


def test_variables_are_added_and_taken_away():
    program = "import os; print(os.environ.get('A'), os.environ.get('HOME'), os.environ['TERM'])"
    assert show([*PYTHON, program], variables={"A": "1", "HOME": None, "TERM": "dumb"}).text == "1 None dumb"
