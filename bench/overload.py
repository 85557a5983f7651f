"""More clients than a queue takes: what refusing costs those that are served.

A model that takes 300 ms for a batch of 16, whatever is in it, is asked by as many clients as fill two batches and
then by 160, twice what its queue of 64 and the batch take. Each sends a 256×256×3 picture and comes back 50 ms after a
refusal, whatever the service asked for.

    ./lab bench overload [--quick]
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import numpy as np

from bench.batching import Model
from bench.common import figure, flags
from bench.parts.serving import served
from vla_contract import Observation, create_app
from vla_contract.client.transport import Transport
from vla_contract.protocol.messages import encode_observation

INFER_S, BATCH, QUEUE, FEW, MANY, PAUSE_S = 0.3, 16, 64, 32, 160, 0.05
PACKED = {"Content-Type": "application/msgpack"}


def make_app():
    """Returns the model's application."""
    return create_app(Model(INFER_S), max_batch=BATCH, queue_size=QUEUE)


def rates(url: str, pid: int, clients: int, seconds: float) -> tuple[float, float, float]:
    """Returns answers and refusals per second, and ms of the server's CPU per answer or refusal."""
    end, answers, refusals = time.monotonic() + seconds, [0] * clients, [0] * clients
    image = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)

    def work(index: int) -> None:
        transport, draw = Transport(url), random.Random(index)
        body = encode_observation(Observation({"agentview": image}, None, "bench", f"{clients}-{index}", 0))
        while time.monotonic() < end:
            reply = transport.request("POST", "/v1/act", 30.0, PACKED, body)
            if reply.status == 200:
                answers[index] += 1
            else:
                refusals[index] += 1
                time.sleep(PAUSE_S * draw.uniform(0.8, 1.2))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(clients)]
    start, cpu_s = time.monotonic(), cpu_seconds(pid)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.monotonic() - start
    cpu_ms = 1e3 * (cpu_seconds(pid) - cpu_s) / (sum(answers) + sum(refusals))
    return sum(answers) / spent, sum(refusals) / spent, cpu_ms


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time that a process has spent (Linux)."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Prints the table and the FIGURE line."""
    quick = flags("Throughput with more clients than the queue takes.", "one short round").parse_args().quick
    seconds, rounds = (6.0, 1) if quick else (10.0, 3)
    with served(make_app) as (url, pid):
        found = {count: [rates(url, pid, count, seconds) for _ in range(rounds)] for count in (FEW, MANY)}
    print(f"{INFER_S * 1e3:.0f} ms for a batch of {BATCH}; median per second\n")
    print(f"{'clients':>8} {'answers':>8} {'refusals':>9} {'server ms each':>15}")
    medians = {count: np.median(turns, axis=0) for count, turns in found.items()}
    for count, (answers, refusals, cpu_ms) in medians.items():
        print(f"{count:8} {answers:8.1f} {refusals:9.1f} {cpu_ms:15.2f}")
    print()
    figure("overload_throughput_kept", medians[MANY][0] / medians[FEW][0], "ratio", ">=0.97", quick=True)


if __name__ == "__main__":
    main()
