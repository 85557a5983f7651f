"""Several suites with one command, stopped in the first; test_runs.py has one that goes to its end."""

from __future__ import annotations

import re

BOTH = ("libero_goal", "libero_10")


def test_a_stopped_one_says_what_continues_with_all(terminal):
    words = ("eval", *BOTH, "--tasks", "0", "--trials", "40", "--policy", "random", "--workers", "1")
    with terminal(*words) as screen:
        screen.wait_for(re.compile(r"suite 1 of 2: libero_goal(.|\n)*0/40"))
        screen.send("\x03")
        assert screen.wait() == 130
    assert "to resume all 2 suites" in screen.flat
    assert f"./lab {' '.join(words)} --run-id random-1" in screen.flat.replace("  ", " ")
    assert "suite 2 of 2" not in screen.flat
