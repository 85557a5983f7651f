"""Run a suite and write a report: the evaluation, and the parts of it that a recording has too.

Exit codes: 0 complete, 1 stopped by an error (resumable), 2 invalid before it started, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.markup import escape

from vla_common import entrypoint
from vla_common.counts import plural
from vla_common.volume import Volume, display_path, require_space
from vla_contract import ContractError, PolicyClient, PolicyInfo
from vla_contract.server.auth import in_container, require_token_beyond_loopback
from vla_evaluation import estimate, hosts, inputs, provenance, report
from vla_evaluation.agreement import check_policy, choose_profile
from vla_evaluation.benchmark import Assets, Benchmark, require_assets
from vla_evaluation.chunks import Chunking
from vla_evaluation.config import EvalConfig, RunConfig, differences, token_of
from vla_evaluation.pictures import video
from vla_evaluation.plan import Plan, describe, identify, make_job, make_plan, specify
from vla_evaluation.progress import Progress
from vla_evaluation.report.data import Summary
from vla_evaluation.runs.directories import Run, RunUnusable, explain_os_error, open_run
from vla_evaluation.spec import RunSpec
from vla_evaluation.store.reading import NEXT_SESSION
from vla_evaluation.store.records import StoreError, unfinished
from vla_evaluation.terminal import say, single_line
from vla_evaluation.workers.job import InvocationClock, Job
from vla_evaluation.workers.supervisor import Growth, RunFailed, StallPolicy, WorkerSupervisor, worker_names

if TYPE_CHECKING:
    from vla_evaluation.coordinator.app import Coordinator  # a web server, which few runs need

Config = TypeVar("Config", bound=RunConfig)
POLL_S = 0.5  # often enough for a display, rare enough to leave the cores to the workers
EPISODE_BYTES = 500_000  # states and actions, with some video


class Interrupted(Exception):
    """Ctrl-C or SIGTERM."""


# --- the policy -----------------------------------------------------------------------------------------------


def reach_policy(config: RunConfig) -> PolicyInfo:
    """Return the policy's description once it is ready at all of its addresses.

    ContractError if that takes too long, ValueError if different policies answer.
    """
    first, *replicas = config.policies
    info = wait_for_policy(config, first)
    for other in replicas:
        if lines := differences(info.to_dict(), wait_for_policy(config, other).to_dict()):
            raise ValueError(
                f"{first} and {other} serve different policies; a run has one policy ({first} → {other}):\n"
                + "\n".join(f"  {line}" for line in lines)
            )
    return info


def wait_for_policy(config: RunConfig, url: str) -> PolicyInfo:
    """Return the description of the policy at that address once it is ready.

    On a terminal one line is updated; elsewhere each new reason is printed as a line.
    """
    console, reasons = entrypoint.console(), set()
    status = console.status("")

    def waiting(waited_s: float, reason: str) -> None:
        message = f"waiting for the policy at {url}, up to {config.policy_timeout_s:g} s ({single_line(reason)})"
        if console.is_terminal:
            status.update(escape(f"{message}: {waited_s:.0f} s"))
            status.start()
        elif reason not in reasons:
            reasons.add(reason)
            say(message)

    with PolicyClient(url, token_of(config)) as client:
        try:
            client.wait_ready(config.policy_timeout_s, waiting)
            return client.info()
        finally:
            status.stop()


def prepare(
    benchmark: Benchmark, config: Config, make_plan: Callable[[Benchmark, Config, str | None], Plan]
) -> tuple[Plan, PolicyInfo, Assets]:
    """Return plan, policy and assets of a run, which fit each other. ValueError, with what to do, if they do not."""
    provenance.check_simulator(benchmark, say)
    plan = make_plan(benchmark, config, None)
    info = reach_policy(config)
    if (profile := choose_profile(info, benchmark, config.profile)) != plan.profile.name:
        plan = make_plan(benchmark, config, profile)
    check_policy(info, benchmark, config.suite, plan.profile, config.allow_other_suite)
    assets = benchmark.assets(config.assets, Volume().root)
    require_assets(benchmark, plan.tasks, assets)
    return plan, info, assets


# --- workers --------------------------------------------------------------------------------------------------


def choose_workers(requested: int | None, episodes: int, worker_gb: float) -> int:
    """Return the number of workers: as requested, else one per core, fewer if memory is short."""
    if requested is not None:
        return min(requested, max(1, episodes))
    fitting = int(provenance.free_memory_gb() // worker_gb)
    return max(1, min(provenance.cores(), fitting, episodes))


def memory_notice(requested: int | None, episodes: int, workers: int, worker_gb: float) -> str:
    """Return a message if memory limits the workers, else "". A requested number is not changed.

    worker_gb: peak memory of one worker, GB.
    """
    free_gb, cores = provenance.free_memory_gb(), provenance.cores()
    fitting = int(free_gb // worker_gb)
    memory = f"each takes up to {worker_gb:g} GB and {free_gb:.1f} GB are free"
    if requested is None and workers == max(1, fitting) < min(cores, episodes):
        return f"{plural(workers, 'worker')} on {cores} cores: {memory}"
    if requested is not None and fitting < workers:
        return f"--workers {requested}: {memory}; if the kernel kills one, the run continues with fewer"
    return ""


def announce(run: Run, plan: Plan, left: int, workers: int) -> None:
    """Print memory limits, allowed drift, and the expected duration of a long run."""
    if line := memory_notice(plan.config.workers, left, workers, plan.benchmark.worker_gb):
        say(line)
    for line in run.drift:
        say(f"drift allowed: {line}")
    if left and workers:
        identity = run.store.meta("identity")
        if expected := estimate.announcement(run.directory.parent, identity, left, workers):
            say(expected)


def try_to_work(run: Run, plan: Plan, info: PolicyInfo, workers: int, worker: str = provenance.WORKER) -> int:
    """Run the remaining episodes; print an error that ends them; return the exit code."""
    code = 0
    try:
        work(run, plan, workers, worker)
    except Interrupted:
        code = 130
    except (RunFailed, StoreError, OSError) as error:
        code = 1
        say(f"error: {single_line(error_message(error, run.directory))}")
    if info.stateful:  # killed or stopped workers could not end their sessions
        for url in plan.config.policies:
            with suppress(ContractError), PolicyClient(url, token_of(plan.config), 5.0, 5.0, retries=0) as client:
                client.reset_all(f"{run.directory.name}.")
    return code


def work(run: Run, plan: Plan, workers: int, worker: str) -> None:
    config, cores = plan.config, provenance.cores()
    commit, machine = provenance.git_commit(), provenance.machine()
    notes = {"workers": workers, "commit": commit, "machine": machine, "drift": run.drift}
    clock = InvocationClock.start()
    invocation = run.store.begin_invocation(clock.now(), notes)
    growth = Growth(plan.benchmark.worker_gb) if config.workers is None and not config.chunking.realtime else None
    supervisor = WorkerSupervisor(
        run.directory,
        run.store,
        invocation,
        clock,
        worker_names(workers),
        StallPolicy(config.retries, config.lease_s, config.start_timeout_s),
        partial(video.should_render, config.video),
        token_of(config),
        plan.benchmark.worker_variables,
        worker,
        growth,
        render_threads=1 if growth or not workers else cores // workers,
    )
    outcome = "failed"
    try:
        with joinable(run, plan, clock, invocation) as coordinator:
            supervise(supervisor, {task.index: task.instruction for task in plan.tasks}, coordinator)
        outcome = "complete"
    except Interrupted:
        outcome = "interrupted"
        raise
    finally:
        with suppress(StoreError):  # a full disk has been reported already
            run.store.end_invocation(invocation, clock.now(), outcome)


def supervise(
    supervisor: WorkerSupervisor,
    names: Mapping[int, str],
    coordinator: Coordinator | None = None,
    poll_s: float = POLL_S,
) -> None:
    """Supervise the workers until no work is left on any machine, and display the progress.

    Raises RunFailed or Interrupted, after the workers have ended.
    """
    store = supervisor.store
    try:
        with Progress(names, supervisor.counts) as progress:
            supervisor.start()
            while not supervisor.finished() or (coordinator and coordinator.active_hosts()):
                for message in supervisor.step():
                    progress.print_line(message)
                machines = hosts.line(coordinator.shares(store)) if coordinator else ""
                progress.update(supervisor.counts, store.workers(), machines)
                time.sleep(poll_s)
            progress.update(supervisor.counts, {})
    except Interrupted:
        say("stopping: saving finished episodes (Ctrl-C again stops at once)")
        raise
    finally:
        signal.signal(signal.SIGINT, lambda *_: supervisor.kill())
        supervisor.stop()


@contextmanager
def joinable(run: Run, plan: Plan, clock: InvocationClock, invocation: int) -> Iterator[Coordinator | None]:
    """Let other machines join where --listen is set; yield their coordinator."""
    listen_at = getattr(plan.config, "listen", None)  # recordings have no --listen
    if listen_at is None:
        yield None
        return
    from vla_evaluation.coordinator.app import Coordinator, coordinating
    from vla_evaluation.coordinator.calls import ActiveRun

    job = Job.from_json(run.store.meta("job"))
    description = {
        "run": run.id,
        "identity": run.store.meta("identity"),
        "job": job.to_json(),
        "worker_gb": plan.benchmark.worker_gb,
        "episodes": unfinished(run.store.counts()),
        "runtime": "docker" if in_container() else "local",
    }
    coordinator = Coordinator(ActiveRun(run.directory, job, clock, invocation), description)
    with coordinating(listen_at, token_of(plan.config), coordinator):
        say(f"to join from another machine: ./lab eval --join {coordinator.url}")
        try:
            yield coordinator
        finally:
            coordinator.end_reason = (
                "the run was stopped or is complete; if episodes are left, join again after it is resumed"
            )


# --- the evaluation -------------------------------------------------------------------------------------------


def evaluate(benchmark: Benchmark, config: EvalConfig) -> int:
    """Run an evaluation to its report; return the exit code."""
    if config.listen:  # checked before the wait for a policy
        from vla_evaluation.coordinator.app import read_address

        require_token_beyond_loopback(read_address(config.listen)[0], token_of(config))
    plan, info, assets = prepare(benchmark, config, make_plan)
    spec = specify(plan, info)
    ablations = choose_ablations(config, plan, info)
    identity = identify(plan, spec, assets)
    with open_run(
        (config.run_dir or Volume().runs).resolve(),
        identity,
        plan.units,
        run_id=config.run_id,
        resume=config.resume,
        label=f"{config.suite}-{info.name}",
        allow_drift=config.allow_drift,
    ) as run:
        run.store.set_meta("about", describe(plan, assets, spec.instructions))
        run.store.set_meta("job", make_job(plan, spec, assets).to_json())
        left = unfinished(run.store.counts())
        videos = len(run.store.missing_videos(NEXT_SESSION, partial(video.should_render, config.video)))
        require_space(run.directory, left * EPISODE_BYTES)
        # in real time one worker, since concurrent requests would add to the latency
        requested = 1 if config.workers is None and config.realtime else config.workers
        workers = choose_workers(requested, left + videos, benchmark.worker_gb)
        workers = max(workers, min(videos, 1))  # machines that join render no videos of earlier invocations
        print_header(run, plan, info, assets, left, workers)
        if videos:
            say(f"{plural(videos, 'video')} of earlier invocations to render")
        code = try_to_work(run, plan, info, workers) if left or videos else 0
        ablated = replace(plan, episodes=plan.episodes[: config.ablate_trials])
        for name in ablations:
            code = code or ablate(run, ablated, replace(spec, ablation=name), assets)
        try:
            summary = report.build(run.directory, run.store)
        except (StoreError, OSError) as error:
            command = resume_command(run, benchmark.suites)
            say(f"error: no report: {error_message(error, run.directory)}; resume with\n  {command}")
            return code or 1
        print_result(run, summary)
        if code and summary.done < summary.planned:
            say(f"\nnot complete: {summary.done} of {summary.planned} episodes done, all of them stored; resume with")
            say(f"  {resume_command(run, benchmark.suites)}")
        elif code and ablations:
            say(f"\nablations not complete; resume with\n  {resume_command(run, benchmark.suites)}")
        return code


def choose_ablations(config: EvalConfig, plan: Plan, info: PolicyInfo) -> list[str]:
    """Return the names of the ablations of --ablate. ValueError for images of a policy that has none, or too few
    episodes.
    """
    if "images" in config.ablated_inputs:
        if not info.cameras:
            raise ValueError(f"--ablate images: policy {info.name} requests no images; use --ablate language")
        inputs.another_episode(plan.episodes, plan.episodes[0])
    return [name for group, names in inputs.GROUPS.items() if group in config.ablated_inputs for name in names]


def ablate(run: Run, plan: Plan, spec: RunSpec, assets: Assets) -> int:
    """Repeat a run's episodes with the ablation of `spec`, as a run of its own inside; return the exit code."""
    identity, root = identify(plan, spec, assets), run.directory / inputs.DIRECTORY
    with open_run(root, identity, plan.units, run_id=spec.ablation, resume=None, label="") as part:
        part.store.set_meta("about", describe(plan, assets, spec.instructions))
        part.store.set_meta("job", make_job(plan, spec, assets, video="none").to_json())
        left = unfinished(part.store.counts())
        say(f"{inputs.ABLATIONS[str(spec.ablation)]}: {left} of {plural(len(plan.units), 'episode')} to do")
        workers = choose_workers(plan.config.workers, left, plan.benchmark.worker_gb)
        code = try_to_work(part, plan, spec.policy, workers) if left else 0
        report.build(part.directory, part.store)
        return code


