"""The thread that has the store: calls that wait together are one transaction, and reach the disk once."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from pathlib import Path
from typing import Any

from vla_evaluation.coordinator.calls import CALLS, NEVER, Held
from vla_evaluation.coordinator.schemas import Call
from vla_evaluation.store.runstore import RunStore

TOGETHER = 256  # calls in one transaction
CHANGING = ("lease", "release", "fail", "finish", "take_back")  # what changes how many episodes are in which state
log = logging.getLogger("vla_evaluation.coordinator")


class Desk:
    """Carries out calls, in the order in which they come. `do` belongs to the event loop that made it."""

    def __init__(self, path: Path, run: Held):
        self.path, self.run = path, run
        self.loop = asyncio.get_running_loop()
        self.waiting: queue.SimpleQueue[tuple | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name="coordinator's store", daemon=True)
        self.thread.start()

    async def do(self, name: str, call: Call) -> Any:
        """Returns what a call of CALLS does. ValueError for what makes no sense, StoreError as the store has it."""
        answer = self.loop.create_future()
        self.waiting.put((name, call, answer))
        return await answer

    def close(self) -> None:
        """Ends the thread once what waits is done."""
        self.waiting.put(None)

    def _serve(self) -> None:
        store = RunStore(self.path, check=False)
        with store:
            while (first := self.waiting.get()) is not None:
                calls = [first]
                while len(calls) < TOGETHER and not self.waiting.empty():
                    if (following := self.waiting.get()) is None:
                        self.waiting.put(None)
                        break
                    calls.append(following)
                self.loop.call_soon_threadsafe(_settle, self._carry_out(store, calls))

    def _carry_out(self, store: RunStore, calls: list[tuple]) -> list[tuple]:
        """Returns (future, value, error) of each; what does not reach the disk is everybody's error."""
        done = []
        try:
            with store.batch():
                done += [self._one(store, *call) for call in calls]
        except Exception as error:
            done = [(answer, None, error) for _, _, answer in calls]
        return done

    def _one(self, store: RunStore, name: str, call: Call, answer: asyncio.Future) -> tuple:
        """Carry out one call. Its error is its own: the store undoes each write by itself."""
        try:
            value = CALLS[name][1](store, self.run, call)
            if name in CHANGING:
                self.run.counted = NEVER
            return answer, value, None
        except Exception as error:
            return answer, None, error


def _settle(done: list[tuple]) -> None:
    for answer, value, error in done:
        if answer.cancelled():
            continue
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)
