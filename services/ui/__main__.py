"""`python -m services.ui --policy-url http://127.0.0.1:8000`: the lab's pages."""

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
from services.ui.volume.runs import Stores
from vla_common import entrypoint
from vla_common.serving import Serving
from vla_common.volume import Volume
from vla_contract.server.auth import token_for
from vla_contract.server.serving import address, listen, uvicorn_config

log = logging.getLogger("services.ui")
READ_S = 10.0  # limit for reading all runs before serving


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(Serving):
    """The lab's web pages.

    $VLALAB_TOKEN is the token for policies and the pages' password, required if other machines can reach the pages.
    """

    policy_url: str  # address of the default policy, for example http://127.0.0.1:8000
    port: int = 7860  # 0: any free port, printed in the log
    services: str = "simulator=http://127.0.0.1:8006"  # services of the pages: name=address, separated by commas
    policies: str = ""  # other policies: name=address, separated by commas
    steward: str = ""  # directory with the control daemon's socket and secret, for the page Services
    timeout_s: float = 120.0  # time limit for a policy's answer

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.timeout_s <= 3600:
            raise ValueError(f"timeout_s must be in (0, 3600] seconds, got {self.timeout_s}")
        for name in ("services", "policies"):
            self.addresses(name)

    def addresses(self, setting: str) -> dict[str, str]:
        """Return addresses by name from the setting "services" or "policies". Raises ValueError for an invalid one."""
        pairs = [pair.strip().partition("=") for pair in getattr(self, setting).split(",") if pair.strip()]
        for name, _, url in pairs:
            if not re.fullmatch(r"https?://[^\s/]+/?", url):
                raise ValueError(
                    f"invalid address {name}={url} in {setting}; expected for example simulator=http://127.0.0.1:8006"
                )
        return {name: url for name, _, url in pairs}


def main() -> None:
    """Serve until SIGINT or SIGTERM.

    Raises ValueError for an invalid or missing setting, OSError for a port that is in use.
    """
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel("WARNING")  # else a line for every request
    settings = tyro.cli(ServiceSettings, prog="python -m services.ui")
    token = token_for(settings.host)  # checks its length: it is the login's password
    default_policy = PolicyLink(settings.policy_url, token, settings.timeout_s)
    named = settings.addresses("policies").items()
    other_policies = {name: PolicyLink(url, token, settings.timeout_s) for name, url in named}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises SIGTERM again when it stops

    def is_not_cut_off(record: logging.LogRecord) -> bool:
        """Return False for the traceback that every open page causes when the server stops."""
        return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))

    logging.getLogger("uvicorn.error").addFilter(is_not_cut_off)
    stores = Stores(Volume().root)
    reading = threading.Thread(target=stores.rows, daemon=True)
    reading.start()
    reading.join(READ_S)
    services = settings.addresses("services")
    app = create_app(default_policy, token, services, other_policies, settings.steward, stores=stores)
    config = uvicorn_config(app, "info", has_token=token is not None)
    config.timeout_graceful_shutdown = 1  # open pages hold connections that do not end by themselves
    with listen(settings.host, settings.port) as listener, suppress(KeyboardInterrupt):
        log.info("the page is at %s, policy at %s", address(listener), default_policy.url)
        uvicorn.Server(config).run(sockets=[listener])
    for link in (default_policy, *other_policies.values()):
        link.close()


if __name__ == "__main__":
    entrypoint.run(main)
