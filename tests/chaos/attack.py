"""Mutated requests to every policy service: judged one by one, with its memory and its other clients watched."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import msgpack
import numpy as np

from tests.chaos import bodies, valid
from tests.chaos.bodies import JSON, MSGPACK, Body
from tests.chaos.ledger import Ledger
from tests.chaos.targets import Target, last_traceback, settled_mb
from tests.chaos.wire import Answer, Connection, request_bytes

AT_ONCE = 8  # connections of the flood
CLIENTS = 64
ATTACK_PER_S = 40  # mutated bodies a second beside the valid clients: they share two cores with both
SEGMENTS = 4  # calm and attacked by turns
GROWTH, TAIL = 1.10, 3.0
ENOUGH = 1000  # round trips on either side, for a p99 that means something; slow services have them in longer runs
SLACK_MB = 2.0  # what a Python process gains and loses by itself
SESSIONS_MB = 16.0  # the 4096 sessions that a stateful service keeps on purpose


@dataclass
class Mutator:
    """Makes the requests for one service, reproducibly."""

    name: str
    info: dict
    seed: int
    example: Callable[[random.Random], dict]

    def draw(self, number: int) -> Body:
        """Return request `number`."""
        draw = random.Random(f"{self.seed}/{self.name}/{number}")
        kind = draw.random()
        if kind < 0.05:
            return bodies.mutated_reset(draw)
        if kind < 0.12:
            return bodies.other(draw)
        if kind < 0.35:
            return bodies.mutated_act(bodies.valid_json(self.info, draw), draw)
        return bodies.mutated_v1(bodies.valid_tree(self.info, draw, self.example(draw)), draw)

    def valid(self, number: int) -> Body:
        """Return a request that is in order."""
        draw = random.Random(f"{self.seed}/{self.name}/valid/{number}")
        return Body("/v1/act", bodies.pack(bodies.valid_tree(self.info, draw, self.example(draw))), MSGPACK, "valid")


def fault(body: Body, answer: Answer, info: dict) -> str | None:
    """Return what is wrong with an answer, or None."""
    if answer.status == -1:
        return "no answer in time"
    if answer.status == 0:
        return "the connection ended without an answer"
    if answer.status >= 500 and not (answer.status == 503 and "retry-after" in answer.headers):
        return f"{answer.status}: {answer.body[:300]!r}"
    if answer.status >= 300 or body.method != "POST":
        return None
    if body.route == "/v1/act":
        reason = valid.acceptable_v1(body.data, info) if body.media_type == MSGPACK else "another type"
        return f"200 for a bad body ({reason})" if reason else _bad_chunk(answer.body)
    if body.route == "/act":
        reason = valid.acceptable_act(body.data, info) if body.media_type == JSON else "another type"
        return f"200 for a bad body ({reason})" if reason else None
    return None


def _bad_chunk(data: bytes) -> str | None:
    """Return what is wrong with an answer that says 200, or None."""
    dtype, shape, raw = valid.array(msgpack.unpackb(data)["actions"], "actions")
    actions = np.frombuffer(raw, dtype)
    fits = dtype == "<f4" and len(shape) == 2 and shape[1] == 7 and shape[0] >= 1
    return None if fits and np.isfinite(actions).all() else f"200 with actions {actions.tolist()[:14]}"


def describe(body: Body, number: int) -> str:
    """Return a request in words: enough to make it again."""
    request = f"request {number}, {body.method} {body.route[:60]} ({body.how}) {body.headers}"
    return f"{request}, {len(body.data)} bytes {body.data[:100]!r}"


async def flood(
    target: Target, row: str, make: Callable[[int], Body], fault: Callable[[Body, Answer], str | None],
    numbers: Iterator[int], until: float, ledger: Ledger,
) -> int:  # fmt: skip
    """Send made-up requests over some connections at once; returns how many were judged."""
    judged = 0

    async def send_requests() -> None:
        nonlocal judged
        connection = Connection(target.url)
        for number in numbers:
            if time.monotonic() > until:
                break
            body = make(number)
            answer = await connection.ask(request_bytes(body, "127.0.0.1"), body.method == "HEAD")
            problem = fault(body, answer)
            trace = last_traceback(target) if problem and answer.status >= 500 else ""
            ledger.count(row, problem is None, f"{describe(body, number)}: {problem} {trace}")
            judged += 1
        await connection.close()

    await asyncio.gather(*(send_requests() for _ in range(AT_ONCE)))
    return judged


def flood_and_measure(
    target: Target, row: str, make: Callable[[int], Body], fault: Callable[[Body, Answer], str | None],
    seconds: float, slack_mb: float, ledger: Ledger,
) -> None:  # fmt: skip
    """Flood a service for so long, its memory watched from the second third on."""
    numbers, start = iter(range(1_000_000)), time.monotonic()
    warm = asyncio.run(flood(target, row, make, fault, numbers, start + seconds / 3, ledger))
    before = settled_mb(target)
    judged = warm + asyncio.run(flood(target, row, make, fault, numbers, time.monotonic() + seconds * 2 / 3, ledger))
    after = settled_mb(target)
    story = f"{before:.0f} -> {after:.0f} MB in {judged} requests"
    ledger.count(f"{target.name}: memory after at most 1.1 x before", after <= before * GROWTH + slack_mb, story)
    ledger.figure(f"{target.name}: {judged} made-up requests, memory {before:.0f} -> {after:.0f} MB")


def count_ready(target: Target, path: str, ledger: Ledger) -> None:
    """Count whether a service answers at that path after an attack."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    status = asyncio.run(Connection(target.url).ask(request, timeout_s=20)).status
    ledger.count(f"{target.name}: still ready", status == 200, last_traceback(target))


