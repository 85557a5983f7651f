"""`./lab runs` at a terminal, with real runs, two of them made by one command, and a model that was really trained."""

from __future__ import annotations

import re

import pytest

from tests.screen import ENTER

SHORT = ("--tasks", "0", "--trials", "1", "--max-steps", "3", "--video", "none", "--policy", "random")
SMALL = ("--device", "cpu", "--set", "n-feat=8,batch-size=512,timesteps=4,precision=fp32")
BOTH = ("libero_goal", "libero_spatial")


@pytest.fixture(scope="module")
def two_suites(shared_terminal) -> str:
    """What stands on the screen after an evaluation of two suites, on a volume that has a run of the first already."""
    shared_terminal.done("eval", "libero_goal", *SHORT)
    screen = shared_terminal.done("eval", *BOTH, *SHORT)
    assert "run libero_spatial-random-2 in" in screen.transcript
    return screen.text


@pytest.fixture(scope="module")
def terminal(shared_terminal, two_suites):
    """A terminal whose volume holds three runs."""
    return shared_terminal


def test_several_suites_end_with_their_table_and_one_name_continues_with_all(terminal, two_suites):
    rows = [re.split(r" {2,}", line.strip()) for line in two_suites.splitlines()]
    at = next(number for number, row in enumerate(rows) if row[:2] == ["suite", "success"])
    table = rows[at + 1 : at + 4]
    assert [row[:4] for row in table[:2]] == [[suite, "0.0 %", "0.0–79.3", "1/1"] for suite in BOTH]
    assert table[2] == ["mean", "0.0 %"]
    there = {path.name for path in (terminal.volume / "runs").iterdir()}
    assert there == {"libero_goal-random-1", *(f"{suite}-random-2" for suite in BOTH)}
    again = terminal.done("eval", *BOTH, *SHORT, "--resume").transcript
    assert again.count("(resumed)") == 2 and "mean" in again
    said = terminal.done("eval", "all", *SHORT, "--resume", "libero_goal-random-1", code=1).transcript
    assert "--resume NAME is for one suite" in said


@pytest.mark.parametrize("columns", [80, 60])
def test_every_run_is_one_whole_line_with_its_numbers_and_state(terminal, columns):
    screen = terminal.done("runs", columns=columns)
    assert names(screen) == ["libero_goal-random-1", "libero_goal-random-2", "libero_spatial-random-2"]
    for line in screen.transcript.splitlines():
        if line.startswith("libero_"):
            assert re.search(r" 1/1 +0\.0 % .*complete", line), line
            assert columns < 80 or re.search(r" 0\.0–79\.3 +complete$| \d{4}-\d\d-\d\d \d\d:\d\d$", line), line


def test_names_may_be_cut_short_where_they_are_typed(terminal):
    assert "libero_spatial-random-2/report.html" in terminal.done("report", "latest").flat
    assert "libero_spatial-random-2/report.html" in terminal.done("report", "libero_s").flat
    assert "one pair is too few" in terminal.done("compare", "libero_goal-random-1", "libero_goal-random-2").transcript
    screen = terminal.done("report", "libero_goal", code=1)
    assert "is ambiguous: libero_goal-random-1, libero_goal-random-2" in screen.flat
    assert "'libero_x' not found; did you mean" in terminal.done("report", "libero_x", code=1).flat
    resumed = terminal.done("eval", "libero_spatial", *SHORT, "--resume", "libero_s")
    assert "run libero_spatial-random-2 in" in resumed.transcript and "(resumed)" in resumed.flat
    replayed = terminal.done("eval", "libero_spatial", *SHORT[:-1], "replay", VLALAB_REPLAY_RUN="libero_sp")
    assert "run libero_spatial-replay-1 in" in replayed.transcript


def test_a_run_is_deleted_after_its_size_and_a_yes(terminal):
    with terminal("runs", "--delete", "libero_goal-random-2") as screen:
        seen = screen.wait_for("permanently? [y/N]")
        assert re.search(r"run libero_goal-random-2: \d+(\.\d)? (kB|MB) in", seen), seen
        screen.send("n" + ENTER)
        assert screen.wait() == 1
        assert "nothing was deleted" in screen.text
    assert "libero_goal-random-2" in names(terminal.done("runs"))
    with terminal("runs", "--delete", "libero_goal-random-2") as screen:
        screen.wait_for("[y/N]")
        screen.send("y" + ENTER)
        assert screen.wait() == 0
    assert "libero_goal-random-2" not in names(terminal.done("runs"))
    terminal.done("runs", "--delete", "libero_goal-random-1,libero_sp*", code=1)
    assert "libero_goal-random-1" in names(terminal.done("runs"))
    terminal.done("runs", "--delete", "libero_goal", "--yes")
    assert "libero_goal-random-1" not in names(terminal.done("runs"))
    assert not list((terminal.volume / "runs").glob("*goal*"))


def test_a_trained_model_is_listed_and_deleted_with_its_curves(needs_course, terminal):
    terminal.done("train", "diffusion", "--epochs", "1", "--name", "small", *SMALL, OMP_NUM_THREADS="1")
    screen = terminal.done("runs", columns=60)
    line = re.compile(r"^small +diffusion +1 +\d{4}-\d\d-\d\d \d\d:\d\d$", re.MULTILINE)
    assert line.search(screen.transcript), screen.transcript
    curves = terminal.volume / "logs" / "tensorboard" / "diffusion"
    assert list(curves.iterdir())
    assert "deleted trained diffusion small" in terminal.done("runs", "--delete", "sma", "--yes").transcript
    assert "small" not in terminal.done("runs").transcript
    assert not list(curves.iterdir())


def names(screen) -> list[str]:
    return re.findall(r"^(libero_\S+)", screen.transcript, re.MULTILINE)
