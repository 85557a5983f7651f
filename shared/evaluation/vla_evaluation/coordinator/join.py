"""`python -m services.BENCHMARK join URL` works on a run that another machine's evaluator holds.

Exit codes: 0 the run has no work left, 1 stopped by an error, 2 refused before it began, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Mapping
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
from vla_evaluation.benchmark import Assets, Benchmark, require_assets
from vla_evaluation.config import differences, read_addresses, require_folder_name
from vla_evaluation.coordinator import VERSION
from vla_evaluation.coordinator.remote import Joined, RemoteStore
from vla_evaluation.evaluate import about_memory, choose_workers, guarded, look_after
from vla_evaluation.pictures import video
from vla_evaluation.plan import of_machine
from vla_evaluation.runs.folders import FOLDERS
from vla_evaluation.store.records import StoreError
from vla_evaluation.terminal import one_line, say
from vla_evaluation.workers.clock import InvocationClock
from vla_evaluation.workers.job import Job
from vla_evaluation.workers.supervisor import Patience, RunFailed, Supervisor, worker_names

ANSWER_S = 10.0
POLL_S = 2.0  # rarer than on the evaluator's machine: each look is two calls


@dataclass(frozen=True)
class JoinConfig:
    """Work on a run that another machine's evaluator holds."""

    url: tyro.conf.Positional[str]
    """Where that evaluator listens: it has said so (eval --listen)."""
    token: str | None = None
    """Bearer token of evaluator and policy; rather set $VLALAB_TOKEN. It is never stored."""
    policy_url: str | None = None
    """Where the policy service is reached from here, several in the run's order; default: as the evaluator does."""
    workers: int | None = None
    """Simulator processes; default: one per core, fewer if memory is short."""
    assets: str | None = None
    """Asset folder, or a word that the benchmark knows; default: the first source there is."""
    name: str | None = None
    """What this machine is called in the run; default: its host name."""
    patience_s: float = 60.0
    """How long to go on asking an evaluator that does not answer."""
    start_timeout_s: float = 300.0
    """How long a worker may take to start."""

    def __post_init__(self):
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"--workers {self.workers} makes no sense; expected 1 or more")
        if self.patience_s <= 0:
            raise ValueError(f"--patience-s {self.patience_s:g} makes no sense; expected more than 0")
        if self.name is not None:
            require_folder_name("name", self.name)

    @property
    def secret(self) -> str | None:
        token = self.token or os.environ.get("VLALAB_TOKEN")
        return check_token("the token (VLALAB_TOKEN)", token) if token else None


def ask(config: JoinConfig) -> dict[str, Any]:
    """Returns what the evaluator says of its run. ValueError where nobody is there, or something else."""
    headers = {"Authorization": f"Bearer {config.secret}"} if config.secret else {}
    try:
        response = Transport(config.url).request("GET", "/v1/run", ANSWER_S, headers)
        said = json.loads(response.body)
    except FAULTS as error:
        raise ValueError(
            f"nobody answers at {config.url} ({one_line(error)}); is that run going on (eval --listen)?"
        ) from error
    except ValueError:
        said, response = {}, None
    if response is not None and response.status == 401:
        raise ValueError(f"the evaluator at {config.url} wants another token: set VLALAB_TOKEN to that machine's")
    if not isinstance(said, dict) or not {"run", "identity", "job", "invocation"} <= said.keys():
        raise ValueError(
            f"{config.url} answers, but is no evaluator that can be joined; expected what eval --listen said"
        )
    if said.get("version") != VERSION:
        theirs = said.get("version")
        raise ValueError(f"the evaluator at {config.url} speaks version {theirs}, this {VERSION}; use one commit")
    return said


def require_same(benchmark: Benchmark, theirs: Mapping, job: Job, assets: Assets) -> None:
    """Raises ValueError, with both sides of each difference, where episodes might not be the same here as there."""
    ours = of_machine(benchmark, job.spec, assets)
    if lines := differences({name: theirs.get(name) for name in ours}, ours):
        raise ValueError(
            "this machine must not join: what an episode's outcome depends on differs (there → here):\n"
            + "\n".join(f"  {line}" for line in lines)
            + "\nBring both to the same commit, environment and assets, and join again."
        )