def resume_command(run: Run, suites: Sequence[str]) -> str:
    """Return the command that resumes this run, as the user would type it, without a token."""
    typed = os.environ.get("VLALAB_COMMAND")
    if typed and shlex.split(typed)[1:2] == ["reproduce"]:  # repeating it resumes its run
        return typed
    if not typed:
        spec = sys.modules["__main__"].__spec__
        typed = shlex.join(["python", *(["-m", spec.parent] if spec else sys.argv[:1]), *sys.argv[1:]])
    replaced = ("--resume", "--run-id", "--token")
    tokens, previous = [], ""
    for word in shlex.split(typed):
        # --resume can stand alone, before a suite
        is_value = not word.startswith("-") and not (previous == "--resume" and word in suites)
        if previous in replaced and is_value:
            previous = ""
            continue
        previous = word
        if word.split("=")[0] not in replaced:
            tokens.append(word)
    return shlex.join([*tokens, "--resume", run.id])


def print_header(run: Run, plan: Plan, info: PolicyInfo, assets: Assets, left: int, workers: int) -> None:
    """Print the run's settings."""
    count = len(plan.config.policies)
    addresses = f" at {count} addresses" if count > 1 else ""
    say(f"run {run.id} in {display_path(run.directory)}{' (resumed)' if run.resumed else ''}")
    say(
        f"{plan.config.suite}: {plural(len(plan.tasks), 'task')} × {plural(len(plan.episodes), 'episode')}, "
        f"{left} of {len(plan.units)} to do, policy {single_line(info.name)}{addresses}, {plural(workers, 'worker')}, "
        f"assets: {assets.kind}"
    )
    if assets.advice:
        say(assets.advice)
    if plan.config.chunking != Chunking():
        say(f"chunks: {Chunking.of(run.store.meta('identity')).description}")
    announce(run, plan, left, workers)


