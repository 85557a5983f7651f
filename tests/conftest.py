"""The markers gpu and nightly: such a test is skipped, with the reason, where there is no GPU, and without --nightly.
The marker docker: tests/docker only, whose fixtures bring an engine up where they may, and say why not otherwise.
Services' ports are taken in every test.
"""

import gc
import os
import shutil
import signal
import subprocess

import pytest

from tests import ports

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What collecting makes stays to the end: the collector would look at all of it again and again, and find nothing.
gc.disable()


def pytest_collection_finish() -> None:
    """Has the collector look at what the tests make, and at that alone."""
    gc.freeze()
    gc.enable()


def _answers(command: list[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    try:
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.fixture(scope="session", autouse=True)
def ports_are_taken():
    """The services' default ports are somebody else's while tests run: one that counts on them fails everywhere."""
    with ports.taken():
        yield


NEEDS = {"gpu": (["nvidia-smi", "-L"], "no NVIDIA GPU answers on this machine")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what this machine cannot run."""
    for marker, (command, reason) in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not _answers(command):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
    if not os.environ.get("VLALAB_TEST_NIGHTLY"):
        for item in (item for item in items if item.get_closest_marker("nightly")):
            item.add_marker(pytest.mark.skip(reason="too long for every change; run: ./lab test --nightly"))
