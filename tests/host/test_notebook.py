"""`./lab notebook`: which service it starts, and what it runs for fresh copies."""

import shlex
import subprocess
import sys

import pytest

from vlalab.description import manifests
from vlalab.host.paths import ROOT


def lab(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-I", "-m", "vlalab", "notebook", *words, "--runtime", "local", "--dry-run"]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize("env", manifests.notebooks())
def test_it_starts_jupyterlab_in_that_environment(env):
    done = lab(env)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    python, *rest = shlex.split(line)  # a clone's path may hold a space
    assert python.endswith(f"images/{env}/.venv/bin/python")
    assert rest[:6] == ["-m", "vla_notebooks", "--of", env, "--host", "127.0.0.1"]


def test_fresh_copies_are_brought_first():
    first, second = lab("libero", "--fresh").stdout.splitlines()
    assert first.endswith("-m vla_notebooks.home libero --fresh") and "-m vla_notebooks --of libero" in second


def test_unknown_environment_is_rejected_first():
    done = lab("wsmdl")
    assert done.returncode != 0 and "did you mean 'ws_mdl'?" in done.stderr
