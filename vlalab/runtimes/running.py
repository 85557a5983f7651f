"""What runs: a service as a local process or as a container looks the same to the tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from vlalab.host.console import LabError
from vlalab.runtimes import logs

READY_TIMEOUT_S = 900.0  # a large checkpoint is read from a slow disk
POLL_S = (0.2, 1.0)  # to look takes processes, of an engine's command: less often the longer it takes


class Instance(Protocol):
    """A running service."""

    name: str  # its own: the service's, or another for a private one
    service: str  # which service of compose.yaml it is
    runtime: str  # local or docker
    role: str  # policy, job or service
    attached: bool  # it belongs to one evaluation and ends with it
    url: str  # where this machine reaches it; empty where it does not
    started_at: float  # seconds since the epoch
    restarts: int  # how often it was started again after it ended by itself
    gpu: str  # which GPUs it may see: "0,1", "none"; empty: all there are
    is_up: bool  # it runs at this moment

    def owns(self, pid: int) -> bool:
        """Returns whether a process of this machine is one of its own."""

    def memory(self) -> int | None:
        """Return the bytes that it uses, None where they are not known."""

    def is_healthy(self) -> bool:
        """Returns whether its health check succeeds."""

    def has_ended(self) -> bool:
        """Returns whether it ended and nobody will start it again."""

    def started_with(self) -> dict[str, str]:
        """Returns the settings it was started with, as it shows them itself; see `vlalab.runtimes.service_state`."""

    def stop(self) -> None:
        """Ends it, with its grace period, and takes it away."""

    def last_words(self, lines: int = 15) -> str:
        """Returns the end of its log."""


def failed(name: str, what: str, instance: Instance | None) -> str:
    """Returns what is said of a service that did not get ready: the cause first, then the end of this start's log."""
    words = instance.last_words() if instance else ""
    why = logs.cause(words)
    return f"service '{name}' {what}{f': {why}' if why else ''}\nthe end of its log since it was started:\n{words}"


def wait_ready(
    name: str,
    find: Callable[[], Instance | None],
    timeout_s: float = READY_TIMEOUT_S,
    on_wait: Callable[[], None] = lambda: None,
) -> Instance:
    """Returns the instance that `find` returns, once its health check succeeds.

    Raises LabError, with the end of its log, when it ended, or was not ready in time; the caller stops it then.
    """
    began = time.monotonic()
    found = last = find()
    while True:
        if found is None or found.restarts:
            raise LabError(failed(name, "ended before it was ready", last))
        if found.is_healthy():
            return found
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            raise LabError(failed(name, f"was not ready within {timeout_s:.0f} s", found))
        on_wait()
        time.sleep(min(max(POLL_S[0], waited_s / 20), POLL_S[1]))
        last, found = found, find()
