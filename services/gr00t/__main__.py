"""`python -m services.gr00t --checkpoint gr00t-tiny`: serves GR00T N1.5 over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.gr00t.checkpoint.directory import CheckpointDirectory, find
from services.gr00t.service.act_json import HEALTH, SCHEMAS, decoder
from services.gr00t.service.layout import Layout, layout
from services.gr00t.service.settings import EXTERNAL_VARIABLES, Settings
from vla_contract import Policy
from vla_modelkit.service import Serving, main
from vla_modelkit.threads import set_wait_policy


@dataclass(frozen=True)
class ServiceSettings(Serving, Settings):
    """Serve a GR00T N1.5 checkpoint: POST /v1/act, and POST /act for GR00T's own HTTP clients."""

    port: int = 8004
    """0: any free one, named in the log."""


def prepare(settings: Settings) -> tuple[Callable[[], Policy], dict[str, Any]]:
    """Return the function that loads the policy, and options of the server. Raises ValueError for missing files."""
    checkpoint = find(settings.checkpoint)
    embodiment = checkpoint.embodiment(settings.embodiment)
    robot_layout = layout(embodiment, checkpoint.metadata[embodiment.tag])
    options = {"decode_act": decoder(robot_layout), "act_schemas": SCHEMAS, "probes": HEALTH}
    return lambda: load(settings, checkpoint, robot_layout), options


def load(settings: Settings, checkpoint: CheckpointDirectory, robot_layout: Layout) -> Policy:
    """Load the policy. torch is imported here, so /livez answers before it."""
    from services.gr00t.service.loading import load_policy

    return load_policy(settings, checkpoint, robot_layout)


if __name__ == "__main__":
    set_wait_policy()
    main("gr00t", ServiceSettings, prepare, EXTERNAL_VARIABLES)
