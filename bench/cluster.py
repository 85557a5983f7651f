"""How many calls does a run's coordinator answer on one core, and how long do they take with 500 workers?

    ./lab bench cluster [--quick] [--options "--workers 500 --simulate"]

The coordinator is the evaluator's own (HTTP, store, SQLite on this disk), in a process pinned to core 0. Clients are
simulated on another core: each has a connection and an episode that it holds; heartbeats, reports of what it does, and
every twentieth call an episode given back and another leased. First as fast as answers come, then 2,000 a second.

--simulate measures instead what each thing costs alone that all workers share, has a model (bench/parts/cluster_model)
say how many episodes a second small cases bring, plays these, and prints measured over predicted; then what the model
says of up to 2,000 workers, whose simulator and policy are as --reset-s and what stands beside it say. All clients
share a core here, so a wait that stands for a simulator is late where that is busy: a case is predicted with its waits
as long as they were.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.common import figure, flags
from bench.parts.cluster_costs import INFER_S, THINK_S, costs, measured, measured_policy, played, policy
from bench.parts.cluster_model import Costs, forecast, most_workers
from bench.parts.serving import served
from vla_contract.server.auth import TokenCheck
from vla_evaluation.coordinator.app import Coordinator, create_app
from vla_evaluation.coordinator.calls import Held
from vla_evaluation.runs.folders import FOLDERS, STORE
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers.clock import InvocationClock

EPISODES = 6000  # four suites, ten tasks, fifty episodes, three seeds
ASKED_PER_S = 2000
POPULATIONS = 16, 400  # workers among which a call's cost is measured
CASES = (1, 1), (8, 1), (16, 1), (32, 1), (64, 1), (64, 2)  # workers, policies
QUICK_CASES = (1, 1), (8, 1), (48, 1)
IN_TURN = ("heartbeat", "heartbeat", "heartbeat", "say")


class Rules:
    """What of a job the calls look at."""

    lease_s, retries = 3600.0, 2
    policies: tuple[str, ...] = ()


def coordinator(folder: str, policies: tuple[str, ...] = ()):
    """Returns the application over a new run of 6,000 episodes."""
    Rules.policies = policies
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
        says = {"worker": self.name, "status": "at it"}
        await self.call(name, **({"lease": self.held, "steps": self.count} if name == "heartbeat" else says))
        return 1

    async def call(self, name: str, **sent):
        body = json.dumps({**sent, "invocation": 1, "key": self.name}).encode()
        head = f"POST /v1/calls/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
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
        figure("cluster_calls", fast, "calls/s", f">={ASKED_PER_S}", quick=True),
        figure("cluster_call_p99", p99, "ms", "<=10", quick=True),
    ]


def simulate(options: argparse.Namespace) -> None:
    """Measures costs, holds the model's small cases against the same played, and prints what it says of large ones."""
    seconds, cases = (2.0, QUICK_CASES) if options.quick else (5.0, CASES)
    with ExitStack() as entered:
        empty, *policies = (
            entered.enter_context(served(policy, *infer))[0] for infer in ((0.0, 0.0), INFER_S, INFER_S)
        )
        folders = [entered.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)]
        apart, (url, _) = (entered.enter_context(served(coordinator, one, tuple(policies))) for one in folders)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        found, quiet = asyncio.run(cost(*apart, empty, policies[0], seconds))
        show("here and now", found)
        show("of processor time", quiet)
        for workers, replicas in cases:
            name = f"c{workers}-{replicas}-"
            measured, think = asyncio.run(played(url, policies[:replicas], workers, 4 * seconds, name))
            predicted = forecast(replace(found, think=think), workers, replicas, 60.0)
            unhindered = forecast(found, workers, replicas, 60.0).episodes_per_s
            busy = f"policy at {predicted.policy:.0%}, coordinator at {predicted.coordinator:.0%}"
            both = f"{measured:.2f} episodes/s, predicted {predicted.episodes_per_s:.2f} with waits as they were, of "
            both += f"{1e3 * think:.0f} ms, {unhindered:.2f} with those of {1e3 * THINK_S:.0f} ms"
            print(f"{workers} workers, policy × {replicas}: {both}; {busy}")
            ratio = measured / predicted.episodes_per_s
            figure(f"cluster_model_{workers}_workers_{replicas}_policies", ratio, "measured/predicted", ">=0.9")
            figure(f"cluster_model_{workers}_workers_{replicas}_policies", ratio, "measured/predicted", "<=1.1")
    scale(quiet, options)


