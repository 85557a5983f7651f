"""`./lab eval` at a terminal: its numbers stay whole, and the end says what is next."""

from __future__ import annotations

import re

LEFT = r", about (\d+ s|\d+ min \d\d s) left"
TOTALS = re.compile(rf"\d/4 episodes, success (–|\d+\.\d %)(, \d+ steps/s)?({LEFT}|, [a-z ]+)?")
COLOR = re.compile(rb"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38;|48;|4[0-7])[0-9;]*m")


def test_no_number_of_the_progress_is_cut(terminal):
    words = "eval libero_10 --tasks 0-1 --trials 2 --max-steps 30 --policy random --workers 2"  # with long instructions
    with terminal(*words.split()) as screen:
        screen.wait_for(re.compile(r" 0/2$", re.MULTILINE))
        wide = len(screen.frames)
        screen.wait_for(re.compile(r" 1/2 "))
        narrow = len(screen.frames)
        screen.resize(60, 24)
        assert screen.wait() == 0
    for frames, columns in ((screen.frames[:narrow], 80), (screen.frames[narrow + 2 :], 60)):
        for frame in frames:
            assert all(len(line) <= columns for line in frame.splitlines())
            rows = [line for line in frame.splitlines() if re.search("[━╍─]{6}", line)]
            assert all(re.search(r"[╍─]  [012]/2(    0 %|   50 %|  100 %)?$", row) for row in rows), frame
            assert not rows or TOTALS.search(" ".join(frame.split())), frame
    assert wide < narrow and len(re.findall(r"╍  2/2    0 %$", screen.transcript, re.MULTILINE)) == 2
    assert COLOR.search(screen.sent)


def test_without_colours_a_bar_still_tells_how_far_it_is(terminal):
    short = "--tasks 0 --trials 2 --max-steps 3 --policy random --workers 1 --video none"
    words = ("eval", "libero_goal", *short.split(" "))
    plain = terminal.done(*words, NO_COLOR="1")
    assert not COLOR.search(plain.sent)
    rows = [line for frame in plain.frames for line in frame.splitlines() if " 0/2" in line or "/2 " in line]
    assert any(re.search("─{6,}  0/2", row) for row in rows) and any(re.search("╍{6,}  2/2", row) for row in rows)
