"""What a task says at its end: the next useful command, to people only."""

import re
import subprocess

import pytest

from tests.screen import show
from vlalab.cli import TASKS
from vlalab.host import paths


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


def test_next_command_is_printed_on_terminals_only():
    command = [str(paths.ROOT / "lab"), "down"]
    assert show(command).text.splitlines()[-1].startswith("lab: next: ./lab up")
    assert "next:" not in show([*command, "--dry-run"]).text
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "next:" not in done.stderr + done.stdout
