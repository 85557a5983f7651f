"""The store behind the calls: all pending calls are one transaction, with one write to disk."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vla_evaluation.coordinator.calls import CALLS, NO_COUNTS, ActiveRun, Call
from vla_evaluation.store.runstore import RunStore

MAX_BATCH = 256  # calls in one transaction
CHANGE_COUNTS = ("lease", "release", "fail", "finish", "take_back")


class BatchedStore:
    """Carries out calls in the order of their arrival, one batch at a time, in a thread of its own."""

    def __init__(self, path: Path, run: ActiveRun):
        self.store, self.run = RunStore(path, check=False), run
        self.thread = ThreadPoolExecutor(1, "coordinator's store")  # separate from threads that write files
        self.pending: list[tuple[str, Call, asyncio.Future[Any]]] = []
        self.work: asyncio.Task[None] | None = None

    async def call(self, name: str, arguments: Call) -> Any:
        """Return the value of a call of CALLS. Raises ValueError for invalid arguments, StoreError by the store."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.pending.append((name, arguments, answer))
        if self.work is None or self.work.done():
            self.work = asyncio.create_task(self._work())
        return await answer

    async def close(self) -> None:
        """Carry out the pending calls and close the store."""
        if self.work is not None:
            await self.work
        self.thread.shutdown()
        self.store.close()

    async def _work(self) -> None:
        while self.pending:
            calls, self.pending = self.pending[:MAX_BATCH], self.pending[MAX_BATCH:]
            done = await asyncio.get_running_loop().run_in_executor(self.thread, self._carry_out, calls)
            for (_, _, answer), (value, error) in zip(calls, done, strict=True):
                if answer.cancelled():
                    continue
                if error is None:
                    answer.set_result(value)
                else:
                    answer.set_exception(error)

    def _carry_out(self, calls: list[tuple[str, Call, Any]]) -> list[tuple[Any, Exception | None]]:
        """Return value and error of each; if the transaction does not reach the disk, all have its error."""
        done: list[tuple[Any, Exception | None]] = []
        try:
            with self.store.batch():
                for name, arguments, _ in calls:
                    try:
                        done.append((CALLS[name][1](self.store, self.run, arguments), None))
                        if name in CHANGE_COUNTS:
                            self.run.cached_counts = NO_COUNTS
                    except Exception as error:  # of this call only: the store undoes each write alone
                        done.append((None, error))
        except Exception as error:
            done = [(None, error) for _ in calls]
        return done
