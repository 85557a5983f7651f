"""`eval SUITE`: find or start a policy, wait for it, run the evaluator, stop what was started.

The evaluator (shared/evaluation/vla_evaluation/evaluate.py) runs in the environment of the suite's job, as a process or
in a container; its exit code is passed on. `record SUITE` runs another program in the same way.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from vlalab.commands import preflight
from vlalab.description import checkpoints, compose, gpus, manifests, ports, service_settings
from vlalab.engine import volumes
from vlalab.host import paths, shared_code
from vlalab.host.console import LabError, log_info, status, unknown
from vlalab.runtimes import containers, interface
from vlalab.runtimes.interface import READY_TIMEOUT_S, Instance, Runtime

CONNECT_S = 2.0  # a slower address is reported as silent; the evaluator still waits for it
WATCH_S = {"local": 0.5, "docker": 5.0}  # a query of the engine takes 40 ms of CPU time
RUNS = "vla_evaluation.runs"  # works on existing runs; in every benchmark's environment
BRIDGE = "bridge"  # the service for policy servers of other projects
WEBSOCKETS = ("ws://", "wss://")  # protocols of openpi and vla-eval
OPENVLA = ("act://", "acts://")  # /act of OpenVLA and OpenVLA-OFT
SERVER = service_settings.variable(BRIDGE, "SERVER")
OUT_OF_REACH = (
    "a container cannot reach {url}: inside it, that is the container itself. Use --runtime local, or serve the policy "
    "on an address of this machine's network (with VLALAB_TOKEN) and give that address"
)
INTERRUPTED = 130  # the evaluator's exit code after Ctrl-C


@dataclass(frozen=True)
class EvaluationRequest:
    """A request to run the evaluator, or another program with a policy. `flags` are passed on to the program.

    suite: None for a program without one. module: the program in that case; it runs in the default job's environment.
    """

    suite: str | None
    policy: str = "auto"
    runtime: str = "auto"
    flags: tuple[str, ...] = ()
    dry_run: bool = False
    gpu: str | None = None  # for rendering, and for a policy that is started
    program: tuple[str, ...] = ()  # the job's first arguments, if not for evaluating
    module: str = ""
    checkpoint: str | None = None  # for a policy that is started
    policy_variables: Mapping[str, str] = field(
        default_factory=dict
    )  # its variables; if any, it is started whatever else is up
    run_alongside: Callable[[], AbstractContextManager] = nullcontext  # entered while the evaluator runs
    replicas: int = 0  # number of policies to start in any case; 0: start one if none is up
    start_policies: Callable[[str, str | None], AbstractContextManager[str]] | None = None  # starts them on a cluster

    def __post_init__(self) -> None:
        if self.suite is not None:
            manifests.job_of(self.suite)

    @property
    def job(self) -> str:
        """The job of compose.yaml that evaluates its suite."""
        return manifests.default_job() if self.suite is None else manifests.job_of(self.suite)

    @property
    def fallback(self) -> str:
        """The policy to start if none is named and none is up."""
        return manifests.benchmarks()[self.job].fallback

    @property
    def listens(self) -> str:
        """The address at which other machines join, "host:port"; "" if they cannot."""
        return self.flag("--listen") or ""

    @property
    def urls(self) -> list[str]:
        """The policy's addresses, if it was given as URLs."""
        return self.policy.split(",") if self.policy.startswith(("http://", "https://")) else []

    @property
    def addresses(self) -> list[str]:
        """The policy's addresses, or the address of the server behind the bridge."""
        return [self.policy_variables[SERVER]] if self.policy_variables.get(SERVER) else self.urls

    def flag(self, name: str) -> str | None:
        """Return the value of a flag of the evaluator."""
        return dict(zip(self.flags, self.flags[1:], strict=False)).get(name)

    def bridged(self) -> EvaluationRequest:
        """Return the request with the bridge as its policy, if the policy is a server of another project."""
        server = self.policy
        if len(self.urls) == 1 and speaks_openvla(server):
            server = server.replace("http", "act", 1)
        if not server.startswith((*WEBSOCKETS, *OPENVLA)):
            return self
        check_policy("--policy", server)
        settings = {
            "SERVER": server,
            "WAIT_S": self.flag("--policy-timeout-s"),
            "ANSWER_S": self.flag("--act-timeout-s"),
            "UNNORM_KEY": self.flag("--unnorm-key") if server.startswith(OPENVLA) else None,
        }
        policy_variables = {service_settings.variable(BRIDGE, name): value for name, value in settings.items() if value}
        return replace(self, policy=BRIDGE, policy_variables={**policy_variables, **self.policy_variables})

    def variables(self) -> dict[str, str]:
        """Return the evaluator's variables, which set the GPUs it may use: none to render on the CPU."""
        gpu = "none" if self.flag("--render") == "cpu" else self.gpu
        settings = service_settings.from_flags(self.job, gpu=gpu)
        return {**paths.caller_variables(), **service_settings.merged({}, settings)}