# --- 64 valid clients beside it -----------------------------------------------------------------------------


async def valid_clients(target: Target, mutator: Mutator, seconds: float) -> list[float]:
    """Return the ms of every round trip of 64 clients that ask again at once; refusals are tried again within."""
    end, taken = time.monotonic() + seconds, []

    async def run_client(index: int) -> None:
        connection, number = Connection(target.url), index * 1_000_000
        while time.monotonic() < end:
            number += 1
            data, start = request_bytes(mutator.valid(number), "127.0.0.1"), time.perf_counter()
            while (answer := await connection.ask(data)).status in (429, 503) and time.monotonic() < end + 30:
                await asyncio.sleep(0.05)
            taken.append((time.perf_counter() - start) * 1e3 if answer.status == 200 else float("inf"))
        await connection.close()

    await asyncio.gather(*(run_client(index) for index in range(CLIENTS)))
    return taken


def attacker(url: str, requests: list[bytes], attacking, done) -> None:
    """Another process: while `attacking` is set it sends made-up requests at a bounded rate, and holds slow ones."""

    async def run() -> None:
        fast, slow = Connection(url), [Connection(url) for _ in range(16)]
        position = 0
        while not done.is_set():
            if not attacking.is_set():
                await asyncio.sleep(0.05)
                continue
            open_requests = [
                connection.ask(b"POST /v1/act HTTP/1.1\r\nContent-Length: 999\r\n", False, 0.4) for connection in slow
            ]
            slow_ones = asyncio.gather(*open_requests)
            for _ in range(ATTACK_PER_S // 2):
                await fast.ask(requests[position % len(requests)], False, 5)
                position += 1
                await asyncio.sleep(1 / ATTACK_PER_S)
            await slow_ones

    asyncio.run(run())


def beside(target: Target, mutator: Mutator, seconds: float, ledger: Ledger) -> None:
    """Measure valid clients without and with an attack beside them, by turns, and counts whether p99 held."""
    mutated = [mutator.draw(10_000_000 + number) for number in range(200)]
    requests = [request_bytes(body, "127.0.0.1") for body in mutated if body.method == "POST"]
    context = multiprocessing.get_context("spawn")
    attacking, done = context.Event(), context.Event()
    process = context.Process(target=attacker, args=(target.url, requests, attacking, done), daemon=True)
    process.start()
    taken: dict[bool, list[float]] = {False: [], True: []}
    try:
        asyncio.run(valid_clients(target, mutator, 1.0))  # warm
        for segment in range(SEGMENTS):
            attacked = bool(segment % 2)
            (attacking.set if attacked else attacking.clear)()
            taken[attacked] += asyncio.run(valid_clients(target, mutator, seconds / SEGMENTS))
    finally:
        done.set()
        process.join(10)
        process.kill()
    calm, hit = (statistics.quantiles(taken[side], n=100)[98] for side in (False, True))
    row = f"{target.name}: 64 clients beside the attack: p99 at most 3 x"
    if enough := min(map(len, taken.values())) >= ENOUGH:
        ledger.count(row, hit <= TAIL * calm, f"p99 {calm:.1f} -> {hit:.1f} ms")
    few = "" if enough else f" (too few round trips to judge: {min(map(len, taken.values()))})"
    ledger.figure(f"{target.name}: p99 of 64 clients {calm:.1f} ms, attacked {hit:.1f} ms: {hit / calm:.2f} x{few}")


# --- one service --------------------------------------------------------------------------------------------


def examples(name: str) -> Callable[[random.Random], dict]:
    """Return what a valid observation for that service holds beside the usual."""
    if name == "oracle":
        from services.libero.oracle.example import example_state

        return lambda draw: {"privileged": example_state((draw.uniform(-0.1, 0.1), 0.0))}
    if name == "replay":
        return lambda draw: {
            "session": f"chaos.7.{draw.randrange(4)}.1.{draw.getrandbits(40):x}",
            "instruction": "turn on the stove",
            "step": draw.randrange(90),
        }
    return lambda draw: {}


def attack_policy(target: Target, seed: int, seconds: float, ledger: Ledger) -> None:
    """Attack one policy service: a flood, then clients beside an attack."""
    info = asyncio.run(Connection(target.url).ask(b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    target.info = json.loads(info.body)
    mutator = Mutator(target.name, target.info, seed, examples(target.name))
    row = f"{target.name}: mutated requests: 4xx, or an answer where one is due"
    slack_mb = SLACK_MB + (SESSIONS_MB if target.info["stateful"] else 0)
    judge = partial(fault, info=target.info)
    flood_and_measure(target, row, mutator.draw, judge, 0.6 * seconds, slack_mb, ledger)
    beside(target, mutator, 0.4 * seconds, ledger)
    count_ready(target, "/readyz", ledger)
