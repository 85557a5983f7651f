"""The leaderboard over real stores with invented results: what stands side by side, counts together, is left out."""

import csv
import io
import itertools
import json
import re

import pytest
from rich.console import Console

from services.libero.profiles import PROFILES
from tests.libero.invented import IDENTITY, make_run
from vla_evaluation.report.leaderboard import COLUMNS, title
from vla_evaluation.report.stats import wilson
from vla_evaluation.runs import __main__ as runs
from vla_evaluation.runs import leaderboard

OTHER = {"name": "other", "needs_privileged": False, "checkpoint": None}
SPATIAL = {"suite": "libero_spatial", "max_steps": 220, "unnorm_key": "libero_spatial"}
created = itertools.count(1)


def run(root, name, good=lambda task, episode: True, trials=1, **changes):
    """Write a run whose time of making is later than those before it."""
    _, store = make_run(root, name, good, trials, **changes)
    store.set_meta("created", float(next(created)))
    return store


def shown(root, *suites, width=200) -> str:
    console = Console(file=io.StringIO(), width=width)
    leaderboard.show(root, suites, {}, console)
    return console.file.getvalue()


def tables(root, *suites):
    return leaderboard.read_board(root, suites)["tables"]


def test_board_has_policies_by_suites_with_intervals_and_mean(tmp_path):
    run(tmp_path, "a", lambda task, episode: episode > 0, trials=2)
    run(tmp_path, "b", trials=2, **SPATIAL)
    run(tmp_path, "c", trials=3, policy=OTHER)
    (table,) = tables(tmp_path)
    vla, other = table["lines"]
    assert table["suites"] == ["libero_goal", "libero_spatial"] and table["facts"]["max_steps"] == "the profile's"
    assert (vla["policy"], vla["mean"], other["mean"]) == ("vla", 0.75, None)
    assert vla["cells"]["libero_goal"]["interval"] == list(wilson(10, 20))
    text = shown(tmp_path)
    assert "50.0 % (29.9–70.1) of 20" in text and "75.0 %" in text and "vla · lab/vla@abc" in text
    assert "profile openvla, assets official d, chunks: all of each" in text and "mujoco 3.2.3" in text
    assert "left out" not in text


@pytest.mark.parametrize(
    "changes",
    [
        {"profile": "groot-n1.5"},
        {"assets": {"kind": "kit", "digest": "d"}},
        {"assets": {"kind": "official", "digest": "e"}},
        {"max_steps": 299},
        {"seed": 7},
        {"execute": 4},
        {"execute": 1, "ensemble": "mean"},
        {"execute": 1, "ensemble": "exponential", "ensemble_weight": 0.01},
        {"realtime": 20.0},
        {"versions": IDENTITY["versions"] | {"robosuite": "1.4.1"}},
        {"tasks": [0, 1]},
        {"control_hz": 10},
        {"benchmark": "another"},
        {"protocol": vars(PROFILES["openvla"].protocol())},
    ],
    ids=str,
)
def test_incomparable_runs_are_in_separate_tables(tmp_path, changes):
    run(tmp_path, "a")
    run(tmp_path, "b", policy=OTHER)
    run(tmp_path, "c", policy=OTHER, **changes)
    found = tables(tmp_path)
    assert sorted(len(table["lines"]) for table in found) == [1, 2]
    headings = ["\n".join(leaderboard.heading(table)) for table in found]
    assert title(found[0]) != title(found[1]) and headings[0] != headings[1], "a reader sees what differs"


def test_changed_step_limit_separates_tables(tmp_path):
    old = run(tmp_path, "old", max_steps=280)
    about = old.meta("about")
    old.set_meta("about", about | {"profile": about["profile"] | {"max_steps": 280}})
    run(tmp_path, "new", policy=OTHER)
    assert sorted(table["facts"]["max_steps"] for table in tables(tmp_path)) == [280, 300]


def test_runs_of_one_identity_are_pooled_and_each_start_counts_once(tmp_path):
    run(tmp_path, "first", lambda task, episode: False, trials=2, episodes="0-1")
    run(tmp_path, "again", trials=3, episodes="0-2")
    ((line,),) = (table["lines"] for table in tables(tmp_path))
    cell = line["cells"]["libero_goal"]
    assert cell["runs"] == ["first", "again"] and (cell["successes"], cell["done"]) == (10, 30)
    assert cell["repeated"] == 20, "a run that is done again until it comes out well changes nothing"


@pytest.mark.parametrize(("trials", "chosen"), [((2, 1), "a"), ((1, 1), "b"), ((1, 2), "b")])
def test_of_differing_runs_one_counts_and_the_other_is_listed(tmp_path, trials, chosen):
    run(tmp_path, "a", trials=trials[0], code="c1")
    run(tmp_path, "b", trials=trials[1], code="c2", lock="other")
    board = leaderboard.read_board(tmp_path, ())
    assert board["tables"][0]["lines"][0]["cells"]["libero_goal"]["runs"] == [chosen]
    ((name, why),) = (entry.values() for entry in board["left_out"])
    assert {name, chosen} == {"a", "b"} and why.startswith(f"{chosen} counts for this policy and suite")
    assert why.endswith("they differ in code, lock") and f"  {name}: {chosen} counts" in shown(tmp_path)