async def cost(url: str, pid: int, empty: str, timed: str, seconds: float) -> list[Costs]:
    """Returns the costs as they are here and now, beside whatever else runs, and of processor time."""
    asking = await measured_policy(empty, timed, seconds)
    few, many = [await measured(url, pid, workers, seconds) for workers in POPULATIONS]
    return [costs(*both, POPULATIONS, asking) for both in zip(few, many, strict=True)]


def show(what: str, found: Costs) -> None:
    """Prints the coordinator's and the policy's costs."""
    names = ("small", "lease", "upload", "counts", "call_away", "policy", "policy_away")
    shown = ", ".join(f"{name} {1e3 * getattr(found, name):.2f}" for name in names)
    mine = f"mine {1e3 * found.mine[0]:.2f} + {1e6 * found.mine[1]:.2f} a thousand workers"
    print(f"ms, {what}: {shown}, {mine}; a batch of n {1e3 * found.infer[0]:.1f} + n × {1e3 * found.infer[1]:.2f}")


def scale(found: Costs, options: argparse.Namespace) -> None:
    """Prints what the model says of many workers, with a simulator and a policy as the flags say."""
    first, second = (one / 1e3 for one in (options.infer_ms, options.infer_more_ms))
    real = replace(
        found, reset=options.reset_s, think=options.think_ms / 1e3, requests=options.requests, infer=(first, second),
        max_batch=options.max_batch,
    )  # fmt: skip
    print(
        f"an episode: {options.reset_s:g} s, then {options.requests} × {options.think_ms:g} ms and an answer; ", end=""
    )
    print(f"a batch of n, up to {options.max_batch}: {options.infer_ms:g} + n × {options.infer_more_ms:g} ms")
    print(f"{'workers':>8} {'policies':>8} {'episodes/s':>10} {'of its share':>12} {'coordinator':>11} {'policy':>6}")
    one = forecast(real, 1).episodes_per_s
    for workers in (8, 64, 250, 1000, 2000):
        for replicas in (1, 4, 16, 64):
            if replicas > workers:
                continue
            told = forecast(real, workers, replicas)
            share = told.episodes_per_s / workers / one
            print(
                f"{workers:8} {replicas:8} {told.episodes_per_s:10.2f} {share:12.0%} {told.coordinator:11.0%} "
                f"{told.policy:6.0%}"
            )
    for replicas in (1, 4, 16, 64):
        print(f"{replicas} policies are enough for {most_workers(real, replicas)} workers")
    print(f"the coordinator is enough for {most_workers(real)} workers with a policy each")


def main() -> None:
    parser = flags("A run's coordinator.", "five seconds of each")
    parser.add_argument("--workers", type=int, default=500)
    parser.add_argument("--simulate", action="store_true", help="hold a model against small cases; then large ones")
    parser.add_argument("--reset-s", type=float, default=0.1, help="an episode's start and its wait steps")
    parser.add_argument("--think-ms", type=float, default=75.0, help="8 steps of 4.7 ms, a picture of 32 ms")
    parser.add_argument("--requests", type=int, default=28, help="of an episode: 220 steps, 8 actions a chunk")
    parser.add_argument("--infer-ms", type=float, default=50.0, help="a batch takes this")
    parser.add_argument("--infer-more-ms", type=float, default=5.0, help="and this for each observation in it")
    parser.add_argument("--max-batch", type=int, default=8)
    options = parser.parse_args()
    if options.simulate:
        simulate(options)
        return
    with tempfile.TemporaryDirectory() as folder, served(coordinator, folder) as (url, _):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        port = int(url.rpartition(":")[2])
        asyncio.run(measure(port, options.workers, 5 if options.quick else 20))


if __name__ == "__main__":
    main()
