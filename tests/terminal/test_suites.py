"""Several suites with one command: a run for each, and LIBERO's table at the end."""

from __future__ import annotations

import re

SHORT = ("--tasks", "0", "--trials", "1", "--max-steps", "3", "--video", "none", "--policy", "random")
BOTH = ("libero_goal", "libero_10")


def test_several_suites_end_with_their_table_and_one_name_goes_on_with_all(terminal):
    screen = terminal.done("eval", *BOTH, *SHORT)
    rows = [re.split(r" {2,}", line.strip()) for line in screen.text.splitlines()]
    at = next(number for number, row in enumerate(rows) if row[:2] == ["suite", "success"])
    table = rows[at + 1 : at + 4]
    assert [row[:4] for row in table[:2]] == [[suite, "0.0 %", "0.0–79.3", "1/1"] for suite in BOTH]
    assert table[2] == ["mean", "0.0 %"]
    assert {path.name for path in (terminal.volume / "runs").iterdir()} == {f"{suite}-random-1" for suite in BOTH}
    again = terminal.done("eval", *BOTH, *SHORT, "--resume").transcript
    assert again.count("(resumed)") == 2 and "mean" in again
    said = terminal.done("eval", "all", *SHORT, "--resume", "libero_goal-random-1", code=1).transcript
    assert "--resume NAME names one run" in said


def test_a_stopped_one_says_what_goes_on_with_all(terminal):
    words = ("eval", *BOTH, "--tasks", "0", "--trials", "40", "--policy", "random", "--workers", "1")
    with terminal(*words) as screen:
        screen.wait_for(re.compile(r"suite 1 of 2: libero_goal(.|\n)*0/40"))
        screen.send("\x03")
        assert screen.wait() == 130
    flat = "".join(screen.transcript.splitlines())
    assert "this goes on with all 2 suites" in flat
    assert f"./lab {' '.join(words)} --run-id random-1" in flat.replace("  ", " ")
    assert "suite 2 of 2" not in flat
