"""What a task says at its end: the next useful command, to people only."""

import os
import re
import subprocess
from types import SimpleNamespace

import pytest

import tasks
from tests.screen import show
from vlalab.commands import programs
from vlalab.host import paths
from vlalab.runtimes import both
from vlalab.tasks import following

TASKS = {task.name: task for group in tasks.GROUPS.values() for task in group}
GIVEN = {
    "run": "latest", "names": ["ui", "oracle"], "model": "openvla", "lab": "transformer", "name": None,
    "a": "x", "b": "latest",
    "venvs": False, "benchmark": "sim", "quick": True, "check": False, "sentence": "A door.", "pictures": False,
    "source": "goal", "policy": "oracle", "dataset": "goal", "env": "gr00t", "suite": "libero_goal",
    "hosts": [],
}  # fmt: skip


def test_every_task_has_a_next_command_and_it_is_a_task():
    assert following.AFTER.keys() == TASKS.keys()
    for name, after in following.AFTER.items():
        line = after if isinstance(after, str) else after(GIVEN)
        found = re.match(r"\./lab (\w+)( |$)", line)
        assert found and found[1] in TASKS and "(" not in line, f"{name}: {line}"
        flags = {f"--{flag.name}" for flag in TASKS[found[1]].flags}
        assert set(re.findall(r"--[\w-]+", line)) <= flags, f"{name}: {line}"


@pytest.mark.parametrize(
    ("task", "given", "says"),
    [
        ("up", {"names": ["oracle"]}, "./lab eval libero_goal --policy oracle"),
        ("up", {"names": ["ui"]}, "./lab status"),
        ("train", {"lab": "diffusion", "name": "mine"}, "./lab sample diffusion --name mine"),
        ("finetune", {"model": "gr00t", "name": "cups"}, "./lab up gr00t --checkpoint cups"),
        ("train", {"lab": "minivla", "name": "mine"}, "./lab eval libero_object --policy minivla"),
        ("train", {"lab": "gpt", "name": "mine"}, "./lab tensorboard"),
    ],
)
def test_it_fits_what_was_done(task, given, says):
    assert following.AFTER[task](given) == says


@pytest.fixture
def volume(tmp_path, monkeypatch):
    for at, name in enumerate(("goal-oracle-1", "goal-random-1", "spatial-random-1")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.sqlite").touch()
        (folder / "config.json").touch()
        os.utime(folder / "config.json", (at, at))
    for at, name in enumerate(("older", "newer")):
        folder = tmp_path / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"model_type": "openvla"}')
        (folder / "model.safetensors").touch()
        os.utime(folder, (at, at))
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path))
    return tmp_path


def says(task, **given):
    after = following.AFTER[task]
    return after if isinstance(after, str) else after(given)


def test_it_names_the_runs_and_models_that_are_there(volume):
    assert says("eval") == "./lab report spatial-random-1 --serve", "no other run of its suite"
    os.utime(volume / "runs" / "goal-random-1" / "config.json", (9, 9))
    assert says("eval") == "./lab compare goal-oracle-1 goal-random-1"
    assert says("runs") == "./lab report goal-random-1 --serve"
    assert says("checkpoint", model="openvla", name=None) == "./lab up openvla --checkpoint newer"
    assert says("verify", model="openvla", checkpoint="older") == "./lab up openvla --checkpoint older"


def test_it_names_what_was_given():
    assert says("report", run="goal-oracle-1", serve=False) == "./lab report goal-oracle-1 --serve"
    assert says("report", run="/somewhere/else", serve=False) == "./lab runs", "the service shows the volume's alone"
    assert says("verify", model="openvla", checkpoint="/my models/a") == "./lab up openvla --checkpoint '/my models/a'"
    assert says("sample", lab="diffusion", name="mine") == "./lab score diffusion --name mine"
    assert says("bundle", words="libero,lab.tar") == "./lab restore lab.tar"
    assert says("env", names=["ws_mdl"]) == "./lab up ws_mdl"
    assert says("build", names=["openvla"]) == "./lab up openvla --runtime docker"


