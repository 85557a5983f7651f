"""`python -m services.gr00t --checkpoint gr00t-tiny`: serves GR00T N1.5 over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.gr00t import upstream
from services.gr00t.act_json import SCHEMAS, decoder
from services.gr00t.checkpoint import CheckpointFolder, find
from services.gr00t.layout import Layout
from services.gr00t.settings import OTHERS, Settings
from vla_contract import Policy
from vla_modelkit.service import Serving, main

log = logging.getLogger("vla_contract")


@dataclass(frozen=True)
class ServiceSettings(Serving, Settings):
    """Serve a GR00T N1.5 checkpoint: POST /v1/act, and POST /act for GR00T's own HTTP clients."""

    port: int = 8004
    """0: any free one, named in the log."""


def prepare(settings: Settings) -> tuple[Callable[[], Policy], dict[str, Any]]:
    """Returns what loads the policy, and options of the server. Raises ValueError for what is missing."""
    if (reason := upstream.missing()) is not None:
        raise upstream.UpstreamMissing(reason)
    found = find(settings.checkpoint)
    layout = found.layout(settings.embodiment)
    return lambda: load(settings, found, layout), {"decode_act": decoder(layout), "act_schemas": SCHEMAS}


def load(settings: Settings, found: CheckpointFolder, layout: Layout) -> Policy:
    """Returns the policy with its weights loaded, which has been seen to look at its pictures."""
    upstream.prepare()
    from services.gr00t.attention import choose
    from services.gr00t.policy import ServedGr00t
    from vla_modelkit.canary import check_sees
    from vla_modelkit.checkpoint import identity
    from vla_modelkit.devices import choose_device
    from vla_modelkit.versions import lock_hash

    device = str(choose_device(settings.device))
    attention = choose(settings.attention, device)
    log.info(
        "loading %s on %s, attention %s", found.folder, device, " since ".join(filter(None, vars(attention).values()))
    )
    checkpoint = identity(found.folder, found.record)
    policy = ServedGr00t(
        upstream.load_policy(found.folder, layout.embodiment, attention, device, found.overrides),
        layout,
        attention,
        device,
        checkpoint=checkpoint,
        suites=found.suites,
        max_batch=settings.max_batch,
        seed=settings.seed,
        lock_hash=lock_hash("gr00t"),
        source=upstream.version(),
    )
    check_sees(policy, policy.example)
    return policy


if __name__ == "__main__":
    main("gr00t", ServiceSettings, prepare, OTHERS)