@dataclass(frozen=True)
class PolicyChoice:
    """The selected policy: a URL, a running instance, or a service to start."""

    url: str | None
    service: str | None
    reason: str
    instance: Instance | None = None


# --- policy selection----------------------------------------------------------------------------------------


def policies() -> list[str]:
    """Return the policies of compose.yaml."""
    return [name for name, service in compose.read().items() if service.role == "policy"]


def check_policy(label: str, text: str) -> str:
    """Return the value of --policy. Raise LabError unless it is a policy of compose.yaml or an address."""
    if "://" not in text:
        if text not in ("auto", *policies()):
            raise LabError(unknown("policy", text, ["auto", *policies()]) + ", or a URL")
        return text
    try:
        parts = urlsplit(text)
        schemes = ("http", "https", *(prefix.removesuffix("://") for prefix in (*WEBSOCKETS, *OPENVLA)))
        is_url = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number, or beyond 65535
        is_url = False
    if not is_url:
        raise LabError(
            f"{label} {text} is not a valid URL; expected for example http://host:8000, or ws://host:8000 or "
            "act://host:8000 for servers of other projects"
        )
    return text


def check_policies(label: str, text: str) -> None:
    """Raise LabError if --policy lists something other than URLs, or one URL twice."""
    urls = text.split(",")
    for url in urls if len(urls) > 1 else ():
        if "://" not in url:
            raise LabError(f"{label} {text} has several values; expected URLs, for example http://a:8000,http://b:8000")
        if [url.rstrip("/") for url in urls].count(url.rstrip("/")) > 1:
            raise LabError(f"{label} has {url} twice; expected one URL per replica")


def check_replicas(replicas: int | None, policy: str) -> None:
    """Raise LabError if --replicas is given and --policy is not a service."""
    if replicas and "://" in policy:
        raise LabError(
            f"--replicas starts new policies, but --policy {policy} is a running one; remove one of the two flags"
        )
    if replicas and policy == "auto":
        raise LabError(f"--replicas {replicas} requires --policy {' or '.join(policies())}")


def speaks_openvla(url: str) -> bool:
    """Return whether an OpenVLA server answers at this URL: no `/readyz`, and `/act` for POST only."""
    import httpx  # slow import: 0.1 s

    url = url.rstrip("/")
    with httpx.Client(timeout=CONNECT_S, trust_env=False) as client:
        try:
            return client.get(f"{url}/readyz").status_code == 404 and client.get(f"{url}/act").status_code in (405, 422)
        except (httpx.HTTPError, httpx.InvalidURL):
            return False  # not reachable yet or not HTTP: the evaluator waits and reports


def choose_policy(text: str, running: Sequence[Instance], policies: Sequence[str], fallback: str) -> PolicyChoice:
    """Return the policy for --policy: a URL, a service's name, or "auto".

    running: policy services that are up, healthy and reachable. policies: those of compose.yaml. fallback: the one to
    start if "auto" finds none; "auto" if there is no fallback.
    """
    if text.startswith(("http://", "https://")):
        return PolicyChoice(text.rstrip("/"), None, f"policy at {text.replace(',', ' and ')}")
    if text != "auto" and text not in policies:
        raise LabError(unknown("policy", text, ["auto", *policies]) + ", or a URL")
    matching = [instance for instance in running if text in ("auto", instance.service)]
    if matching:
        alternatives = (
            f" ({', '.join(o.name for o in matching[1:])} also up; select with --policy)" if matching[1:] else ""
        )
        reason = f"policy {matching[0].service}, running at {matching[0].url}{alternatives}"
        return PolicyChoice(matching[0].url, None, reason, matching[0])
    if text == fallback == "auto":
        raise LabError("no policy service is running, and this benchmark has no default; name one with --policy")
    if text == "auto":
        return PolicyChoice(
            None, fallback, f"policy {fallback}, since no policy service is running (select with --policy)"
        )
    return PolicyChoice(None, text, f"policy {text}")


