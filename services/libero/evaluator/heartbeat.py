"""Keeps a leased episode's lease alive, from a thread beside the rollout."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from services.libero.evaluator.records import Lease, StoreError
from services.libero.evaluator.store import RunStore


class LeaseLost(Exception):
    """Somebody else has this episode now."""


class Heartbeat:
    """Keeps a lease alive from a thread while its episode makes progress, and no longer.

    A worker that hangs in a driver or a lost connection stops calling `tick`; then the lease runs out and the
    supervisor replaces the worker.
    """

    def __init__(self, store: Path, lease: Lease, lease_s: float, patience_s: float, parent: int):
        """`patience_s`: how long after its last tick a worker counts as alive; `parent`: whose end is ours too."""
        self.store, self.lease, self.lease_s = store, lease, lease_s
        self.patience_s, self.parent = patience_s, parent
        self.steps, self.lost = 0, False
        self.last_tick = time.monotonic()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.beat, name="heartbeat", daemon=True)

    def tick(self, steps: int) -> None:
        """Tells that the episode is alive, with the actions executed so far; raises where it has to end."""
        self.steps, self.last_tick = steps, time.monotonic()
        if self.lost:
            raise LeaseLost

    def beat(self) -> None:
        """Renews the lease until the episode ends; opens the store only for an episode that takes that long."""
        store = None
        try:
            while not self.ended.wait(self.lease_s / 6):
                if os.getppid() != self.parent:
                    os._exit(1)
                if time.monotonic() - self.last_tick > self.patience_s:
                    continue
                store = store or RunStore(self.store, check=False)
                if not store.heartbeat(self.lease, time.time(), self.lease_s, self.steps):
                    self.lost = not self.ended.is_set()
                    return
        except StoreError as error:
            logging.warning("no heartbeat: %s", error)  # the episode's own report will say it again, aloud
        finally:
            if store is not None:
                store.close()

    def __enter__(self) -> Heartbeat:
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.ended.set()
        self.thread.join(timeout=5)
