"""What each thing costs alone that workers of many machines share, and a run of simulated workers beside it.

The workers' simulators are waits, so that one core holds them all; the coordinator (HTTP, store, SQLite on this disk),
the policy's service and the calls are real.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

import numpy as np

from bench.parts.cluster_model import POLL_S, RENEW_S, Costs
from vla_contract import ActionChunk, Observation, Part, Policy, PolicyInfo, create_app
from vla_contract.protocol import codec
from vla_contract.protocol.messages import encode_observation

INFER_S = 0.02, 0.002  # of the simulated model, a batch of n: first + n × second
MAX_BATCH = 8
RESET_S, THINK_S, REQUESTS = 0.2, 0.2, 5  # of a simulated episode
FILE_BYTES = 200_000  # of an episode's recording
RESULT = {"success": True, "steps": 40, "timings_ms": {"total": 1000.0}}


class Simulated(Policy):
    """A model that takes its time, as a GPU does: without a core."""

    def __init__(self, first: float, second: float):
        self.first, self.second = first, second

    def info(self) -> PolicyInfo:
        return PolicyInfo(
            "simulated", (Part("zeros", 7, "1", "none"),), cameras=("agentview",), horizon=8, max_batch=MAX_BATCH
        )

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        end = time.perf_counter() + self.first + self.second * len(observations)
        while (left := end - time.perf_counter()) > 0:
            time.sleep(left)
        return [ActionChunk(np.zeros((8, 7), np.float32)) for _ in observations]


def policy(first: float, second: float):
    """Returns the model's application, which takes what waits."""
    return create_app(Simulated(first, second), max_wait_ms=0, queue_size=4096)


def observation(session: str, step: int) -> bytes:
    """Returns a request's body, with one picture of 224 × 224."""
    picture = {"agentview": np.zeros((224, 224, 3), np.uint8)}
    return encode_observation(Observation(picture, None, "bench", session, step))