def test_it_leads_on_from_what_was_done(volume):
    assert says("compare", a="goal-oracle-1", b="goal-random-1") == "./lab report goal-random-1 --serve"
    assert says("compare", a="goal-oracle-1", b="/somewhere/else") == "./lab runs"
    again = "./lab translate 'It'\"'\"'s open.' --name mine --pictures"
    assert says("translate", sentence="It's open.", name="mine", pictures=False) == again
    assert says("translate", sentence="It's open.", name="mine", pictures=True) == "./lab tensorboard"
    assert says("score", lab="diffusion", name="mine") == "./lab sample diffusion --name mine --compare"
    assert says("clean", venvs=True) == "./lab env libero"
    assert says("clean", venvs=False) == "./lab clean --venvs --dry-run"
    assert says("lock", names=["ui"], check=False) == "./lab env ui"
    assert says("lock", names=["host"], check=False) == says("lock", names=["ui"], check=True) == "./lab test --quick"
    assert says("bench", benchmark="wire", quick=True) == "./lab bench wire"
    first, last = programs.benchmarks()[0], programs.benchmarks()[-1]
    assert says("bench", benchmark=last, quick=False) == f"./lab bench {first}"


def instance(url, log=""):
    return SimpleNamespace(service="ws_mdl", url=url, is_healthy=lambda: True, last_words=lambda lines: log)


def test_what_a_browser_shows_is_opened_and_the_command_or_address_is_all_of_it(monkeypatch, volume):
    notebooks = instance("http://127.0.0.1:8888", "at http://127.0.0.1:8888/lab?token=abc\n")
    up = {"ws_mdl": notebooks}
    monkeypatch.setattr(both, "find", up.get)
    assert says("notebook", env="ws_mdl") == "open http://127.0.0.1:8888/lab?token=abc"
    assert says("leaderboard") == "./lab up ui"
    up["ui"], up["tensorboard"] = instance("http://127.0.0.1:7860"), instance("http://127.0.0.1:6006")
    assert says("up", names=["oracle", "ui"]) == "open http://127.0.0.1:7860"
    assert says("report", run=None, serve=True) == "open http://127.0.0.1:7860"
    assert says("tensorboard") == "open http://127.0.0.1:6006"
    assert says("eval") == "open http://127.0.0.1:7860/runs/spatial-random-1"
    assert says("report", run="goal-oracle-1", serve=False) == "open http://127.0.0.1:7860/runs/goal-oracle-1"
    assert says("report", run="latest", serve=False) == "open http://127.0.0.1:7860/runs/spatial-random-1"
    pair = {"a": "goal-oracle-1", "b": "goal-random-1"}
    assert says("compare", **pair) == "open http://127.0.0.1:7860/runs/compare?a=goal-oracle-1&b=goal-random-1"
    assert says("leaderboard") == "open http://127.0.0.1:7860/runs/leaderboard"


def test_services_lead_to_what_can_be_done_with_them(monkeypatch):
    well, ill = instance("http://127.0.0.1:9"), SimpleNamespace(is_healthy=lambda: False)
    up = {"oracle": well, "simulator": well, "random": ill}
    monkeypatch.setattr(both, "find", up.get)
    assert says("down", names=["oracle", "ui", "oracle-4711"]) == "./lab up oracle ui"
    assert says("restart", names=["oracle"]) == "./lab eval libero_goal --policy oracle"
    assert says("logs", name="oracle") == "./lab eval libero_goal --policy oracle"
    assert says("logs", name="simulator") == "./lab status"
    assert says("logs", name="random") == "./lab restart random"
    assert says("logs", name="openvla") == "./lab up openvla"
    assert says("logs", name="oracle-4711") == "./lab status", "a private policy's log, kept"


def test_an_empty_volume_leads_to_the_first_evaluation(tmp_path, monkeypatch):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path))
    assert says("runs") == following.EVALUATE


def test_a_person_is_told_and_a_script_is_not():
    command = [str(paths.ROOT / "lab"), "down"]
    assert show(command).text.splitlines()[-1] == "lab: next: ./lab up oracle", "since nothing is up"
    assert "next:" not in show([*command, "--dry-run"]).text
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "next:" not in done.stderr + done.stdout
