"""The command line: plain words, help with examples, errors in words, nothing started by a typing mistake."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.lab import run_lab
from vlalab import cli
from vlalab.cli import FOREIGN_FLAGS, TASKS
from vlalab.commands import programs
from vlalab.description import environment_file
from vlalab.engine import docker
from vlalab.host import paths
from vlalab.host.console import LabError
from vlalab.host.paths import ROOT

NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
ORDER = list(cli.TASKS)


@pytest.fixture
def told(monkeypatch, capfd):
    """Returns a function that has this process do a task, which is far cheaper than one of its own."""

    def do(*words: str, **variables: str) -> subprocess.CompletedProcess:
        for name, value in {**NO_ENGINE, **variables}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["lab", *words])
        return subprocess.CompletedProcess(words, run_lab(*words), *capfd.readouterr())

    docker._probe.cache_clear()
    yield do
    docker._probe.cache_clear()


def lab(*words: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-I", "-m", "vlalab", *words],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, env={**os.environ, **NO_ENGINE, **variables},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "name", "expected"),
    [
        (["up", "a", "b"], "names", ["a", "b"]),
        (["up", "--runtime", "local", "a"], "names", ["a"]),
        (["up", "a", "--runtime=local", "b"], "names", ["a", "b"]),
        (["up", "--dry-run", "a"], "names", ["a"]),
        (["up", "a"], "dry_run", False),
        (["train", "gpt", "--set", "a=1", "--set", "b=2"], "set", ["a=1", "b=2"]),
        (["train", "gpt", "--set=a=1,c=3", "--dry-run", "--set", "b=2"], "set", ["a=1", "c=3", "b=2"]),
        (["test", "--seed", "-1", "lint"], "seed", -1),
        (["eval", "libero_goal", "--resume"], "resume", True),
        (["bench", "sim", "--options", "--busy 2"], "options", "--busy 2"),
    ],
)
def test_words_and_flags_may_be_mixed_and_lists_typed_in_several_flags(argv, name, expected):
    task = TASKS[argv[0]]
    (flag,) = (flag for flag in task.flags if flag.name == name)
    typed = cli.Parser(task).typed(argv[1:])[name]
    assert (typed if isinstance(typed, bool) else flag.read(typed)) == expected


def test_the_list_holds_every_task_in_a_days_order():
    narrow = {"COLUMNS": "60"}  # one column
    listed = lab("--list", **narrow).stdout
    assert lab(**narrow).stdout == listed
    assert re.findall(r"(?m)^(?:\w+)? +(\w+) +\w", listed)[: len(ORDER)] == ORDER


@pytest.mark.parametrize("name", ORDER)
def test_help_describes_the_task_and_every_flag(name, capsys):
    """In this process: a hundred others would start for it."""
    shown = []
    for words in ((name, "--help"), ("help", name)):
        assert run_lab(*words) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0].startswith(f"usage: ./lab {name}")
    flags = TASKS[name].flags
    assert all(flag.help for flag in flags), flags
    assert not flags or f"./lab {name}" in shown[0].partition("\n")[2], "no example"
    assert shown[1] == shown[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["evla"], "did you mean 'eval'"),
        (["eval"], "requires SUITE (libero_spatial"),
        (["eval", "libero_gaol"], "did you mean 'libero_goal'? Known: all, libero_spatial, libero_object, libero_"),
        (["eval", "libero_goal", "--trails", "2"], "did you mean '--trials'"),
        (["eval", "libero_goal", "--policy", "orcale"], "did you mean 'oracle'"),
        (["eval", "libero_goal", "--runtime", "docker"], "--runtime local"),
        (["eval", "libero_goal", "--runtime", "dokcer"], "did you mean 'docker'"),
        (["up", "oracle", "--runtime", "docker"], "--runtime local"),
        (["up", "orcale"], "did you mean 'oracle'"),
        (["up", "oracle", "--suite", "libero_goal"], "--suite applies to gr00t, openvla, not to oracle"),
        (["up", "lerobot", "--suite", "libero_goal"], "--suite applies to gr00t, openvla, not to lerobot"),
        (["up", "oracle", "--checkpoint", "."], "--checkpoint applies to gr00t, lerobot, openvla, not to oracle"),
        (["eval", "pusht", "--suite", "libero_goal"], "give its value without a flag: libero_spatial"),
        (["eval", "pusht", "--policy", "lerobot"], "./lab checkpoint lerobot"),
        (["logs", "orcale"], "did you mean 'oracle'?"),
        (["logs", "simulator"], "./lab up simulator"),
        (["up", "openvla", "--suite", "libero_gaol"], "did you mean 'libero_goal'"),
        (["up", "openvla", "--suite", "libero_goal"], "./lab checkpoint openvla --suite libero_goal"),
        (["up", "openvla", "--checkpoint", "nowhere"], "existing: none"),
        (["up", "openvla"], "missing a checkpoint (get one: ./lab checkpoint openvla"),
        (["up", "gr00t"], "missing a checkpoint (get one: ./lab checkpoint gr00t"),
        (["eval", "libero_goal", "--policy", "openvla"], "./lab checkpoint openvla --suite libero_goal"),
        (["up", "oracle", "--gpu", "0"], "--gpu applies to openvla"),
        (["up", "ws_mdl", "--gpu", "first"], "expected auto, none, all, or numbers"),
        (["restart", "oracle"], "not running"),
        (["shell", "librero"], "did you mean 'libero'"),
        (["checkpoint", "openvl"], "did you mean 'openvla'"),
        (["up"], "Known: oracle"),
        (["down", "oracle"], "not running"),
        (["bench", "simm"], "Known:"),
        (["bench", "simulator", "--options", "--quick 'a"], "has an unclosed quote"),
        (["assets", "liberoo"], "did you mean 'libero'"),
        (["test", "hots"], "Known: all, lint"),
        (["lock", "hots", "--check"], "Known: host"),
        (["env", "liberoo"], "did you mean 'libero'"),
        (["logs", "oracle", "--lines=2", "--lines", "3"], "--lines was given more than once (the second value is '3')"),
        (["host", "setup", "--check", "--set", "gpu=no", "--set", "docker_repositry=x"], "did you mean 'docker_rep"),
    ],
)
def test_invalid_arguments_report_value_and_choices(told, words, says, tmp_path):
    done = told(*words, VLALAB_VOLUME=str(tmp_path / "volume"))
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_benchmarks_program_gets_the_flags_that_are_its_own():
    done = lab("bench", "simulator", "--options=--nothing 'one word'")
    assert done.returncode == 2 and "unrecognized arguments: --nothing one word" in done.stderr
    done = lab("bench", "simulator", "--options=--help")
    assert done.returncode == 0 and "usage: simulator.py" in done.stdout


def test_a_dry_run_prints_the_commands_and_starts_nothing(told, tmp_path):
    volume = tmp_path / "volume"
    done = told("eval", "libero_goal", "--trials", "2", "--dry-run", VLALAB_VOLUME=str(volume))
    assert done.returncode == 0
    assert "services.libero.policies oracle" in done.stdout
    assert "services.libero libero_goal --policy-url" in done.stdout
    assert done.stdout.strip().endswith("--trials 2")
    assert not volume.exists()


def test_status_of_a_quiet_machine(tmp_path):
    done = lab("status", VLALAB_VOLUME=str(tmp_path))
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("oracle", "random", "replay", "down", str(tmp_path)))


def test_a_benchmark_does_not_hide_a_package_of_its_name(monkeypatch):
    """bench/lerobot.py would be imported as LeRobot's package if benchmarks ran as scripts."""
    commands = []
    monkeypatch.setattr(programs, "supervise", lambda command, env: commands.append(command))
    monkeypatch.setattr(programs.venvs, "ensure", lambda name: SimpleNamespace(python="python"))
    monkeypatch.setattr(programs.local, "service_variables", lambda *_: {})
    programs.run_benchmark("lerobot_datasets", True, "--size 64")
    assert commands == [["python", "-m", "bench.lerobot_datasets", "--quick", "--size", "64"]]


