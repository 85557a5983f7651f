"""`python -m services.reports --port 8090`: the volume's reports, served to a browser."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass

import tyro
import uvicorn

from services.reports.app import create_app
from vla_common.volume import Volume
from vla_contract.server.auth import TokenCheck, require_token_beyond_loopback
from vla_contract.server.serving import address, listen, uvicorn_config

log = logging.getLogger("services.reports")


@dataclass(frozen=True)
class Server:
    """The reports of the runs on the volume ($VLALAB_VOLUME), and the curves of what was trained there.

    $VLALAB_TOKEN, when set, is the password it asks for (any user name); it must be set where the network reaches it.
    """

    host: str = "127.0.0.1"  # 0.0.0.0 opens it to the network, with VLALAB_TOKEN only
    port: int = 8090  # 0: any free one, named in the log

    def __post_init__(self):
        if not 0 <= self.port < 65536:
            raise ValueError(f"port is {self.port}; expected 0 to 65535")


def main() -> None:
    """Serves until SIGINT or SIGTERM."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    token = os.environ.get("VLALAB_TOKEN") or None
    try:
        asked = tyro.cli(Server, prog="python -m services.reports")
        require_token_beyond_loopback(asked.host, token)
        app = create_app(Volume().root, TokenCheck(token))
        listener = listen(asked.host, asked.port)
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from None
    log.info("listening on %s", address(listener))
    with listener, suppress(KeyboardInterrupt):  # uvicorn raises it again after the orderly end
        uvicorn.Server(uvicorn_config(app, "info")).run(sockets=[listener])


if __name__ == "__main__":
    main()