def name_of_policy(request: EvaluationRequest) -> str:
    """Return the name of a request's policy: its service, "policy" for a URL, or the bridge's configured name."""
    if SERVER in request.bridged().policy_variables:
        return compose.environment_variables().get(service_settings.variable(BRIDGE, "NAME")) or BRIDGE
    choice = choose_policy(request.policy, _healthy(request), policies(), request.fallback)
    return choice.instance.service if choice.instance else choice.service or "policy"


def _healthy(request: EvaluationRequest) -> list[Instance]:
    """Return the healthy policies that support the suite; the benchmark's own is last, since `up ui` starts it."""
    services = compose.read()
    running = [instance for instance in interface.instances() if instance.role == "policy" and not instance.attached]
    fitting = [
        instance
        for instance in running
        if f"{request.job}_{instance.service}" not in services and instance.is_healthy()
    ]
    return sorted(fitting, key=lambda instance: instance.service == request.fallback)


def _choice(
    request: EvaluationRequest, runtime: Runtime, healthy: Sequence[Instance], policies: Sequence[str]
) -> PolicyChoice:
    """Select a policy that programs of this runtime can reach; report running ones that they cannot reach."""
    if server := request.policy_variables.get(SERVER):
        if runtime is containers and _is_local(server):
            raise LabError(OUT_OF_REACH.format(url=server))
        return PolicyChoice(None, request.policy, f"policy at {server}, through a bridge")
    if runtime is not containers:
        return choose_policy(request.policy, healthy, policies, request.fallback)
    reachable = [instance for instance in healthy if instance.runtime == containers.NAME]
    if any(map(_is_local, request.urls)):
        instances = {
            url: next((instance for instance in reachable if _is_at(instance, url)), None) for url in request.urls
        }
        for url, instance in instances.items():
            if instance is None and _is_local(url):
                raise LabError(OUT_OF_REACH.format(url=url))
        inside = [containers.address(instance) if instance else url for url, instance in instances.items()]
        only = next(iter(instances.values())) if len(instances) == 1 else None
        if only:
            return PolicyChoice(only.url, None, f"policy {only.service}, running at {only.url}", only)
        return PolicyChoice(",".join(inside), None, f"policy at {' and '.join(request.urls)}")
    choice = choose_policy(request.policy, reachable, policies, request.fallback)
    for instance in healthy:
        if instance not in reachable and request.policy in ("auto", instance.service):
            log_info(
                f"{instance.name} at {instance.url} is a local process, which containers cannot reach; to use it add "
                "--runtime local"
            )
    return choice


def _is_local(url: str) -> bool:
    try:
        return ports.is_loopback(urlsplit(url).hostname or "")
    except ValueError as error:
        raise LabError(f"invalid --policy {url!r}; expected for example http://127.0.0.1:8001") from error


def _is_at(instance: Instance, url: str) -> bool:
    """Return whether a loopback URL is the address of an instance; localhost and 127.0.0.1 are equal."""
    return _is_local(url) and _is_local(instance.url) and urlsplit(url).port == urlsplit(instance.url).port


# --- the evaluation -----------------------------------------------------------------------------------------


