"""What a task says at its end: the next useful command, to people only."""

import re
import subprocess

import pytest

import tasks
from tests.screen import show
from vlalab.host import paths
from vlalab.tasks import following

TASKS = {task.name: task for group in tasks.GROUPS.values() for task in group}
GIVEN = {"names": ["ui", "oracle"], "model": "openvla", "lab": "transformer", "name": None}


def test_every_task_has_a_next_command_and_it_is_a_task():
    assert following.AFTER.keys() == TASKS.keys()
    for name, after in following.AFTER.items():
        line = after if isinstance(after, str) else after(GIVEN)
        found = re.match(r"\./lab (\w+)( |$)", line)
        assert found and found[1] in TASKS, f"{name}: {line}"
        flags = {f"--{flag.name}" for flag in TASKS[found[1]].flags}
        assert set(re.findall(r"--[\w-]+", line)) <= flags, f"{name}: {line}"


@pytest.mark.parametrize(
    ("task", "given", "says"),
    [
        ("up", {"names": ["oracle"]}, "./lab eval libero_goal --policy oracle"),
        ("up", {"names": ["ui"]}, "./lab status"),
        ("train", {"lab": "diffusion", "name": "mine"}, "./lab sample diffusion --name mine"),
    ],
)
def test_it_fits_what_was_done(task, given, says):
    assert following.AFTER[task](given) == says


def test_a_person_is_told_and_a_script_is_not():
    command = [str(paths.ROOT / "lab"), "down"]
    assert show(command).text.splitlines()[-1] == "lab: next: ./lab status"
    assert "next:" not in show([*command, "--dry-run"]).text
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "next:" not in done.stderr + done.stdout
