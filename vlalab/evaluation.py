"""The main job, `eval SUITE`: finds or starts a policy, waits for it, runs the evaluator, stops what it started.

The evaluator itself (services/libero/evaluator/evaluate.py) runs in the libero environment; its exit code is passed on.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vlalab import compose, environments, gl, local, paths, runtimes
from vlalab.console import LabError, say, status, unknown
from vlalab.local import Instance
from vlalab.processes import die_with_parent

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
EVALUATOR = "libero"  # its service in compose.yaml
FALLBACK = "oracle"  # needs no model and no GPU
INTERRUPTED = 130  # the evaluator's exit code after Ctrl-C
READY_TIMEOUT_S = 900.0  # a large checkpoint is read from a slow disk


@dataclass(frozen=True)
class Request:
    """What was asked for. `flags` go to the evaluator as they are."""

    suite: str
    policy: str = "auto"
    runtime: str = "auto"
    flags: tuple[str, ...] = ()
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.suite not in SUITES:
            raise LabError(unknown("suite", self.suite, SUITES))


@dataclass(frozen=True)
class PolicyChoice:
    """Where actions come from: a service that answers at `url`, or one to start first."""

    url: str | None
    service: str | None
    why: str


def choose_policy(asked: str, running: list[Instance], policies: list[str]) -> PolicyChoice:
    """Returns the policy for --policy: a URL, a service's name, or "auto".

    running: policy services that are up and healthy. policies: those of compose.yaml.
    """
    if asked.startswith(("http://", "https://")):
        return PolicyChoice(asked.rstrip("/"), None, f"policy at {asked}")
    if asked != "auto" and asked not in policies:
        raise LabError(unknown("policy", asked, ["auto", *policies]) + ", or a URL")
    up = [found for found in running if asked in ("auto", found.service)]
    if up:
        others = f" ({', '.join(o.name for o in up[1:])} up too; choose with --policy)" if up[1:] else ""
        return PolicyChoice(up[0].url, None, f"policy {up[0].service}, which is up at {up[0].url}{others}")
    if asked == "auto":
        return PolicyChoice(None, FALLBACK, f"policy {FALLBACK}, since no policy service is up (--policy chooses)")
    return PolicyChoice(None, asked, f"policy {asked}")


def run(request: Request, typed: str) -> int:
    """Runs an evaluation; returns the evaluator's exit code. `typed` is the command line to show for resuming."""
    runtime = runtimes.choose(request.runtime)
    services = compose.read()
    policies = [name for name, service in services.items() if service.role == "policy"]
    choice = choose_policy(request.policy, _policies_up(), policies)
    say(f"runtime {runtime}; {choice.why}")
    if request.dry_run:
        _show(request, choice, services)
        return 0
    env = environments.ensure(services[EVALUATOR].environment_name)
    gl.ensure()
    command, variables = local.resolve(services[EVALUATOR], env)
    variables["VLALAB_COMMAND"] = typed
    with _policy_url(choice) as url:
        code = supervise([*command, request.suite, "--policy-url", url, *request.flags], variables)
    if choice.service and code in (0, INTERRUPTED):
        _private_log(choice).unlink(missing_ok=True)  # after a failure somebody will want to read it
    return code


def _policies_up() -> list[Instance]:
    return [i for i in local.instances() if i.role == "policy" and not i.attached and i.is_healthy()]


def _show(request: Request, choice: PolicyChoice, services: dict[str, compose.Service]) -> None:
    if choice.service:
        print(shlex.join(services[choice.service].command))
    url = choice.url or "http://127.0.0.1:PORT"
    print(shlex.join([*services[EVALUATOR].command, request.suite, "--policy-url", url, *request.flags]))


def _private_log(choice: PolicyChoice) -> Path:
    return paths.volume() / "logs" / f"{choice.service}-{os.getpid()}.log"


@contextmanager
def _policy_url(choice: PolicyChoice) -> Iterator[str]:
    """Yields the URL of a policy that is ready; one that was started for it is stopped afterwards."""
    if choice.url is not None:
        yield choice.url
        return
    assert choice.service is not None
    log_path = _private_log(choice)
    name = log_path.stem
    with status(f"starting {choice.service}") as line:
        started = local.start(choice.service, instance_name=name, attached=True, log_path=log_path)
        try:
            local.wait_ready(name, READY_TIMEOUT_S, line.update)
        except BaseException:
            started.stop()
            raise
    try:
        yield started.url
    finally:
        (local.instance(name) or started).stop()


def supervise(command: list[str], variables: dict[str, str], folder: Path = paths.ROOT) -> int:
    """Runs a command to its end and returns its exit code; signals to this process are passed on to it.

    The command gets a session of its own, so that one Ctrl-C reaches it once: through here.
    """
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _: object) -> None:
        early.append(number) if process is None else process.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        process = subprocess.Popen(
            command, env=variables, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=die_with_parent(),
        )  # fmt: skip
        for number in early:
            process.send_signal(number)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
