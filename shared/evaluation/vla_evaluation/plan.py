"""The plan of a run: tasks, episodes, protocol, and everything that their outcome depends on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vla_common.versions import lock_hash, versions
from vla_contract import PolicyInfo
from vla_contract.protocol.errors import did_you_mean, nearest
from vla_evaluation import provenance
from vla_evaluation.agreement import choose_unnorm_key
from vla_evaluation.benchmark import Assets, Benchmark, Task, base_of, kind_of, level_of, trials_of
from vla_evaluation.config import EvalConfig, RunConfig, parse_ranges, show_ranges
from vla_evaluation.inputs import Sentences, instruction, read_instructions
from vla_evaluation.profiles import Profile, choose
from vla_evaluation.spec import RunSpec
from vla_evaluation.workers.job import Job


@dataclass(frozen=True)
class Plan:
    """The tasks and episodes of a run, and its settings."""

    benchmark: Benchmark
    config: RunConfig
    profile: Profile
    tasks: tuple[Task, ...]
    episodes: list[int]

    @property
    def units(self) -> list[tuple[int, int]]:
        return [(task.index, episode) for task in self.tasks for episode in self.episodes]


def make_plan(benchmark: Benchmark, config: EvalConfig, profile: str | None = None) -> Plan:
    """Return the plan, under the requested profile, else `profile`, else the benchmark's first.

    ValueError for an unknown suite, profile, camera, task or episode.
    """
    for camera in config.extra_cameras:
        if camera not in benchmark.cameras:
            raise ValueError(f"camera {camera!r} not found{did_you_mean(camera, benchmark.cameras)}")
    selected_profile, tasks = choose_tasks(benchmark, config, profile)
    available = min(len(benchmark.init_states(task)) for task in tasks)
    trials = config.trials or trials_of(benchmark, config.suite, selected_profile)
    episodes = parse_ranges(config.episodes or f"0-{trials - 1}")
    if episodes[-1] >= available:
        flag = "--episodes" if config.episodes else "--trials"
        raise ValueError(f"{flag} requests episode {episodes[-1]}, but a task has init states 0-{available - 1}")
    return Plan(benchmark, config, selected_profile, tasks, episodes)


def choose_tasks(benchmark: Benchmark, config: RunConfig, profile: str | None) -> tuple[Profile, tuple[Task, ...]]:
    """Return the profile and the tasks; ValueError for an unknown suite, profile or task."""
    if config.suite not in benchmark.suites:
        raise ValueError(f"suite {config.suite!r} not found{did_you_mean(config.suite, benchmark.suites)}")
    selected_profile = choose(benchmark.profiles, config.profile or profile or next(iter(benchmark.profiles)))
    return selected_profile, select_tasks(config.suite, benchmark.tasks(config.suite), config.tasks)


def select_tasks(suite: str, tasks: Sequence[Task], selection: str | None = None) -> tuple[Task, ...]:
    """Return the tasks that `selection` names, in the suite's order and without repeats.

    `selection` is a comma-separated list of indices ("0"), ranges ("2-4", both ends included), task names and
    instructions; None or "all" is every task. Raises ValueError for an index outside the suite, a reversed range and
    an unknown name.
    """
    if selection is None or selection.strip() in ("", "all"):
        return tuple(tasks)
    texts = [text.lower().rstrip(".") for text in [task.name for task in tasks] + [task.instruction for task in tasks]]
    indices: set[int] = set()
    for part in (part.strip() for part in selection.split(",")):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
            first, last = int(match[1]), int(match[2] or match[1])
            if first > last or last >= len(tasks):
                raise ValueError(
                    f"invalid --tasks {part!r}; {suite} has tasks 0-{len(tasks) - 1}; write a range lower end first"
                )
            indices.update(range(first, last + 1))
        elif (text := part.lower().rstrip(".")) in texts:
            indices.add(texts.index(text) % len(tasks))
        else:
            names = [task.name for task in tasks] + [task.instruction for task in tasks]
            raise ValueError(
                f"task {part!r} not found in {suite}{nearest(part, names)} "
                "Use indices ('0'), ranges ('0,2-4'), names or instructions."
            )
    return tuple(task for task in tasks if task.index in indices)


def specify(plan: Plan, info: PolicyInfo) -> RunSpec:
    """Return the settings that all episodes share. ValueError if the policy lacks the requested statistics, or its
    chunks are too short for the requested chunking.
    """
    benchmark, config, profile = plan.benchmark, plan.config, plan.profile
    chunking = config.chunking
    if chunking.execute is None:
        chunking = replace(chunking, execute=profile.execute)
    chunking.check(info)
    base = base_of(benchmark, config.suite)
    return RunSpec(
        benchmark=benchmark.name,
        suite=config.suite,
        profile=profile.name,
        protocol=profile.protocol(),
        max_steps=config.max_steps or profile.steps_for(base),
        action=benchmark.action,
        control_hz=benchmark.control_hz,
        policy=info,
        cameras=tuple(dict.fromkeys((*info.cameras, *config.extra_cameras))),
        execute=chunking.execute,
        ensemble=chunking.ensemble,
        ensemble_weight=chunking.weight,
        realtime=chunking.realtime,
        seed=profile.env_seed if config.seed is None else config.seed,
        unnorm_key=choose_unnorm_key(info, profile.unnorm_keys_for(base), config.unnorm_key),
        render=config.render,
        instructions=read_instructions(benchmark, config, plan.tasks),
    )


def identify(plan: Plan, spec: RunSpec, assets: Assets, worker: str = provenance.WORKER) -> dict[str, Any]:
    """Return everything that an episode's outcome depends on, as JSON types; a run never mixes two of these."""
    return {
        **spec.to_json(),
        "tasks": [task.index for task in plan.tasks],
        "episodes": show_ranges(plan.episodes),
        **machine_identity(plan.benchmark, spec, assets, worker),
    }


