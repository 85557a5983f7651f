"""A session as the service has it: a process, what it last told, and whoever waits for news of it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vla_evaluation.live import wire
from vla_evaluation.live.opening import Opening

PLAYER = "vla_evaluation.live.player"
JOB_S = 120.0  # a film of two thousand steps, drawn on a CPU
MESSAGE_BYTES = wire.MAX_BYTES
OVER = ("failed", "gone")


class Session:
    """`id` cannot be guessed: who has it may look and drive. `used` and `driven`: time.monotonic() of the last request,
    and of the last that was a person's doing.
    """

    def __init__(self, opening: Opening):
        self.id, self.opening = secrets.token_urlsafe(24), opening
        self.used = self.driven = time.monotonic()
        self.number, self.pictures, self.actions = 0, b"", []
        self.state: dict[str, Any] = {"state": "starting", "reason": "the simulator is starting", "episode": 0}
        self.process: asyncio.subprocess.Process | None = None
        self._news, self._jobs, self._numbers = asyncio.Event(), {}, itertools.count(1)
        self._why = ""  # it was ended by the service

    async def start(self, module: str, work: Path, variables: Mapping[str, str]) -> None:
        """Starts the process; what goes wrong in it is told as any other news."""
        ours, theirs = socket.socketpair()
        with theirs:
            words = [module, self.opening.to_json(), str(work), str(theirs.fileno()), str(os.getpid())]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **variables}
            command = [sys.executable, "-m", PLAYER, *words]
            self.process = await asyncio.create_subprocess_exec(
                *command, pass_fds=[theirs.fileno()], env=environment, stdin=asyncio.subprocess.DEVNULL
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._listening = asyncio.create_task(self._listen())

    @property
    def is_over(self) -> bool:
        """Whether its process has ended, or is about to."""
        return self.state["state"] in OVER

    def tell(self, command: Mapping[str, Any]) -> None:
        """Passes a command on; one that comes too late is nobody's."""
        if not self.is_over:
            self._writer.write(wire.packed(dict(command)))

    async def ask(self, do: str) -> tuple[dict[str, Any], bytes]:
        """Returns what the process answers to a job, and the bytes with it. ValueError with why there is nothing."""
        if self.state["state"] != "ended":
            raise ValueError("the episode has not ended; finish it first")
        number = next(self._numbers)
        self._jobs[number] = future = asyncio.get_running_loop().create_future()
        self.tell({"do": do, "id": number})
        try:
            answer, blob = await asyncio.wait_for(future, JOB_S)
        except asyncio.TimeoutError as error:
            raise ValueError(f"the {do} was not done in {JOB_S:g} s; try again, or start anew") from error
        finally:
            self._jobs.pop(number, None)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer, blob

    async def news(self, after: int, timeout_s: float) -> bool:
        """Returns whether there is something newer than number `after`, waiting for it that long."""
        if self.number <= after and not self.is_over:
            event = self._news
            self.tell({"do": "look"})
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(event.wait(), timeout_s)
        return self.number > after

    def message(self, episode: int, have: int) -> bytes:
        """Returns what it last told, for somebody who has so many actions of that episode."""
        start = have if episode == self.state.get("episode") and have <= len(self.actions) else 0
        known = {"number": self.number, "actions_from": start, "actions": self.actions[start:]}
        return wire.packed({**self.state, **known}, self.pictures)

    def rss_bytes(self) -> int:
        """Returns the memory that the process holds now, 0 where it has ended."""
        try:
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0

    async def end(self, why: str) -> None:
        """Ends the process; `why` is what whoever still looks is told."""
        self._why = why
        with suppress(ProcessLookupError):
            self.process.kill()
        await self._listening

    async def _listen(self) -> None:
        try:
            while True:
                lengths = await self._reader.readexactly(wire.LENGTHS.size)
                head, rest = wire.LENGTHS.unpack(lengths)
                if head + rest > MESSAGE_BYTES:
                    raise ValueError(f"a message of {head + rest} bytes")
                self._take(json.loads(await self._reader.readexactly(head)), await self._reader.readexactly(rest))
        except (asyncio.IncompleteReadError, OSError, ValueError):
            with suppress(ProcessLookupError):
                self.process.kill()
        code = await self.process.wait()
        self._writer.close()
        for future in self._jobs.values():
            if not future.done():
                future.set_exception(ValueError("the simulator's process ended meanwhile; start anew"))
        if self.state["state"] != "failed":
            self._told({"state": "gone", "reason": self._why or _ended(code)})

    def _take(self, head: dict[str, Any], blob: bytes) -> None:
        if "answer" in head:
            if (future := self._jobs.get(head["answer"])) and not future.done():
                future.set_result((head, blob))
            return
        if head.get("episode") != self.state.get("episode"):
            self.actions = []
        self.actions += head.pop("actions", [])
        head.pop("actions_from", None)
        if blob:
            self.pictures = blob
        elif self.pictures:
            head["pictures"] = self.state.get("pictures", {})
        self._told(head)

    def _told(self, head: Mapping[str, Any]) -> None:
        self.state, self.number = {**self.state, **head}, self.number + 1
        news, self._news = self._news, asyncio.Event()
        news.set()


def _ended(code: int) -> str:
    """Returns in words how a process ended that nobody had told to."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return f"the simulator's process was killed ({name}; out of memory?); start anew"
    return f"the simulator's process ended (exit code {code}); the service's log says more. Start anew"
