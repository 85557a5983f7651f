"""Runs and trained models by name, as the host tool finds them on the volume before anything is made ready."""

import os
import subprocess
import sys

import pytest

from tests.lab import run_lab
from vlalab.commands import lifecycle
from vlalab.description import runs
from vlalab.host import paths
from vlalab.host.console import LabError
from vlalab.tasks import evaluate


@pytest.fixture
def volume(tmp_path, monkeypatch):
    for made in (
        "runs/goal-oracle-1/run.sqlite", "runs/goal-oracle-12/run.sqlite", "runs/spatial-random-1/run.sqlite",
        "runs/.gone.deleted/run.sqlite", "runs/begun/notes.txt", "runs/file",
        "checkpoints/transformer/mine/tmodel_00.pt", "checkpoints/diffusion/digits/model_03.pt",
        "checkpoints/diffusion/empty/curve.png",
    ):  # fmt: skip
        (tmp_path / made).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / made).touch()
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path))
    monkeypatch.delenv("VLALAB_REPLAY_RUN", raising=False)
    return tmp_path


def test_names_match_those_of_the_programs(volume):
    assert runs.runs() == ["goal-oracle-1", "goal-oracle-12", "spatial-random-1"]
    assert runs.trained("transformer") == ["mine"] and runs.trained("diffusion") == ["digits"]


@pytest.mark.parametrize(
    ("text", "is_meant"),
    [("goal-oracle-1", "goal-oracle-1"), ("spat", "spatial-random-1"), ("latest", "latest"), ("goal-oracle-12",) * 2],
)
def test_a_name_its_beginning_or_latest_will_do(volume, text, is_meant):
    assert runs.run("RUN", text) == is_meant


def test_a_directory_elsewhere_will_do_and_a_name_goes_before_a_directory_here(volume, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere" / "spat"
    elsewhere.mkdir(parents=True)
    (elsewhere / runs.STORE).touch()
    assert runs.run("RUN", str(elsewhere)) == str(elsewhere)
    monkeypatch.chdir(elsewhere.parent)
    assert runs.run("RUN", "./spat") == str(elsewhere)
    (elsewhere.parent / "goal-oracle-1").mkdir()
    assert runs.run("RUN", "goal-oracle-1") == "goal-oracle-1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("goal", "RUN 'goal' is ambiguous: goal-oracle-1, goal-oracle-12"),
        ("gaol-oracle-1", "RUN 'gaol-oracle-1' not found; did you mean 'goal-oracle-1'? Run ./lab runs to list all"),
        ("", "known: goal-oracle-1, goal-oracle-12, spatial-random-1"),
        ("/nowhere", "RUN '/nowhere' not found"),
        ("begun", "RUN 'begun' not found"),
    ],
)
def test_unknown_run_is_reported_in_one_sentence(volume, text, said):
    with pytest.raises(LabError) as told:
        runs.run("RUN", text)
    assert said in told.value.text and "\n" not in told.value.text


def test_empty_volume_suggests_the_first_command(tmp_path, monkeypatch):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "not made yet"))
    for call in (lambda: runs.run("RUN", "latest"), lambda: runs.require("run")):
        with pytest.raises(LabError, match=r"no run in .*not made yet yet; create one: ./lab eval libero_goal"):
            call()
    with pytest.raises(LabError, match="create one: ./lab train transformer"):
        runs.model("--name", "mine", "transformer")


def test_replay_without_a_run_is_rejected_before_creating_its_environment(volume, monkeypatch):
    for name, said in (("", "set VLALAB_REPLAY_RUN"), ("gaol-oracle-1", "did you mean 'goal-oracle-1'")):
        monkeypatch.setenv("VLALAB_REPLAY_RUN", name)
        with pytest.raises(LabError, match=f"replay cannot start: missing .*{said}"):
            lifecycle.require_startable(["replay"], {})
    monkeypatch.setenv("VLALAB_REPLAY_RUN", "spat")
    lifecycle.require_startable(["replay"], {})


@pytest.mark.parametrize(
    "words", [["report", "nope"], ["compare", "spat", "nope"], ["eval", "libero_goal", "--resume=nope"]]
)
def test_unknown_run_installs_nothing(volume, words):
    env = {**os.environ, "VLALAB_STATE": str(volume / "state")}
    done = subprocess.run([str(paths.ROOT / "lab"), *words], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "'nope' not found" in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_leaderboard_needs_a_run(tmp_path):
    env = {**os.environ, "VLALAB_STATE": str(tmp_path / "state"), "VLALAB_VOLUME": str(tmp_path / "volume")}
    done = subprocess.run([str(paths.ROOT / "lab"), "leaderboard"], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "create one: ./lab eval libero_goal --trials 2" in done.stderr


def test_leaderboard_files_are_passed_with_their_directory(volume, monkeypatch):
    asked = []
    monkeypatch.setattr(evaluate, "on_runs", lambda words, runtime: asked.extend([words, runtime]))
    monkeypatch.chdir(volume / "runs")
    words = ["libero_goal", "libero_10", "--csv", "a.csv", "--html", f"{volume}/b.html"]
    run_lab("leaderboard", *words)
    files = ["--csv", str(volume / "runs"), "a.csv", "--html", str(volume), "b.html"]
    assert asked == [["leaderboard", "libero_goal", "libero_10", *files], "auto"]


def test_a_data_sets_config_is_not_a_pipe(tmp_path, monkeypatch):
    """`./lab dataset FOLDER` looks for a recording's config.json in it; a pipe there held the command."""
    (tmp_path / "set").mkdir()
    os.mkfifo(tmp_path / "set" / "config.json")
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path))
    code = "import sys; from vlalab.description import datasets; print(datasets.job_of(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "set")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=paths.ROOT)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
