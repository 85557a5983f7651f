"""What killed processes, damaged files and malicious names leave behind: swept, named, shown plainly."""

import contextlib
import io
import json
import os
import random
import re
import sqlite3
import time

import pytest
from rich.console import Console

from tests.libero.test_report import counts, make_run
from tests.libero.test_rundir import IDENTITY, PLAN
from vla_evaluation import report
from vla_evaluation.progress import Progress
from vla_evaluation.runs import __main__ as runs
from vla_evaluation.runs import directories as rundir
from vla_evaluation.terminal import plain, say, single_line

EVIL = "vla\x1b]0;owned\x07\x1b[2J\x9b1A\r\nlibero_goal: success rate 100.0 % (9/9)\u202e[/red][bold]\ud800"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]")


def open_run(root, run_id="run"):
    return rundir.open_run(root, IDENTITY, PLAN, run_id=run_id, resume=None, label="x")


# --- leftovers -------------------------------------------------------------------------------------------------


def test_resume_removes_files_of_a_killed_process(tmp_path):
    with open_run(tmp_path) as run:
        kept = sorted(path for path in run.directory.rglob("*") if not path.name.startswith("run.sqlite-"))
    left = ["videos/.03-07.mp4.partial", "videos/.03-07.jpg.partial", "episodes/.03-07.npz.0123456789abcdef",
            ".run.sqlite.0123456789abcdef", ".run.sqlite.0123456789abcdef-journal",
            "work/libero/.config.yaml.4711.partial"]  # fmt: skip
    done = ["videos/03-07.mp4", "episodes/03-07.npz", "work/libero/config.yaml", "logs/worker-0.log"]
    (run.directory / "work" / "libero").mkdir()
    (run.directory / "work" / ".numba-x1y2.partial").mkdir()
    for name in left + done:
        (run.directory / name).write_text("x")
    with open_run(tmp_path):
        pass
    now = sorted(path for path in run.directory.rglob("*"))
    assert now == sorted([*kept, run.directory / "work/libero", *(run.directory / name for name in done)])


def test_files_of_a_locked_run_are_not_removed(tmp_path):
    with open_run(tmp_path) as run:
        (run.directory / "episodes" / ".00-00.npz.0123").write_text("being written")
        with pytest.raises(rundir.RunUnusable), open_run(tmp_path):
            pass
        assert (run.directory / "episodes" / ".00-00.npz.0123").exists()


# --- damage ----------------------------------------------------------------------------------------------------


def listed(root) -> str:
    console = Console(file=io.StringIO(), width=200)
    runs.list_runs(root, console)
    return console.file.getvalue()


def test_the_list_tells_a_running_evaluation_from_a_killed_one(tmp_path):
    for name, began in (("alive", time.time()), ("killed", 0.0)):
        with contextlib.closing(make_run(tmp_path, name, trials=1)[1]) as store:
            store.begin_invocation(began, {})
    text = listed(tmp_path)
    assert re.search(r"alive .* running", text) and re.search(r"killed .* stopped", text)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE meta SET value = '{\"suite\": \"libe' WHERE key = 'identity'",
        "UPDATE meta SET value = '[1]' WHERE key = 'identity'",
        "UPDATE meta SET value = '\"yesterday\"' WHERE key = 'created'",
        "UPDATE meta SET value = '1e300' WHERE key = 'created'",
        "UPDATE meta SET value = CAST(x'ff7b' AS TEXT) WHERE key = 'identity'",
        "UPDATE sessions SET notes = '{'",
        "DELETE FROM meta",
    ],
)
def test_invalid_store_is_reported_and_other_runs_are_listed(tmp_path, sql, capsys):
    make_run(tmp_path, "good", trials=1)[1].close()
    make_run(tmp_path, "bad", trials=1)[1].close()
    with sqlite3.connect(tmp_path / "bad" / "run.sqlite") as db:
        db.execute(sql)
    db.close()
    text = listed(tmp_path)
    assert re.search(r"good .* complete", text) and re.search(r"bad .* damaged", text)
    assert "bad: run store" in text and "damaged and was not changed" in text
    assert runs.main(["--run-dir", str(tmp_path), "list"]) == 0
    runs.main(["--run-dir", str(tmp_path), "report", "bad"])
    assert "Traceback" not in capsys.readouterr().err


