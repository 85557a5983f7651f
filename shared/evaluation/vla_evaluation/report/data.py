"""The summary of a run, from its store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_evaluation import hosts, inputs
from vla_evaluation.chunks import Chunking
from vla_evaluation.config import parse_ranges
from vla_evaluation.report.compare import Comparison, compare
from vla_evaluation.report.stats import Rate
from vla_evaluation.runs import STORE
from vla_evaluation.store.records import Finished
from vla_evaluation.store.runstore import RunStore, read_run

STAGES = (  # parts of an episode's time that do not overlap: key in the store, name, explanation
    ("reset", "reset", "setting the init state, once per episode"),
    ("sim", "simulation", "physics and success check"),
    ("render", "rendering", "rendering the cameras that the policy requests"),
    ("preprocess", "preprocessing", "JPEG, resize, crop; reading the state"),
    ("wire", "wire", "encoding, HTTP and decoding"),
    ("server_decode", "server: decode", "the policy service reads the request"),
    ("server_queue", "server: queue", "waiting for a batch"),
    ("server_infer", "server: inference", "the policy itself"),
    ("server_encode", "server: encode", "the policy service writes the response"),
)


@dataclass(frozen=True)
class TaskSummary:
    """One task. `kind` is empty and `level` 0 in suites without them."""

    index: int
    instruction: str
    kind: str
    level: int
    planned: int
    episodes: list[Finished]

    @property
    def rate(self) -> Rate:
        return Rate(sum(e.success for e in self.episodes), len(self.episodes))

    @property
    def steps(self) -> float | None:
        """The mean length of its successful episodes, None without any."""
        lengths = [e.steps for e in self.episodes if e.success]
        return sum(lengths) / len(lengths) if lengths else None

    @property
    def classes(self) -> dict[str, str | int]:
        """The kind and level, as far as the suite has them."""
        return {name: value for name, value in (("kind", self.kind), ("level", self.level)) if value}


@dataclass(frozen=True)
class PublishedFigure:
    """One published success rate in percent, measured under the same protocol."""

    model: str
    percent: float
    episodes: str
    source: str


class Summary:
    """A whole run, complete or not.

    identity, description, invocations, faults, policies   as the store has them
    hosts              each machine's share
    tasks, episodes    the planned tasks; the finished episodes of all of them
    timings_ms         summed over all finished episodes
    policy_errors      (task, episode) where the policy's own answer ended it; they count as failures
    ablations          by name, the run paired with its repetition without an input (`inputs.ABLATIONS`)
    is_learned         whether the policy looks at images, so that ablations say something
    kinds, levels      rates by kind of task and by difficulty, the easiest first; empty in suites without them
    delays             cost of inference in real time over all episodes; None if the simulation waited
    seconds            time in which an evaluator was running
    notice, advice     about the assets, and the next step; empty if there is none
    comparability_problem   why it is not comparable with published figures; empty if it is
    published          the figures to compare with; none unless the run is comparable
    """

    def __init__(self, directory: Path, store: RunStore):
        identity, description = store.meta("identity"), store.described()
        self.run_id, self.suite, self.identity = directory.name, identity["suite"], identity
        self.invocations, self.faults, self.policies = store.invocations(), store.faults(), store.by_policy()
        self.hosts = hosts.shares(store.by_worker(), hosts.hostnames(self.invocations))
        by_task: dict[int, list[Finished]] = {}
        for episode in store.finished():
            by_task.setdefault(episode.task, []).append(episode)
        self.tasks = []
        for index, count in sorted(Counter(task for task, _ in store.plan()).items()):
            task = description["tasks"][index]
            kind, level = task.get("kind", ""), task.get("level", 0)
            self.tasks.append(TaskSummary(index, task["instruction"], kind, level, count, by_task.get(index, [])))
        self.episodes = [episode for task in self.tasks for episode in task.episodes]
        self.rate, self.planned = pooled_rate(self.tasks), sum(task.planned for task in self.tasks)
        self.done, self.complete = self.rate.trials, self.rate.trials == self.planned
        self.steps = sum(e.steps for e in self.episodes)
        self.requests = sum(e.result.get("requests", 0) for e in self.episodes)
        self.timings_ms: Counter[str] = Counter()
        for episode in self.episodes:
            self.timings_ms.update(episode.result.get("timings_ms", {}))
        self.policy_errors = [(e.task, e) for e in self.episodes if "policy_error" in e.result]
        kinds = dict.fromkeys(task.kind for task in self.tasks if task.kind)
        levels = sorted({task.level for task in self.tasks if task.level})
        self.kinds = {kind: pooled_rate(task for task in self.tasks if task.kind == kind) for kind in kinds}
        self.levels = {str(level): pooled_rate(task for task in self.tasks if task.level == level) for level in levels}
        self.ablations = paired_ablations(directory, store)
        self.is_learned = bool(identity["policy"].get("cameras")) and not identity.get("ablation")
        self.ablation = inputs.ABLATIONS.get(str(identity.get("ablation")), "")
        self.sentences = identity.get("instructions") or {}
        self.chunks = Chunking.of(identity).description
        self.delays = combine_delays([e.result for e in self.episodes if "realtime" in e.result])
        self.seconds = sum(max(0.0, (row["ended"] or 0.0) - row["started"]) for row in self.invocations)
        self.notice, self.advice = description["assets"].get("notice", ""), description["assets"]["advice"]
        reason = comparability_problem(identity, description, self.complete, self.invocations)
        self.comparability_problem, self.comparable = reason, not reason
        self.published = [] if reason else published(description["profile"])

    def stages(self) -> list[tuple[str, str, float, float]]:
        """Return (name, explanation, ms per policy step, share of the whole) of every stage that took time."""
        parts = [(name, text, self.timings_ms.get(key, 0.0)) for key, name, text in STAGES]
        accounted = sum(ms for _, _, ms in parts)
        total = max(self.timings_ms.get("total", 0.0), accounted, 1e-9)
        parts.append(("other", "recording and bookkeeping", total - accounted))
        steps = max(self.steps, 1)
        return [(name, text, ms / steps, ms / total) for name, text, ms in parts if ms > 0]

    def rows(self) -> list[dict[str, Any]]:
        """Return one JSON-able row per finished episode."""
        names, renderer = hosts.hostnames(self.invocations), self.identity.get("renderer")
        return [
            {
                "suite": self.suite, "task": task.index, **task.classes,
                "instruction": inputs.instruction(self.sentences, task.index, e.episode, task.instruction),
                "episode": e.episode, "attempt": e.attempt, "worker": e.worker,
                "host": hosts.host_of(e.worker, names), "renderer": renderer, **e.result,
            }
            for task in self.tasks
            for e in task.episodes
        ]  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the content of summary.json; rates run from 0 to 1."""
        classes = {name: rates for name, rates in (("kinds", self.kinds), ("levels", self.levels)) if rates}
        return {
            "run_id": self.run_id,
            "suite": self.suite,
            "complete": self.complete,
            "success_rate": round(self.rate.value, 6),
            "successes": self.rate.successes,
            "policy_errors": len(self.policy_errors),
            "episodes": self.done,
            "planned": self.planned,
            "wilson_95": [round(end, 6) for end in self.rate.interval],
            "assets": self.identity["assets"]["kind"],
            "comparable_with_published": self.comparable,
            "why_not_comparable": self.comparability_problem,
            "published": [vars(row) for row in self.published],
            **{name: {label: rate_json(rate) for label, rate in rates.items()} for name, rates in classes.items()},
            **({"ablation": self.ablation} if self.ablation else {}),
            "ablations": {
                name: {
                    **rate_json(pair.b), "difference": round(pair.difference, 6),
                    "difference_95": [round(end, 6) for end in pair.interval], "p_value": pair.p_value,
                }
                for name, pair in self.ablations.items()
            },
            "tasks": [
                {
                    "task": task.index, "instruction": task.instruction, **task.classes, "planned": task.planned,
                    **rate_json(task.rate), "policy_errors": sum("policy_error" in e.result for e in task.episodes),
                }
                for task in self.tasks
            ],
            "steps": self.steps,
            "requests": self.requests,
            "chunks": self.chunks,
            **({"realtime": self.delays} if self.delays else {}),
            "seconds": round(self.seconds, 3),
            "ms_per_step": {name: round(ms, 4) for name, _, ms, _ in self.stages()},
            "hosts": [share.to_json() for share in self.hosts],
            "policies": self.policies,
            "faults": [vars(fault) for fault in self.faults],
            "provenance": {**self.identity, "sessions": self.invocations},
        }  # fmt: skip


