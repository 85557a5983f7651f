"""What a batch that waits for clients that are due brings: workers of an evaluation against a simulated model.

The model takes the same time for a batch as for one observation, as a GPU nearly does; a worker steps its simulator
between an answer and its next request. Two services take turns, which differ in create_app's `max_wait_ms`:
waiting     the default: the wait begins when the model is free, for those that are due, up to half an inference
no waiting  0: a batch is what has arrived when the model is free

    ./lab bench batching [--quick]
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np

from bench.common import figure, flags, served
from vla_contract import ActionChunk, Observation, Part, Policy, PolicyClient, PolicyInfo, create_app

SETTINGS: dict[str, dict[str, Any]] = {"waiting": {}, "no waiting": {"max_wait_ms": 0}}


class Model(Policy):
    """A model that takes `seconds` for a batch, whatever its size."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def info(self) -> PolicyInfo:
        return PolicyInfo("simulated", (Part("zeros", 7, "1", "none"),), max_batch=16)

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        time.sleep(self.seconds)
        return [ActionChunk(np.zeros((1, 7), np.float32)) for _ in observations]


def make_app(name: str, infer_s: float):
    """Return the model's application with one of SETTINGS."""
    return create_app(Model(infer_s), **SETTINGS[name])


def actions_per_s(url: str, workers: int, step_s: float, seconds: float) -> float:
    """Return the answers per second that workers get, which step for `step_s` ± 20 % before each request."""
    start = time.monotonic()

    def work(index: int) -> int:
        draw, session, count = random.Random(index), f"{url}-{index}-{time.monotonic()}", 0
        with PolicyClient(url) as client:
            while time.monotonic() < start + seconds:
                time.sleep(step_s * draw.uniform(0.8, 1.2))
                client.act(Observation({}, None, "bench", session, count))
                count += 1
        return count

    with ThreadPoolExecutor(workers) as pool:
        counts = list(pool.map(work, range(workers)))
    return sum(counts) / (time.monotonic() - start)


def main() -> None:
    """Measure both services alternately, print a table and the FIGURE lines."""
    parser = flags("Batches that wait for clients that are due, with a simulated model.", "shorter: about a minute")
    seconds, rounds = (4.0, 1) if parser.parse_args().quick else (10.0, 3)
    print(f"150 ms an inference, whatever the batch; median answers per second; load {os.getloadavg()[0]:.1f}\n")
    print(f"{'workers':>8} {'step ms':>8} {'waiting':>8} {'no waiting':>10} {'ratio':>6}")
    with ExitStack() as entered:
        urls = {name: entered.enter_context(served(make_app, name, 0.15)) for name in SETTINGS}
        for workers, target in ((1, ">=0.97"), (4, ">=1.3"), (8, ">=1.3")):
            ratios = []
            for step_s in (0.03, 0.06):
                turns = [[actions_per_s(url, workers, step_s, seconds) for url in urls.values()] for _ in range(rounds)]
                waiting, no_waiting = np.median(turns, axis=0)
                ratios.append(waiting / no_waiting)
                print(f"{workers:8} {step_s * 1e3:8.0f} {waiting:8.1f} {no_waiting:10.1f} {ratios[-1]:6.2f}")
            figure(f"batching_{workers}_workers_over_no_waiting", min(ratios), "ratio", target, quick=True)


if __name__ == "__main__":
    main()