def test_bytes_changed_anywhere_never_hide_the_other_runs(tmp_path, capsys):
    make_run(tmp_path, "good", trials=1)[1].close()
    make_run(tmp_path, "bad", trials=1)[1].close()
    path, rng = tmp_path / "bad" / "run.sqlite", random.Random(0)
    whole = path.read_bytes()
    for _ in range(120):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 4, 64))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        text = listed(tmp_path)
        assert re.search(r"good .* complete", text) and re.search(r"^\s*bad ", text, re.MULTILINE), text
        assert runs.main(["--run-dir", str(tmp_path), "report", "bad"]) in (0, 2)
        for companion in path.parent.glob("run.sqlite-*"):
            companion.unlink()
    capsys.readouterr()


def test_a_damaged_run_is_not_resumed(tmp_path):
    with open_run(tmp_path) as run:
        run.store.db.execute("UPDATE meta SET value = '[1]' WHERE key = 'identity'")
    with pytest.raises(rundir.StoreError, match="damaged and was not changed"), open_run(tmp_path):
        pass


# --- names from outside ------------------------------------------------------------------------------------------


def test_control_characters_are_escaped():
    assert plain("a\x1b[31m\tb\n\x9b\x7f\u202e") == "a\\x1b[31m\tb\n\\x9b\\x7f\\u202e"
    assert single_line("a\nb\r\x1b") == "a b\\r\\x1b"
    assert plain("Größe 90 % – ▎“ok”") == "Größe 90 % – ▎“ok”"
    out = io.StringIO()
    say(EVIL, out)
    assert not STEERING.search(out.getvalue())


def test_a_policys_name_neither_steers_the_terminal_nor_forges_a_line(tmp_path, capsys):
    directory, store = make_run(tmp_path, trials=1, policy={"name": EVIL, "needs_privileged": False})
    store.close()
    text = listed(tmp_path)
    assert not STEERING.search(text) and not re.search(r"^libero_goal: success", text, re.MULTILINE)
    assert runs.main(["--run-dir", str(tmp_path), "report", "run"]) == 0
    assert not STEERING.search(capsys.readouterr().out)
    assert not STEERING.search((directory / "report.html").read_text())
    name = json.loads((directory / "summary.json").read_text())["provenance"]["policy"]["name"]
    assert name == EVIL.replace("\ud800", "?")


def test_worker_messages_are_escaped():
    out = io.StringIO()
    with Progress({0: "a", 3: "b"}, counts(0), Console(file=out)) as progress:
        progress.print_line(f"worker-0: {EVIL}")
    assert not STEERING.search(out.getvalue())
    console = Console(file=io.StringIO(), width=200, height=40, force_terminal=True)
    with Progress({0: "a", 3: "b"}, counts(0), console) as progress:
        progress.update(counts(1), {"worker-0": f"waiting for the policy ({EVIL})"})
        progress.print_line(EVIL)
    shown = re.sub(r"\r?\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())  # without rich's own movements
    assert "owned" in shown and not STEERING.search(shown)


def test_report_is_built_with_any_fault_text(tmp_path):
    directory, store = make_run(tmp_path, trials=2, left=20)
    invocation = store.begin_invocation(1.0, {"workers": 1, "drift": []})
    store.fail(store.lease("w", invocation, 1.0, 9.0), EVIL.replace("\ud800", ""), 2.0, retries=0)
    report.build(directory, store)
    assert not STEERING.search((directory / "report.html").read_text())


@pytest.mark.skipif(os.geteuid() != 0, reason="others are led to nothing but what is theirs")
@pytest.mark.parametrize(
    "name", ["run.lock", "run.sqlite", "config.json", "report.html", "videos", "logs/worker-0.log"]
)
def test_root_rejects_runs_with_symlinks(tmp_path, name):
    with open_run(tmp_path / "runs") as run:
        planted = run.directory / name
    (tmp_path / "target").mkdir()
    planted.rmdir() if planted.is_dir() else planted.unlink(missing_ok=True)
    planted.symlink_to(tmp_path / "target" / "file")
    with pytest.raises(OSError, match="it is a link to .* root follows no links"), open_run(tmp_path / "runs"):
        pass
    assert list((tmp_path / "target").iterdir()) == []
