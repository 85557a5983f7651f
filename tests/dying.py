"""A model whose device is lost: its service's process says so and ends; a full GPU ends nothing.

What is raised are torch's own types with torch's own words. Every service is a process of its own, forked from one that
has imported torch: once for all of them.
"""

import contextlib
import multiprocessing
import time
import urllib.error
import urllib.request

import pytest
import torch

from tests.ports import free_ports
from vla_contract import PolicyClient, PolicyUnavailable
from vla_contract.server.engine import FAILURES

MOST_S = 120.0
LINGER_S = 6.0  # so that a busy machine finds the time to look
ERRORS = {
    "assert": RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronous"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`"),
    "cudnn": RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    "full": torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 15.77 GiB"),
}
LOST = sorted(set(ERRORS) - {"full"})


@contextlib.contextmanager
def service(run, log, *arguments):
    """A service's (process, client): `run(port, log, *arguments)` serves, and what it says goes into `log`."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([run.__module__])
    (port,) = free_ports(1)
    process = forks.Process(target=run, args=(port, log, *arguments))
    process.start()
    try:
        with PolicyClient(f"http://127.0.0.1:{port}", retries=0) as client:
            client.wait_ready(MOST_S)
            yield process, client
    finally:
        process.kill()
        process.join()


def readiness(client):
    """Returns status and body of /readyz, or (None, "") where nobody listens any more."""
    try:
        with urllib.request.urlopen(client.base_url + "/readyz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None, ""


def check_lost(process, client, log, kind, deadly):
    """The service becomes unready after the observation `deadly`, and ends with a line in its log."""
    with pytest.raises(PolicyUnavailable):
        client.act(deadly)
    until, status = time.monotonic() + MOST_S, 200
    while status == 200 and time.monotonic() < until:
        status, body = readiness(client)
    assert status == 503 and "policy-lost" in body and str(ERRORS[kind])[:30] in body
    process.join(MOST_S)
    assert process.exitcode == 1
    assert "does not answer any more" in log.read_text()


def check_full(process, client, deadly, harmless):
    """Requests that do not fit fail, and no others. deadly: session -> observation."""
    for index in range(2 * FAILURES):
        with pytest.raises(PolicyUnavailable):
            client.act(deadly(f"s{index}"))
        assert client.act(harmless).actions.shape[1] == 7
    for index in range(2 * FAILURES):  # and where all that come in a row are too large
        with pytest.raises(PolicyUnavailable):
            client.act(deadly(f"t{index}"))
    assert client.act(harmless).actions.shape[1] == 7
    assert readiness(client)[0] == 200 and process.is_alive()
