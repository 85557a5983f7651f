"""`python -m services.BENCHMARK record SUITE --policy-url URL` records demonstrations of a policy.

The plan grows: each task has so many attempts to do as are left to succeed. Exit codes are an evaluation's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from vla_common.counts import plural
from vla_common.volume import Volume, require_space, shown
from vla_contract import PolicyInfo
from vla_evaluation import evaluate, provenance
from vla_evaluation.agreement import check_policy, choose_profile
from vla_evaluation.benchmark import Assets, Benchmark, require_assets
from vla_evaluation.config import RecordConfig, RunConfig, parse_record_args
from vla_evaluation.plan import Plan, choose_tasks, describe, identify, make_job, specify
from vla_evaluation.recording import worker
from vla_evaluation.runs.folders import FOLDERS, STORE, Run, RunRefused, open_run
from vla_evaluation.spec import RunSpec
from vla_evaluation.terminal import one_line, say

DEMONSTRATION_BYTES = 500_000  # states and actions of some hundred steps


def make_plan(benchmark: Benchmark, config: RecordConfig, profile: str | None = None) -> Plan:
    """Returns the plan, without episodes; ValueError for an unknown suite, profile or task, and too few episodes."""
    chosen, tasks = choose_tasks(benchmark, config, profile)
    if config.episodes < len(tasks):
        raise ValueError(
            f"--episodes {config.episodes} leaves tasks without a demonstration; {config.suite} has "
            f"{plural(len(tasks), 'task')} here: give that many or more, or choose with --tasks"
        )
    return Plan(benchmark, config, chosen, tasks, [])


def share(episodes: int, tasks: Sequence[int]) -> dict[int, int]:
    """Returns how many demonstrations each task gives: as many as the others, the first ones one more."""
    each, more = divmod(episodes, len(tasks))
    return {task: each + (place < more) for place, task in enumerate(tasks)}


def record(benchmark: Benchmark, config: RecordConfig) -> int:
    """Records until as many demonstrations are kept as were asked for; returns the exit code."""
    provenance.check_simulator(benchmark, say)
    plan = make_plan(benchmark, config)
    info = evaluate.reach_policy(config)
    if (profile := choose_profile(info, benchmark, config.profile)) != plan.profile.name:
        plan = make_plan(benchmark, config, profile)
    check_policy(info, benchmark, config.suite, plan.profile, config.allow_other_suite)
    assets = benchmark.assets(config.assets, Volume().root)
    require_assets(benchmark, plan.tasks, assets)
    spec = specify_recording(plan, info)
    root, name = (config.run_dir or Volume().demonstrations).resolve(), config.name or f"{config.suite}-{info.name}"
    refuse_foreign(root / name)
    identity = identify_recording(plan, spec, assets)
    with open_run(root, identity, [], run_id=name, resume=None, label=name, allow_drift=config.allow_drift) as run:
        wanted = share(config.episodes, [task.index for task in plan.tasks])
        run.store.want(wanted, config.attempts)
        run.store.set_meta("about", {**describe(plan, assets), "recording": what_is_kept(benchmark)})
        facts = {"wanted": {str(task): count for task, count in wanted.items()}}
        run.store.set_meta("job", make_job(plan, spec, assets, worker.RecordingJob, **facts).to_json())
        return carry_out(run, plan, info, assets)


def specify_recording(plan: Plan, info: PolicyInfo) -> RunSpec:
    """Returns what all attempts share. Noise makes every answer but the next one an answer to something else."""
    config, spec = plan.config, specify(plan, info)
    return replace(spec, seed=config.seed or 0, execute=1 if config.noise else spec.execute)


def identify_recording(plan: Plan, spec: RunSpec, assets: Assets) -> dict:
    """Returns everything that a demonstration depends on; not how many are wanted, so that more can be."""
    names = ("noise", "drop_noops", "keep_failures")
    return {
        **identify(plan, spec, assets, worker.MODULE),
        "episodes": "drawn",
        "recording": {name: getattr(plan.config, name) for name in names},
    }


def what_is_kept(benchmark: Benchmark) -> dict:
    """Returns what readers have to know of the files, beside the identity."""
    return {"cameras": list(benchmark.cameras), "state": [asdict(part) for part in benchmark.state]}


def refuse_foreign(folder: Path) -> None:
    """Raises RunRefused for a folder that something else is in."""
    known = {*FOLDERS, STORE, "run.lock", "config.json"}
    others = [name for name in (os.listdir(folder) if folder.is_dir() else ()) if not name.startswith(".")]
    if STORE not in others and (strange := sorted(set(others) - known)):
        raise RunRefused(f"{folder} is no recording (it holds {strange[0]}); choose another --name")


def carry_out(run: Run, plan: Plan, info: PolicyInfo, assets: Assets) -> int:
    """Runs what is left of a recording that this process holds; returns the exit code."""
    left = sum(row["pending"] + row["leased"] + row["broken"] for row in run.store.counts().values())
    require_space(run.folder, left * DEMONSTRATION_BYTES)
    workers = evaluate.choose_workers(plan.config.workers, left, plan.benchmark.worker_gb)
    print_header(run, plan, info, assets, left, workers)
    code = evaluate.try_to_work(run, plan, info, workers, worker.MODULE) if left else 0
    return conclude(run, plan.config, code)


def print_header(run: Run, plan: Plan, info: PolicyInfo, assets: Assets, left: int, workers: int) -> None:
    config = plan.config
    say(f"recording {run.id} in {shown(run.folder)}{' (goes on)' if run.resumed else ''}")
    noise = f", noise {config.noise:g}" if config.noise else ""
    say(
        f"{config.suite}: {plural(config.episodes, 'demonstration')} of {plural(len(plan.tasks), 'task')}, {left} to "
        f"do, policy {one_line(info.name)}{noise}, {plural(workers, 'worker')}, assets: {assets.kind}"
    )
    evaluate.announce(run, plan, left, workers)


def conclude(run: Run, config: RunConfig, code: int) -> int:
    """Prints what there is now, and which tasks gave less than was asked for; returns the exit code."""
    counts = run.store.counts()
    wanted = {int(task): count for task, count in run.store.meta("job")["wanted"].items()}
    kept_of = {task: row["done" if config.keep_failures else "successes"] for task, row in counts.items()}
    kept, attempts = sum(kept_of.values()), sum(row["done"] for row in counts.values())
    say(f"\n{run.id}: {plural(kept, 'demonstration')} kept of {plural(attempts, 'attempt')} in {shown(run.folder)}")
    if code:
        if kept < config.episodes:
            say("not complete, nothing lost; the same command goes on")
        return code
    short = [f"task {task}: {kept_of[task]} of {count}" for task, count in wanted.items() if kept_of[task] < count]
    if short:
        cause = f"too few attempts went well ({', '.join(short)})"
        say(f"error: {cause}; --attempts allows more than {config.attempts} each")
    return 1 if short else 0


def main(benchmark: Benchmark, arguments: list[str]) -> int:
    """Records as the arguments say; returns the exit code."""
    return evaluate.guarded(lambda: record(benchmark, parse_record_args(arguments)))
