"""The service's handle of a session: its process, its last message, and the requests that wait for the next."""

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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vla_evaluation.live import commands
from vla_evaluation.live.commands import SessionRequest

SIMULATION = "vla_evaluation.live.simulation"
JOB_TIMEOUT_S = 120.0  # a video of two thousand steps, rendered on a CPU


class Session:
    """`id` is a secret: whoever has it may watch and drive.

    used, driven: time.monotonic() of the last request, and of the last command.
    """

    def __init__(self, request: SessionRequest):
        self.id, self.request = secrets.token_urlsafe(24), request
        self.used = self.driven = time.monotonic()
        self.number, self.images, self.actions = 0, b"", []
        self.state: dict[str, Any] = {"state": "starting", "reason": "the simulator is starting", "episode": 0}
        self.process: asyncio.subprocess.Process | None = None
        self._news, self._jobs, self._job_numbers = asyncio.Event(), {}, itertools.count(1)
        self._end_reason = ""  # where the service ended it

    async def start(self, module: str, work: Path, variables: Mapping[str, str]) -> None:
        """Start the process; its failures arrive as its other messages do."""
        service_socket, process_socket = socket.socketpair()
        with process_socket:
            request, descriptor = json.dumps(asdict(self.request)), str(process_socket.fileno())
            arguments = [module, request, str(work), descriptor, str(os.getpid())]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **variables}
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", SIMULATION, *arguments,
                pass_fds=[process_socket.fileno()], env=environment, stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        self._reader, self._writer = await asyncio.open_connection(sock=service_socket)
        self._listening = asyncio.create_task(self._listen())

    @property
    def is_over(self) -> bool:
        """Whether its process has ended, or is about to."""
        return self.state["state"] in ("failed", "gone")

    def send_command(self, command: Mapping[str, Any]) -> None:
        """Send a command to the process; drop it if the session is over."""
        if not self.is_over:
            self._writer.write(commands.pack(command))

    async def run_job(self, do: str) -> tuple[dict[str, Any], bytes]:
        """Return the process's answer to a job, and the bytes with it. ValueError with the reason for none."""
        if self.state["state"] != "ended":
            raise ValueError("the episode has not ended; finish it first")
        number = next(self._job_numbers)
        self._jobs[number] = future = asyncio.get_running_loop().create_future()
        self.send_command({"do": do, "id": number})
        try:
            answer, blob = await asyncio.wait_for(future, JOB_TIMEOUT_S)
        except asyncio.TimeoutError as error:
            reason = f"the {do} did not finish within {JOB_TIMEOUT_S:g} s; try again, or open a new session"
            raise ValueError(reason) from error
        finally:
            self._jobs.pop(number, None)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer, blob

    async def wait_for_news(self, after: int, timeout_s: float) -> None:
        """Wait for something newer than number `after`."""
        if self.number <= after and not self.is_over:
            event = self._news
            self.send_command({"do": "look"})
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(event.wait(), timeout_s)

    def message(self, episode: int, have: int) -> bytes:
        """Return the latest news for a page that has the first `have` actions of that episode."""
        start = have if episode == self.state.get("episode") and have <= len(self.actions) else 0
        news = {"number": self.number, "actions_from": start, "actions": self.actions[start:]}
        return commands.pack({**self.state, **news}, self.images)

    def rss_bytes(self) -> int:
        """Return the process's memory, 0 where it has ended."""
        try:
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0

    async def end(self, reason: str) -> None:
        """End the process; pages that are still open display `reason`."""
        self._end_reason = reason
        with suppress(ProcessLookupError):
            self.process.kill()
        await self._listening

    async def _listen(self) -> None:
        try:
            while True:
                lengths = await self._reader.readexactly(commands.LENGTHS.size)
                head, rest = commands.LENGTHS.unpack(lengths)
                if head + rest > commands.MAX_BYTES:
                    raise ValueError(f"a message of {head + rest} bytes")
                self._take(json.loads(await self._reader.readexactly(head)), await self._reader.readexactly(rest))
        except (asyncio.IncompleteReadError, OSError, ValueError):
            with suppress(ProcessLookupError):
                self.process.kill()
        code = await self.process.wait()
        self._writer.close()
        for future in self._jobs.values():
            if not future.done():
                future.set_exception(ValueError("the simulator's process has ended; open a new session"))
        if self.state["state"] == "failed":
            return
        reason = self._end_reason
        if not reason and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
            reason = f"the simulator's process was killed ({name}; out of memory?); open a new session"
        elif not reason:
            reason = f"the simulator's process ended with exit code {code}, see the service's log; open a new session"
        self._publish({"state": "gone", "reason": reason})

    def _take(self, head: dict[str, Any], blob: bytes) -> None:
        if "answer" in head:
            if (future := self._jobs.get(head["answer"])) and not future.done():
                future.set_result((head, blob))
            return
        if head.get("episode") != self.state.get("episode"):
            self.actions = []
        self.actions += head.pop("actions", [])
        if blob:
            self.images = blob
        elif self.images:
            head["pictures"] = self.state.get("pictures", {})
        self._publish(head)

    def _publish(self, head: Mapping[str, Any]) -> None:
        self.state, self.number = {**self.state, **head}, self.number + 1
        news, self._news = self._news, asyncio.Event()
        news.set()
