"""Compare two runs, paired by episode: both ran the same scenes, so the difference is due to the policies."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vla_evaluation.config import differences, fact, flatten
from vla_evaluation.profiles import LATER
from vla_evaluation.report.stats import Rate, mcnemar_exact, paired_difference
from vla_evaluation.store.records import Finished
from vla_evaluation.store.runstore import RunStore

PROTOCOL = ("suite", "profile", "seed", "max_steps", "assets.kind", "assets.digest")
RECORDED_LATER = ("benchmark", "protocol")  # not in every old run
ROBOT = ("control_hz", "protocol.robot")
PLAN = ("tasks", "episodes")  # the pairs show what both have


class Unpaired(ValueError):
    """The two runs did not run the same episodes under the same protocol."""


@dataclass(frozen=True)
class Comparison:
    """Counts over the pairs; rates from 0 to 1. `difference` is B − A with its 95 % score interval."""

    a: Rate
    b: Rate
    only_a: int
    only_b: int
    difference: float
    interval: tuple[float, float]
    p_value: float
    tasks: dict[int, tuple[Rate, Rate]]
    left_out: int  # episodes that only one of the runs has
    policy_errors: tuple[int, int]  # of the failures in the pairs
    beside: list[str]  # other differences of the runs, "name: A → B"
    warnings: list[str]  # why the runs are not comparable, if the comparison was forced

    @property
    def pairs(self) -> int:
        return self.a.trials


def compare(a: RunStore, b: RunStore, force: bool = False) -> Comparison:
    """Return the comparison of two runs.

    Raises Unpaired, with the differences, if they cannot be paired; without `force` also if they are not comparable.
    """
    identities = a.meta("identity"), b.meta("identity")
    differing, warnings = check_protocol(*identities), []
    for store in (a, b):
        done, planned = len(store.outcomes()), len(store.plan())
        if done < planned:
            warnings.append(f"run {store.path.parent.name} is not complete: {done} of {planned} episodes are done")
    warnings = ["A and B are the same run"] if os.path.samefile(a.path, b.path) else warnings + differing
    if warnings and not force:
        raise Unpaired(f"these runs are not comparable: {'; '.join(warnings)}; add --force to compare them anyway")
    rows_a, rows_b = ({(e.task, e.episode): e for e in store.finished()} for store in (a, b))
    common = sorted(rows_a.keys() & rows_b.keys())
    if not common:
        raise Unpaired("the two runs have no finished episode in common")
    pairs = [(rows_a[key], rows_b[key]) for key in common]
    for x, y in pairs:
        if x.result.get("start_hash") != y.result.get("start_hash"):
            raise Unpaired(
                f"task {x.task} episode {x.episode} started from different states in the two runs ("
                f"{x.result.get('start_hash')} and {y.result.get('start_hash')}); different versions?"
            )
    rate_a, rate_b = rates(pairs)
    only_a = sum(x.success and not y.success for x, y in pairs)
    only_b = sum(y.success and not x.success for x, y in pairs)
    difference, low, high = paired_difference(only_b, only_a, len(pairs))
    settings = [
        {key: value for key, value in flatten(identity).items() if key not in PLAN and not key.startswith("policy.")}
        for identity in identities
    ]
    return Comparison(
        rate_a, rate_b, only_a, only_b, difference, (low, high), mcnemar_exact(only_a, only_b),
        tasks={task: rates(pair for pair in pairs if pair[0].task == task) for task in sorted({t for t, _ in common})},
        left_out=len(rows_a.keys() ^ rows_b.keys()),
        policy_errors=tuple(sum("policy_error" in e.result for e in side) for side in zip(*pairs, strict=True)),
        beside=differences(*settings),
        warnings=warnings,
    )  # fmt: skip


def rates(pairs: Iterable[tuple[Finished, Finished]]) -> tuple[Rate, Rate]:
    sides = [[e.success for e in side] for side in zip(*pairs, strict=True)]
    return Rate(sum(sides[0]), len(sides[0])), Rate(sum(sides[1]), len(sides[1]))


def check_protocol(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return how the robots of two runs differ. Raises Unpaired, with the difference, unless both follow one protocol
    on the same assets.

    Entries that only the newer run has are not compared here: they are among the other differences.
    """
    flat = []
    for identity in (a, b):
        # an identity leaves these settings out at their default
        defaults = {f"protocol.{name}": "default" for name in LATER} if "protocol" in identity else {}
        flat.append({**defaults, **flatten(identity)})
    left, right = flat
    later = [key for key in left if key.split(".")[0] in RECORDED_LATER and key in right and key not in ROBOT]
    keys = [key for key in (*PROTOCOL, *later) if left.get(key) != right.get(key)]
    if keys:
        texts = (f"{key}: {fact(left, key)} and {fact(right, key)}" for key in keys)
        raise Unpaired("these runs cannot be paired; they differ in " + "; ".join(texts))
    changed = [key for key in ROBOT if key in left and key in right and left[key] != right[key]]
    return [f"they differ in {key}: {fact(left, key)} and {fact(right, key)}" for key in changed]
