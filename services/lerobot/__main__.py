"""`python -m services.lerobot --checkpoint NAME`: serve a LeRobot checkpoint over HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from services.lerobot.settings import ModelSettings, checkpoint_directory
from vla_contract import Policy
from vla_modelkit.service import Serving, main


@dataclass(frozen=True)
class ServiceSettings(Serving, ModelSettings):
    """Serve a LeRobot checkpoint: POST /v1/act."""

    port: int = 8009


def prepare(settings: ServiceSettings) -> tuple[Callable[[], Policy], dict[str, float]]:
    """Return what loads the policy. Raises CheckpointError if there is no checkpoint."""
    checkpoint_directory(settings.checkpoint)
    return lambda: load(settings), {}


def load(settings: ModelSettings) -> Policy:
    """Load the policy; torch is imported here, after /livez is up."""
    from services.lerobot.policy import load_policy

    return load_policy(settings)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main("lerobot", ServiceSettings, prepare)