class Wire:
    """One connection, made anew where the other end has given it up as idle."""

    async def open(self, url: str) -> Wire:
        self.url = url
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        return self

    async def post(self, route: str, body: bytes, media_type: str = "application/json") -> bytes:
        """Returns the answer's body. RuntimeError for any status but 200."""
        head = f"POST {route} HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        if self.reader.at_eof():
            self.writer.close()
            await self.open(self.url)
        self.writer.write(head.encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        said = await self.reader.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{route}: {answer[:40]!r} {said[:200]!r}")
        return said


class Worker:
    """A worker's part of the conversation: what `coordinator.remote` and `workers.worker` say, and nothing else."""

    def __init__(self, name: str, url: str, policies: list[str]):
        self.name, self.url, self.policies = name, url, policies
        self.body, self.file, self.ends = observation(name, 0), bytes(FILE_BYTES), list[float]()
        self.waits: list[float] = []  # what each of THINK_S took: all clients share a core

    async def open(self) -> Worker:
        self.wire, self.renewing, self.looking = [await Wire().open(self.url) for _ in range(3)]
        self.asks = {url: await Wire().open(url) for url in self.policies}
        return self

    async def call(self, name: str, wire: Wire | None = None, **sent: object):
        body = json.dumps({**sent, "invocation": 1, "key": self.name}).encode()
        return json.loads(await (wire or self.wire).post(f"/v1/calls/{name}", body))["value"]

    async def lease(self) -> None:
        token = secrets.token_hex(8)
        self.held = await self.call("lease", worker=self.name, prefer_task=None, token=token, policies=self.policies)

    async def finish(self) -> None:
        words = {"kind": "episode", "token": self.held["token"], "sha256": hashlib.sha256(self.file).hexdigest()}
        query = urlencode({**words, "invocation": 1, "key": self.name})
        await self.wire.post(f"/v1/files?{query}", self.file, "application/octet-stream")
        await self.call("finish", lease=self.held, result=RESULT)

    async def renew(self) -> None:
        """What a supervisor does for its worker's lease."""
        for lease in (await self.call("leases", self.renewing, prefix=self.name)).values():
            await self.call("heartbeat", self.renewing, lease=lease, steps=1)

    async def look(self) -> None:
        """What a supervisor does between."""
        await self.call("counts", self.looking)
        await self.call("workers", self.looking, prefix=self.name)

    async def ask(self, url: str) -> None:
        await self.asks[url].post("/v1/act", self.body, codec.MEDIA_TYPE)

    async def episode(self) -> None:
        await self.lease()
        await self.call("say", worker=self.name, status="at it")
        await asyncio.sleep(RESET_S)
        for _ in range(REQUESTS):
            begun = time.perf_counter()
            await asyncio.sleep(THINK_S)
            self.waits.append(time.perf_counter() - begun)
            await self.ask(self.held["policy"])
        await self.finish()
        self.ends.append(time.perf_counter())

    def rate(self, since: int) -> float:
        """Returns its episodes a second from the end of the `since`-th on."""
        return (len(self.ends) - since) / (self.ends[-1] - self.ends[since - 1])


def cpu_s(pid: int) -> float:
    """Returns the processor time of a process, of all its threads."""
    return time.clock_gettime((~pid << 3) | 2)  # Linux' clock of another process: CPUCLOCK_SCHED


async def rate(clients: list[Callable[[], Awaitable]], seconds: float) -> float:
    """Returns how many calls a second the clients get answered, each making one after the other."""
    return (await rates(clients, seconds, None))[0]


async def rates(clients: list[Callable[[], Awaitable]], seconds: float, pid: int | None) -> tuple[float, float]:
    """Returns that and how many a second of processor time of who answers, the process `pid`."""
    begun, before = time.perf_counter(), cpu_s(pid) if pid else 0.0

    async def one(call: Callable[[], Awaitable]) -> int:
        made = 0
        while time.perf_counter() < begun + seconds:
            await call()
            made += 1
        return made

    made = sum(await asyncio.gather(*map(one, clients)))
    return made / (time.perf_counter() - begun), made / (cpu_s(pid) - before) if pid else 0.0


async def measured(url: str, pid: int, workers: int, seconds: float) -> list[dict[str, float]]:
    """Returns seconds per call of the coordinator's, in the middle of a run of so many workers: as they come here and
    now, and of processor time.
    """
    crowd = [await Worker(f"w{number}.", url, []).open() for number in range(workers)]
    for one in crowd:
        await one.lease()
        await one.call("say", worker=one.name, status="at it")
    some = crowd[:16]

    async def again(one: Worker) -> None:
        await one.call("release", lease=one.held)
        await one.lease()

    async def counts(one: Worker) -> None:
        await again(one)
        await one.call("counts")

    async def finish(one: Worker) -> None:
        await one.finish()
        await one.lease()

    alone = await rate([lambda: some[0].call("heartbeat", lease=some[0].held, steps=3)], seconds)
    asked = {
        "small": (lambda one: one.call("heartbeat", lease=one.held, steps=3), seconds),
        "mine": (lambda one: one.call("leases", prefix=one.name), seconds),
        "pair": (again, seconds),
        "fresh": (counts, seconds),
        "whole": (finish, seconds / 4),  # a run has so many episodes and no more
    }
    found = {
        name: await rates([lambda one=one, what=what: what(one) for one in some], limit_s, pid)
        for name, (what, limit_s) in asked.items()
    }
    for one in crowd:
        await one.call("release", lease=one.held)
    return [apart({name: 1 / both[which] for name, both in found.items()}, alone) for which in (0, 1)]


def apart(whole: dict[str, float], alone: float) -> dict[str, float]:
    """Returns what each call costs, of what some cost together. alone: small ones a second of a single client."""
    lease = max(0.0, whole["pair"] - whole["small"])
    return {
        "small": whole["small"], "call_away": max(0.0, 1 / alone - whole["small"]), "mine": whole["mine"],
        "lease": lease, "counts": max(0.0, whole["fresh"] - whole["pair"]), "upload": max(0.0, whole["whole"] - lease),
    }  # fmt: skip


async def measured_policy(empty: str, timed: str, seconds: float) -> dict[str, object]:
    """Returns what a policy's requests cost: one whose model takes no time, and one whose model takes INFER_S."""
    many = [await Worker(f"p{number}", empty, [empty]).open() for number in range(8)]
    http = await rate([lambda one=one: one.ask(empty) for one in many], seconds)
    alone = await rate([lambda: many[0].ask(empty)], seconds)
    few = [await Worker(f"q{number}", timed, [timed]).open() for number in range(2 * MAX_BATCH)]
    one = await rate([lambda: few[0].ask(timed)], seconds)
    full = await rate([lambda one=one: one.ask(timed) for one in few], seconds)
    single_s, full_s = 1 / one - 1 / alone, MAX_BATCH / full
    second = (full_s - single_s) / (MAX_BATCH - 1)
    return {"policy": 1 / http, "policy_away": max(0.0, 1 / alone - 1 / http), "infer": (single_s - second, second)}


def costs(few: dict, many: dict, counts: tuple[int, int], asking: dict) -> Costs:
    """Returns the model's costs of what was measured with few and with many workers."""
    second = max(0.0, (many["mine"] - few["mine"]) / (counts[1] - counts[0]))
    mine = (few["mine"] - second * counts[0], second)
    rest = {name: (few[name] + many[name]) / 2 for name in ("small", "lease", "upload", "counts", "call_away")}
    return Costs(RESET_S, THINK_S, REQUESTS, max_batch=MAX_BATCH, mine=mine, **rest, **asking)


async def played(url: str, policies: list[str], workers: int, seconds: float, name: str) -> tuple[float, float]:
    """Returns the episodes a second of so many workers, after two episodes of each, and what THINK_S took."""
    crowd = [await Worker(f"{name}{number}.", url, policies).open() for number in range(workers)]
    over = False

    async def work(one: Worker, number: int) -> None:
        await asyncio.sleep(number / workers * (RESET_S + REQUESTS * THINK_S))
        while not over:
            await one.episode()

    async def every(seconds: float, what: Callable[[], Awaitable], number: int) -> None:
        await asyncio.sleep(number / workers * seconds)
        while not over:
            await what()
            await asyncio.sleep(seconds)

    tasks = []
    for number, one in enumerate(crowd):
        tasks.append(work(one, number))
        tasks += [every(POLL_S, one.look, number), every(RENEW_S, one.renew, number)]
    running = asyncio.gather(*tasks)
    while min(len(one.ends) for one in crowd) < 2:
        await asyncio.sleep(0.05)
    since = [len(one.ends) for one in crowd]
    await asyncio.sleep(seconds)
    while any(len(one.ends) <= before for one, before in zip(crowd, since, strict=True)):
        await asyncio.sleep(0.05)
    made = sum(one.rate(before) for one, before in zip(crowd, since, strict=True))
    over = True
    await running
    return made, statistics.mean(wait for one in crowd for wait in one.waits)
