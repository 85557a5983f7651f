"""A policy family and a benchmark are one folder and one block of compose.yaml each: two toys in a copy of the tree.

Tabletop has three numbers to an action, ten steps a second, one camera that LIBERO lacks; seeker speaks of its gripper
in the other convention. Nothing else in the copy changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import pytest

from tests.host.conftest import copy_clone, with_few_packages
from vlalab.description import manifests
from vlalab.environments import venvs
from vlalab.host import paths

TOYS = Path(__file__).parent / "toys"
MADE_BY_RUNNING = (".venv", ".venv.lock", "__pycache__", "volume")


class Lab:
    """`./lab` in a copy of the tree, with a volume and a state of its own."""

    def __init__(self, directory: Path) -> None:
        self.tree, self.volume = with_few_packages(copy_clone(directory / "tree"), "uv"), directory / "volume"
        self.before = contents(self.tree)
        lend(manifests.default_environment(), self.tree)
        for name in ("seeker", "tabletop"):
            shutil.copytree(TOYS / name, self.tree / "services" / name, ignore=shutil.ignore_patterns("__pycache__"))
        with (self.tree / "compose.yaml").open("a") as file:
            file.write((TOYS / "compose.yaml").read_text())
        self.variables = {
            **os.environ,
            "VLALAB_VOLUME": str(self.volume),
            "VLALAB_STATE": str(directory / "state"),
            "DOCKER_HOST": "unix:///nonexistent",
        }
        self.variables.pop("VLALAB_TOKEN", None)

    def __call__(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [self.tree / "lab", *words], env=self.variables, capture_output=True, text=True, check=False
        )
        said = done.stderr + done.stdout
        assert done.returncode == code, f"./lab {' '.join(words)} ended with {done.returncode}:\n{said}"
        return said


def lend(name: str, tree: Path) -> None:
    """Gives a copy of the tree an environment that is made here: another of the same lock would be the same files."""
    made, lent = venvs.ensure(name, paths.ROOT), venvs.get(name, tree)
    lent.venv.mkdir()
    for path in made.venv.iterdir():
        if path.name != ".stamp":
            (lent.venv / path.name).symlink_to(path)
    (lent.venv / ".stamp").write_text(lent.stamp())


def contents(tree: Path) -> dict[str, str]:
    """Returns the hash of every file in a tree by its path, but for what running it makes."""
    files = (path for path in tree.rglob("*") if path.is_file())
    named = {path.relative_to(tree): path for path in files}
    kept = {place: path for place, path in named.items() if not set(MADE_BY_RUNNING) & set(place.parts)}
    return {str(place): hashlib.sha256(path.read_bytes()).hexdigest() for place, path in kept.items()}


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
    return Lab(tmp_path_factory.mktemp("one folder"))


@pytest.fixture(scope="module")
def said(lab) -> str:
    """What an evaluation of one toy on the other said; a policy that nobody named is the benchmark's own."""
    return lab("eval", "reach", "--video", "all", "--workers", "2", "--run-id", "toys")


def test_one_toy_is_evaluated_on_the_other(lab, said):
    assert "reach: success rate 100.0 % (8/8)" in said
    assert "policy seeker" in said
    directory = lab.volume / "runs" / "toys"
    identity = json.loads((directory / "config.json").read_text())
    assert [part["name"] for part in identity["policy"]["action"]] == ["velocity", "gripper"]
    page = (directory / "report.html").read_text()
    assert "close on the mark at the near left" in page and "close on the mark at the far right" in page
    assert len(list((directory / "videos").glob("*.mp4"))) == 8


def test_what_was_executed_is_in_the_benchmarks_convention(lab, said):
    show = "import numpy, sys; print(*numpy.load(sys.argv[1])['actions'][[0, -1], -1])"
    found = lab("shell", "libero", "--command", f"python -c \"{show}\" '{lab.volume}/runs/toys/episodes/00-00.npz'")
    assert found.split()[-2:] == ["-1.0", "1.0"], "open on the way, closed at the end; seeker itself said 1 and 0"


def test_a_video_has_the_benchmarks_rate(lab, said):
    film = lab.volume / "runs" / "toys" / "videos" / "00-00.mp4"
    show = "import av, sys; print(av.open(sys.argv[1]).streams.video[0].average_rate)"
    rate = Fraction(lab("shell", "libero", "--command", f"python -c \"{show}\" '{film}'").split()[-1])
    assert rate == 10, "as many as the benchmark has, where it has no more than a film shows"


def test_one_toy_demonstrates_on_the_other(lab, said):
    """By the benchmark's own policy, which answers in another convention than is executed; drawn as it was seen."""
    told = lab("record", "reach", "--episodes", "3", "--name", "toy-demos", "--workers", "2")
    assert "policy seeker" in told and "toy-demos: 3 demonstrations from 3 attempts" in told
    assert "toy-demos: 3 demonstrations from 3" in lab("record", "reach", "--episodes", "3", "--name", "toy-demos")
    assert "noise: 0.0 → 0.5" in lab("record", "reach", "--name", "toy-demos", "--noise", "0.5", code=2)
    assert "toy-demos" in (listed := lab("runs")) and "kept" in listed
    show = (
        "from vla_evaluation.recording import Demonstrations as D\n"
        f"d = D('{lab.volume}/demonstrations/toy-demos')\n"
        "f = d.episodes[2].frames('overhead', 64)\n"
        "print(d.rate_hz, d.episodes[2].instruction, f.shape[1:], len(f) == d.episodes[2].steps)\n"
        "print(d.episodes[0].actions[-1, -1])"
    )
    (lab.volume / "show.py").write_text(show)
    found = lab("shell", "libero", "--command", f"python '{lab.volume}/show.py'")
    assert "10.0 close on the mark at the far right (64, 64, 3) True\n1.0" in found
    assert "deleted recording toy-demos" in lab("runs", "--delete", "toy-de", "--yes")
    assert "toy-demos" not in lab("runs")


def test_what_does_not_fit_is_refused(lab, said):
    assert "velocity [2]" in lab("record", "reach", "--policy", "random", "--episodes", "2", code=2)
    other_robot = lab("eval", "libero_goal", "--policy", "seeker", "--trials", "1", code=2)
    assert "camera 'overhead', which LIBERO does not have" in other_robot
    other_policy = lab("eval", "reach", "--policy", "random", "--trials", "1", code=2)
    assert "position delta [3]" in other_policy and "velocity [2]" in other_policy


def test_the_host_tool_knows_them(lab, said):
    assert "did you mean 'seeker'" in lab("up", "seker", code=1)
    assert "did you mean 'reach'" in lab("eval", "reech", code=1)
    assert "seeker" in lab("runs")
    assert "100.0 %" in lab("report", "toys")


def test_nothing_else_had_to_change(lab, said):
    after = contents(lab.tree)
    changed = {name for name in after.keys() | lab.before.keys() if after.get(name) != lab.before.get(name)}
    assert {name for name in changed if not name.startswith(("services/seeker/", "services/tabletop/"))} == {
        "compose.yaml"
    }
