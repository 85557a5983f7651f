"""`python -m services.openvla --checkpoint openvla-tiny`: serves OpenVLA over HTTP.

Every flag of the model has a variable, VLALAB_OPENVLA_CHECKPOINT and so on; $VLALAB_TOKEN, when set, is the token that
clients must send.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import tyro

from services.openvla.errors import CheckpointError
from services.openvla.settings import ModelSettings, checkpoint_folder, from_environment
from services.openvla.waiting import wait_briefly
from vla_contract import Policy, serve


@dataclass(frozen=True)
class ServiceSettings(ModelSettings):
    """Serve an OpenVLA checkpoint: POST /v1/act, and POST /act for OpenVLA's own clients."""

    host: str = "127.0.0.1"
    """0.0.0.0 opens it to the network."""
    port: int = 8000
    """0: any free one, named in the log."""
    max_wait_ms: float = 100.0
    """Longest wait for a batch to fill, if half an inference is not shorter; a lone client never waits."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.port < 65536:
            raise ValueError(f"port is {self.port}; expected 0 to 65535")
        if not 0 <= self.max_wait_ms <= 1000:
            raise ValueError(f"max_wait_ms is {self.max_wait_ms}; expected milliseconds, 0 to 1000")


def load(settings: ModelSettings) -> Policy:
    """Returns the policy. torch is imported here: the server's /livez is up before."""
    from services.openvla.loading import load_policy

    return load_policy(settings)


def main() -> None:
    """Serves until it is told to stop."""
    wait_briefly()
    try:
        default = from_environment(ServiceSettings)
        settings = tyro.cli(ServiceSettings, prog="python -m services.openvla", default=default)
        checkpoint_folder(settings.checkpoint)  # what a typing error costs should not be a loaded web server
    except (CheckpointError, ValueError) as error:
        raise SystemExit(str(error)) from None
    token = os.environ.get("VLALAB_TOKEN") or None
    try:
        serve(lambda: load(settings), settings.host, settings.port, token=token, max_wait_ms=settings.max_wait_ms)
    except (OSError, ValueError) as error:  # no such address, or no token where one is needed; the text says what to do
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