def policies_from_here(config: JoinConfig, job: Job) -> tuple[str, ...]:
    """Returns where each of the run's policies is reached from here. ValueError where these are fewer or more."""
    if config.policy_url is None:
        return job.policies
    found = read_addresses("--policy", config.policy_url)
    if len(found) != len(job.policies):
        raise ValueError(
            f"--policy {config.policy_url} and the run's {', '.join(job.policies)} are not equally many; "
            "expected an address for each, in that order"
        )
    return found


def require_policy(config: JoinConfig, job: Job) -> None:
    """Raises ValueError where the run's policy is not there for this machine: at one of its addresses at least.

    One that is away may come back; another policy's may not.
    """
    away: list[str] = []
    for url in job.policies_at:
        try:
            with PolicyClient(url, config.secret, ANSWER_S, ANSWER_S, retries=1) as client:
                info = client.info().to_dict()
        except ContractError as error:
            away.append(f"{url} ({one_line(error)})")
            continue
        if json.loads(json.dumps(info)) != job.spec.to_json()["policy"]:
            raise ValueError(f"at {url} is another policy than the run's; give the address of the run's: --policy")
    if len(away) == len(job.policies_at):
        raise ValueError(
            f"the run's policy is not reached from here at {', '.join(away)}; say where it is: --policy "
            + ",".join(["http://host:port"] * len(away))
        )
    for one in away:
        say(f"not reached from here, and not asked until it is: {one}")


def join(benchmark: Benchmark, config: JoinConfig) -> int:
    """Joins a run and works until nothing of it is left; returns the exit code."""
    provenance.check_simulator(benchmark, say)
    said = ask(config)
    require_folder_name("run id", said["run"])
    job = Job.from_json(said["job"])
    if job.benchmark != benchmark.module:
        raise ValueError(f"the run at {config.url} is of {job.benchmark}; this is {benchmark.module}")
    assets = benchmark.assets(config.assets, Volume().root)
    require_same(benchmark, said["identity"], job, assets)
    require_assets(benchmark, [benchmark.tasks(job.spec.suite)[index] for index in said["identity"]["tasks"]], assets)
    job = replace(job, assets=str(assets.path), policies_at=policies_from_here(config, job))
    require_policy(config, job)
    name = config.name or re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname()).strip("-") or "host"
    joined = Joined(
        config.url.rstrip("/"), said["invocation"], name, secrets.token_hex(16), config.patience_s, job.to_json()
    )
    folder = Volume().logs / "joined" / joined.key[:8] / said["run"]
    try:
        return work(benchmark, config, joined, job, folder)
    finally:
        for done in set(FOLDERS) - {"logs"}:
            shutil.rmtree(folder / done, ignore_errors=True)


def work(benchmark: Benchmark, config: JoinConfig, joined: Joined, job: Job, folder: Path) -> int:
    """Does episodes of a run until none is left; returns the exit code, whose reason was told."""
    for part in FOLDERS:
        (folder / part).mkdir(parents=True, exist_ok=True)
    store = RemoteStore(folder, joined, config.secret)
    left = sum(row["planned"] - row["done"] for row in store.counts().values())
    workers = choose_workers(config.workers, left, benchmark.worker_gb)
    name = store.call("join", name=joined.name, workers=workers, machine=provenance.machine())["name"]
    store.joined = joined = replace(joined, name=name)
    joined.write(folder)
    tasks = {task.index: task.instruction for task in benchmark.tasks(job.spec.suite)}
    say(f"joined run {folder.name} as {name}: {plural(left, 'episode')} left, {plural(workers, 'worker')}")
    if line := about_memory(config.workers, left, workers, benchmark.worker_gb):
        say(line)
    patience = Patience(job.retries, job.lease_s, config.start_timeout_s)
    supervisor = Supervisor(
        folder,
        store,
        joined.invocation,
        InvocationClock.start(),
        worker_names(workers, name),
        patience,
        partial(video.wanted, job.video),
        config.secret,
        benchmark.worker_variables,
        provenance.WORKER,
    )
    try:
        look_after(supervisor, {task: tasks[task] for task in supervisor.counts}, poll_s=min(POLL_S, job.lease_s / 6))
    except (RunFailed, StoreError) as error:
        say(f"error: {one_line(error)}")
        return 1
    finally:
        with suppress(StoreError):  # that nobody is there to hear it has been told
            store.leave()
    say(f"run {folder.name} has no work left; its report is where it began")
    return 0


def main(benchmark: Benchmark, arguments: list[str]) -> int:
    """Joins as the arguments say; returns the exit code."""
    return guarded(lambda: join(benchmark, tyro.cli(JoinConfig, args=arguments, prog="join")))