def print_result(run: Run, summary: Summary) -> None:
    """Print the report's path and, as the last line, the result."""
    say(f"\nreport: {display_path(run.directory / 'report.html')}")
    for row in summary.published:
        say(f"published: {row.percent:g} % {row.model} ({row.episodes} episodes, {row.source})")
    if summary.policy_errors:
        count = len(summary.policy_errors)
        say(f"policy errors: {count} of {plural(summary.done, 'episode')}, counted as failures; see the report")
    if summary.advice:
        say(summary.advice)
    elif not summary.comparable:
        say(f"not comparable with published figures: {summary.comparability_problem}")
    for name, pair in summary.ablations.items():
        low, high = (f"{100 * end:+.1f}" for end in pair.interval)
        say(
            f"{inputs.ABLATIONS[name]}: {pair.b}, {100 * pair.difference:+.1f} points on the same {pair.pairs} "
            f"episodes (95 % {low} to {high}), exact p = {pair.p_value:.2g}"
        )
    for kind, rate in summary.kinds.items():
        say(f"{kind}: {rate}")
    for level, rate in summary.levels.items():
        say(f"level {level}: {rate}")
    published = "".join(f", published {row.percent:g} %" for row in summary.published)
    say(f"{summary.suite}: success rate {summary.rate}{published}, assets: {summary.identity['assets']['kind']}")


def error_message(error: Exception, path: Path) -> str:
    if isinstance(error, OSError):
        return explain_os_error(error, path)
    return single_line(error) if isinstance(error, ContractError) else str(error)


def guarded(job: Callable[[], int]) -> int:
    """Run a job and return its exit code; print a message if an error or a signal ends it."""

    def interrupt(*_) -> None:
        raise Interrupted

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        return job()
    except (ContractError, ValueError, RunUnusable, StoreError, OSError) as error:
        say(f"error: {error_message(error, Path())}", file=sys.stderr)
        return 2
    except Interrupted:
        say("stopped; a started run can be resumed", file=sys.stderr)
        return 130
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