def test_policies_of_one_name_are_distinguished_by_their_differences(tmp_path):
    policy = IDENTITY["policy"]
    third = {"name": "third", "needs_privileged": True, "checkpoint": None}
    for number, more in enumerate([{"device": "cpu"}, {"device": "cuda"}, third]):
        run(tmp_path, str(number), policy=policy | more)
    (table,) = tables(tmp_path)
    assert sorted(line["differs"] for line in table["lines"]) == ["", "device cpu", "device cuda"]
    assert "vla · lab/vla@abc · device cuda" in shown(tmp_path) and "third · privileged state" in shown(tmp_path)


def test_incomplete_mixed_and_damaged_runs_are_listed(tmp_path):
    run(tmp_path, "whole")
    run(tmp_path, "half", left=4)
    run(tmp_path, "mixed").begin_invocation(9.0, {"drift": ["code: a → b"]})
    run(tmp_path, "odd").set_meta("identity", {"suite": "libero_goal"})
    (tmp_path / "bad").mkdir()
    damaged = tmp_path / "bad" / "run.sqlite"
    damaged.write_bytes(b"nothing like a database" * 100)
    text = shown(tmp_path)
    assert "100.0 % (72.2–100.0) of 10" in text and "left out: 4 runs" in text
    assert "half: not complete: 6 of 10 episodes are done" in text
    assert "mixed: its configuration changed between invocations (--allow-drift)" in text
    assert re.search(r"bad: cannot be read: run store .*bad/run.sqlite", text)
    assert re.search(r"odd: cannot be read: .*KeyError", text)
    assert damaged.read_bytes() == b"nothing like a database" * 100 and shown(tmp_path) == text


def test_policy_errors_stay_visible(tmp_path):
    store = run(tmp_path, "a")
    store.db.execute("UPDATE episodes SET error = 'nan', success = 0 WHERE task = 3")
    assert "policy errors among the failures: 1" in shown(tmp_path)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_narrow_terminal_truncates_no_numbers(tmp_path, width):
    run(tmp_path, "a", trials=2)
    run(tmp_path, "b", trials=2, **SPATIAL)
    text = shown(tmp_path, width=width)
    assert text.count("100.0 %") == 3 and text.count("83.9–100.0") == 2
    rows = [line for line in text.splitlines() if "vla ·" in line]
    assert len(rows) == (1 if width == 200 else 3) and all(len(row) <= max(width, 60) for row in rows)


# --- the program ----------------------------------------------------------------------------------------------


def test_the_program_writes_a_csv_and_a_page_of_the_same_figures(tmp_path, capsys):
    evil = {"name": "=cmd|\x1b[2J<script>alert(1)</script>", "needs_privileged": False}
    run(tmp_path / "runs", "a", lambda task, episode: task < 5, trials=2, policy=evil)
    run(tmp_path / "runs", "b", lambda task, episode: task < 5, trials=2, **SPATIAL, policy=evil)
    given = ["--csv", str(tmp_path), "board.csv", "--html", str(tmp_path), "board.html"]
    assert runs.main(["--run-dir", str(tmp_path / "runs"), "leaderboard", "libero_goal", *given]) == 0
    assert f"CSV: {tmp_path}/board.csv" in capsys.readouterr().out
    (row,) = csv.DictReader(io.StringIO((tmp_path / "board.csv").read_text()))
    assert tuple(row) == COLUMNS and row["policy"].startswith(r"'=cmd|\x1b[2J<script>")
    low, high = wilson(10, 20)
    assert [float(row[name]) for name in ("rate", "low", "high")] == pytest.approx([0.5, low, high], abs=1e-6)
    assert (row["suite"], row["episodes"], row["runs"], row["assets"]) == ("libero_goal", "20", "a", "official")
    html = (tmp_path / "board.html").read_text()
    assert "<script>" not in html and "50.0 %" in html and "29.9–70.1 %" in html and "libero_spatial" not in html
    assert not re.search(r"""(src|href)\s*=\s*["']|@import|url\(|https?://(?!www\.w3\.org)""", html)
    assert json.loads(json.dumps(leaderboard.read_board(tmp_path / "runs", ())))["columns"] == list(COLUMNS)


def test_unknown_suite_suggests_the_nearest(tmp_path, capsys):
    run(tmp_path, "a")
    assert runs.main(["--run-dir", str(tmp_path), "leaderboard", "libero_goall"]) == 2
    assert "no run of suite 'libero_goall' found; did you mean 'libero_goal'?" in capsys.readouterr().err


def test_no_runs_prints_how_to_make_one(tmp_path, capsys):
    assert runs.main(["--run-dir", str(tmp_path), "leaderboard"]) == 0
    assert f"no runs in {tmp_path}; `./lab eval SUITE` makes one" in capsys.readouterr().out
    assert runs.main(["--run-dir", str(tmp_path), "leaderboard", "--csv", str(tmp_path), "a.csv"]) == 2
    assert not (tmp_path / "a.csv").exists()