def machine_identity(
    benchmark: Benchmark, spec: RunSpec, assets: Assets, worker: str = provenance.WORKER
) -> dict[str, Any]:
    """Return the part of an identity that depends on the machine."""
    return {
        "assets": {"kind": assets.kind, "digest": assets.digest},
        "versions": versions(benchmark.packages, "absent"),
        "code": provenance.code_digest(benchmark, worker),
        "lock": lock_hash(),
        "off_lock": provenance.off_lock(),
        # Without a camera the renderer changes nothing.
        "renderer": benchmark.renderer(spec.render) if spec.cameras else None,
    }


def describe(plan: Plan, assets: Assets, sentences: Sentences | None = None) -> dict[str, Any]:
    """Return the data besides the identity that reports read, so they do not need the benchmark. `sentences`: those of
    `RunSpec.instructions`.
    """
    suite = plan.config.suite
    classes = {"kind": kind_of, "level": level_of}
    return {
        "tasks": [
            {"name": task.name, "instruction": instruction(sentences, task.index, 0, task.instruction)}
            | {name: value for name, of in classes.items() if (value := of(task))}
            for task in plan.benchmark.tasks(suite)
        ],
        "profile": plan.profile.as_json(suite, base_of(plan.benchmark, suite)),
        "assets": {"unlike": assets.unlike, "notice": assets.notice, "advice": assets.advice},
    }


def make_job(plan: Plan, spec: RunSpec, assets: Assets, kind: type[Job] = Job, **overrides: object) -> Job:
    """Return the workers' job: `overrides`, and every other field of `kind` from the configuration."""
    values = {
        "spec": spec,
        "benchmark": plan.benchmark.module,
        "assets": str(assets.path),
        "policies_at": (),
        **overrides,
    }
    return kind(**values, **{name: getattr(plan.config, name) for name in kind.__dataclass_fields__.keys() - values})
