"""The program: a benchmark's simulator, served. Each benchmark has a module that calls `main` with it."""

from __future__ import annotations

import logging
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tyro
import uvicorn

from vla_common.serving import Serving
from vla_contract.server.auth import TokenCheck, token_for
from vla_contract.server.serving import address, listen, uvicorn_config
from vla_evaluation import provenance
from vla_evaluation.benchmark import Benchmark
from vla_evaluation.live.app import Limits, Sessions, create_app

log = logging.getLogger("vla_evaluation.live")


@dataclass(frozen=True)
class Server(Serving):
    """A simulator to look at and to drive, over HTTP: a process for each session.

    $VLALAB_TOKEN, when set, is asked for and sent to policies; it must be set where the network reaches the service.
    """

    port: int = 8006  # 0: any free one, named in the log
    policies: str = ""  # name=URL, with commas between them: the only policies that sessions may ask
    sessions: int = 8  # at once
    idle_s: float = 120.0  # without a request, until a session is closed
    undriven_s: float = 1800.0  # looked at, but with nothing done, until it is closed
    memory_gb: float = 4.0  # of one session's process

    def limits(self) -> Limits:
        """Returns what sessions may take."""
        return Limits(self.sessions, self.idle_s, self.undriven_s, self.memory_gb)


def read_policies(text: str) -> dict[str, str]:
    """Returns addresses by name. ValueError for what is no list of name=URL."""
    found = {}
    for one in filter(None, (part.strip() for part in text.split(","))):
        name, _, url = one.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or not re.fullmatch(r"https?://[^\s,]+", url):
            raise ValueError(f"--policies has {one!r}; expected name=http://host:port, with commas between them")
        found[name] = url
    return found


def main(benchmark: Benchmark, prog: str) -> None:
    """Serves until SIGINT or SIGTERM."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    asked = tyro.cli(Server, prog=prog)
    provenance.check_simulator(benchmark, log.warning)
    token, policies, limits = token_for(asked.host), read_policies(asked.policies), asked.limits()
    listener = listen(asked.host, asked.port)
    with tempfile.TemporaryDirectory(prefix="vlalab-live-") as work, listener:
        sessions = Sessions(benchmark, Path(work), policies, limits, token)
        config = uvicorn_config(create_app(sessions, TokenCheck(token)), "info", has_token=token is not None)
        server = uvicorn.Server(config)
        log.info("listening on %s", address(listener))
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after the orderly end
            server.run(sockets=[listener])
