"""What a batch that waits for clients that are due brings: workers of an evaluation against a simulated model.

The model takes the same time for a batch as for one observation, as a GPU nearly does; a worker steps its simulator
between an answer and its next request. Two rules by which batches are cut, in turns, each in a server of its own:
here     the wait begins when the model is free, for those that are due, up to half an inference
arrival  the wait begins with the request's arrival, 5 ms at most, and has run out behind the inference in flight

    ./lab bench batching [--quick]
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack

import numpy as np

from bench.common import figure, flags
from bench.parts.serving import served
from vla_contract import ActionChunk, Observation, Part, Policy, PolicyClient, PolicyInfo, create_app
from vla_contract.server.batching import WAIT_SHARE, BatchQueue

ARRIVAL_WAIT_S = 0.005
RULES = ("here", "arrival")


class Model(Policy):
    """A model that takes `seconds` for a batch, whatever its size."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def info(self) -> PolicyInfo:
        return PolicyInfo("simulated", (Part("zeros", 7, "1", "none"),), max_batch=16)

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        time.sleep(self.seconds)
        return [ActionChunk(np.zeros((1, 7), np.float32)) for _ in observations]


def wait_from_arrival(queue: BatchQueue) -> None:
    """The rule that this one replaced."""
    end = queue._items[0].queued + min(ARRIVAL_WAIT_S, WAIT_SHARE * queue._infer_s)
    while queue._jobs < min(queue.max_batch, len(queue._company._clients)) and not queue._closed:
        if (left := end - time.monotonic()) <= 0:
            return
        queue._changed.wait(left)


def make_app(rule: str, infer_s: float):
    """Returns the model's application under a rule."""
    if rule == "arrival":
        BatchQueue._wait_for_company = wait_from_arrival
    return create_app(Model(infer_s))


def actions_per_s(url: str, workers: int, step_s: float, seconds: float) -> float:
    """Returns the answers per second that workers get, which step for `step_s` ± 20 % before each request."""
    end, counts = time.monotonic() + seconds, [0] * workers

    def work(index: int) -> None:
        draw, session = random.Random(index), f"{url}-{index}-{time.monotonic()}"
        with PolicyClient(url) as client:
            while time.monotonic() < end:
                time.sleep(step_s * draw.uniform(0.8, 1.2))
                client.act(Observation({}, None, "bench", session, counts[index]))
                counts[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(workers)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - start)


def measure(infer_s: float, cases: list[tuple[int, float]], seconds: float, rounds: int) -> dict:
    """Returns the rates of both rules per (workers, step_s), the median of `rounds` in turns."""
    with ExitStack() as entered:
        urls = {rule: entered.enter_context(served(make_app, rule, infer_s))[0] for rule in RULES}
        found = {}
        for case in cases:
            turns = [{rule: actions_per_s(urls[rule], *case, seconds) for rule in RULES} for _ in range(rounds)]
            found[case] = {rule: float(np.median([turn[rule] for turn in turns])) for rule in RULES}
        return found


def main() -> None:
    """Prints the table and the FIGURE lines."""
    quick = (
        flags(
            "Batches that wait for clients that are due, with a simulated model.",
            "fewer and shorter rounds: about a minute",
        )
        .parse_args()
        .quick
    )
    seconds, rounds = (4.0, 1) if quick else (10.0, 3)
    cases = [(workers, step_s) for workers in (1, 4, 8) for step_s in (0.03, 0.06)]
    found = measure(0.15, cases, seconds, rounds)
    print("150 ms an inference, whatever the batch; median answers per second\n")
    print(f"{'workers':>8} {'step ms':>8} {'here':>8} {'arrival':>8} {'ratio':>6}")
    for (workers, step_s), rates in found.items():
        ratio = rates["here"] / rates["arrival"]
        print(f"{workers:8} {step_s * 1e3:8.0f} {rates['here']:8.1f} {rates['arrival']:8.1f} {ratio:6.2f}")
    print()
    for workers, target in ((1, ">=0.97"), (4, ">=1.3"), (8, ">=1.3")):
        ratios = [rates["here"] / rates["arrival"] for case, rates in found.items() if case[0] == workers]
        figure(f"batching_{workers}_workers_over_arrival", min(ratios), "ratio", target)


if __name__ == "__main__":
    main()
