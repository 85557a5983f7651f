"""For tests: a real server on a loopback port that the system chose, in a thread of this process."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI

from vla_contract.client.client import PolicyClient
from vla_contract.protocol.types import Policy
from vla_contract.server.app import create_app
from vla_contract.server.serving import address, listen, uvicorn_config


@dataclass(frozen=True)
class Running:
    """A service that runs: its address and its application."""

    url: str
    app: FastAPI


@contextmanager
def running(policy: Policy | Callable[[], Policy], wait: bool = True, port: int = 0, **settings) -> Iterator[Running]:
    """Serves a policy while the block runs; `settings` are those of `create_app`. port 0: any free one.

    wait: enter the block only when the policy is ready. Raises PolicyUnavailable when it does not get so in 30 s.
    """
    app = create_app(policy, **settings)
    with listen("127.0.0.1", port) as listener:
        config = uvicorn_config(app, "warning", has_token=settings.get("token") is not None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="uvicorn")
        thread.start()
        try:
            _until(lambda: server.started, 30.0)
            if wait:
                with PolicyClient(address(listener)) as client:
                    client.wait_ready(30.0)
            yield Running(address(listener), app)
        finally:
            server.should_exit = True
            thread.join(30.0)


def _until(condition: Callable[[], bool], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing came of it within {timeout_s:g} s")
        time.sleep(0.005)
