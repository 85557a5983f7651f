"""Tenants: the senders of requests, one per token, with their limits and what they have used."""

import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from vla_contract.protocol.problems import Problem
from vla_contract.server import token_file
from vla_contract.server.token_file import TokenEntry

log = logging.getLogger("vla_contract")
CHECK_S = 1.0  # between two looks at the file
BUSY_RETRY_S = 0.2  # about one inference


class Tenant:
    """The sender of requests with one token. Used on the event loop only.

    limits: of a named token; None for the lab's own, which has none. The counts are those since the service started.
    """

    def __init__(self, name: str, limits: TokenEntry | None = None):
        self.name, self.limits = name, limits
        self.statuses: Counter[int] = Counter()
        self.inferences, self.queue_s, self.infer_s = 0, 0.0, 0.0
        self.in_progress, self.body_bytes = 0, 0
        self._credit, self._credited = float("inf"), time.monotonic()

    def scoped(self, session: str) -> str:
        """Return a session's name at the policy: those of a named token are its own."""
        return session if self.limits is None else f"{self.name}/{session}"

    def begin(self) -> None:
        """Count a request as in progress. Raises Problem (429) beyond the token's concurrency or rate."""
        if self.limits is not None:
            self._require_within(self.limits)
        self.in_progress += 1

    def record_inference(self, queue_s: float, infer_s: float) -> None:
        """Record an answered request: how long it waited, and its part of the inference's time."""
        self.inferences, self.queue_s, self.infer_s = (
            self.inferences + 1,
            self.queue_s + queue_s,
            self.infer_s + infer_s,
        )

    def _require_within(self, limits: TokenEntry) -> None:
        if self.in_progress >= limits.concurrency:
            detail = f"token {self.name!r} has {self.in_progress} requests in progress, its limit; wait for an answer"
            raise Problem.retry_after("token-limit", detail, BUSY_RETRY_S, concurrency=limits.concurrency)
        if limits.rate_per_s is not None:
            now = time.monotonic()
            refill = (now - self._credited) * limits.rate_per_s
            self._credit, self._credited = min(self._credit + refill, max(limits.rate_per_s, 1.0)), now
            if self._credit < 1.0:
                detail = f"token {self.name!r} may send {limits.rate_per_s:g} requests per second; send fewer"
                seconds = (1.0 - self._credit) / limits.rate_per_s
                raise Problem.retry_after("token-limit", detail, seconds, rate_per_s=limits.rate_per_s)
            self._credit -= 1.0


class Tenants:
    """The tenants of the token file, which is read again within a second of a change. Iterates over them.

    While the file cannot be used there are none: the log has the reason.
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._by_digest: dict[bytes, Tenant] = {}
        self._stamp: tuple[int, ...] | None = None
        self._next_check = 0.0

    def __iter__(self) -> Iterator[Tenant]:
        self._refresh()
        return iter(tuple(self._by_digest.values()))

    def of(self, digest: bytes) -> Tenant | None:
        """Return the tenant whose token has this sha256, None where none has.

        The time of the look-up depends on hashes only, of which a sender cannot choose any part.
        """
        self._refresh()
        return self._by_digest.get(digest)

    def _refresh(self) -> None:
        now, path = time.monotonic(), self._path
        if path is None or now < self._next_check:
            return
        self._next_check = now + CHECK_S
        try:
            status = os.stat(path, follow_symlinks=False)
            stamp: tuple[int, ...] = (status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode)
        except OSError:
            stamp = ()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            entries = token_file.load(path)
        except (OSError, ValueError) as error:
            log.error("no named token is accepted: %s", error)
            entries = {}
        present, self._by_digest = {tenant.name: tenant for tenant in self._by_digest.values()}, {}
        for name, entry in entries.items():
            tenant = present.get(name) or Tenant(name)
            tenant.limits = entry
            self._by_digest[bytes.fromhex(entry.sha256)] = tenant
