"""Puts this folder and, where no PYTHONPATH does, the contract's package on the import path."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for directory in (HERE, HERE.parents[1] / "shared" / "common", HERE.parents[1] / "shared" / "contract"):
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


@pytest.fixture
def service():
    """Returns a function that starts a service and gives its address; all are stopped after the test."""
    from contextlib import ExitStack

    from tests.running import running

    with ExitStack() as stack:
        yield lambda policy, **settings: stack.enter_context(running(policy, **settings))


@pytest.fixture(params=[False, True], ids=["thread", "inline"])
def either_service(request, service):
    """Returns `service`; the test runs twice, with the policy on its own thread and on the event loop's."""
    return lambda policy, **settings: service(policy, inline=request.param, **settings)


@pytest.fixture
def client():
    """Returns a function that makes a client of an address; all are closed after the test."""
    from contextlib import ExitStack

    from vla_contract import PolicyClient

    with ExitStack() as stack:
        yield lambda url, **settings: stack.enter_context(PolicyClient(url, **settings))
