"""`python -m services.bridge policy --server ws://host:8000`: another project's policy server as a policy of the lab.

`python -m services.bridge openpi --policy-url http://host:8005`: a policy of the lab for openpi's clients, and at
the path /vla-eval for vla-eval's.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from services.bridge import act
from services.bridge.connection import Server, check_address
from services.bridge.robots import ROBOTS
from vla_common import endings
from vla_common.serving import Serving
from vla_common.versions import lock_hash
from vla_contract import ContractError, Policy, PolicyClient, serve
from vla_contract.protocol.tokens import check_token
from vla_contract.server.auth import token_for

READY_S = 900.0  # for the policy of `openpi` to get ready


@dataclass(frozen=True)
class Bridge(Serving):
    """A policy server that speaks openpi's or vla-eval's protocol or OpenVLA's /act, as a policy of the lab.

    $VLALAB_TOKEN is what our clients must send, $VLALAB_BRIDGE_KEY what the server is sent.
    """

    port: int = 8007
    server: str = ""  # ws://host:port, act://host:port
    name: str = ""  # what runs are called by; default: the protocol's name
    robot: Literal["libero"] = "libero"
    unnorm_key: str = ""  # statistics that an OpenVLA server with several is asked for
    wait_s: float = 600.0  # for the server to answer, at the start and when it comes back
    answer_s: float = 120.0  # for one of its answers

    def __post_init__(self):
        super().__post_init__()
        if not self.server:
            raise ValueError("no server to ask; set VLALAB_BRIDGE_SERVER to its address, such as ws://host:8000")
        (act.check_address if self.is_openvla else check_address)(self.server)
        for name in ("wait_s", "answer_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected seconds, 0 or more")

    @property
    def is_openvla(self) -> bool:
        """Whether the server speaks OpenVLA's /act."""
        return self.server.startswith(("act:", "acts:"))

    def run(self) -> None:
        """Serves it until it is told to stop."""
        from services.bridge.policy import wait_for

        token = os.environ.get("VLALAB_TOKEN") or None
        check_token("VLALAB_BRIDGE_KEY", os.environ.get("VLALAB_BRIDGE_KEY", ""))
        serve(lambda: wait_for(self.connected, self.wait_s), host=self.host, port=self.port, token=token)

    def connected(self) -> Policy:
        """Returns the policy of the server that is there, by the protocol that it answers."""
        from services.bridge import policy
        from services.bridge.vla_eval import connection, robots
        from services.bridge.vla_eval import policy as vla_eval

        key = os.environ.get("VLALAB_BRIDGE_KEY") or None
        if self.is_openvla:
            return act.ActPolicy(self.server, key, self.answer_s, self.unnorm_key, self.name, lock_hash())
        if connection.answers_health(self.server, key):
            theirs = connection.ModelServer(self.server, key, answer_s=self.answer_s)
            robot = robots.ROBOTS[self.robot]
            return vla_eval.VlaEvalPolicy(theirs, robot, self.name or vla_eval.NAME, lock_hash())
        server = Server(self.server, key, answer_s=self.answer_s)
        return policy.BridgePolicy(server, server.connect(), ROBOTS[self.robot], self.name or policy.NAME, lock_hash())


@dataclass(frozen=True)
class Openpi(Serving):
    """A policy of the lab for openpi's clients. $VLALAB_TOKEN is sent to the policy; clients send it as api_key."""

    port: int = 8008
    policy_url: str = ""  # http://host:port
    robot: Literal["libero"] = "libero"

    def run(self) -> None:
        """Serves it until it is told to stop; the policy has to be ready first."""
        from services.bridge import server

        if not self.policy_url:
            raise ValueError("no policy to serve; set VLALAB_OPENPI_POLICY to its address, as http://127.0.0.1:8005")
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("websockets").setLevel(logging.WARNING)
        token = token_for(self.host)
        with PolicyClient(self.policy_url, token) as client:
            try:
                client.wait_ready(READY_S, lambda waited_s, reason: logging.info("waiting for the policy: %s", reason))
                info = client.info()
            except ContractError as error:
                raise ValueError(str(error)) from error
            asyncio.run(server.run(server.Door(client, info, ROBOTS[self.robot], token), self.host, self.port))


Program = Annotated[Bridge, tyro.conf.subcommand("policy")] | Annotated[Openpi, tyro.conf.subcommand("openpi")]


def main() -> None:
    """Serves what the command line names."""
    tyro.cli(Program, prog="python -m services.bridge", config=(tyro.conf.OmitArgPrefixes,)).run()


if __name__ == "__main__":
    endings.run(main)
