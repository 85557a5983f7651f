"""A model whose device is lost: the real service process says so and ends; a full GPU ends nothing."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.openvla.dying_service import ERRORS, GREY
from vla_contract import Observation, PolicyClient, PolicyUnavailable
from vla_contract.server.engine import FAILURES

PROGRAM = Path(__file__).with_name("dying_service.py")


@pytest.fixture
def serve(checkpoints, tmp_path):
    """Returns a function: kind of error -> (process, client, path of its log)."""
    processes, clients = [], []

    def start(kind):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        command = [sys.executable, PROGRAM, kind, "--port", port, "--device", "cpu", "--checkpoint", checkpoints()]
        with (tmp_path / "log").open("w") as log:
            processes.append(
                subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
            )
        clients.append(PolicyClient(f"http://127.0.0.1:{port}", retries=0))
        clients[-1].wait_ready(120)
        return processes[-1], clients[-1], tmp_path / "log"

    yield start
    for one in clients:
        one.close()
    for process in processes:
        process.kill()
        process.wait()


def observation(level, session="a"):
    picture = np.full((224, 224, 3), level, np.uint8)
    return Observation({"agentview": picture}, None, "go", session, 0, unnorm_key="libero_goal_no_noops")


def readiness(client):
    """Returns status and body of /readyz, or (None, "") where nobody listens any more."""
    try:
        with urllib.request.urlopen(client.base_url + "/readyz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None, ""


@pytest.mark.parametrize("kind", sorted(set(ERRORS) - {"full"}))
def test_a_lost_device_makes_the_service_unready_and_ends_it(serve, kind):
    process, client, log = serve(kind)
    with pytest.raises(PolicyUnavailable):
        client.act(observation(GREY))
    for _ in range(1000):
        status, body = readiness(client)
        if status != 200:
            break
        time.sleep(0.01)
    assert status == 503 and "policy-lost" in body and str(ERRORS[kind])[:30] in body
    assert process.wait(60) == 1
    assert "does not answer any more" in log.read_text()


def test_a_full_gpu_fails_its_requests_and_no_others(serve):
    process, client, _ = serve("full")
    for index in range(2 * FAILURES):
        with pytest.raises(PolicyUnavailable):
            client.act(observation(GREY, f"s{index}"))
        assert client.act(observation(0)).actions.shape == (1, 7)
    for index in range(2 * FAILURES):  # and where all that come in a row are too large
        with pytest.raises(PolicyUnavailable):
            client.act(observation(GREY, f"t{index}"))
    assert client.act(observation(0)).actions.shape == (1, 7)
    assert readiness(client)[0] == 200 and process.poll() is None
