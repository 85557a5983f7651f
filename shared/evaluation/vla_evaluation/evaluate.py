"""`python -m services.BENCHMARK SUITE --policy-url URL` runs a suite and writes a report.

Exit codes: 0 complete, 1 stopped by an error (resumable), 2 refused before it began, 130 stopped by Ctrl-C (resumable).
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from vla_common import endings
from vla_common.counts import plural
from vla_common.volume import Volume, require_space, shown
from vla_contract import ContractError, PolicyClient, PolicyInfo
from vla_contract.server.auth import in_container, require_token_beyond_loopback
from vla_evaluation import hosts, provenance, report
from vla_evaluation.agreement import check_policy, choose_profile
from vla_evaluation.benchmark import Assets, Benchmark, require_assets
from vla_evaluation.chunks import Chunking
from vla_evaluation.config import EvalConfig, RunConfig, differences, parse_args, token_of
from vla_evaluation.estimate import earlier
from vla_evaluation.pictures import video
from vla_evaluation.plan import Plan, describe, identify, make_job, make_plan, specify
from vla_evaluation.progress import make_progress
from vla_evaluation.report.data import Summary
from vla_evaluation.runs.folders import Run, RunRefused, explain_os_error, open_run
from vla_evaluation.store.reading import NEXT_SESSION
from vla_evaluation.store.records import StoreError
from vla_evaluation.terminal import one_line, say
from vla_evaluation.workers.clock import InvocationClock
from vla_evaluation.workers.growth import Growth
from vla_evaluation.workers.job import Job
from vla_evaluation.workers.supervisor import Patience, RunFailed, Supervisor, worker_names

if TYPE_CHECKING:
    from vla_evaluation.coordinator.app import Coordinator  # a web server, which few runs need

POLL_S = 0.5  # often enough for a person, rare enough to leave the cores to the workers
EPISODE_BYTES = 500_000  # states and actions, with some video


def reach_policy(config: RunConfig) -> PolicyInfo:
    """Returns the policy's own description once it is ready at all of its addresses.

    ContractError if that takes too long, ValueError where these are not the same policy.
    """
    first, *others = config.policies
    info = reach_one(config, first)
    for other in others:
        if lines := differences(info.to_dict(), reach_one(config, other).to_dict()):
            raise ValueError(
                f"at {first} and {other} are two policies, and one run is of one ({first} → {other}):\n"
                + "\n".join(f"  {line}" for line in lines)
            )
    return info


def reach_one(config: RunConfig, url: str) -> PolicyInfo:
    """Return what the policy at that address says of itself once it is ready.

    The wait is one line: updated on a terminal, printed again elsewhere only when the reason changes.
    """
    console, reasons = endings.console(), set()
    status = console.status("")

    def waiting(waited_s: float, reason: str) -> None:
        message = f"waiting for the policy at {url}, up to {config.policy_timeout_s:g} s ({one_line(reason)})"
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


def choose_workers(asked: int | None, episodes: int, worker_gb: float) -> int:
    """Returns the number of workers: as asked, else one per core that its memory suffices for."""
    if asked is not None:
        return min(asked, max(1, episodes))
    return max(1, min(provenance.cores(), fitting(worker_gb), episodes))


def fitting(worker_gb: float) -> int:
    """Returns how many workers' memory is free."""
    return int(provenance.free_memory_gb() // worker_gb)


def about_memory(asked: int | None, episodes: int, workers: int, worker_gb: float) -> str:
    """Returns what memory does to the number of workers, in words; "" where there is enough of it.

    A number that was asked for is kept: worker_gb is the most that one takes.
    """
    fits, cores = fitting(worker_gb), provenance.cores()
    free = f"each takes up to {worker_gb:g} GB and {provenance.free_memory_gb():.1f} GB are free"
    if asked is None and workers == max(1, fits) < min(cores, episodes):
        return f"{plural(workers, 'worker')} on {cores} cores: {free}"
    if asked is not None and fits < workers:
        return f"--workers {asked}: {free}; where the kernel has to end one, the run goes on with fewer"
    return ""


def workers_for(config: RunConfig, episodes: int, worker_gb: float) -> int:
    """Returns the number of workers for a run; in real time one, since waiting for others is not a policy's latency."""
    asked = 1 if config.workers is None and config.chunking.realtime else config.workers
    return choose_workers(asked, episodes, worker_gb)


def resume_command(run: Run, suites: Sequence[str]) -> str:
    """Returns the command that goes on with this run, as the user would type it; a token stays out of it."""
    typed = os.environ.get("VLALAB_COMMAND") or _typed_by_hand()
    replaced = ("--resume", "--run-id", "--token")
    kept, before = [], ""
    for word in shlex.split(typed):
        is_value = not word.startswith("-") and not (before == "--resume" and word in suites)  # it may stand alone
        if before in replaced and is_value:
            before = ""
            continue
        before = word
        if word.split("=")[0] not in replaced:
            kept.append(word)
    return shlex.join([*kept, "--resume", run.id])


def _typed_by_hand() -> str:
    return shlex.join(["python", "-m", sys.modules["__main__"].__spec__.parent, *sys.argv[1:]])


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


def work(run: Run, plan: Plan, workers: int, worker: str) -> None:
    """Runs what is left of a run; RunFailed or Interrupted end it early, with all finished episodes stored."""
    config = plan.config
    notes = {
        "workers": workers,
        "commit": provenance.git_commit(),
        "machine": provenance.machine(),
        "drift": run.drift,
    }
    clock = InvocationClock.start()
    invocation = run.store.begin_invocation(clock.now(), notes)
    patience = Patience(config.retries, config.lease_s, config.start_timeout_s)
    wanted = partial(video.wanted, config.video)
    growth = Growth(plan.benchmark.worker_gb) if config.workers is None and not config.chunking.realtime else None
    supervisor = Supervisor(
        run.folder,
        run.store,
        invocation,
        clock,
        worker_names(workers),
        patience,
        wanted,
        token_of(config),
        plan.benchmark.worker_variables,
        worker,
        growth,
        1 if growth or not workers else provenance.cores() // workers,
    )
    left = sum(row["planned"] - row["done"] for row in supervisor.counts.values())
    known = earlier(run.folder.parent, run.store.meta("identity")) if left and workers else None
    expected_s = known.seconds(left, workers) if known else None
    outcome = "failed"
    try:
        with joinable(run, plan, clock, invocation) as coordinator:
            names = {task.index: task.instruction for task in plan.tasks}
            look_after(supervisor, names, coordinator, expected_s=expected_s)
        outcome = "complete"
    except Interrupted:
        outcome = "interrupted"
        raise
    finally:
        with suppress(StoreError):  # a full disk has been told already
            run.store.end_invocation(invocation, clock.now(), outcome)


def look_after(
    supervisor: Supervisor,
    names: Mapping[int, str],
    coordinator: Coordinator | None = None,
    poll_s: float = POLL_S,
    expected_s: float | None = None,
) -> None:
    """Keeps the workers at it until all is done, and shows how far it is; the machines of a coordinator are waited for.

    RunFailed or Interrupted end it early, the workers with it.
    """
    store = supervisor.store
    try:
        with make_progress(names, supervisor.counts, expected_s) as progress:
            supervisor.start()
            while not supervisor.finished() or (coordinator and coordinator.hosts_left()):
                for line in supervisor.step():
                    progress.say(line)
                machines = hosts.line(coordinator.shares(store)) if coordinator else ""
                progress.update(supervisor.counts, store.workers(), machines)
                time.sleep(poll_s)
            progress.update(supervisor.counts, {})
    except Interrupted:
        say("stopping: saving what is finished (Ctrl-C again ends at once)")
        raise
    finally:
        signal.signal(signal.SIGINT, lambda *_: supervisor.kill())
        supervisor.stop()


@contextmanager
def joinable(run: Run, plan: Plan, clock: InvocationClock, invocation: int) -> Iterator[Coordinator | None]:
    """Lets other machines join where --listen says so; yields what they are coordinated by."""
    at = getattr(plan.config, "listen", None)  # a recording cannot be joined
    if at is None:
        yield None
        return
    from vla_evaluation.coordinator.app import Coordinator, coordinating
    from vla_evaluation.coordinator.calls import Held

    job = Job.from_json(run.store.meta("job"))
    about = {"run": run.id, "identity": run.store.meta("identity"), "job": job.to_json()}
    left = sum(row["planned"] - row["done"] for row in run.store.counts().values())
    about |= {
        "worker_gb": plan.benchmark.worker_gb,
        "episodes": left,
        "runtime": "docker" if in_container() else "local",
    }
    coordinator = Coordinator(Held(run.folder, job, clock, invocation), about)
    with coordinating(at, token_of(plan.config), coordinator):
        say(f"other machines join by: ./lab eval --join {coordinator.url}")
        try:
            yield coordinator
        finally:
            coordinator.end(
                "the run was stopped or is complete; where episodes are left, join it again once it goes on"
            )


def evaluate(benchmark: Benchmark, config: EvalConfig) -> int:
    """Runs an evaluation to its report; returns the exit code."""
    if config.listen:  # what cannot be run is said before a policy is waited for
        from vla_evaluation.coordinator.app import read_address

        require_token_beyond_loopback(read_address(config.listen)[0], token_of(config))
    provenance.check_simulator(benchmark, say)
    plan = make_plan(benchmark, config)
    info = reach_policy(config)
    if (profile := choose_profile(info, benchmark, config.profile)) != plan.profile.name:
        plan = make_plan(benchmark, config, profile)
    check_policy(info, benchmark, config.suite, plan.profile, config.allow_other_suite)
    assets = benchmark.assets(config.assets, Volume().root)
    require_assets(benchmark, plan.tasks, assets)
    spec = specify(plan, info)
    identity = identify(plan, spec, assets)
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
        run.store.set_meta("about", describe(plan, assets))
        run.store.set_meta("job", make_job(plan, spec, assets).to_json())
        return carry_out(run, plan, info, assets)


def carry_out(run: Run, plan: Plan, info: PolicyInfo, assets: Assets) -> int:
    """Runs what is left of a run that this process holds; returns the exit code."""
    left = sum(row["planned"] - row["done"] for row in run.store.counts().values())
    undrawn = len(run.store.undrawn(NEXT_SESSION, partial(video.wanted, plan.config.video)))
    require_space(run.folder, left * EPISODE_BYTES)
    workers = workers_for(plan.config, left + undrawn, plan.benchmark.worker_gb)
    workers = max(workers, min(undrawn, 1))  # where episodes are left to other machines, films of earlier ones are not
    print_header(run, plan, info, assets, left, workers)
    if undrawn:
        say(f"{plural(undrawn, 'video')} of earlier invocations to draw")
    code = try_to_work(run, plan, info, workers) if left or undrawn else 0
    return conclude(run, code, plan.benchmark.suites)


def try_to_work(run: Run, plan: Plan, info: PolicyInfo, workers: int, worker: str = provenance.WORKER) -> int:
    """Runs what is left of a run; returns the exit code, whose reason was told."""
    code = 0
    try:
        work(run, plan, workers, worker)
    except Interrupted:
        code = 130
    except (RunFailed, StoreError, OSError) as error:
        code = 1
        say(f"error: {one_line(in_words(error, run.folder))}")
    if info.stateful:
        forget_sessions(run, plan.config)
    return code


def forget_sessions(run: Run, config: RunConfig) -> None:
    """Tells the policy that no episode goes on: workers that were killed or stopped could not say so."""
    for url in config.policies:
        with suppress(ContractError), PolicyClient(url, token_of(config), 5.0, 5.0, retries=0) as client:
            client.reset_all(f"{run.folder.name}.")


def conclude(run: Run, code: int, suites: Sequence[str]) -> int:
    """Writes the report and prints the result; returns the exit code."""
    try:
        summary = report.build(run.folder, run.store)
    except (StoreError, OSError) as error:
        say(f"error: no report: {in_words(error, run.folder)}; go on with\n  {resume_command(run, suites)}")
        return code or 1
    print_result(run, summary)
    if code and summary.done < summary.planned:
        say(f"\nnot complete: {summary.done} of {summary.planned} episodes done, nothing lost; go on with")
        say(f"  {resume_command(run, suites)}")
    return code


def in_words(error: Exception, place: Path) -> str:
    if isinstance(error, OSError):
        return explain_os_error(error, place)
    return one_line(error) if isinstance(error, ContractError) else str(error)


def print_header(run: Run, plan: Plan, info: PolicyInfo, assets: Assets, left: int, workers: int) -> None:
    total, count = len(plan.units), len(plan.config.policies)
    addresses = f" at {count} addresses" if count > 1 else ""
    say(f"run {run.id} in {shown(run.folder)}{' (resumed)' if run.resumed else ''}")
    say(
        f"{plan.config.suite}: {plural(len(plan.tasks), 'task')} × {plural(len(plan.episodes), 'episode')}, "
        f"{left} of {total} to do, policy {one_line(info.name)}{addresses}, {plural(workers, 'worker')}, "
        f"assets: {assets.kind}"
    )
    if assets.advice:
        say(assets.advice)
    if plan.config.chunking != Chunking():
        say(f"chunks: {Chunking.of(run.store.meta('identity')).words}")
    announce(run, plan, left, workers)


def announce(run: Run, plan: Plan, left: int, workers: int) -> None:
    """Prints what memory does to the number of workers, the drift that is allowed, and where an earlier run tells it
    about how long what is left takes.
    """
    if line := about_memory(plan.config.workers, left, workers, plan.benchmark.worker_gb):
        say(line)
    for line in run.drift:
        say(f"drift allowed: {line}")
    known = earlier(run.folder.parent, run.store.meta("identity")) if left and workers else None
    if known and (line := known.announcement(left, workers)):
        say(line)


def print_result(run: Run, summary: Summary) -> None:
    """Prints what a person and a script look for at the end: the report's path, then the result in one line."""
    say(f"\nreport: {shown(run.folder / 'report.html')}")
    for row in summary.published:
        say(f"published: {row.percent:g} % {row.model} ({row.episodes} episodes, {row.source})")
    if summary.policy_errors:
        count = len(summary.policy_errors)
        say(f"policy errors: {count} of {plural(summary.done, 'episode')}, counted as not successful; see the report")
    kind = summary.identity["assets"]["kind"]
    if summary.advice:
        say(summary.advice)
    elif not summary.comparable:
        say(f"not comparable with published figures: {summary.why_not_comparable}")
    for of_tasks, rate in summary.kinds.items():
        say(f"{of_tasks}: {rate}")
    for level, rate in summary.levels.items():
        say(f"level {level}: {rate}")
    beside = "".join(f", published {row.percent:g} %" for row in summary.published)
    say(f"{summary.suite}: success rate {summary.rate}{beside}, assets: {kind}")


def guarded(job: Callable[[], int]) -> int:
    """Returns the exit code of a job, which signals and refusals end in words."""
    try:
        with interruptible():
            return job()
    except (ContractError, ValueError, RunRefused, StoreError, OSError) as error:
        say(f"error: {in_words(error, Path())}", file=sys.stderr)
        return 2
    except Interrupted:
        say("stopped; a run that had begun can be resumed", file=sys.stderr)
        return 130


def main(benchmark: Benchmark, arguments: list[str]) -> int:
    """Evaluates as the arguments say; returns the exit code. The words `record` and `join` come first: see there."""
    if arguments[:1] == ["record"]:
        from vla_evaluation.recording import record  # here: it is made of what this module has

        return record.main(benchmark, arguments[1:])
    if arguments[:1] == ["join"]:
        from vla_evaluation.coordinator import join

        return join.main(benchmark, arguments[1:])
    return guarded(lambda: evaluate(benchmark, parse_args(arguments, benchmark.suites)))
