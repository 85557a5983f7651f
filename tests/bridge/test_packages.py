"""Against openpi's and vla-eval's own packages from the index, each in an environment of its own, both ways."""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from services.bridge.__main__ import Bridge
from tests.libero.harness import ENVIRONMENT, wait_for
from tests.running import running
from vla_contract import Observation, PolicyClient, PolicyUnavailable
from vla_evaluation.pictures.transforms import resize_with_pad

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
UV = ROOT / ".venv" / "bin" / "uv"
OPENPI = ("openpi-client==0.1.2", "typing_extensions")  # which it imports and does not name
VLA_EVAL = ("vla-eval==0.8.0",)
TOKEN = "token-1234"
pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(not UV.exists(), reason="the lab's own environment, and uv in it, is not made here (./lab)"),
]


def environment(directory: Path, packages: tuple[str, ...]) -> Path:
    """Returns the interpreter of an environment with those packages."""
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, directory], check=True, timeout=120)
    python = directory / "bin" / "python"
    install = [UV, "pip", "install", "-q", "--python", python, *packages]
    done = subprocess.run(install, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"{packages[0]} could not be had: {done.stderr.strip()[-300:]}")
    return python


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> Path:
    """The interpreter of an environment with openpi's client package."""
    return environment(tmp_path_factory.mktemp("openpi") / "venv", OPENPI)


@pytest.fixture(scope="module")
def harness(tmp_path_factory) -> Path:
    """The interpreter of an environment with vla-eval."""
    return environment(tmp_path_factory.mktemp("vla-eval") / "venv", VLA_EVAL)


