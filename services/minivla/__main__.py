"""`python -m services.minivla --name goal-oracle`: serve a mini-VLA that was trained here."""

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
    """The training run to serve; default: the newest."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1."""
    denoising_steps: int = 10
    """Denoising steps per action chunk, 1 to 100."""
    max_batch: int = 16
    """Largest batch of observations."""
    seed: int = 0
    """Seed of the noise that chunks start from."""
    told: str = ""
    """Replace every instruction by this one: does the policy follow instructions?"""


def prepare(settings: ServiceSettings) -> tuple[Callable[[], Policy], dict[str, float]]:
    """Return a function that loads the policy. Raises ValueError if there is no trained run."""
    from services.minivla.policy import load_policy, newest

    path, files = newest(Volume().path("checkpoints") / "minivla", settings.name)
    options = (settings.device, settings.denoising_steps, settings.max_batch, settings.seed, settings.told)
    return lambda: load_policy(path, files, *options), {}


if __name__ == "__main__":
    main("minivla", ServiceSettings, prepare)
