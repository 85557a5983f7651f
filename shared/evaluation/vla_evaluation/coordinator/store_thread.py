"""The thread with the store: calls that are pending together are one transaction, and reach the disk once."""

from __future__ import annotations

import asyncio
import queue
import threading
from pathlib import Path
from typing import Any

from vla_evaluation.coordinator.calls import CALLS, NO_COUNTS, ActiveRun, Call
from vla_evaluation.store.runstore import RunStore

MAX_BATCH = 256  # calls in one transaction
CHANGE_COUNTS = ("lease", "release", "fail", "finish", "take_back")


class StoreThread:
    """Carries out calls in the order of their arrival. `call` belongs to the event loop of the constructor."""

    def __init__(self, path: Path, run: ActiveRun):
        self.path, self.run = path, run
        self.loop = asyncio.get_running_loop()
        self.pending: queue.SimpleQueue[tuple | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="coordinator's store", daemon=True).start()

    async def call(self, name: str, arguments: Call) -> Any:
        """Return the value of a call of CALLS. Raises ValueError for invalid arguments, StoreError by the store."""
        answer = self.loop.create_future()
        self.pending.put((name, arguments, answer))
        return await answer

    def close(self) -> None:
        """End the thread after the pending calls."""
        self.pending.put(None)

    def _serve(self) -> None:
        with RunStore(self.path, check=False) as store:
            while (first := self.pending.get()) is not None:
                calls = [first]
                while len(calls) < MAX_BATCH and not self.pending.empty():
                    if (following := self.pending.get()) is None:
                        self.pending.put(None)
                        break
                    calls.append(following)
                self.loop.call_soon_threadsafe(_resolve, self._carry_out(store, calls))

    def _carry_out(self, store: RunStore, calls: list[tuple]) -> list[tuple]:
        """Return (future, value, error) of each; if the transaction does not reach the disk, all have its error."""
        done = []
        try:
            with store.batch():
                for name, arguments, answer in calls:
                    try:
                        value = CALLS[name][1](store, self.run, arguments)
                        if name in CHANGE_COUNTS:
                            self.run.cached_counts = NO_COUNTS
                        done.append((answer, value, None))
                    except Exception as error:  # its own: the store undoes each write by itself
                        done.append((answer, None, error))
        except Exception as error:
            done = [(answer, None, error) for _, _, answer in calls]
        return done


def _resolve(done: list[tuple]) -> None:
    for answer, value, error in done:
        if answer.cancelled():
            continue
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)