def test_paths_are_displayed_relative_to_the_callers_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.display_path(tmp_path / "volume" / "runs") == "volume/runs"
    assert paths.display_path(tmp_path) == str(tmp_path)
    assert paths.display_path(tmp_path.parent / "other") == str(tmp_path.parent / "other")
    assert paths.caller_variables() == {"VLALAB_HERE": str(tmp_path)}


def test_directories_named_by_variables_are_made_absolute_and_keywords_are_not(tmp_path, monkeypatch):
    (tmp_path / ".env").write_text("VLALAB_VOLUME=data\n")
    (tmp_path / "compose.yaml").touch()
    monkeypatch.setattr(environment_file, "ROOT", tmp_path)
    monkeypatch.chdir("/")
    monkeypatch.setenv("VLALAB_VOLUME", "")  # so that it is put back afterwards
    monkeypatch.delenv("VLALAB_VOLUME")
    for value, settled in (("kit", "kit"), ("official", "official"), ("srv/assets", "/srv/assets"), ("", "")):
        monkeypatch.setenv("VLALAB_LIBERO_ASSETS", value)
        environment_file.load()
        assert os.environ["VLALAB_LIBERO_ASSETS"] == settled
    assert os.environ["VLALAB_VOLUME"] == str(tmp_path / "data")


@pytest.mark.parametrize("name", FOREIGN_FLAGS)
def test_a_flag_of_another_script_is_answered_with_the_labs(told, name):
    """And the answer names a task and a flag that exist."""
    typed = f"--{name.replace('_', '-')}" if len(name) % 2 else f"--{name}"
    known = {flag.flag for flag in TASKS["status"].flags}
    assert name not in known
    done = told("status", typed, "1")
    assert done.returncode == 1 and f"status has no flag '{typed}': {FOREIGN_FLAGS[name]}" in done.stderr
    named = re.findall(r"./lab ([a-z]+)", FOREIGN_FLAGS[name])
    assert set(named) <= set(TASKS)
    for flag in re.findall(r"--([a-z-]+)", FOREIGN_FLAGS[name]):
        assert all(flag in [flag.flag for flag in TASKS[task].flags] for task in named), (flag, named)


@pytest.mark.parametrize("name", environment_file.removed())
def test_a_removed_variable_that_is_set_is_an_error_with_its_replacement(name, monkeypatch):
    monkeypatch.setenv(name, "upstream")
    with pytest.raises(LabError, match=f"{name} was removed: .*; unset it"):
        environment_file.load()
    monkeypatch.setenv(name, "")
    environment_file.load()


def test_the_host_tool_needs_no_service_package():
    """numpy and its like belong to the environments; the host tool must start without them."""
    code = "import sys; from vlalab import cli; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