def paired_ablations(directory: Path, store: RunStore) -> dict[str, Comparison]:
    """Return the run paired with each of its ablations that has episodes."""
    pairs = {}
    for name in inputs.ABLATIONS:
        path = directory / inputs.DIRECTORY / name
        if (path / STORE).is_file():
            with read_run(path) as part:
                if part.outcomes():
                    pairs[name] = compare(store, part, force=True)
    return pairs


def pooled_rate(tasks: Iterable[TaskSummary]) -> Rate:
    rates = [task.rate for task in tasks]
    return Rate(sum(rate.successes for rate in rates), sum(rate.trials for rate in rates))


def rate_json(rate: Rate) -> dict[str, Any]:
    return {
        "episodes": rate.trials,
        "successes": rate.successes,
        "success_rate": round(rate.value, 6) if rate.trials else None,
        "wilson_95": [round(end, 6) for end in rate.interval],
    }


def combine_delays(results: list[dict[str, Any]]) -> dict[str, float] | None:
    """Return the steps held, actions overtaken and latency in ms of episodes in real time; None if there are none."""
    if not results:
        return None
    delays, requests = [result["realtime"] for result in results], sum(result["requests"] for result in results)
    latency = sum(result["realtime"]["latency_ms_mean"] * result["requests"] for result in results)
    return {
        "held_steps": sum(delay["held_steps"] for delay in delays),
        "overtaken_actions": sum(delay["overtaken_actions"] for delay in delays),
        "latency_ms_mean": round(latency / max(requests, 1), 3),
        "latency_ms_max": max(delay["latency_ms_max"] for delay in delays),
    }


