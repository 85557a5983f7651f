"""`python -m services.BENCHMARK join URL`: work on a run that another machine's evaluator serves.

Exit codes: 0 the run has no work left, 1 stopped by an error, 2 invalid before it started, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tyro

from vla_common.counts import plural
from vla_common.volume import Volume
from vla_contract import ContractError, PolicyClient
from vla_contract.client.transport import FAULTS, Transport
from vla_contract.protocol.tokens import check_token
from vla_evaluation import provenance
from vla_evaluation.benchmark import Benchmark, require_assets
from vla_evaluation.config import differences, read_addresses, require_directory_name
from vla_evaluation.coordinator import VERSION
from vla_evaluation.evaluate import choose_workers, memory_notice, supervise
from vla_evaluation.pictures import video
from vla_evaluation.plan import machine_identity
from vla_evaluation.runs.directories import DIRECTORIES
from vla_evaluation.store.records import StoreError, unfinished
from vla_evaluation.store.remote import Joined, RemoteStore
from vla_evaluation.terminal import say, single_line
from vla_evaluation.workers.job import InvocationClock, Job
from vla_evaluation.workers.supervisor import RunFailed, StallPolicy, WorkerSupervisor, worker_names

REQUEST_TIMEOUT_S = 10.0
POLL_S = 2.0  # rarer than on the evaluator's machine: each poll is two calls


@dataclass(frozen=True)
class JoinConfig:
    """Work on a run that another machine's evaluator serves."""

    url: tyro.conf.Positional[str]
    """The evaluator's address, which eval --listen prints."""
    token: str | None = None
    """Bearer token of evaluator and policy; prefer $VLALAB_TOKEN. It is never stored."""
    policy_url: str | None = None
    """The policy's address from this machine, several in the run's order; default: the evaluator's."""
    workers: int | None = None
    """Simulator processes; default: one per core, fewer if memory is short."""
    assets: str | None = None
    """Asset directory, or a keyword of the benchmark; default: the first available source."""
    name: str | None = None
    """This machine's name in the run; default: its host name."""
    patience_s: float = 60.0
    """Seconds to retry requests that the evaluator does not answer."""
    start_timeout_s: float = 300.0
    """Timeout for the start of a worker, s."""

    def __post_init__(self):
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"invalid --workers {self.workers}; expected 1 or more")
        if self.patience_s <= 0:
            raise ValueError(f"the patience must be above 0 s, got {self.patience_s:g} s")
        if self.name is not None:
            require_directory_name("name", self.name)

    @property
    def secret(self) -> str | None:
        token = self.token or os.environ.get("VLALAB_TOKEN")
        return check_token("the token (VLALAB_TOKEN)", token) if token else None


def fetch_description(config: JoinConfig) -> dict[str, Any]:
    """Return the evaluator's description of its run. ValueError if there is no response, or one of another program."""
    headers = {"Authorization": f"Bearer {config.secret}"} if config.secret else {}
    try:
        response = Transport(config.url).request("GET", "/v1/run", REQUEST_TIMEOUT_S, headers)
    except FAULTS as error:
        raise ValueError(
            f"no response from {config.url} ({single_line(error)}); check that the run is active (eval --listen)"
        ) from error
    if response.status == 401:
        raise ValueError(f"wrong token for the evaluator at {config.url}; set VLALAB_TOKEN to that machine's token")
    try:
        run = json.loads(response.body)
    except ValueError:
        run = None
    if not isinstance(run, dict) or not {"run", "identity", "job", "invocation"} <= run.keys():
        raise ValueError(
            f"{config.url} is not an evaluator that can be joined; expected the address that eval --listen prints"
        )
    if (version := run.get("version")) != VERSION:
        raise ValueError(
            f"the evaluator at {config.url} has protocol version {version}, this machine {VERSION}; use the same commit"
        )
    return run


