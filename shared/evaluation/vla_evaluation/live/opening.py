"""What a session shows: read from a request, told to its process. Numbers and names are judged here, once."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from vla_contract.protocol.errors import did_you_mean, shorten
from vla_evaluation.benchmark import Benchmark

PERSON_STEPS = 2000  # of an episode without a policy: people need several times as long as a protocol allows
DRAWN = 2**31  # so many starts can be asked for by number
INSTRUCTION_CHARS = 500


@dataclass(frozen=True)
class Opening:
    """`init`: index of an init state of the evaluation; None: the start is drawn as recordings draw theirs, by the
    number `drawn`. `policy` is one of the service's policies by name, at `policy_url`; empty: a person drives.
    """

    suite: str
    task: int
    init: int | None = None
    drawn: int = 0
    policy: str = ""
    policy_url: str = ""

    def to_json(self) -> str:
        """Returns it as text for the process."""
        return json.dumps(asdict(self))

    def starting(self, start: Mapping[str, Any] | None) -> Opening:
        """Returns it with another start: {"init": k}, {"drawn": n}, or None for a new drawn one. ValueError else."""
        if start is None:
            return replace(self, init=None, drawn=secrets.randbelow(DRAWN))
        if not isinstance(start, Mapping) or len(start) != 1 or next(iter(start)) not in ("init", "drawn"):
            raise ValueError(f"start is {shorten(start, 100)}; expected {{'init': k}}, {{'drawn': n}} or null")
        if "init" in start:
            return replace(self, init=whole("start.init", start["init"], 10_000))
        return replace(self, init=None, drawn=whole("start.drawn", start["drawn"], DRAWN))


def whole(name: str, value: Any, below: int) -> int:
    """Returns a whole number from 0, less than `below`. ValueError for anything else."""
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"{name} is {shorten(value, 40)}; expected a whole number from 0 to {below - 1}")
    return value


def read(benchmark: Benchmark, policies: Mapping[str, str], asked: Mapping[str, Any]) -> Opening:
    """Returns what a request asks for. ValueError, with what there is, for what there is not."""
    suite, policy = asked.get("suite"), asked.get("policy") or ""
    if not isinstance(suite, str) or suite not in benchmark.suites:
        raise ValueError(f"suite {shorten(suite)} not found{did_you_mean(shorten(suite), benchmark.suites)}")
    task = whole("task", asked.get("task", 0), len(benchmark.tasks(suite)))
    if policy and (not isinstance(policy, str) or policy not in policies):
        there = ", ".join(policies) or "none"
        raise ValueError(f"policy {shorten(policy)} is none of this service's; it has: {there}")
    return Opening(suite, task, policy=policy, policy_url=policies.get(policy, "")).starting(asked.get("start"))