def published(profile: Mapping[str, Any]) -> list[PublishedFigure]:
    """Return the published figures that were measured under the same protocol."""
    return [
        PublishedFigure(row["model"], row["success_percent"], row["episodes"], row["source"])
        for row in profile["published"]
        if row["comparable"]
    ]


def comparability_problem(
    identity: Mapping[str, Any], description: Mapping[str, Any], complete: bool, invocations: list[dict[str, Any]]
) -> str:
    """Return why this run is not comparable with published figures; empty if it is."""
    if ablation := identity.get("ablation"):
        return f"the policy got {inputs.ABLATIONS[ablation]}"
    if not published(description["profile"]):
        return f"nothing was published for {identity['suite']} under profile {identity['profile']}"
    if description["assets"]["unlike"]:
        return description["assets"]["unlike"]
    return ", ".join(differing_settings(identity, description, complete, invocations))


def differing_settings(
    identity: Mapping[str, Any], description: Mapping[str, Any], complete: bool, invocations: list[dict[str, Any]]
) -> list[str]:
    """Return the settings in which this run differs from its profile's protocol, except the assets."""
    profile = description["profile"]
    trials, versions, policy = profile["trials"], identity["versions"], identity["policy"]
    suites, key, details = policy.get("suites") or [], identity["unnorm_key"], policy.get("details") or {}
    pinned = profile["simulator"].items()
    packages = [f"{name} {versions.get(name)}, not {pin}" for name, pin in pinned if versions.get(name) != pin]
    packages += identity.get("off_lock", [])
    expected = profile.get("details", {}).items()
    other = [f"{name} {details[name]}, not {value}" for name, value in expected if details.get(name, value) != value]
    ablation = identity.get("ablation")
    changed = {
        "not all tasks": identity["tasks"] != list(range(len(description["tasks"]))),
        f"not the first {trials} init states": parse_ranges(identity["episodes"]) != list(range(trials)),
        "another step limit": identity["max_steps"] != profile["max_steps"],
        "another seed": identity["seed"] != profile["env_seed"],
        "another part of each action chunk executed": identity["execute"] != profile.get("execute"),
        "an ensemble of chunks executed": identity.get("ensemble") is not None,
        "other instructions than the suite's": identity.get("instructions") is not None,
        f"with {inputs.ABLATIONS.get(str(ablation))}": ablation is not None,
        "in real time": identity.get("realtime") is not None,
        "privileged state was sent": policy["needs_privileged"],
        f"a checkpoint for {', '.join(suites)}": suites and identity["suite"] not in suites,
        f"un-normalised as {key}": key is not None and key not in profile["unnorm_keys"],
        f"a policy with {'; '.join(other)}": other,
        f"another torch (variant {details.get('variant')})": details.get("variant"),
        f"other packages ({'; '.join(packages)})": packages,
        "packages of no lock": identity["lock"] is None,
        "configuration changed between invocations": any(row["notes"].get("drift") for row in invocations),
        "not complete": not complete,
    }
    return [reason for reason, holds in changed.items() if holds]
