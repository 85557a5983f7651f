"""`python -m services.minivla --name goal-oracle`: serves a mini-VLA that was trained here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vla_common.volume import Volume
from vla_contract import Policy
from vla_modelkit.service import Serving, main


@dataclass(frozen=True)
class ServiceSettings(Serving):
    """Serve a mini-VLA: POST /v1/act."""

    port: int = 8005
    name: str = ""
    """Of the run that was trained; the one trained last where none is given."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1."""
    denoising_steps: int = 10
    """From noise to a chunk of actions, 1 to 100."""
    max_batch: int = 16
    """Observations that are computed together."""
    seed: int = 0
    """Of the noise that every chunk begins as."""
    told: str = ""
    """An instruction in place of every one that is sent: how much does it listen?"""


def prepare(settings: ServiceSettings) -> tuple[Callable[[], Policy], dict[str, float]]:
    """Returns what loads the policy. Raises ValueError where nothing was trained."""
    from services.minivla.policy import load_policy, newest

    path, files = newest(Volume().path("checkpoints") / "minivla", settings.name)
    chosen = (settings.device, settings.denoising_steps, settings.max_batch, settings.seed, settings.told)
    return lambda: load_policy(path, files, *chosen), {}


if __name__ == "__main__":
    main("minivla", ServiceSettings, prepare)
