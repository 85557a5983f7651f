"""`python -m services.bridge policy --server ws://host:8000`: another project's policy server as a policy of the lab.

`python -m services.bridge openpi --policy-url http://host:8005`: a policy of the lab for openpi's clients, and at
the path /vla-eval for vla-eval's.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import Annotated

import tyro

from services.bridge import act
from services.bridge.connection import OpenpiServer, check_address
from services.bridge.robots import LIBERO
from vla_common import entrypoint
from vla_common.serving import Serving
from vla_common.versions import lock_hash
from vla_contract import ContractError, Policy, PolicyClient, serve
from vla_contract.protocol.tokens import check_token
from vla_contract.server.auth import token_for

READY_S = 900.0  # until the policy of `openpi` is ready


@dataclass(frozen=True)
class Bridge(Serving):
    """Serve another project's policy server (openpi's, vla-eval's or OpenVLA's /act protocol) as a policy of the lab.

    Clients authenticate with $VLALAB_TOKEN; $VLALAB_BRIDGE_KEY is sent to the server.
    """

    port: int = 8007
    server: str = ""  # ws://host:port, act://host:port
    name: str = ""  # policy name in runs; default: the protocol's name
    unnorm_key: str = ""  # statistics to request from an OpenVLA server that has several
    wait_s: float = 600.0  # until the server answers, at start and after it restarts
    answer_s: float = 120.0  # timeout of one answer

    def __post_init__(self):
        super().__post_init__()
        if not self.server:
            raise ValueError("no server address; set VLALAB_BRIDGE_SERVER, for example to ws://host:8000")
        (act.check_address if self.is_openvla else check_address)(self.server)
        for name in ("wait_s", "answer_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more seconds, got {getattr(self, name)}")

    @property
    def is_openvla(self) -> bool:
        """Whether the server speaks OpenVLA's /act."""
        return self.server.startswith(("act:", "acts:"))

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM."""
        from services.bridge.policy import wait_for

        token = os.environ.get("VLALAB_TOKEN") or None
        check_token("VLALAB_BRIDGE_KEY", os.environ.get("VLALAB_BRIDGE_KEY", ""))
        serve(lambda: wait_for(self.connected, self.wait_s), host=self.host, port=self.port, token=token)

    def connected(self) -> Policy:
        """Detect the server's protocol and return a policy for it."""
        from services.bridge import policy
        from services.bridge.vla_eval import connection, robots
        from services.bridge.vla_eval import policy as vla_eval

        key, lock = os.environ.get("VLALAB_BRIDGE_KEY") or None, lock_hash() or ""
        if self.is_openvla:
            return act.ActPolicy(self.server, key, self.answer_s, self.unnorm_key, self.name, lock)
        if connection.answers_health(self.server, key):
            model_server = connection.ModelServer(self.server, key, answer_s=self.answer_s)
            return vla_eval.VlaEvalPolicy(model_server, robots.LIBERO, self.name or vla_eval.NAME, lock)
        server = OpenpiServer(self.server, key, answer_s=self.answer_s)
        return policy.BridgePolicy(server, server.connect(), LIBERO, self.name or policy.NAME, lock)


@dataclass(frozen=True)
class Openpi(Serving):
    """Serve a policy of the lab to openpi's clients. Clients send $VLALAB_TOKEN as api_key; the policy gets it too."""

    port: int = 8008
    policy_url: str = ""  # http://host:port

    def run(self) -> None:
        """Wait until the policy is ready, then serve until SIGINT or SIGTERM."""
        from services.bridge import server

        if not self.policy_url:
            raise ValueError("no policy address; set VLALAB_OPENPI_POLICY, for example to http://127.0.0.1:8005")
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("websockets").setLevel(logging.WARNING)
        token = token_for(self.host)
        with PolicyClient(self.policy_url, token) as client:
            try:
                client.wait_ready(READY_S, lambda waited_s, reason: logging.info("waiting for the policy: %s", reason))
                info = client.info()
            except ContractError as error:
                raise ValueError(str(error)) from error
            asyncio.run(server.run(server.BridgeServer(client, info, token), self.host, self.port))


Program = Annotated[Bridge, tyro.conf.subcommand("policy")] | Annotated[Openpi, tyro.conf.subcommand("openpi")]


def main() -> None:
    """Parse the command line and serve."""
    tyro.cli(Program, prog="python -m services.bridge", config=(tyro.conf.OmitArgPrefixes,)).run()


if __name__ == "__main__":
    entrypoint.run(main)
