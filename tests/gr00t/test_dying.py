"""A model whose device is lost: its service's process says so and ends; a full GPU ends nothing."""

import multiprocessing
import socket
import time
import urllib.error
import urllib.request

import pytest

from tests.gr00t.dying_service import ERRORS, LEXICON, run
from tests.gr00t.harness import layout_of, observe
from vla_contract import PolicyClient, PolicyUnavailable
from vla_contract.server.engine import FAILURES

MOST_S = 120.0
# Every service is a process of its own, forked from one that has imported torch: once for all of them.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.gr00t.dying_service"])


@pytest.fixture
def serve(tmp_path):
    """Returns a function: kind of error -> (process, client, path of its log)."""
    processes, clients = [], []

    def start(kind):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        processes.append(FORKS.Process(target=run, args=(kind, port, tmp_path / "log")))
        processes[-1].start()
        clients.append(PolicyClient(f"http://127.0.0.1:{port}", retries=0))
        clients[-1].wait_ready(MOST_S)
        return processes[-1], clients[-1], tmp_path / "log"

    yield start
    for client in clients:
        client.close()
    for process in processes:
        process.kill()
        process.join()


def observation(instruction, session="a"):
    return observe(layout_of("libero"), instruction=instruction, session=session)


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
        client.act(observation(LEXICON))
    until, status = time.monotonic() + MOST_S, 200
    while status == 200 and time.monotonic() < until:
        status, body = readiness(client)
    assert status == 503 and "policy-lost" in body and str(ERRORS[kind])[:30] in body
    process.join(MOST_S)
    assert process.exitcode == 1
    assert "does not answer any more" in log.read_text()


def test_a_full_gpu_fails_its_requests_and_no_others(serve):
    process, client, _ = serve("full")
    for index in range(2 * FAILURES):
        with pytest.raises(PolicyUnavailable):
            client.act(observation(LEXICON, f"s{index}"))
        assert client.act(observation("open the drawer")).actions.shape == (2, 7)
    for index in range(2 * FAILURES):  # and where all that come in a row are too large
        with pytest.raises(PolicyUnavailable):
            client.act(observation(LEXICON, f"t{index}"))
    assert client.act(observation("open the drawer")).actions.shape == (2, 7)
    assert readiness(client)[0] == 200 and process.is_alive()
