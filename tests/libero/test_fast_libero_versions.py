"""fast_libero against unchanged LIBERO in other versions of Python, numpy and MuJoCo, each in its own environment."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.libero.harness import ROOT

LAB = ROOT / ".venv" / "bin"
STOCK = ("hf-libero==0.1.4", "robosuite==1.4.0", "bddl==1.0.1")
TASKS = [("libero_spatial", 1), ("libero_object", 4), ("libero_goal", 3), ("libero_10", 9)]
OTHER_LIGHT = "renders LIBERO's floors darker"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A function that makes an environment and returns its interpreter. Skips where there is no such Python."""
    made = {}

    def make(python: str, *packages: str) -> Path:
        versions = (python, *packages)
        if versions in made:
            return made[versions]
        ask = f"from vlalab.environments import pythons; print(pythons.find({python!r}) or '')"
        found = subprocess.run([LAB / "python", "-c", ask], cwd=ROOT, check=True, capture_output=True, text=True)
        if not found.stdout.strip():
            pytest.skip(f"Python {python} is not installed")
        directory = tmp_path_factory.mktemp("versions") / "venv"
        interpreter = made[versions] = directory / "bin" / "python"
        install = [LAB / "uv", "pip", "install", "-q", "--python", interpreter]
        for command in (
            [LAB / "uv", "venv", "-q", "--python", found.stdout.strip(), directory],
            [*install, ROOT / "shared" / "fast_libero", *packages],
            [*install, "--no-deps", *STOCK],
        ):
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return interpreter

    return make


def nightly(*versions: str):
    return pytest.param(versions, marks=pytest.mark.nightly, id="-".join(versions))


@pytest.mark.outside
@pytest.mark.parametrize(
    "versions",
    [
        pytest.param(("3.12", "numpy==2.2.6", "mujoco==3.2.3"), id="new"),
        nightly("3.10", "numpy==1.26.4", "mujoco==3.2.3"),
        nightly("3.11", "numpy>=2", "mujoco==3.2.3"),
        nightly("3.13", "numpy==2.2.6", "mujoco==3.3.2"),  # 3.2.3 has no wheel for it; this one has its light
        nightly("3.13", "numpy>=2", "mujoco>=3.2.3"),  # the newest that the package allows
    ],
)
def test_states_and_images_are_stocks_in_the_same_versions(versions, environment, libero_assets, tmp_path, request):
    """One episode of each suite; of one suite where the test is part of every run."""
    python = environment(*versions)
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "FAST_LIBERO_ASSETS": str(libero_assets)}
    every = request.node.get_closest_marker("nightly") is not None
    for suite, task in TASKS if every else TASKS[2:3]:
        command = [python, "-m", "fast_libero.compare", suite, "--task", str(task), "--steps", "5"]
        done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        assert f"Python {versions[0]}" in done.stdout and "equal: 7 observations" in done.stdout
        mujoco = re.search(r"mujoco ([\d.]+)", done.stdout)[1]
        assert versions[2] in (f"mujoco=={mujoco}", "mujoco>=3.2.3")
        is_newer = tuple(map(int, mujoco.split("."))) >= (3, 3, 3)
        assert done.stderr.count(OTHER_LIGHT) == is_newer, done.stderr
