"""A policy and a benchmark are one folder with a manifest and blocks in compose.yaml; no other file changes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vlalab.host.paths import ROOT

MANIFEST = """
services:
  toy:
    about: an arm of six joints
    model:
      type: toy
      checkpoints: {tabletop_easy: toy-easy}
      published: services/toy/__main__.py
      getter: services.toy.weights
      settings: [services/toy/__main__.py:Settings]
    variables: {VLALAB_TOY_SPEED: of the arm}
  tabletop:
    about: evaluates a policy on Tabletop
    benchmark:
      title: Tabletop
      suites: [tabletop_easy, tabletop_hard]
      episodes: 7
      cameras: [overhead]
      profiles: [openvla]
      fallback: toy
"""
PROGRAM = '''"""A toy."""

PUBLISHED = {"tabletop_easy": "someone/toy-easy"}


class Settings:
    """Its settings."""

    checkpoint: str = ""
    speed: str = ""
'''
BLOCKS = """
  toy:
    <<: *service
    labels: {vla-lab.role: policy}
    command: [python, -m, services.toy, --host, "${VLALAB_LISTEN:-0.0.0.0}", --port, "${VLALAB_TOY_PORT:-8123}"]
    environment:
      <<: *environment
      VLALAB_TOY_CHECKPOINT: ${VLALAB_TOY_CHECKPOINT:-}
      VLALAB_TOY_SPEED: ${VLALAB_TOY_SPEED:-}
    mem_limit: ${VLALAB_TOY_MEMORY:-0}
    ports: ["${VLALAB_BIND:-127.0.0.1}:${VLALAB_TOY_PORT:-8123}:${VLALAB_TOY_PORT:-8123}"]
    healthcheck:
      <<: *health
      test: [CMD, python, -m, vla_common.healthcheck, "http://127.0.0.1:${VLALAB_TOY_PORT:-8123}/readyz"]

  tabletop:
    <<: *service
    labels: {vla-lab.role: job}
    profiles: [jobs]
    restart: "no"
    command: [python, -m, services.toy.evaluate]
    environment: *environment
    mem_limit: ${VLALAB_TABLETOP_MEMORY:-0}
"""


def left_out(directory: str, names: list[str]) -> set[str]:
    """Return the names of a folder that are no part of the copy: what is built or stored, not written."""
    built = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".pytest_cache", ".ruff_cache", ".cache")
    return built(directory, names) | ({"volume"} if Path(directory) == ROOT / "shared" else set())


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A copy of this tree with one folder and two blocks more."""
    copy = tmp_path_factory.mktemp("clone") / "lab"
    shutil.copytree(ROOT, copy, ignore=left_out, symlinks=True)
    (copy / "shared" / "volume").mkdir(exist_ok=True)
    directory = copy / "services" / "toy"
    directory.mkdir()
    (directory / "__init__.py").touch()
    (directory / "__main__.py").write_text(PROGRAM)
    for name in ("weights", "evaluate"):
        (directory / f"{name}.py").write_text('"""A toy."""\n')
    (directory / "manifest.yaml").write_text(MANIFEST)
    (copy / "tests" / "toy").mkdir()
    (copy / "tests" / "toy" / "test_toy.py").write_text('"""A toy."""\n\n\ndef test_it():\n    assert True\n')
    with (copy / "compose.yaml").open("a") as file:
        file.write(BLOCKS)
    return copy


CASES = [
    (
        ["eval", "tabletop_easy", "--runtime", "local", "--dry-run"],
        "services.toy.evaluate tabletop_easy --policy-url",
    ),
    (["eval", "tabletop_easy", "--policy", "toy", "--runtime", "local", "--dry-run"], "services.toy --host"),
    (["eval", "libero_goal", "--policy", "toy", "--runtime", "local", "--dry-run"], "services.toy --host"),
    (["eval", "tabletop_esy"], "did you mean 'tabletop_easy'?"),
    (["eval", "tabletop_easy", "libero_goal"], "belong to several benchmarks"),
    (["eval", "--help"], "tabletop_hard"),
    (["up", "toy", "--runtime", "local", "--dry-run"], "services.toy --host"),
    (["up", "simulator", "--runtime", "local", "--dry-run"], "toy=http://127.0.0.1:8123"),
    (["up", "ui", "--runtime", "local", "--dry-run"], "toy=http://127.0.0.1:8123"),
    (["up", "to"], "did you mean 'toy'?"),
    (["up", "toy", "--suite", "tabletop_easy"], "./lab checkpoint toy --suite tabletop_easy"),
    (["up", "--help"], "an arm of six joints"),
    (["checkpoint", "toy", "--suite", "tabletop_easy", "--runtime", "local", "--dry-run"], "services.toy.weights"),
    (["test", "toys"], "did you mean 'toy'?"),
    (["test", "--help"], "toy"),
    (["status"], ""),
]
ALL_IN_TURN = """
import contextlib, io, json, os, sys
from tests.lab import run_lab

told = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["lab", *words]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run_lab(*words)
    told.append((code, said.getvalue()))
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(clone) -> dict[tuple[str, ...], tuple[int, str]]:
    """The exit code and the words of each case's task, all of which one process of the clone has done."""
    variables = {**os.environ, "PYTHONPATH": str(clone), "VLALAB_VOLUME": str(clone / "shared" / "volume")}
    variables["VLALAB_TOY_CHECKPOINT"] = "mine"
    command = [sys.executable, "-c", ALL_IN_TURN, json.dumps([words for words, _ in CASES])]
    done = subprocess.run(command, cwd=clone, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {tuple(words): (code, said) for (words, _), (code, said) in zip(CASES, json.loads(done.stdout), strict=True)}


@pytest.mark.parametrize(("words", "says"), CASES)
def test_tasks_know_them(told, words, says):
    code, said = told[tuple(words)]
    text = " ".join(said.split())
    assert says in text and "Traceback" not in text
    assert code == (1 if "did you mean" in says or "several" in says or "--suite" in says else 0), text


def test_files_held_against_each_other_still_agree(clone):
    """What has a table of services or suites would fail here, where nobody has edited it."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/repo"]
    done = subprocess.run(
        command, cwd=clone, env={**os.environ, "PYTHONPATH": str(clone)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]
