"""What a run's store says, summed up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vla_evaluation import hosts
from vla_evaluation.chunks import Chunking
from vla_evaluation.config import parse_ranges
from vla_evaluation.report.stats import Rate
from vla_evaluation.store.records import Fault, Finished
from vla_evaluation.store.runstore import RunStore

STAGES = (  # parts of an episode's time that do not overlap: key in the store, words, what it is
    ("reset", "reset", "putting the scene into its init state, once per episode"),
    ("sim", "simulation", "physics and success check"),
    ("render", "rendering", "drawing the cameras that the policy asks for"),
    ("preprocess", "preprocessing", "JPEG, resize, crop; reading the state"),
    ("wire", "wire", "encoding, HTTP and decoding"),
    ("server_decode", "server: decode", "the policy service reads the request"),
    ("server_queue", "server: queue", "waiting for a place in a batch"),
    ("server_infer", "server: inference", "the policy itself"),
    ("server_encode", "server: encode", "the policy service writes the answer"),
)


@dataclass(frozen=True)
class TaskSummary:
    """One task's share. `steps` is the mean length of its successful episodes, None without any; `kind` is the task's,
    empty in suites without kinds; `level` is how hard it is, 0 where nobody has said so.
    """

    index: int
    instruction: str
    kind: str
    level: int
    planned: int
    rate: Rate
    steps: float | None
    episodes: list[Finished]


@dataclass(frozen=True)
class PublishedFigure:
    """One published success rate in percent, measured under the same protocol."""

    model: str
    percent: float
    episodes: str
    source: str


@dataclass(frozen=True)
class Summary:
    """A whole run."""

    run_id: str
    suite: str
    identity: dict
    planned: int
    rate: Rate
    tasks: list[TaskSummary]
    timings_ms: dict[str, float]  # summed over all finished episodes
    steps: int
    requests: int
    faults: list[Fault]
    hosts: list[hosts.Share]  # what each machine did
    policies: list[dict]  # what was done with each of the policy's addresses
    invocations: list[dict]
    published: list[PublishedFigure]
    notice: str  # what the assets are, where a reader must know; empty: nothing
    advice: str  # what to do about the assets; empty: nothing
    why_not_comparable: str  # empty: comparable

    @property
    def comparable(self) -> bool:
        return not self.why_not_comparable

    @property
    def done(self) -> int:
        return self.rate.trials

    @property
    def complete(self) -> bool:
        return self.done == self.planned

    @property
    def episodes(self) -> list[Finished]:
        return [episode for task in self.tasks for episode in task.episodes]

    @property
    def policy_errors(self) -> list[tuple[int, Finished]]:
        """Task and episode where the policy's own answer ended it (--policy-errors fail); each counts as a failure."""
        return [(task.index, e) for task in self.tasks for e in task.episodes if "policy_error" in e.result]

    @property
    def kinds(self) -> dict[str, Rate]:
        """The rate over the tasks of each kind, in the suite's order; empty in suites without kinds."""
        kinds = dict.fromkeys(task.kind for task in self.tasks if task.kind)
        return {kind: _rate([task for task in self.tasks if task.kind == kind]) for kind in kinds}

    @property
    def levels(self) -> dict[str, Rate]:
        """The rate over the tasks of each difficulty, the easiest first; empty in suites without such."""
        levels = sorted({task.level for task in self.tasks if task.level})
        return {str(level): _rate([task for task in self.tasks if task.level == level]) for level in levels}

    @property
    def chunks(self) -> str:
        """How chunks were executed, in words."""
        return Chunking.of(self.identity).words

    @property
    def delays(self) -> dict[str, float] | None:
        """What thinking cost in real time, over all episodes: steps held, actions overtaken, latency in ms; None where
        the world waited, or nothing is done yet.
        """
        asked = [e.result for e in self.episodes if "realtime" in e.result]
        told = [result["realtime"] for result in asked]
        if not told:
            return None
        questions = sum(result["requests"] for result in asked)
        thought = sum(result["realtime"]["latency_ms_mean"] * result["requests"] for result in asked)
        return {
            "held_steps": sum(one["held_steps"] for one in told),
            "overtaken_actions": sum(one["overtaken_actions"] for one in told),
            "latency_ms_mean": round(thought / max(questions, 1), 3),
            "latency_ms_max": max(one["latency_ms_max"] for one in told),
        }

    @property
    def seconds(self) -> float:
        """Time in which an evaluator was at work, in s."""
        return sum(max(0.0, (s["ended"] or 0.0) - s["started"]) for s in self.invocations)

    def stages(self) -> list[tuple[str, str, float, float]]:
        """Returns (words, explanation, ms per policy step, share of the whole) of every stage that took time."""
        total = max(self.timings_ms.get("total", 0.0), sum(self.timings_ms.get(key, 0.0) for key, _, _ in STAGES), 1e-9)
        parts = [(words, what, self.timings_ms.get(key, 0.0)) for key, words, what in STAGES]
        parts.append(("other", "recording and bookkeeping", total - sum(ms for _, _, ms in parts)))
        steps = max(self.steps, 1)
        return [(words, what, ms / steps, ms / total) for words, what, ms in parts if ms > 0]

    def rows(self) -> list[dict]:
        """Returns one JSON-able row per finished episode."""
        known = hosts.own_names(self.invocations)
        return [
            {
                "suite": self.suite,
                "task": task.index,
                "instruction": task.instruction,
                **_class_json(task),
                "episode": e.episode,
                "attempt": e.attempt,
                "worker": e.worker,
                "host": hosts.host_of(e.worker, known),
                "renderer": self.identity.get("renderer"),
                **e.result,
            }
            for task in self.tasks
            for e in task.episodes
        ]

    def to_json(self) -> dict:
        """Returns the content of summary.json; rates run from 0 to 1."""
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
            "why_not_comparable": self.why_not_comparable,
            "published": [vars(row) for row in self.published],
            **({"kinds": {kind: _rate_json(rate) for kind, rate in self.kinds.items()}} if self.kinds else {}),
            **({"levels": {level: _rate_json(rate) for level, rate in self.levels.items()}} if self.levels else {}),
            "tasks": [_task_json(task) for task in self.tasks],
            "steps": self.steps,
            "requests": self.requests,
            "chunks": self.chunks,
            **({"realtime": self.delays} if self.delays else {}),
            "seconds": round(self.seconds, 3),
            "ms_per_step": {words: round(ms, 4) for words, _, ms, _ in self.stages()},
            "hosts": [share.to_json() for share in self.hosts],
            "policies": self.policies,
            "faults": [vars(fault) for fault in self.faults],
            "provenance": {**self.identity, "sessions": self.invocations},
        }


