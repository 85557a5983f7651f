"""`python -m services.BENCHMARK record SUITE --policy-url URL` records demonstrations of a policy.

The plan grows: each task gets as many attempts as successes are missing. Exit codes are those of an evaluation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from vla_common.counts import plural
from vla_common.volume import Volume, display_path, require_space
from vla_evaluation import evaluate
from vla_evaluation.benchmark import Assets, Benchmark
from vla_evaluation.config import RecordConfig, parse_record_args
from vla_evaluation.plan import Plan, choose_tasks, describe, identify, make_job, specify
from vla_evaluation.recording import worker
from vla_evaluation.runs.directories import DIRECTORIES, STORE, RunUnusable, open_run
from vla_evaluation.spec import RunSpec
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.terminal import say, single_line

DEMONSTRATION_BYTES = 500_000  # states and actions of some hundred steps


def make_plan(benchmark: Benchmark, config: RecordConfig, profile: str | None = None) -> Plan:
    """Return the plan, without episodes; ValueError for an unknown suite, profile or task, and too few episodes."""
    selected_profile, tasks = choose_tasks(benchmark, config, profile)
    if config.episodes < len(tasks):
        raise ValueError(
            f"--episodes must be at least {len(tasks)}, one per task of {config.suite}, got {config.episodes}; "
            "or select fewer tasks with --tasks"
        )
    possible = getattr(benchmark, "variations", ())
    if wrong := [name for name in config.vary.split(",") if name and name not in possible]:
        raise ValueError(f"--vary {wrong[0]!r} is not possible; choose from {', '.join(possible) or 'nothing'}")
    return Plan(benchmark, config, selected_profile, tasks, [])


def wide_suite(benchmark: Benchmark, suite: str) -> str:
    """Return the suite with the tasks of `suite` and starts over the whole scene; ValueError if there is none."""
    wide = getattr(benchmark, "wide", {})
    if suite in wide.values():
        return suite
    if suite not in wide:
        raise ValueError(f"--starts wide is not possible for {suite}; choose one of {', '.join(wide) or 'none'}")
    return str(wide[suite])


def share(episodes: int, tasks: Sequence[int]) -> dict[int, int]:
    """Return the number of demonstrations per task: equal, with the remainder on the first tasks."""
    each, more = divmod(episodes, len(tasks))
    return {task: each + (index < more) for index, task in enumerate(tasks)}


def record(benchmark: Benchmark, config: RecordConfig) -> int:
    """Record until there are as many demonstrations as requested; return the exit code."""
    if config.starts == "wide":
        config = replace(config, suite=wide_suite(benchmark, config.suite))
    plan, info, assets = evaluate.prepare(benchmark, config, make_plan)
    spec = specify(plan, info)
    # With noise, only the first action of a chunk belongs to the current state.
    spec = replace(spec, seed=config.seed or 0, execute=1 if config.noise else spec.execute)
    root, name = (config.run_dir or Volume().demonstrations).resolve(), config.name or f"{config.suite}-{info.name}"
    require_recording_directory(root / name)
    identity = identify_recording(plan, spec, assets)
    with open_run(root, identity, [], run_id=name, resume=None, label=name, allow_drift=config.allow_drift) as run:
        targets = share(config.episodes, [task.index for task in plan.tasks])
        run.store.plan_successes(targets, config.attempts)
        describe_recording(run.store, plan, spec, assets, targets)
        left = sum(row["pending"] + row["leased"] + row["broken"] for row in run.store.counts().values())
        require_space(run.directory, left * DEMONSTRATION_BYTES)
        workers = evaluate.choose_workers(config.workers, left, benchmark.worker_gb)
        say(f"recording {run.id} in {display_path(run.directory)}{' (resumed)' if run.resumed else ''}")
        noise = f", noise {config.noise:g}" if config.noise else ""
        say(
            f"{config.suite}: {plural(config.episodes, 'demonstration')} of {plural(len(plan.tasks), 'task')}, {left} "
            f"to do, policy {single_line(info.name)}{noise}, {plural(workers, 'worker')}, assets: {assets.kind}"
        )
        evaluate.announce(run, plan, left, workers)
        code = evaluate.try_to_work(run, plan, info, workers, worker.MODULE) if left else 0
        return report_result(run.store, run.directory, config, targets, code)


def identify_recording(plan: Plan, spec: RunSpec, assets: Assets) -> dict:
    """Return everything that a demonstration depends on, without their number, which may grow."""
    names = ("noise", "drop_noops", "keep_failures")
    vary = getattr(plan.config, "vary", "")
    return {
        **identify(plan, spec, assets, worker.MODULE),
        "episodes": "drawn",
        "recording": {name: getattr(plan.config, name) for name in names} | ({"vary": vary} if vary else {}),
    }


def describe_recording(store: RunStore, plan: Plan, spec: RunSpec, assets: Assets, targets: Mapping[int, int]) -> None:
    """Store the workers' job, and the data besides the identity that readers of the files need."""
    benchmark = plan.benchmark
    more = {"cameras": list(benchmark.cameras), "state": [asdict(part) for part in benchmark.state]}
    store.set_meta("about", {**describe(plan, assets, spec.instructions), "recording": more})
    wanted = {str(task): count for task, count in targets.items()}
    store.set_meta("job", make_job(plan, spec, assets, worker.RecordingJob, wanted=wanted).to_json())


def require_recording_directory(directory: Path) -> None:
    """Raise RunUnusable if the directory holds anything but a recording."""
    expected = {*DIRECTORIES, STORE, "run.lock", "config.json"}
    names = [name for name in (os.listdir(directory) if directory.is_dir() else ()) if not name.startswith(".")]
    if STORE not in names and (strange := sorted(set(names) - expected)):
        raise RunUnusable(f"{directory} is not a recording (it contains {strange[0]}); choose another --name")


def report_result(store: RunStore, directory: Path, config: RecordConfig, targets: dict[int, int], code: int) -> int:
    """Print the result, and the tasks with fewer demonstrations than requested; return the exit code."""
    counts = store.counts()
    stored_of = {task: row["done" if config.keep_failures else "successes"] for task, row in counts.items()}
    stored, attempts = sum(stored_of.values()), sum(row["done"] for row in counts.values())
    say(
        f"\n{directory.name}: {plural(stored, 'demonstration')} from {plural(attempts, 'attempt')} in "
        f"{display_path(directory)}"
    )
    if code:
        if stored < config.episodes:
            say("not complete, all finished attempts are stored; run the same command to continue")
        return code
    short = [f"task {task}: {stored_of[task]} of {count}" for task, count in targets.items() if stored_of[task] < count]
    if short:
        cause = f"too few attempts succeeded ({', '.join(short)})"
        say(f"error: {cause}; use --attempts above {config.attempts}")
    return 1 if short else 0


def main(benchmark: Benchmark, arguments: list[str]) -> int:
    """Record as the arguments say; return the exit code."""
    return evaluate.guarded(lambda: record(benchmark, parse_record_args(arguments)))
