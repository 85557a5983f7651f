"""What a task says at its end: the next useful command, to people only."""

import os
import re
import subprocess
from types import SimpleNamespace

import pytest

from tests.screen import show
from vlalab.cli import TASKS
from vlalab.host import paths
from vlalab.runtimes import interface


@pytest.fixture
def volume(tmp_path, monkeypatch):
    for at, name in enumerate(("goal-oracle-1", "goal-random-1", "spatial-random-1")):
        directory = tmp_path / "runs" / name
        directory.mkdir(parents=True)
        (directory / "run.sqlite").touch()
        (directory / "config.json").touch()
        os.utime(directory / "config.json", (at, at))
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path))
    return tmp_path


def says(task: str, **given: object) -> str:
    values = {flag.name: None for flag in TASKS[task].flags} | {"names": [], "hosts": [], "words": []} | given
    return TASKS[task].next_command(values)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_next_command_and_it_is_a_task(name):
    line = says(name)
    found = re.match(r"\./lab (\w+)( |$)", line)
    assert found and found[1] in TASKS and "{" not in line, line
    flags = {f"--{flag.flag}" for flag in TASKS[found[1]].flags}
    assert set(re.findall(r"--[\w-]+", line)) <= flags, line


@pytest.mark.parametrize(
    ("task", "given", "expected"),
    [
        ("up", {"names": ["oracle"]}, "./lab eval libero_goal --policy oracle"),
        ("up", {"names": ["ui"]}, "./lab status"),
        ("down", {"names": ["oracle", "ui"]}, "./lab up oracle ui"),
        ("down", {"names": []}, "./lab up SERVICE …"),
        ("train", {"lab": "diffusion"}, "./lab sample diffusion"),
        ("train", {"lab": "minivla"}, "./lab eval libero_object --policy minivla"),
        ("train", {"lab": "gpt"}, "./lab tensorboard"),
        ("finetune", {"model": "gr00t", "name": "cups"}, "./lab up gr00t --checkpoint cups"),
        ("report", {"run": "goal-oracle-1"}, "./lab report goal-oracle-1 --serve"),
        ("record", {"name": None}, "./lab dataset NAME --format lerobot"),
        ("act", {"policy": "a", "dataset": "/my cups"}, "./lab offline a --dataset '/my cups' --plot"),
    ],
)
def test_it_names_what_was_given(task, given, expected):
    assert says(task, **given) == expected


def test_what_a_browser_shows_is_opened(monkeypatch, volume):
    def instance(url, log=""):
        return SimpleNamespace(service="ws_mdl", url=url, is_healthy=lambda: True, log_tail=lambda lines: log)

    up = {"ws_mdl": instance("http://127.0.0.1:8888", "at http://127.0.0.1:8888/lab?token=abc\n")}
    monkeypatch.setattr(interface, "find", up.get)
    assert says("notebook", env="ws_mdl") == "open http://127.0.0.1:8888/lab?token=abc"
    assert says("leaderboard") == "./lab up ui"
    up["ui"], up["tensorboard"] = instance("http://127.0.0.1:7860"), instance("http://127.0.0.1:6006")
    assert says("up", names=["oracle", "ui"]) == "open http://127.0.0.1:7860"
    assert says("report", serve=True) == "open http://127.0.0.1:7860"
    assert says("tensorboard") == "open http://127.0.0.1:6006"
    assert says("eval") == "open http://127.0.0.1:7860/runs/spatial-random-1"
    assert says("report", run="goal-oracle-1") == "open http://127.0.0.1:7860/runs/goal-oracle-1"
    assert says("report", run="latest") == "open http://127.0.0.1:7860/runs/spatial-random-1"
    compared = says("compare", a="goal-oracle-1", b="goal-random-1")
    assert compared == "open http://127.0.0.1:7860/runs/compare?a=goal-oracle-1&b=goal-random-1"
    assert says("leaderboard") == "open http://127.0.0.1:7860/runs/leaderboard"


def test_an_evaluation_is_compared_with_the_one_before_it(volume):
    assert says("eval") == "./lab report spatial-random-1 --serve", "no other run of its suite"
    os.utime(volume / "runs" / "goal-random-1" / "config.json", (9, 9))
    assert says("eval") == "./lab compare goal-oracle-1 goal-random-1"


def test_next_command_is_printed_on_terminals_only():
    command = [str(paths.ROOT / "lab"), "down"]
    assert show(command).text.splitlines()[-1].startswith("lab: next: ./lab up")
    assert "next:" not in show([*command, "--dry-run"]).text
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "next:" not in done.stderr + done.stdout
