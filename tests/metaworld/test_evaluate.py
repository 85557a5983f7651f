"""Evaluations and recordings over real HTTP: metaworld's experts, and random actions, as processes."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from services.metaworld.benchmark import BENCHMARK
from services.metaworld.datasets.config import MetaworldDatasetOptions
from services.metaworld.datasets.convert import make
from services.metaworld.profiles import PROFILES
from services.metaworld.tasks import ACTION, STATE
from vla_contract import InvalidObservation, Observation, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, OSC_POSE
from vla_datasets.checks import faults
from vla_datasets.errors import DatasetError
from vla_datasets.loader import open_dataset
from vla_evaluation import agreement
from vla_evaluation.random_policy import RandomPolicy
from vla_evaluation.recording import Demonstrations, demonstrations
from vla_evaluation.store.runstore import RunStore

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [str(ROOT), *(str(package.parent) for package in sorted((ROOT / "shared").glob("*/vla_*")))]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PACKAGES), "PYTHONUNBUFFERED": "1"}
TIMEOUT_S = 300


@contextmanager
def serving(log: Path, kind: str):
    """The address of a policy of services/metaworld, in a process of its own, while the block runs."""
    command = [sys.executable, "-m", "services.metaworld.policies", kind, "--port", "0"]
    with open(log, "w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := re.search(r"listening on (http://\S+:\d+)", log.read_text())):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield found[1]
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("oracle") / "log", "oracle") as address:
        yield address


def job(*words: str, directory: Path, code: int = 0) -> str:
    """Returns what a job of the benchmark printed."""
    command = [sys.executable, "-m", "services.metaworld", *words, "--run-dir", str(directory)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def outcomes(directory: Path) -> dict:
    with RunStore(directory / "run.sqlite", readonly=True) as store:
        keys = ("start_hash", "end_hash", "actions_hash")
        return {(f.task, f.episode): (f.success, f.steps, *(f.result[key] for key in keys)) for f in store.finished()}


def test_the_experts_solve_tasks_of_a_suite_and_a_video_is_drawn(oracle, tmp_path):
    flags = ("metaworld_mt10", "--tasks", "reach-v3,drawer-close-v3", "--profile", "minivla", "--policy-url", oracle)
    said = job(*flags, "--trials", "2", "--workers", "2", "--video", "none", "--run-id", "two", directory=tmp_path)
    assert "success rate 100.0 % (4/4)" in said
    first = outcomes(tmp_path / "two")
    assert set(first) == {(0, 0), (0, 1), (5, 0), (5, 1)}
    film = ("--episodes", "1", "--workers", "1", "--video", "all", "--run-id", "one")
    job(*flags[:2], "drawer-close-v3", *flags[3:], *film, directory=tmp_path)
    again = outcomes(tmp_path / "one")
    assert again == {(5, 1): first[5, 1]}, "whichever worker ran it, after whichever episodes"
    assert (tmp_path / "one" / "videos" / "05-01.mp4").stat().st_size > 1000
    identity = json.loads((tmp_path / "one" / "config.json").read_text())
    assert identity["benchmark"] == "Meta-World" and identity["control_hz"] == 80
    assert identity["versions"]["metaworld"] == "3.1.1" and identity["assets"]["kind"] == "package"


def test_random_actions_over_http_end_at_the_limit(tmp_path):
    with serving(tmp_path / "log", "random") as address:
        flags = ("--tasks", "4", "--trials", "1", "--max-steps", "20", "--video", "none", "--run-id", "floor")
        said = job("metaworld_mt10", "--policy-url", address, *flags, "--profile", "minivla", directory=tmp_path)
    assert "success rate 0.0 % (0/1)" in said
    assert outcomes(tmp_path / "floor")[4, 0][:2] == (False, 20)


def test_demonstrations_are_recorded_and_become_a_data_set(oracle, tmp_path, monkeypatch):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path))
    words = ("metaworld_mt10", "--policy-url", oracle, "--tasks", "5", "--episodes", "1", "--name", "shown")
    said = job("record", *words, directory=tmp_path / "demonstrations")
    assert "shown: 1 demonstration from" in said
    found = Demonstrations(tmp_path / "demonstrations" / "shown", render="cpu")
    (one,) = found.episodes
    assert (found.rate_hz, found.action, found.state) == (80.0, ACTION, STATE)
    assert one.instruction == "Push and close a drawer" and one.states.shape == (one.steps, 4)
    assert np.abs(one.actions).max() <= 1 and one.actions.shape == (one.steps, 4)
    made = make(MetaworldDatasetOptions("shown", size=32, workers=1, render="cpu"))
    assert faults(made) == []
    data = open_dataset(made)
    assert (data.fps, data.video_keys, data.source["turned_180"]) == (80, ("observation.image",), False)
    assert np.array_equal(data.columns(0)["action"], one.actions)
    assert np.array_equal(data.columns(0)["observation.state"], one.states)
    env = demonstrations.renderer(
        one.source, 32
    ).env  # where the set's pictures were drawn: the episode's scene is there
    env.show(one.views[-1])
    drawn, film = env.render("corner2").astype(int), data.frames(0, "observation.image")[-1].astype(int)
    ways = {"upright": drawn[::-1], "drawn": drawn, "turned": drawn[::-1, ::-1], "mirrored": drawn[:, ::-1]}
    off = {way: np.abs(film - images).mean() for way, images in ways.items()}  # a film this small loses some
    assert min(off, key=off.get) == "upright" and off["upright"] < min(off[way] for way in ways if way != "upright") / 2
    with pytest.raises(DatasetError, match="already exists"):
        make(MetaworldDatasetOptions("shown", size=32))


@pytest.mark.parametrize(
    ("flags", "says"),
    [({"format": "hdf5"}, "use lerobot"), ({"cameras": "agentview"}, "not found"), ({"size": 33}, "even number")],
)
def test_a_data_set_that_cannot_be_is_refused(flags, says):
    with pytest.raises(ValueError, match=says):
        MetaworldDatasetOptions("shown", **flags)


def test_a_policy_for_another_robot_is_refused():
    panda = PolicyInfo("panda", action=(*OSC_POSE, GRIPPER_CLOSES))
    with pytest.raises(ValueError, match=r"position delta \[3\] \(unit 0.05 m.*\(unit 0.01 m"):
        agreement.check_policy(panda, BENCHMARK, "metaworld_mt10", PROFILES["lerobot"], False)


def test_experts_refuse_what_is_not_a_state_of_meta_world():
    from services.metaworld.oracle import OraclePolicy

    oracle, good = OraclePolicy(), OraclePolicy().example()
    bad = [
        (None, "must have 'task'"),
        ({"task": "reach-v2", "observation": np.zeros(39)}, "did you mean 'reach-v3'"),
        ({"task": "reach-v3", "observation": np.zeros(7)}, "must be 39"),
        ({"task": "reach-v3", "observation": [0.0] * 39}, "must be 39"),
        ({"task": "reach-v3", "observation": np.full(39, np.nan)}, "must be 39"),
    ]
    asked = [Observation({}, None, "x", "s", 0, privileged=told) for told, _ in bad]
    *refused, answer = oracle.act([*asked, good])
    for error, (_, words) in zip(refused, bad, strict=True):
        assert isinstance(error, InvalidObservation) and words in str(error)
    assert answer.actions.shape == (1, 4) and np.abs(answer.actions).max() <= 1


def test_random_actions_of_an_unknown_range_are_refused():
    with pytest.raises(ValueError, match=r"position \[3\] .*; set its low and high"):
        RandomPolicy("random", STATE)


def test_random_actions_follow_from_seed_episode_and_step_alone():
    def acted(seed: int = 0, session: str = "run.0.1.2.a", step: int = 3) -> np.ndarray:
        return RandomPolicy("random", ACTION, seed).act([Observation({}, None, "x", session, step)])[0].actions

    assert np.array_equal(acted(), acted(session="other.0.1.5.b")) and acted().shape == (1, 4)
    for other in (acted(seed=1), acted(session="run.0.2.2.a"), acted(step=4)):
        assert not np.array_equal(acted(), other)


# --- packages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "version", "expected"),
    [("metaworld", "2.0.0", r"metaworld 2\.0\.0 is installed.*needs 3.*lock: 3\.1\.1"),
     ("mujoco", "2.3.7", r"mujoco 2\.3\.7 is installed.*needs 3.*lock: 3\.3\.0"),
     ("mujoco", "3.9.0", r"warning: .*mujoco 3\.9\.0 \(lock: 3\.3\.0\)")],
)  # fmt: skip
@pytest.mark.parametrize("program", ["evaluator", "oracle"])
def test_other_packages_than_the_locks_are_named_first(program, package, version, expected, tmp_path):
    about = tmp_path / f"{package}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    command = {
        "evaluator": ["services.metaworld", "metaworld_mt10", "--policy-url", "http://127.0.0.1:1"],
        "oracle": ["services.metaworld.policies", "oracle", "--host", "203.0.113.1"],
    }[program]
    command += ["--policy-timeout-s", "1"] if program == "evaluator" else []
    variables = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(tmp_path), *PACKAGES])}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    first = (done.stdout + done.stderr).splitlines()[0]
    assert done.returncode != 0 and re.search(expected, first), done.stdout + done.stderr
    assert re.search(r"\./lab (env|build) metaworld", first)
