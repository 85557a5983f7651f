"""`python -m services.metaworld.policies oracle --port 8021` (or random): serve a policy that needs no weights."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

import tyro

from services.metaworld.benchmark import BENCHMARK
from services.metaworld.tasks import ACTION
from vla_common import entrypoint
from vla_common.serving import Serving
from vla_common.versions import lock_hash
from vla_contract import Policy, serve
from vla_evaluation import provenance
from vla_evaluation.random_policy import RandomPolicy


@dataclass(frozen=True)
class Oracle(Serving):
    """Metaworld's fifty scripted experts, which see the simulator's true state."""

    port: int = 8021  # 0: any free port, printed in the log

    def load(self) -> Policy:
        provenance.check_simulator(BENCHMARK, print)
        from services.metaworld.oracle import OraclePolicy

        return OraclePolicy(lock_hash())


@dataclass(frozen=True)
class Random(Serving):
    """Random actions within bounds."""

    port: int = 8022  # 0: any free port, printed in the log
    seed: int = 0
    horizon: int = 1  # actions per answer
    cameras: tuple[str, ...] = ()  # images to request (and ignore), to load the renderer and the network

    def load(self) -> Policy:
        return RandomPolicy("metaworld_random", ACTION, self.seed, self.horizon, self.cameras, lock_hash())


Program = Annotated[Oracle, tyro.conf.subcommand("oracle")] | Annotated[Random, tyro.conf.subcommand("random")]


def main() -> None:
    """Serve the selected policy until stopped."""
    program = tyro.cli(Program, prog="python -m services.metaworld.policies", config=(tyro.conf.OmitArgPrefixes,))
    policy = program.load()
    token = os.environ.get("VLALAB_TOKEN") or None
    # These policies answer within a millisecond: threads and batches gain nothing.
    serve(policy, host=program.host, port=program.port, token=token, inline=True)


if __name__ == "__main__":
    entrypoint.run(main)
