"""`./lab check`: what it takes, and what it runs."""

import shlex
import subprocess
import sys

import pytest

from vlalab.commands import course
from vlalab.host import paths
from vlalab.host.paths import ROOT

LAB = [sys.executable, "-I", "-m", "vlalab", "check"]


def lab(*words: str, cwd=ROOT) -> subprocess.CompletedProcess:
    return subprocess.run([*LAB, *words, "--runtime", "local", "--dry-run"], capture_output=True, text=True, cwd=cwd)


def test_it_runs_the_grader_on_the_students_directory():
    done = lab("transformer.attention")
    assert done.returncode == 0, done.stderr
    directory = str(paths.volume() / "notebooks" / "exercises")
    words = ["lessons.exercises.check", "--directory", directory, "--name", "transformer.attention"]
    assert shlex.split(done.stdout)[-5:] == words


def test_relative_exercise_file_is_found(tmp_path):
    (tmp_path / "mine, the second.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "vlalab", "check", "vla.bins", "mine, the second.py", "--runtime", "local", "--dry-run"],
        capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "mine, the second.py") in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("transformer.atention",), "did you mean 'transformer.attention'?"),
        (("transformer.attention", "nowhere.py"), "file 'nowhere.py' not found"),
        (("vla.bins", "--all", "."), "remove vla.bins"),
        (("--all", "nowhere"), "--all 'nowhere' not found"),
    ],
)
def test_invalid_arguments_are_rejected_before_creating_an_environment(words, said):
    done = lab(*words)
    assert done.returncode != 0 and said in done.stderr


def test_help_lists_every_exercise():
    text = subprocess.run([*LAB, "--help"], capture_output=True, text=True, cwd=ROOT).stdout
    assert len(course.exercises()) > 12
    assert all(f"  {name}  " in text for name in course.exercises())
