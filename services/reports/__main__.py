"""`python -m services.reports --port 8090`: the volume's reports, served to a browser."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass

import tyro
import uvicorn

from services.reports.app import create_app
from services.reports.stores import Stores
from vla_common import endings
from vla_common.serving import Serving
from vla_common.volume import Volume
from vla_contract.server.auth import TokenCheck, token_for
from vla_contract.server.serving import address, listen, uvicorn_config

log = logging.getLogger("services.reports")
READ_S = 10.0  # at most, for every run's row to be read once: then nobody waits for the list


@dataclass(frozen=True)
class Server(Serving):
    """The reports of the runs on the volume ($VLALAB_VOLUME), and the curves of what was trained there.

    $VLALAB_TOKEN, when set, is the password it asks for (any user name); it must be set where the network reaches it.
    """

    port: int = 8090  # 0: any free one, named in the log


def main() -> None:
    """Serves until SIGINT or SIGTERM."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    asked = tyro.cli(Server, prog="python -m services.reports")
    stores = Stores(Volume().root)
    check = TokenCheck(token_for(asked.host))
    app = create_app(Volume().root, check, stores)
    listener = listen(asked.host, asked.port)
    log.info("listening on %s", address(listener))
    reading = threading.Thread(target=stores.rows, daemon=True)
    reading.start()
    reading.join(READ_S)
    with listener, suppress(KeyboardInterrupt):  # uvicorn raises it again after the orderly end
        uvicorn.Server(uvicorn_config(app, "info", has_token=check.required)).run(sockets=[listener])


if __name__ == "__main__":
    endings.run(main)