def _rate(tasks: list[TaskSummary]) -> Rate:
    return Rate(sum(task.rate.successes for task in tasks), sum(task.rate.trials for task in tasks))


def _class_json(task: TaskSummary) -> dict:
    return {name: value for name, value in (("kind", task.kind), ("level", task.level)) if value}


def _rate_json(rate: Rate) -> dict:
    return {
        "episodes": rate.trials,
        "successes": rate.successes,
        "success_rate": round(rate.value, 6) if rate.trials else None,
        "wilson_95": [round(end, 6) for end in rate.interval],
    }


def _task_json(task: TaskSummary) -> dict:
    return {
        "task": task.index,
        "instruction": task.instruction,
        **_class_json(task),
        "planned": task.planned,
        **_rate_json(task.rate),
        "policy_errors": sum("policy_error" in e.result for e in task.episodes),
        "mean_steps_of_successes": task.steps,
    }


def load(folder: Path, store: RunStore) -> Summary:
    """Returns the summary of the run in `folder`, whether it is complete or not."""
    identity, about = store.meta("identity"), store.described()
    finished, plan = store.finished(), store.plan()
    tasks = [_task(index, finished, plan, about["tasks"]) for index in sorted({task for task, _ in plan})]
    rate = Rate(sum(e.success for e in finished), len(finished))
    invocations = store.invocations()
    reason = why_not_comparable(identity, about, len(finished) == len(plan), invocations)
    return Summary(
        run_id=folder.name,
        suite=identity["suite"],
        identity=identity,
        planned=len(plan),
        rate=rate,
        tasks=tasks,
        timings_ms=_sum_timings(finished),
        steps=sum(e.steps for e in finished),
        requests=sum(e.result.get("requests", 0) for e in finished),
        faults=store.faults(),
        hosts=hosts.shares(store.by_worker(), hosts.own_names(invocations)),
        policies=store.by_policy(),
        invocations=invocations,
        notice=about["assets"].get("notice", ""),
        advice=about["assets"]["advice"],
        published=[] if reason else published(about["profile"]),
        why_not_comparable=reason,
    )


