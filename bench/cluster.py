"""How many calls does a run's coordinator answer on one core, and how long do they take with 500 workers?

    PYTHONPATH=.:shared/common:shared/contract:shared/evaluation python bench/cluster.py [--quick] [--workers 500]

The coordinator is the evaluator's own (HTTP, store, SQLite on this disk), in a process pinned to core 0. Clients are
simulated on another core: each has a connection and an episode that it holds; heartbeats, reports of what it does, and
every twentieth call an episode given back and another leased. First as fast as answers come, then 2,000 a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import statistics
import tempfile
import time
from pathlib import Path

from bench.common import figure, flags
from bench.parts.serving import served
from vla_contract.server.auth import TokenCheck
from vla_evaluation.coordinator.app import Coordinator, create_app
from vla_evaluation.coordinator.calls import Held
from vla_evaluation.runs.folders import FOLDERS, STORE
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers.clock import InvocationClock

EPISODES = 6000  # four suites, ten tasks, fifty episodes, three seeds
ASKED_PER_S = 2000
IN_TURN = ("heartbeat", "heartbeat", "heartbeat", "say")


class Rules:
    """What of a job the calls look at."""

    lease_s, retries = 3600.0, 2


def coordinator(folder: str):
    """Returns the application over a new run of 6,000 episodes."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    root = Path(folder)
    for name in FOLDERS:
        (root / name).mkdir()
    plan = [(task, episode) for task in range(40) for episode in range(EPISODES // 40)]
    clock = InvocationClock.start()
    with RunStore.create(root / STORE, suite="suite", config_hash="c" * 16, plan=plan, meta={}) as store:
        held = Held(root, Rules(), clock, store.begin_invocation(clock.now()))
    return create_app(Coordinator(held, {}), TokenCheck(None))


class Client:
    """A worker's part of the conversation, on a connection of its own."""

    def __init__(self, number: int, port: int):
        self.name, self.port, self.count = f"host.worker-{number}", port, number
        self.took: list[float] = []

    async def begin(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        await self.lease()

    async def lease(self) -> None:
        self.held = await self.call("lease", worker=self.name, prefer_task=None, token=secrets.token_hex(8))

    async def turn(self) -> int:
        """Makes the next call, or two; returns how many."""
        self.count += 1
        if self.count % 20 == 0:
            await self.call("release", lease=self.held)
            await self.lease()
            return 2
        name = IN_TURN[self.count % len(IN_TURN)]
        sent = {"lease": self.held, "steps": self.count} if name == "heartbeat" else {"status": "at it"}
        await self.call(name, worker=self.name, **sent)
        return 1

    async def call(self, name: str, **sent):
        body = json.dumps({**sent, "invocation": 1, "key": self.name}).encode()
        head = f"POST /v1/calls/{name} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        start = time.perf_counter()
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        said = json.loads(await self.reader.readexactly(length))
        self.took.append(time.perf_counter() - start)
        return said["value"]


async def converse(clients: list[Client], seconds: float, every_s: float = 0.0) -> float:
    """Has every client make its calls, one after the other, or one each `every_s`; returns calls a second."""
    for client in clients:
        client.took.clear()
    end, begun = time.perf_counter() + seconds, time.perf_counter()

    async def one(client: Client, offset: float) -> int:
        due, made = begun + offset, 0
        while (now := time.perf_counter()) < end:
            if every_s and now < due:
                await asyncio.sleep(due - now)
            due += every_s
            made += await client.turn()
        return made

    made = await asyncio.gather(*(one(client, k * every_s / len(clients)) for k, client in enumerate(clients)))
    return sum(made) / (time.perf_counter() - begun)


async def measure(port: int, workers: int, seconds: float) -> list[bool]:
    clients = [Client(number, port) for number in range(workers)]
    for client in clients:
        await client.begin()
    fast = await converse(clients, seconds)
    asked = await converse(clients, seconds, workers / ASKED_PER_S)
    took = sorted(one * 1e3 for client in clients for one in client.took)
    print(f"{workers} workers ask {asked:.0f} times a second: median {statistics.median(took):.2f} ms")
    p99 = took[int(0.99 * len(took))]
    return [
        figure("cluster_calls", fast, "calls/s", f">={ASKED_PER_S}"),
        figure("cluster_call_p99", p99, "ms", "<=10"),
    ]


def main() -> None:
    parser = flags("A run's coordinator.", "five seconds of each")
    parser.add_argument("--workers", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(coordinator, folder) as (url, _):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        port = int(url.rpartition(":")[2])
        asyncio.run(measure(port, options.workers, 5 if options.quick else 20))


if __name__ == "__main__":
    main()
