"""A firewall that drops packets: a hub that takes connections and never answers. It is asked once, by one process."""

import os
import socket
import subprocess
import sys
import time

import pytest

from tests import forked
from vla_modelkit import hub

LOAD = """
from services.ws_mdl.corpora.corpus import load_opus_books
from services.ws_mdl.corpora.corpus import Languages
from services.ws_mdl.diffusion import data
from vla_common.volume import Volume
for load in (lambda: data.load("mnist"), lambda: load_opus_books(Languages("en", "it"), Volume())):
    try:
        load()
    except ValueError as error:
        print(error)
"""
FETCH = """
from vla_common.volume import Volume
from vla_modelkit.checkpoint import CheckpointError
from vla_modelkit.download import fetch_data
try:
    fetch_data("me/data", "", Volume().datasets / "data")
except CheckpointError as error:
    print(error)
"""


@pytest.fixture
def silent():
    """The address of such a hub, and a function that tells how many connections were made to it since it was called."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        def connections():
            taken = []
            try:
                while True:
                    taken.append(listener.accept()[0])
            except BlockingIOError:
                return len(taken)

        yield f"http://127.0.0.1:{listener.getsockname()[1]}", connections


def lines(program, endpoint, volume):
    variables = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    variables |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(volume / "hf"), "VLALAB_VOLUME": str(volume)}
    variables["PYTHONPATH"] = forked.import_path()
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, cwd=volume, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_silent_hub_is_queried_once_for_all_data_sets_of_all_processes(silent, tmp_path):
    endpoint, connections = silent
    reason = f"(the hub does not answer ({endpoint} within 5 s)"
    mnist, books = lines(LOAD, endpoint, tmp_path)
    assert mnist.startswith(f"ylecun/mnist is not available from the hub {reason}") and "--data digits" in mnist
    assert (
        f"could not be loaded from the hub {reason}" in books and "use `--corpus default`, which needs no hub" in books
    )
    assert "hub-answer.json to check again" in lines(LOAD, endpoint, tmp_path)[0]
    assert connections() == 1


def test_a_download_that_is_typed_asks_again(silent, tmp_path):
    endpoint, connections = silent
    for _ in range(2):
        (said,) = lines(FETCH, endpoint, tmp_path)
        assert said.startswith(f"me/data was not downloaded: the hub does not answer ({endpoint} within 5 s)")
    assert connections() == 2


def test_an_answer_is_kept_an_hour_for_its_address(monkeypatch, tmp_path):
    from huggingface_hub import constants, utils

    probes = []

    class Session:
        def head(self, endpoint, timeout):
            probes.append(endpoint)

    monkeypatch.setattr(utils, "get_session", Session)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://one")
    now = time.time()
    for moment in (now, now + 3599, now + 3601):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        assert hub.unreachable() == ""
    monkeypatch.setattr(constants, "ENDPOINT", "http://two")
    assert hub.unreachable() == ""
    assert probes == ["http://one", "http://one", "http://two"]