def run(request: EvaluationRequest, typed: str = "") -> int:
    """Run an evaluation; return the evaluator's exit code.

    typed: the command line to print for resuming; default: that of this process.
    """
    typed = typed or shlex.join(["./lab", *sys.argv[1:]])
    request, services = request.bridged(), compose.read()
    if not request.urls:
        check_policy("--policy", request.policy)
    if request.suite and (specific_policy := f"{request.job}_{request.policy}") in services:
        raise LabError(f"policy '{request.policy}' does not support {request.suite}; did you mean '{specific_policy}'?")
    healthy = [] if request.policy_variables or request.replicas else _healthy(request)
    runtime, line = _runtime(request, healthy, services)
    choice = _choice(request, runtime, healthy, policies())
    if request.module:
        _reject_simulated(choice)
    log_info(f"{line}; {choice.reason}")

    def address(instance: Instance) -> str:
        """Return the address at which the evaluator, and machines that join, reach an instance."""
        inside = runtime is containers and request.listens
        return containers.address_for_all(instance) if inside else runtime.address(instance)

    plays = [*services[request.job].command, *request.program, str(request.suite)]
    command = [*(["python", "-m", request.module] if request.module else plays), "--policy-url"]
    flags = request.flags
    if runtime is containers and request.listens:  # in a container, listen on all interfaces
        anywhere = f"0.0.0.0:{request.listens.rpartition(':')[2]}"
        pairs = zip(("", *flags), flags, strict=False)
        flags = tuple(anywhere if before == "--listen" else word for before, word in pairs)
    if request.dry_run:
        for settings in _settings_of_all(choice.service, request) if choice.service else ():
            print(runtime.start_command(str(choice.service), settings, attached=True))
        url = address(choice.instance) if choice.instance else choice.url or "http://POLICY:PORT"
        arguments = [*command, url, *flags]
        return runtime.run(request.job, arguments, request.variables(), listens=request.listens, dry_run=True)
    _report_silent(request)
    if choice.service and not request.start_policies:
        preflight.require_startable([choice.service], {choice.service: _settings(choice.service, request)})
    volumes.require_writable()
    runtime.prepare([services[name].environment_name for name in (request.job, choice.service) if name])
    with _ready_policy(choice, runtime, request, address) as (url, outcome, private):
        code, variables = INTERRUPTED, {"VLALAB_COMMAND": typed, **request.variables()}
        with Watch(private) as watch, request.run_alongside():
            code = runtime.run(request.job, [*command, url, *flags], variables, listens=request.listens)
        code = 1 if watch.is_gone else code
        outcome.append(code)
        resume_command = typed if request.program or request.module else resume_line(typed)
        if watch.is_gone:
            names = " and ".join(policy.name for policy in private)
            log_info(f"the policy {names} exited and is not restarted; this run was stopped. To resume:")
            log_info(f"  {resume_command}")
        elif cause := describe_signal(code):
            log_info(f"the evaluator was killed by {cause}; finished episodes are saved. To resume:")
            log_info(f"  {resume_command}")
    return code


def _runtime(
    request: EvaluationRequest, healthy: Sequence[Instance], services: Mapping[str, compose.ComposeService]
) -> tuple[Runtime, str]:
    """Return the evaluator's runtime: auto is that of the policy, since a container cannot reach a local process."""
    up = [
        instance
        for instance in healthy
        if request.policy in ("auto", instance.service) or any(_is_at(instance, url) for url in request.urls)
    ]
    to_start = [] if up or request.urls else [request.fallback if request.policy == "auto" else request.policy]
    names = [services[name].environment_name for name in (request.job, *to_start) if name in services]
    is_local = any(map(_is_local, request.addresses))
    return interface.choose(request.runtime, names, up[0].runtime if up else "local" if is_local else None)


def _reject_simulated(choice: PolicyChoice) -> None:
    """Raise LabError for a policy that cannot be queried with recorded data."""
    name = choice.instance.service if choice.instance else choice.service
    services = manifests.services()
    if name and services[name].simulated:
        alternatives = ", ".join(policy for policy in policies() if not services[policy].simulated)
        raise LabError(
            f"policy '{name}' needs the simulator's state, which data sets do not have; use {alternatives}, or a URL"
        )


def _report_silent(request: EvaluationRequest) -> None:
    """Report the addresses that do not answer yet, and how long the evaluator waits."""
    default = shared_code.options("vla_evaluation.config:RunConfig")["policy_timeout_s"].default
    timeout_s = float(request.flag("--policy-timeout-s") or default)
    for url in request.addresses:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
        try:
            socket.create_connection((parts.hostname or "", port), timeout=CONNECT_S).close()
        except OSError:
            log_info(f"no answer from {url}; waiting up to {timeout_s:g} s (--policy-timeout-s)")


# --- private policies ---------------------------------------------------------------------------------------


