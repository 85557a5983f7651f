"""`python -m services.openvla --checkpoint openvla-tiny`: serves OpenVLA over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.openvla.service.settings import ModelSettings, checkpoint_directory
from vla_contract import Policy
from vla_modelkit.service import Serving, main
from vla_modelkit.threads import set_wait_policy


@dataclass(frozen=True)
class ServiceSettings(Serving, ModelSettings):
    """Serve an OpenVLA checkpoint: POST /v1/act, and POST /act for OpenVLA's own clients."""

    max_wait_ms: float = 100.0
    """Longest wait for a batch to fill, if half an inference is not shorter; a lone client never waits."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.max_wait_ms <= 1000:
            raise ValueError(f"max_wait_ms is {self.max_wait_ms}; expected milliseconds, 0 to 1000")


def prepare(settings: ServiceSettings) -> tuple[Callable[[], Policy], dict[str, float]]:
    """Return what loads the policy, and options of the server. Raises CheckpointError where there is no checkpoint."""
    checkpoint_directory(settings.checkpoint)
    return lambda: load(settings), {"max_wait_ms": settings.max_wait_ms}


def load(settings: ModelSettings) -> Policy:
    """Return the policy. torch is imported here: the server's /livez is up before."""
    from services.openvla.service.loading import load_policy

    return load_policy(settings)


if __name__ == "__main__":
    set_wait_policy()
    main("openvla", ServiceSettings, prepare)
