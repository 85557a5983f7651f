"""An application of any kind on a loopback port, in a thread of this process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from vla_contract.server import address, listen, uvicorn_config


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serves while the block runs; gives the address."""
    with listen("127.0.0.1", 0) as listener:
        config = uvicorn_config(app, "warning")
        config.timeout_graceful_shutdown = 0.1  # clients keep their connections
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while thread.is_alive() and not server.started:
            time.sleep(0.01)
        try:
            yield address(listener)
        finally:
            server.should_exit = True
            thread.join(30.0)


def nobody() -> str:
    """Returns an address where nobody answers."""
    with listen("127.0.0.1", 0) as listener:
        return address(listener)