def _settings(service: str, request: EvaluationRequest) -> dict[str, str]:
    """Return the settings of a private policy: --gpu, and the suite's checkpoint unless a variable sets one; without a
    suite, or for a model without suites, the checkpoint of the request, else the only one on the volume.
    """
    named = compose.environment_variables().get(service_settings.variable(service, "CHECKPOINT"))
    suite = None if named or request.suite is None else manifests.base_of(request.suite)
    settings = service_settings.merged({}, service_settings.from_flags(service, suite, request.checkpoint, request.gpu))
    settings = checkpoints.complete([service], [service], {service: settings})[service]
    return {**settings, **request.policy_variables}


def _settings_of_all(service: str, request: EvaluationRequest) -> list[dict[str, str]]:
    """Return the settings of each private policy, distributed over the GPUs."""
    same = _settings(service, request)
    if request.replicas < 2 or service not in compose.gpu_services() or request.gpu in ("none", "all"):
        return [same] * max(request.replicas, 1)
    selection = gpus.selection(service, {**compose.environment_variables(), **same})
    devices = selection.split(",") if selection else [str(number) for number in range(gpus.count())]
    if not devices:
        return [same] * request.replicas
    return [{**same, gpus.variable(service): devices[k % len(devices)]} for k in range(request.replicas)]


@contextmanager
def _ready_policy(
    choice: PolicyChoice, runtime: Runtime, request: EvaluationRequest, address: Callable[[Instance], str]
) -> Iterator[tuple[str, list[int], list[Instance]]]:
    """Yield the policy's URL (several: separated by commas), a list for the exit code, and the private policies.

    Private policies are stopped afterwards; their logs are kept if the evaluation failed.
    """
    outcome: list[int] = []
    if choice.service is None:
        yield address(choice.instance) if choice.instance else choice.url or "", outcome, []
        return
    if request.start_policies:
        with request.start_policies(choice.service, request.suite) as urls:
            yield urls, outcome, []
        return
    started: list[Instance] = []
    settings = _settings_of_all(choice.service, request)
    several = len(settings) > 1
    try:
        with status(f"starting {choice.service}{f' × {len(settings)}' if several else ''}") as line:
            for number, variables in enumerate(settings, 1):
                name = f"{choice.service}-{os.getpid()}{f'-{number}' if several else ''}"
                started.append(runtime.start(choice.service, variables, instance_name=name, attached=True))
            for instance in started:
                interface.wait_ready(runtime, instance.name, READY_TIMEOUT_S, line.update)
        yield ",".join(map(address, started)), outcome, started
    finally:
        for instance in started:
            runtime.close(instance, keep_log=outcome not in ([0], [INTERRUPTED]))


class Watch:
    """Context manager that watches private policies while their evaluation runs.

    The evaluator would wait ten minutes for a policy that exited. So when all have exited, interrupt the evaluation as
    Ctrl-C does, which saves finished episodes, and set `is_gone`.
    """

    def __init__(self, policies: Sequence[Instance]) -> None:
        self.policies, self.is_gone = policies, False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        if self.policies:
            self._thread.start()
        return self

    def __exit__(self, kind: type | None, *_: object) -> bool:
        """Suppress the KeyboardInterrupt that this object caused."""
        self._over.set()
        if self.policies:
            self._thread.join()
        return self.is_gone and kind is KeyboardInterrupt

    def _look(self) -> None:
        while not self._over.wait(WATCH_S[self.policies[0].runtime]):
            if all(policy.has_ended() for policy in self.policies):
                self.is_gone = True
                os.kill(os.getpid(), signal.SIGINT)
                return


def describe_signal(code: int) -> str:
    """Return the name of the signal that an exit code stands for, "" for a normal exit."""
    signals = {int(number): number.name for number in signal.Signals}
    if (number := code - 128) not in signals or code == 128 + signal.SIGINT:
        return ""
    killed = number == signal.SIGKILL
    return signals[number] + (", by a user or by the kernel if out of memory (check `dmesg`)" if killed else "")


def resume_line(typed: str) -> str:
    """Return the command line that resumes a run."""
    named = any(word.split("=")[0] in ("--resume", "--run-id") for word in shlex.split(typed))
    return typed if named else f"{typed} --resume"
