"""`python -m services.libero.policies oracle --port 8001` (or random, replay): serve a policy that needs no weights."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from vla_common import entrypoint
from vla_common.serving import Serving
from vla_common.versions import lock_hash
from vla_common.volume import Volume
from vla_contract import Policy, serve
from vla_evaluation.runs.directories import RunUnusable, find_run


@dataclass(frozen=True)
class ServiceSettings(Serving):
    """Address of the policy service. Clients must send $VLALAB_TOKEN if it is set."""

    port: int = 8001  # 0: any free port, printed in the log
    settings: ClassVar[dict[str, int]] = {}  # keyword arguments of `serve`


@dataclass(frozen=True)
class Oracle(ServiceSettings):
    """Scripted skills that see the simulator's true state."""

    settings: ClassVar[dict[str, int]] = {"max_body_bytes": 2**20}  # a scene's first observation has 100 kB

    def load(self) -> Policy:
        from services.libero.oracle.policy import OraclePolicy

        return OraclePolicy(lock_hash=lock_hash())


@dataclass(frozen=True)
class Random(ServiceSettings):
    """Random actions within bounds."""

    seed: int = 0
    scale: float = 0.5  # of the controller's limit: 1.0 is 5 cm or 0.5 rad per step
    horizon: int = 1  # actions per answer
    cameras: tuple[str, ...] = ()  # images to request (and ignore), to load the renderer and the network

    def load(self) -> Policy:
        from services.libero.policies.random_policy import RandomPolicy

        return RandomPolicy(
            seed=self.seed, scale=self.scale, horizon=self.horizon, cameras=self.cameras, lock_hash=lock_hash()
        )


@dataclass(frozen=True)
class Replay(ServiceSettings):
    """The recorded actions of an earlier run."""

    run: str = ""  # a run on the volume (name, its beginning, or latest), or a directory
    horizon: int = 1  # actions per answer

    def load(self) -> Policy:
        from services.libero.policies.replay import ReplayPolicy

        if not self.run:
            raise ValueError("no run to replay; set VLALAB_REPLAY_RUN to a run listed by `./lab runs`")
        runs = Volume().path("runs")
        directories = [path for path in (Path(self.run), runs / self.run) if path.is_dir()]
        try:
            directory = directories[0] if directories else find_run(runs, self.run)
        except RunUnusable as error:
            raise ValueError(str(error)) from error
        return ReplayPolicy(directory, self.horizon, lock_hash())


Program = (
    Annotated[Oracle, tyro.conf.subcommand("oracle")]
    | Annotated[Random, tyro.conf.subcommand("random")]
    | Annotated[Replay, tyro.conf.subcommand("replay")]
)


def main() -> None:
    """Serve the selected policy until stopped."""
    program = tyro.cli(Program, prog="python -m services.libero.policies", config=(tyro.conf.OmitArgPrefixes,))
    policy = program.load()
    token = os.environ.get("VLALAB_TOKEN") or None
    # These policies answer within milliseconds, one observation at a time: threads and batches gain nothing.
    serve(policy, host=program.host, port=program.port, token=token, inline=True, **program.settings)


if __name__ == "__main__":
    entrypoint.run(main)
