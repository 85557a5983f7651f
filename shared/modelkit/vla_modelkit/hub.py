"""Whether the hub answers: one probe an hour. With a firewall that drops packets each request waits for minutes."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROBE_S = 5.0  # for the whole probe, the name's resolution too
KEPT_S = 3600.0


def unreachable(again: bool = False) -> str:
    """Return why the hub cannot be asked, "" where it answers, with whatever status.

    The answer is kept for an hour in hub-answer.json of the hub's folder ($HF_HOME), for all processes. again: probe
    all the same, for a command that a person types to download.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    path = Path(constants.HF_HOME) / "hub-answer.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        answer = json.loads(path.read_text())
        if not again and answer["endpoint"] == constants.ENDPOINT and 0 <= time.time() - answer["time"] < KEPT_S:
            kept = f"; asked {round((time.time() - answer['time']) / 60)} min ago: remove {path} to ask again"
            return f"{answer['error']}{kept}" if answer["error"] else ""
    error = _probe(constants.ENDPOINT)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"endpoint": constants.ENDPOINT, "time": time.time(), "error": error}))
    return error


@contextmanager
def offline_if_unreachable() -> Iterator[str]:
    """Yield why the hub cannot be asked; where it cannot, its libraries take what was downloaded, or fail at once."""
    from huggingface_hub import constants

    why = unreachable()
    modules = [constants, *(sys.modules[name] for name in ("datasets.config",) if name in sys.modules)]
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules if why else ():
            module.HF_HUB_OFFLINE = True
        yield why
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value


def _probe(endpoint: str) -> str:
    """Return why an address does not answer, "" where it does. A thread, since no client bounds a name's resolution."""
    from huggingface_hub.utils import get_session

    errors = [f"the hub does not answer ({endpoint} within {PROBE_S:g} s)"]

    def ask() -> None:
        try:
            get_session().head(endpoint, timeout=PROBE_S)
            errors.append("")
        except Exception as error:  # requests' or httpx's, by the version of huggingface_hub
            errors.append(f"the hub does not answer ({str(error).strip()[:160] or type(error).__name__})")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_S)
    return errors[-1]
