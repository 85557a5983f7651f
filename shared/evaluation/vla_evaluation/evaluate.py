"""`python -m vla_evaluation.evaluate SUITE --policy-url URL` runs a suite and writes a report.

Exit codes: 0 complete, 1 stopped by an error (resumable), 2 refused before it began, 130 stopped by Ctrl-C (resumable).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from services.libero import assets
from services.libero.simulator.rendering import driver
from services.libero.simulator.suites import SUITES, Task, init_states, load_suite, select_tasks
from vla_common import endings
from vla_common.volume import Volume, require_space, shown
from vla_contract import ContractError, PolicyClient, PolicyInfo
from vla_evaluation import provenance, report
from vla_evaluation.agreement import check_policy, choose_unnorm_key
from vla_evaluation.config import EvalConfig, parse_args, show_ranges, token_of
from vla_evaluation.pictures import video
from vla_evaluation.profiles import Profile
from vla_evaluation.profiles import profile as find_profile
from vla_evaluation.progress import make_progress
from vla_evaluation.report.data import Summary
from vla_evaluation.runs.folders import Run, RunRefused, explain_os_error, open_run
from vla_evaluation.store.reading import NEXT_SESSION
from vla_evaluation.store.records import StoreError
from vla_evaluation.terminal import one_line, say
from vla_evaluation.workers.clock import SessionClock
from vla_evaluation.workers.job import Job
from vla_evaluation.workers.supervisor import Patience, RunFailed, Supervisor

POLL_S = 0.5  # often enough for a person, rare enough to leave the cores to the workers
WORKER_GB = 1.6  # resident size of a worker that draws
EPISODE_BYTES = 500_000  # states and actions, with some video


@dataclass(frozen=True)
class Plan:
    """What to run, before anything is started."""

    config: EvalConfig
    profile: Profile
    tasks: tuple[Task, ...]
    episodes: list[int]

    @property
    def units(self) -> list[tuple[int, int]]:
        return [(task.index, episode) for task in self.tasks for episode in self.episodes]


def make_plan(config: EvalConfig) -> Plan:
    """Returns the plan; ValueError for an unknown profile, task or episode."""
    profile = find_profile(config.profile)
    suite = load_suite(config.suite)
    tasks = select_tasks(suite, config.tasks)
    available = min(len(init_states(task)) for task in tasks)
    return Plan(config, profile, tasks, config.episode_list(profile.trials, available))


def reach_policy(config: EvalConfig) -> PolicyInfo:
    """Returns the policy's own description once it is ready; ContractError if that takes too long."""
    said, limit = {"at": -10.0}, f"{config.policy_timeout_s:g} s"

    def waiting(waited_s: float, reason: str) -> None:
        if waited_s - said["at"] >= 5:
            said["at"] = waited_s
            say(f"waiting for the policy at {config.policy_url}, up to {limit} ({one_line(reason)})")

    with PolicyClient(config.policy_url, token_of(config)) as client:
        client.wait_ready(config.policy_timeout_s, waiting)
        return client.info()


def identify(plan: Plan, info: PolicyInfo, source: assets.AssetSource) -> dict:
    """Returns everything that an episode's outcome depends on, as JSON types; a run never mixes two of these."""
    config, profile = plan.config, plan.profile
    cameras = list(dict.fromkeys((*info.cameras, *config.extra_cameras)))
    facts = {
        "suite": config.suite,
        "tasks": [task.index for task in plan.tasks],
        "episodes": show_ranges(plan.episodes),
        "profile": profile.name,
        "protocol": profile.protocol(),
        "seed": profile.env_seed if config.seed is None else config.seed,
        "max_steps": config.max_steps or profile.steps_for(config.suite),
        "execute": config.execute,
        "cameras": cameras,
        "unnorm_key": choose_unnorm_key(info, profile.unnorm_keys_for(config.suite), config.unnorm_key),
        "render": config.render,
        "policy": info.to_dict(),
        "assets": {"kind": source.kind, "digest": source.digest},
        "versions": provenance.versions(),
        "code": provenance.code_digest(),
        "lock": provenance.lock_hash(),
        "off_lock": provenance.off_lock(),
        "renderer": driver.ask(config.render) if cameras else None,  # what no policy sees changes nothing
    }
    return json.loads(json.dumps(facts))  # as the store will give it back: lists for tuples


