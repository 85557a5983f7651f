"""A model of an evaluation on many machines: events in order of time, from what each thing costs alone.

Every worker has a core of its own; the coordinator is one line in which calls wait, and so is each policy's HTTP,
behind which a model takes what waits, up to `max_batch` at once. What is not in it: a policy's own holding back for
clients that are due, its refusal of more than 64 that wait, networks that are full, machines that die.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

POLL_S, RENEW_S = 2.0, 5.0  # a supervisor that has joined looks after its workers, and renews their leases


@dataclass(frozen=True)
class Costs:
    """Seconds. What all share is what it takes of the one that serves, `*_away` what an answer takes beside that."""

    reset: float  # of a worker's own: an episode's start, its wait steps too
    think: float  # between an answer and the next request: simulator, pictures, preparing
    requests: int  # of an episode
    infer: tuple[float, float]  # a batch of n takes first + n × second
    max_batch: int
    policy: float  # of the policy's HTTP, for one request
    policy_away: float
    small: float  # of the coordinator, for a call that looks at one row
    lease: float
    upload: float  # an episode's file and its result
    counts: float  # of all episodes, once anything has changed
    mine: tuple[float, float]  # a machine's own leases or workers: first + second × workers of the run
    call_away: float


@dataclass(frozen=True)
class Forecast:
    """Episodes a second, and which part of their time those that serve all have work."""

    episodes_per_s: float
    coordinator: float
    policy: float


class Line:
    """Serves one after the other."""

    def __init__(self):
        self.free_at = self.busy = 0.0

    def serve(self, now: float, seconds: float) -> float:
        """Returns when what comes now is done."""
        self.free_at = max(now, self.free_at) + seconds
        self.busy += seconds
        return self.free_at


class Policy:
    """One replica: its HTTP, and a model that takes what waits."""

    def __init__(self, model: Model):
        self.model, self.http, self.waiting, self.is_busy, self.under_way, self.busy = model, Line(), [], False, 0, 0.0

    def ask(self, now: float, then: Callable[[float], None]) -> None:
        """Calls `then` when the answer is there."""
        at = self.http.serve(now, self.model.costs.policy)
        self.model.at(at, lambda: self._queue(at, then))

    def _queue(self, now: float, then: Callable[[float], None]) -> None:
        self.waiting.append(then)
        if not self.is_busy:
            self._begin(now)

    def _begin(self, now: float) -> None:
        costs = self.model.costs
        batch, self.waiting = self.waiting[: costs.max_batch], self.waiting[costs.max_batch :]
        seconds = costs.infer[0] + costs.infer[1] * len(batch)
        self.is_busy, end = True, now + seconds
        self.busy += seconds

        def over() -> None:
            self.is_busy = False
            for then in batch:
                self.model.at(end + costs.policy_away, lambda then=then: then(end + costs.policy_away))
            if self.waiting:
                self._begin(end)

        self.model.at(end, over)


class Model:
    """`workers` on as many cores, that many replicas of the policy, one coordinator."""

    def __init__(self, costs: Costs, workers: int, replicas: int = 1, joined: bool = True):
        self.costs, self.workers, self.joined, self.draw = costs, workers, joined, random.Random(0)
        self.coordinator = Line()
        self.policies = [Policy(self) for _ in range(replicas)]
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.number, self.now, self.done, self.changed = 0, 0.0, 0, True
        self.first, self.second = costs.mine

    def at(self, when: float, what: Callable[[], None]) -> None:
        self.number += 1
        heapq.heappush(self.events, (when, self.number, what))

    def run(self, seconds: float, warm_s: float) -> Forecast:
        """Returns what happens in `seconds` after `warm_s`. Workers begin anywhere in an episode, as in mid-run."""
        for number in range(self.workers):
            policy, left = self.policies[number % len(self.policies)], self.draw.randint(1, self.costs.requests)
            policy.under_way += 1
            begun = self.draw.uniform(0, self.costs.think + sum(self.costs.infer))
            self.at(begun, lambda policy=policy, left=left: self._think(self.now, policy, left))
            if self.joined:
                self._every(POLL_S, self._poll)
                self._every(RENEW_S, self._renew)
        self._until(warm_s)
        done, busy = self.done, self.coordinator.busy
        inferred = [one.busy for one in self.policies]
        self._until(warm_s + seconds)
        share = [(one.busy - before) / seconds for one, before in zip(self.policies, inferred, strict=True)]
        return Forecast(
            (self.done - done) / seconds,
            min(1.0, (self.coordinator.busy - busy) / seconds),
            min(1.0, sum(share) / len(self.policies)),
        )

    def _until(self, end: float) -> None:
        while self.events and self.events[0][0] <= end:
            self.now, _, what = heapq.heappop(self.events)
            what()

    def _every(self, seconds: float, what: Callable[[], float]) -> None:
        def again() -> None:
            self.at(what() + seconds, again)

        self.at(self.draw.uniform(0, seconds), again)

    def _poll(self) -> float:
        self.coordinator.serve(self.now, self.costs.counts if self.changed else self.costs.small)
        self.changed = False
        return self.coordinator.serve(self.now, self._mine())

    def _renew(self) -> float:
        return self.coordinator.serve(self.now, self._mine() + self.costs.small)

    def _mine(self) -> float:
        return self.first + self.second * self.workers

    def _call(self, now: float, seconds: float, then: Callable[[float], None]) -> None:
        end = self.coordinator.serve(now, seconds) + self.costs.call_away
        self.at(end, lambda: then(end))

    def _lease(self, now: float) -> None:
        policy = min(self.policies, key=lambda one: one.under_way)
        policy.under_way += 1
        self.changed = True
        self._call(now, self.costs.lease, lambda at: self._say(at, policy))

    def _say(self, now: float, policy: Policy) -> None:
        def begin(at: float) -> None:
            begun = at + self.costs.reset
            self.at(begun, lambda: self._think(begun, policy, self.costs.requests))

        self._call(now, self.costs.small, begin)

    def _think(self, now: float, policy: Policy, left: int) -> None:
        if not left:
            self._call(now, self.costs.upload, lambda at: self._end(at, policy))
            return
        end = now + self.costs.think
        self.at(end, lambda: policy.ask(end, lambda at: self._think(at, policy, left - 1)))

    def _end(self, now: float, policy: Policy) -> None:
        policy.under_way -= 1
        self.done, self.changed = self.done + 1, True
        self._lease(now)


def forecast(costs: Costs, workers: int, replicas: int = 1, seconds: float = 0.0) -> Forecast:
    """Returns what the model says of `seconds`, 0: four episodes of a worker or 200 of all; after two of each."""
    cycle_s = costs.reset + costs.requests * (costs.think + costs.policy_away + sum(costs.infer))
    return Model(costs, workers, replicas).run(seconds or max(4, 200 / workers) * cycle_s, 2 * cycle_s)


def most_workers(costs: Costs, replicas: int | None = None) -> int:
    """Returns how many workers are worth having: the most that bring 90 % of as many times what one brings.

    replicas: of the policy; None: one for each worker.
    """
    one, most = forecast(costs, 1).episodes_per_s, 1
    for workers in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048):
        if forecast(costs, workers, replicas or workers).episodes_per_s < 0.9 * workers * one:
            break
        most = workers
    return most
