"""`python -m services.ui --policy-url http://127.0.0.1:8000`: the web page of a policy."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass

import tyro
import uvicorn

from services.ui.app import create_app
from services.ui.ask.link import PolicyLink
from services.ui.volume.stores import Stores
from vla_common import endings
from vla_common.serving import Serving
from vla_common.volume import Volume
from vla_contract.server.auth import token_for
from vla_contract.server.serving import address, listen, uvicorn_config

log = logging.getLogger("services.ui")
READ_S = 10.0  # at most, for every run's row to be read once: then nobody waits for the list


@dataclass(frozen=True, kw_only=True)
class Server(Serving):
    """A web page that asks a policy: picture and instruction in, an action's numbers out.

    $VLALAB_TOKEN, when set, is sent to the policy and is the page's password; it must be set where the page can be
    reached from other machines.
    """

    policy_url: str  # address of the policy, for example http://127.0.0.1:8000
    port: int = 7860  # 0: any free one, named in the log
    services: str = "simulator=http://127.0.0.1:8006"  # whom the pages ask: name=address, by commas
    policies: str = ""  # other policies that can be asked while they are up: name=address, by commas
    steward: str = ""  # folder in which this machine answers the page Lab: its socket, and the secret for it
    timeout_s: float = 120.0  # longest wait for an answer of the policy

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.timeout_s <= 3600:
            raise ValueError(f"timeout_s is {self.timeout_s}; expected seconds > 0, at most 3600")
        for name in ("services", "policies"):
            self.addresses(name)

    def addresses(self, setting: str) -> dict[str, str]:
        """Return addresses by name, of "services" or "policies". Raises ValueError for what is no address."""
        pairs = [pair.strip().partition("=") for pair in getattr(self, setting).split(",") if pair.strip()]
        for name, _, url in pairs:
            if not re.fullmatch(r"https?://[^\s/]+/?", url):
                raise ValueError(f"{setting} has {name}={url}; expected for example simulator=http://127.0.0.1:8006")
        return {name: url for name, _, url in pairs}


def main() -> None:
    """Serves the page until it is told to stop."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel("WARNING")  # a line for every question to another service
    run(tyro.cli(Server, prog="python -m services.ui"))


def run(settings: Server) -> None:
    """Serves until SIGINT or SIGTERM.

    Raises ValueError for a bad setting, or none where one is needed, OSError for a port that is taken.
    """
    token = token_for(settings.host)  # it will be typed as a password: no shorter than what a policy takes
    link = PolicyLink(settings.policy_url, token, settings.timeout_s)
    named = settings.addresses("policies").items()
    others = {name: PolicyLink(url, token, settings.timeout_s) for name, url in named}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises it again at its end: go on, and clean up
    logging.getLogger("uvicorn.error").addFilter(not_cut_off)
    stores = Stores(Volume().root)
    reading = threading.Thread(target=stores.rows, daemon=True)
    reading.start()
    reading.join(READ_S)
    app = create_app(link, token, settings.addresses("services"), others, settings.steward, stores=stores)
    config = uvicorn_config(app, "info", has_token=token is not None)
    config.timeout_graceful_shutdown = 1  # every open page holds a connection that does not end by itself
    with listen(settings.host, settings.port) as listener, suppress(KeyboardInterrupt):
        log.info("the page is at %s, over the policy at %s", address(listener), link.url)
        uvicorn.Server(config).run(sockets=[listener])
    for one in (link, *others.values()):
        one.close()


def not_cut_off(record: logging.LogRecord) -> bool:
    """Return False for the traceback that every page still open leaves when the server stops."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


if __name__ == "__main__":
    endings.run(main)
