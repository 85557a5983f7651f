"""Check whether the hub is reachable, once an hour: behind a firewall that drops packets, requests hang for minutes."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROBE_S = 5.0  # of a probe, including name resolution
CACHE_S = 3600.0


def unreachable(refresh: bool = False) -> str:
    """Return why the hub is unreachable, "" if it responds with any status.

    The result is cached for an hour in hub-answer.json in $HF_HOME, for all processes. refresh: ignore the cache, for
    downloads that a user starts.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    path, endpoint = Path(constants.HF_HOME) / "hub-answer.json", constants.ENDPOINT
    with suppress(OSError, ValueError, KeyError, TypeError):
        answer = json.loads(path.read_text())
        if not refresh and answer["endpoint"] == endpoint and 0 <= time.time() - answer["time"] < CACHE_S:
            age_note = f"; checked {round((time.time() - answer['time']) / 60)} min ago: remove {path} to check again"
            return f"{answer['error']}{age_note}" if answer["error"] else ""
    errors = [f"the hub does not answer ({endpoint} within {PROBE_S:g} s)"]

    def ask() -> None:
        try:
            get_session().head(endpoint, timeout=PROBE_S)
            errors.append("")
        except Exception as error:  # of requests or httpx, depending on huggingface_hub
            errors.append(f"the hub does not answer ({str(error).strip()[:160] or type(error).__name__})")

    thread = threading.Thread(target=ask, daemon=True)  # name resolution has no timeout
    thread.start()
    thread.join(PROBE_S)
    error = errors[-1]
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"endpoint": endpoint, "time": time.time(), "error": error}))
    return error


@contextmanager
def offline_if_unreachable() -> Iterator[str]:
    """Yield why the hub is unreachable, if so; its libraries then use cached files or fail at once."""
    from huggingface_hub import constants

    reason = unreachable()
    modules = [constants, *(sys.modules[name] for name in ("datasets.config",) if name in sys.modules)]
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules if reason else ():
            module.HF_HUB_OFFLINE = True
        yield reason
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
