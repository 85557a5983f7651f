"""`python -m services.gr00t --checkpoint gr00t-tiny`: serves GR00T N1.5 over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.gr00t.checkpoint.directory import CheckpointDirectory, find
from services.gr00t.service.act_json import HEALTH, SCHEMAS, decoder
from services.gr00t.service.layout import Layout, layout
from services.gr00t.service.settings import OTHERS, Settings
from vla_contract import Policy
from vla_modelkit.service import Serving, main
from vla_modelkit.threads import set_wait_policy


@dataclass(frozen=True)
class ServiceSettings(Serving, Settings):
    """Serve a GR00T N1.5 checkpoint: POST /v1/act, and POST /act for GR00T's own HTTP clients."""

    port: int = 8004
    """0: any free one, named in the log."""


def prepare(settings: Settings) -> tuple[Callable[[], Policy], dict[str, Any]]:
    """Returns what loads the policy, and options of the server. Raises ValueError for what is missing."""
    found = find(settings.checkpoint)
    one = found.embodiment(settings.embodiment)
    sizes = layout(one, found.metadata[one.tag])
    options = {"decode_act": decoder(sizes), "act_schemas": SCHEMAS, "probes": HEALTH}
    return lambda: load(settings, found, sizes), options


def load(settings: Settings, found: CheckpointDirectory, sizes: Layout) -> Policy:
    """Returns the policy. torch is imported here: the server's /livez is up before."""
    from services.gr00t.service.loading import load_policy

    return load_policy(settings, found, sizes)


if __name__ == "__main__":
    set_wait_policy()
    main("gr00t", ServiceSettings, prepare, OTHERS)