def make_job(config: EvalConfig, identity: dict, source: assets.AssetSource) -> Job:
    """Returns what the workers need."""
    shared = ("suite", "profile", "max_steps", "seed", "execute", "unnorm_key", "policy", "render")
    return Job(
        **{key: identity[key] for key in shared},
        cameras=tuple(identity["cameras"]),
        policy_url=config.policy_url,
        assets=str(source.path),
        video=config.video,
        retries=config.retries,
        policy_errors=config.policy_errors,
        policy_timeout_s=config.policy_timeout_s,
        act_timeout_s=config.act_timeout_s,
        lease_s=config.lease_s,
        scene_timeout_s=config.scene_timeout_s,
    )


def choose_workers(asked: int | None, episodes: int) -> int:
    """Returns the number of workers: as asked, else one per core that its memory suffices for."""
    if asked is not None:
        return min(asked, max(1, episodes))
    by_memory = int(provenance.free_memory_gb() // WORKER_GB)
    return max(1, min(provenance.cores(), by_memory, episodes))


def resume_command(run: Run) -> str:
    """Returns the command that goes on with this run, as the user would type it; a token stays out of it."""
    by_hand = ["python", "-m", "vla_evaluation.evaluate", *sys.argv[1:]]
    typed = os.environ.get("VLALAB_COMMAND") or shlex.join(by_hand)
    replaced = ("--resume", "--run-id", "--token")
    kept, before = [], ""
    for word in shlex.split(typed):
        is_value = not word.startswith("-") and not (before == "--resume" and word in SUITES)  # it may stand alone
        if before in replaced and is_value:
            before = ""
            continue
        before = word
        if word.split("=")[0] not in replaced:
            kept.append(word)
    return shlex.join([*kept, "--resume", run.id])


class Interrupted(Exception):
    """Ctrl-C or SIGTERM."""


@contextmanager
def interruptible():
    """Turns the signals that ask a process to end into Interrupted while it lasts."""

    def interrupt(*_) -> None:
        raise Interrupted

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def work(run: Run, plan: Plan, workers: int) -> None:
    """Runs what is left of a run; RunFailed or Interrupted end it early, with all finished episodes stored."""
    config = plan.config
    notes = {
        "workers": workers,
        "commit": provenance.git_commit(),
        "machine": provenance.machine(),
        "drift": run.drift,
    }
    clock = SessionClock.start()
    session = run.store.begin_session(clock.now(), notes)
    patience = Patience(config.retries, config.lease_s, config.start_timeout_s)
    wanted = partial(video.wanted, config.video)
    supervisor = Supervisor(run.folder, run.store, session, clock, workers, patience, wanted, token_of(config))
    outcome = "failed"
    try:
        with make_progress({task.index: task.instruction for task in plan.tasks}, run.store.counts()) as progress:
            supervisor.start()
            while not supervisor.finished():
                for line in supervisor.step():
                    progress.say(line)
                progress.update(supervisor.counts, run.store.workers())
                time.sleep(POLL_S)
            progress.update(supervisor.counts, {})
        outcome = "complete"
    except Interrupted:
        outcome = "interrupted"
        say("stopping: saving what is finished (Ctrl-C again ends at once)")
        raise
    finally:
        signal.signal(signal.SIGINT, lambda *_: supervisor.kill())
        supervisor.stop()
        with suppress(StoreError):  # a full disk has been told already
            run.store.end_session(session, clock.now(), outcome)


def evaluate(config: EvalConfig) -> int:
    """Runs an evaluation to its report; returns the exit code."""
    plan = make_plan(config)
    info = reach_policy(config)
    check_policy(info, config.suite, plan.profile.image_size, config.allow_other_suite)
    source = assets.resolve(config.assets, Volume().root)
    identity = identify(plan, info, source)
    root = (config.run_dir or Volume().runs).resolve()
    with open_run(
        root,
        identity,
        plan.units,
        run_id=config.run_id,
        resume=config.resume,
        label=f"{config.suite}-{info.name}",
        allow_drift=config.allow_drift,
    ) as run:
        run.store.set_meta("job", asdict(make_job(config, identity, source)))
        return carry_out(run, plan, info, source)


def carry_out(run: Run, plan: Plan, info: PolicyInfo, source: assets.AssetSource) -> int:
    """Runs what is left of a run that this process holds; returns the exit code."""
    left = sum(row["planned"] - row["done"] for row in run.store.counts().values())
    undrawn = len(run.store.undrawn(NEXT_SESSION, partial(video.wanted, plan.config.video)))
    require_space(run.folder, left * EPISODE_BYTES)
    workers = choose_workers(plan.config.workers, left + undrawn)
    print_header(run, plan, info, source, left, workers)
    if undrawn:
        say(f"{plural(undrawn, 'video')} of earlier sessions to draw")
    code = 0
    try:
        if left or undrawn:
            work(run, plan, workers)
    except Interrupted:
        code = 130
    except (RunFailed, StoreError, OSError) as error:
        code = 1
        say(f"error: {one_line(in_words(error, run.folder))}")
    if info.stateful:
        forget_sessions(run, plan.config)
    return conclude(run, code)


def forget_sessions(run: Run, config: EvalConfig) -> None:
    """Tells the policy that no episode goes on: workers that were killed or stopped could not say so."""
    with suppress(ContractError), PolicyClient(config.policy_url, token_of(config), 5.0, 5.0, retries=0) as client:
        client.reset_all(f"{run.folder.name}.")


def conclude(run: Run, code: int) -> int:
    """Writes the report and prints the result; returns the exit code."""
    try:
        summary = report.build(run.folder, run.store)
    except (StoreError, OSError) as error:
        say(f"error: no report: {in_words(error, run.folder)}; go on with\n  {resume_command(run)}")
        return code or 1
    print_result(run, summary, code)
    return code


def in_words(error: Exception, place: Path) -> str:
    return explain_os_error(error, place) if isinstance(error, OSError) else str(error)


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def print_header(run: Run, plan: Plan, info: PolicyInfo, source: assets.AssetSource, left: int, workers: int) -> None:
    total = len(plan.units)
    say(f"run {run.id} in {shown(run.folder)}{' (resumed)' if run.resumed else ''}")
    say(
        f"{plan.config.suite}: {plural(len(plan.tasks), 'task')} × {plural(len(plan.episodes), 'episode')}, "
        f"{left} of {total} to do, policy {one_line(info.name)}, {plural(workers, 'worker')}, assets: {source.kind}"
    )
    for line in run.drift:
        say(f"drift allowed: {line}")


def print_result(run: Run, summary: Summary, code: int) -> None:
    """Prints what a person and a script look for at the end: the report's path, then the result in one line."""
    say(f"\nreport: {shown(run.folder / 'report.html')}")
    for row in summary.published:
        say(f"published: {row.percent:g} % {row.model} ({row.episodes} episodes, {row.source})")
    if summary.policy_errors:
        count = len(summary.policy_errors)
        say(f"policy errors: {count} of {plural(summary.done, 'episode')}, counted as not successful; see the report")
    kind = summary.identity["assets"]["kind"]
    if kind == "kit":
        say("assets: the project's kit; LIBERO's official files can be had by `./lab assets libero`")
    if not summary.comparable and kind != "kit":
        say(f"not comparable with published figures: {summary.why_not_comparable}")
    beside = "".join(f", published {row.percent:g} %" for row in summary.published)
    say(f"{summary.suite}: success rate {summary.rate}{beside}, assets: {kind}")
    if code and summary.done < summary.planned:
        say(f"\nnot complete: {summary.done} of {summary.planned} episodes done, nothing lost; go on with")
        say(f"  {resume_command(run)}")


def main(arguments: list[str]) -> int:
    try:
        with interruptible():
            return evaluate(parse_args(arguments))
    except ContractError as error:
        say(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except (ValueError, RunRefused, StoreError) as error:
        say(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        say(f"error: {in_words(error, Path())}", file=sys.stderr)
        return 2
    except Interrupted:
        say("stopped; a run that had begun can be resumed", file=sys.stderr)
        return 130


if __name__ == "__main__":
    endings.run(main, sys.argv[1:])