class Zeros:
    """openpi_server.py, or another script that writes such a log, as a process."""

    def __init__(self, python: Path, log: Path, *options: str, script: str = "openpi_server.py"):
        command = [python, HERE / script, "--log", log, *options]
        self.log, self.process = log, subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.port = int(wait_for(lambda: re.match(r"(\d+)\n", self.hello()), f"the port of {script}")[1])

    def hello(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def observations(self) -> list[dict]:
        return [json.loads(line) for line in self.hello().splitlines()[1:]]

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait(30)


def test_an_episode_is_played_with_openpis_server_which_dies_and_comes_back(theirs, libero_kit, tmp_path):
    """`./lab eval SUITE --policy ws://…`: the bridge is started, loses its server in mid-run, and waits for it."""
    volume = tmp_path / "volume"
    volume.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLALAB_", "PYTHON"))}
    variables = {**kept, "VLALAB_VOLUME": str(volume), "VLALAB_STATE": str(tmp_path / "state")}
    with Zeros(theirs, tmp_path / "first.txt", "--dies-at", "5") as first:
        url = f"ws://127.0.0.1:{first.port}"
        command = [
            "./lab", "eval", "libero_spatial", "--tasks", "0", "--episodes", "0-1", "--max-steps", "10", "--workers",
            "1", "--video", "none", "--runtime", "local", "--assets", str(libero_kit), "--policy", url,
        ]  # fmt: skip
        with open(tmp_path / "eval.txt", "w") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            assert first.process.wait(240) == 3
            with Zeros(theirs, tmp_path / "second.txt", "--port", str(first.port)) as second:
                code = process.wait(240)
                after = second.observations
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
    said = (tmp_path / "eval.txt").read_text()
    assert code == 0, said
    assert f"policy at {url}, through a bridge" in said and "success rate 0.0 % (0/2)" in said
    (run,) = (volume / "runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert run.name == "libero_spatial-openpi-1" and summary["episodes"] == 2
    identity = summary["provenance"]
    assert (identity["profile"], identity["execute"], identity["seed"]) == ("openpi", 5, 7)
    assert identity["protocol"]["resize"] == "bilinear-pad"
    assert identity["policy"]["horizon"] == 10 and "reset_pose" in identity["policy"]["details"]["metadata"]
    played = [one for one in (*first.observations, *after) if one["prompt"] != "do something"]
    assert len(played) >= 4
    for one in played:
        assert one == {
            "observation/image": ["uint8", [224, 224, 3]],
            "observation/wrist_image": ["uint8", [224, 224, 3]],
            "observation/state": ["float64", [8]],
            "prompt": "pick up the black bowl between the plate and the ramekin and place it on the plate",
        }


@pytest.fixture(scope="module")
def libero_kit() -> Path:
    """The asset kit on this machine's volume, made if needed."""
    from services.libero.assets.sources import ensure_kit
    from vla_common.volume import Volume

    return ensure_kit(Volume().root).path


@contextlib.contextmanager
def served(directory: Path, **variables: str):
    """A random policy of the lab, for other projects' clients; yields host and port."""
    processes = []

    def start(name: str, *words: str) -> str:
        log = directory / f"{name}.txt"
        with open(log, "w") as output:
            command = [sys.executable, "-m", *words, "--port", "0"]
            processes.append(
                subprocess.Popen(command, cwd=ROOT, env={**ENVIRONMENT, **variables}, stdout=output, stderr=output)
            )
        return wait_for(
            lambda: re.search(r"listening on \w+://(127\.0\.0\.1:\d+)", log.read_text()),
            f"the start of {name}",
            ended=lambda: "" if processes[-1].poll() is None else log.read_text(),
        )[1]

    try:
        policy = start("random", "services.libero.policies", "random", "--horizon", "5")
        yield start("openpi", "services.bridge", "openpi", "--policy-url", f"http://{policy}").split(":")
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            assert process.wait(30) is not None


def test_openpis_client_is_answered_by_a_policy_of_the_lab(theirs, tmp_path):
    with served(tmp_path, VLALAB_TOKEN=TOKEN) as (host, port):
        asked = [theirs, HERE / "openpi_asks.py", host, port, TOKEN]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        came = json.loads(done.stdout)
        refused = subprocess.run([*asked[:-1], "wrong-key"], capture_output=True, text=True, timeout=60)
        assert refused.returncode != 0 and "401" in refused.stderr
    assert came["metadata"] == {"policy": "random", "action_horizon": 5, "action_dim": 7}
    assert came["dtype"] == "float32" and came["shape"] == [5, 7] and came["timing"] == ["infer_ms"]
    actions = np.array(came["actions"])
    assert (np.abs(actions) <= 1).all() and set(np.unique(actions[:, 6])) <= {-1.0, 1.0}
    assert "'prompt' is missing" in came["refused"]
    ours = []
    for shape in ((256, 256, 3), (240, 320, 3), (331, 97, 3), (224, 224, 3), (64, 64, 3)):  # as in openpi_asks.py
        image = np.random.default_rng(shape[0]).integers(0, 256, shape, np.uint8)
        ours.append(hashlib.sha256(resize_with_pad(image, 224).tobytes()).hexdigest())
    assert ours == came["resized"]


def test_a_model_server_of_vla_evals_is_a_policy_here(harness, tmp_path):
    """Known by its probe, asked on a connection for each episode, of whose chunk it hands out one action a step."""
    with (
        Zeros(harness, tmp_path / "log.txt", script="vla_eval_server.py") as server,
        running(Bridge(server=f"ws://127.0.0.1:{server.port}").connected) as service,
        PolicyClient(service.url, retries=0) as client,
    ):
        info = client.info()
        draw = np.random.default_rng(0)
        shown = {name: draw.integers(0, 256, (256, 256, 3), np.uint8) for name in info.cameras}
        first = Observation(shown, np.linspace(0, 0.7, 8, dtype=np.float32), "lift", "r.0.0.0.a", 0)
        got = {"a": [], "b": []}
        for step in range(6):
            for name in got if step < 3 else "a":
                one = dataclasses.replace(first, session=f"r.0.0.0.{name}", step=step)
                got[name].append(client.act(one).actions)
        with pytest.raises(PolicyUnavailable, match="failed: .*out of memory"):
            client.act(dataclasses.replace(first, session="r.0.0.0.c", instruction="break"))
        asked = server.observations
    assert (info.name, info.profile, info.stateful) == ("vla-eval", "vla-eval", True)
    assert info.cameras == ("agentview", "robot0_eye_in_hand")
    chunks = [[0.0, 0.0], [0.0, 0.1], [0.0, 0.2], [0.0, 0.3], [0.04, 0.0], [0.04, 0.1]]
    wanted = np.zeros((6, 1, 7), np.float32)
    wanted[:, 0, :2], wanted[:, 0, 6] = chunks, 1.0
    assert np.array_equal(np.array(got["a"]), wanted) and np.array_equal(np.array(got["b"]), wanted[:3])
    told = [one for one in asked if one["sentence"] == "lift"]
    assert [one["step"] for one in told] == [0, 0, 4]  # both episodes' chunks, and the first one's next
    for one in told:
        corners = {"agentview": shown["agentview"], "wrist": shown["robot0_eye_in_hand"]}
        assert one["images"] == {key: ["uint8", [256, 256, 3], int(it[0, 0, 0])] for key, it in corners.items()}
        assert one["states"] == ["float64", [8]]


def test_vla_evals_runner_is_answered_by_a_policy_of_the_lab(harness, tmp_path):
    with served(tmp_path) as (host, port):
        asked = [harness, HERE / "vla_eval_asks.py", f"ws://{host}:{port}/vla-eval"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    came = json.loads(done.stdout)
    assert [one["metrics"]["success"] for one in came["results"]] == [True, True]
    assert [one["steps"] for one in came["results"]] == [7, 7]
    actions = np.array(came["actions"])
    assert (
        actions.shape == (2, 7, 7) and (np.abs(actions) <= 1).all() and set(np.unique(actions[..., 6])) <= {-1.0, 1.0}
    )
    assert "'task_description' is missing" in came["refused"]
    assert (came["told"]["model_server"], came["told"]["protocol_version"]) == ("random", 1)