def require_policy(config: JoinConfig, job: Job) -> None:
    """Raise ValueError unless the run's policy answers at one of its addresses at least, and nowhere another policy."""
    missing: list[str] = []
    for url in job.policies_at:
        try:
            with PolicyClient(url, config.secret, REQUEST_TIMEOUT_S, REQUEST_TIMEOUT_S, retries=1) as client:
                info = client.info().to_dict()
        except ContractError as error:
            missing.append(f"{url} ({single_line(error)})")
            continue
        if json.loads(json.dumps(info)) != job.spec.to_json()["policy"]:
            raise ValueError(
                f"{url} serves another policy than the run's; set the address of the run's policy with --policy"
            )
    if len(missing) == len(job.policies_at):
        raise ValueError(
            f"cannot reach the run's policy from this machine at {', '.join(missing)}; set its address: --policy "
            + ",".join(["http://host:port"] * len(missing))
        )
    for policy in missing:
        say(f"not reachable from this machine, and not used until it is: {policy}")


def join(benchmark: Benchmark, config: JoinConfig) -> int:
    """Join a run and work until nothing of it is left; return the exit code."""
    provenance.check_simulator(benchmark, say)
    run = fetch_description(config)
    identity = run["identity"]
    require_directory_name("run id", run["run"])
    job = Job.from_json(run["job"])
    if job.benchmark != benchmark.module:
        raise ValueError(f"the run at {config.url} belongs to {job.benchmark}, not to {benchmark.module}")
    assets = benchmark.assets(config.assets, Volume().root)
    local_identity = machine_identity(benchmark, job.spec, assets)
    if lines := differences({name: identity.get(name) for name in local_identity}, local_identity):
        raise ValueError(
            "this machine cannot join: settings that results depend on differ (evaluator → this machine):\n"
            + "\n".join(f"  {line}" for line in lines)
            + "\nUse the same commit, environment and assets on both, and join again."
        )
    require_assets(benchmark, [benchmark.tasks(job.spec.suite)[index] for index in identity["tasks"]], assets)
    urls = job.policies if config.policy_url is None else read_addresses("--policy", config.policy_url)
    if len(urls) != len(job.policies):
        raise ValueError(
            f"--policy {config.policy_url} lists {len(urls)} of the run's {len(job.policies)} addresses; expected one "
            f"for each of {', '.join(job.policies)}, in that order"
        )
    job = replace(job, assets=str(assets.path), policies_at=urls)
    require_policy(config, job)
    name = config.name or re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname()).strip("-") or "host"
    joined = Joined(
        config.url.rstrip("/"), run["invocation"], name, secrets.token_hex(16), config.patience_s, job.to_json()
    )
    directory = Volume().logs / "joined" / joined.key[:8] / run["run"]
    try:
        return work(benchmark, config, joined, job, directory)
    finally:
        for part in set(DIRECTORIES) - {"logs"}:
            shutil.rmtree(directory / part, ignore_errors=True)


def work(benchmark: Benchmark, config: JoinConfig, joined: Joined, job: Job, directory: Path) -> int:
    """Run episodes until none is left; return the exit code, its reason printed."""
    for part in DIRECTORIES:
        (directory / part).mkdir(parents=True, exist_ok=True)
    store = RemoteStore(directory, joined, config.secret)
    left = unfinished(store.counts())
    workers = choose_workers(config.workers, left, benchmark.worker_gb)
    name = store.call("join", name=joined.name, workers=workers, machine=provenance.machine())["name"]
    store.joined = joined = replace(joined, name=name)
    joined.write(directory)
    say(f"joined run {directory.name} as {name}: {plural(left, 'episode')} left, {plural(workers, 'worker')}")
    if line := memory_notice(config.workers, left, workers, benchmark.worker_gb):
        say(line)
    supervisor = WorkerSupervisor(
        directory,
        store,
        joined.invocation,
        InvocationClock.start(),
        worker_names(workers, name),
        StallPolicy(job.retries, job.lease_s, config.start_timeout_s),
        partial(video.should_render, job.video),
        config.secret,
        benchmark.worker_variables,
    )
    instructions = {task.index: task.instruction for task in benchmark.tasks(job.spec.suite)}
    try:
        supervise(supervisor, instructions, poll_s=min(POLL_S, job.lease_s / 6))
    except (RunFailed, StoreError) as error:
        say(f"error: {single_line(error)}")
        return 1
    finally:
        with suppress(StoreError):  # an evaluator that does not answer has been reported
            store.leave()
    say(f"run {directory.name} has no work left; its report is on the evaluator's machine")
    return 0