def _task(index: int, finished: list[Finished], plan: list[tuple[int, int]], tasks: list[dict]) -> TaskSummary:
    mine = [e for e in finished if e.task == index]
    lengths = [e.steps for e in mine if e.success]
    return TaskSummary(
        index=index,
        instruction=tasks[index]["instruction"],
        kind=tasks[index].get("kind", ""),
        level=tasks[index].get("level", 0),
        planned=sum(task == index for task, _ in plan),
        rate=Rate(len(lengths), len(mine)),
        steps=sum(lengths) / len(lengths) if lengths else None,
        episodes=mine,
    )


def _sum_timings(finished: list[Finished]) -> dict[str, float]:
    total: dict[str, float] = {}
    for episode in finished:
        for stage, ms in episode.result.get("timings_ms", {}).items():
            total[stage] = total.get(stage, 0.0) + ms
    return total


def published(profile: Mapping) -> list[PublishedFigure]:
    """Returns the published figures that were measured under this very protocol."""
    return [
        PublishedFigure(row["model"], row["success_percent"], row["episodes"], row["source"])
        for row in profile["published"]
        if row["comparable"]
    ]


def _other_packages(identity: Mapping, profile: Mapping) -> str:
    """Returns which packages differ from those of the published figures, or from their lock."""
    has = identity["versions"]
    wrong = [
        f"{name} {has.get(name)}, not {wanted}"
        for name, wanted in profile["simulator"].items()
        if has.get(name) != wanted
    ]
    return "; ".join([*wrong, *identity.get("off_lock", [])])


def _other_details(identity: Mapping, profile: Mapping) -> str:
    """Returns what the policy tells of itself that the one of the published figures was not run with."""
    told = identity["policy"].get("details") or {}
    wanted = profile.get("details", {}).items()
    return "; ".join(f"{name} {told[name]}, not {one}" for name, one in wanted if told.get(name, one) != one)


def why_not_comparable(identity: Mapping, about: Mapping, complete: bool, invocations: list[dict]) -> str:
    """Returns why this run must not stand beside published figures; empty if it may."""
    profile = about["profile"]
    if not published(profile):
        return f"nothing was published for {identity['suite']} under profile {identity['profile']}"
    if about["assets"]["unlike"]:
        return about["assets"]["unlike"]
    trials = profile["trials"]
    made_for, key = identity["policy"].get("suites") or [], identity["unnorm_key"]
    changed = {
        "not all tasks": identity["tasks"] != list(range(len(about["tasks"]))),
        f"not the first {trials} init states": parse_ranges(identity["episodes"]) != list(range(trials)),
        "another step limit": identity["max_steps"] != profile["max_steps"],
        "another seed": identity["seed"] != profile["env_seed"],
        "another part of each action chunk executed": identity["execute"] != profile.get("execute"),
        "an ensemble of chunks executed": identity.get("ensemble") is not None,
        "in real time": identity.get("realtime") is not None,
        "privileged state was sent": identity["policy"]["needs_privileged"],
        f"a checkpoint for {', '.join(made_for)}": made_for and identity["suite"] not in made_for,
        f"un-normalised as {key}": key is not None and key not in profile["unnorm_keys"],
        f"a policy with {_other_details(identity, profile)}": _other_details(identity, profile),
        f"other packages ({_other_packages(identity, profile)})": _other_packages(identity, profile),
        "packages of no lock": identity["lock"] is None,
        "configuration changed between invocations": any(s["notes"].get("drift") for s in invocations),
        "not complete": not complete,
    }
    return ", ".join(reason for reason, holds in changed.items() if holds)
