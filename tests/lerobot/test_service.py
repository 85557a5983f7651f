"""The program: answers over HTTP equal LeRobot's own, and /v1/info says what the checkpoint was trained on."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from services.lerobot.reference import Reference, random_observation
from tests.ports import free_ports
from vla_contract import PolicyClient


def test_answers_over_http_equal_lerobots_and_info_states_the_checkpoint(checkpoints, tmp_path):
    directory, (port,) = checkpoints("act"), free_ports(1)
    command = [sys.executable, "-m", "services.lerobot", "--checkpoint", str(directory), "--port", str(port)]
    process = subprocess.Popen([*command, "--device", "cpu"], env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        with PolicyClient(f"http://127.0.0.1:{port}") as client:
            client.wait_ready(240)
            info = client.info()
            keys = ("observation.images.image", "observation.images.image2")
            reference = Reference(directory, dict(zip(keys, info.cameras, strict=True)), tmp_path / "reference")
            observation = random_observation(info, "session", 0)
            actions = client.act(observation).actions
            expected = [reference.act(random_observation(info, "session", step)) for step in range(info.horizon)]
            np.testing.assert_allclose(actions, expected, atol=1e-6)  # the program may use other threads
    finally:
        process.terminate()
        assert process.wait(90) in (0, -signal.SIGTERM)
    assert (info.name, info.horizon, info.stateful, info.profile) == ("lerobot-act", 8, False, "lerobot")
    assert info.cameras == ("agentview", "robot0_eye_in_hand") and info.state_size == 8
    expected = {"type": "act", "chunk_size": "16", "trained_images": "agentview 96 x 96, robot0_eye_in_hand 96 x 96"}
    assert expected.items() <= info.details.items()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ((), "./lab checkpoint lerobot"),
        (("--checkpoint", "nothing"), "checkpoint 'nothing' not found"),
        (("--checkpoint", ".", "--cameras", "image"), "expected KEY=CAMERA"),
    ],
)  # fmt: skip
def test_wrong_flags_are_reported_before_the_port_opens(tmp_path, flags, text):
    variables = {**os.environ, "VLALAB_VOLUME": str(tmp_path)}
    command = [sys.executable, "-m", "services.lerobot", *flags]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert text in " ".join(done.stderr.replace("│", " ").split())
