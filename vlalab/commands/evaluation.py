"""`eval SUITE`: find or start a policy, wait for it, run the evaluator, stop what was started.

The evaluator (shared/evaluation/vla_evaluation/evaluate.py) runs in the environment of the suite's job, as a process or
in a container; its exit code is passed on. `record SUITE` runs another program in the same way.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from vlalab.commands import lifecycle
from vlalab.commands.ray_placement import RayPlacement
from vlalab.description import checkpoints, compose, gpus, manifests, ports, runs, service_settings
from vlalab.engine import volumes
from vlalab.host import paths
from vlalab.host.console import LabError, log_info, status, unknown
from vlalab.runtimes import containers, interface
from vlalab.runtimes.interface import READY_TIMEOUT_S, Instance, Runtime

CONNECT_S = 2.0
WATCH_S = {"local": 0.5, "docker": 5.0}  # a query of the engine takes 40 ms of CPU time
RUNS = "vla_evaluation.runs"  # works on existing runs; in every benchmark's environment
BRIDGE = "bridge"  # the service for policy servers of other projects
WEBSOCKETS = ("ws://", "wss://")  # protocols of openpi and vla-eval
OPENVLA = ("act://", "acts://")  # /act of OpenVLA and OpenVLA-OFT
SERVER = service_settings.variable(BRIDGE, "SERVER")
AUDIT_EPISODES = 10  # demonstrations that an audit records
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
    # Variables of the policy. If there are any, it is started whatever else is running.
    policy_variables: Mapping[str, str] = field(default_factory=dict)
    replicas: int = 0  # number of policies to start in any case; 0: start one if none is up
    placement: RayPlacement | None = None  # of its workers and replicas on a cluster
    repeats: bool = False  # the same command line continues the run

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
        expected = "http://host:8000, or ws://host:8000 or act://host:8000 for servers of other projects"
        raise LabError(f"{label} {text} is not a valid URL; expected for example {expected}")
    return text


def check_policies(text: str, replicas: int | None) -> None:
    """Raise LabError if --policy lists something other than URLs, or one URL twice, or --replicas has no service."""
    urls = [url.rstrip("/") for url in text.split(",")]
    for url in urls if len(urls) > 1 else ():
        if "://" not in url:
            raise LabError(
                f"--policy {text} has several values; expected URLs, for example http://a:8000,http://b:8000"
            )
        if urls.count(url) > 1:
            raise LabError(f"--policy has {url} twice; expected one URL per replica")
    if replicas and "://" in text:
        raise LabError(f"--replicas starts new policies, but --policy {text} is a running one; remove one of the two")
    if replicas and text == "auto":
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
    if matching := [instance for instance in running if text in ("auto", instance.service)]:
        first, *others = matching
        more = f" ({', '.join(other.name for other in others)} also up; select with --policy)" if others else ""
        return PolicyChoice(first.url, None, f"policy {first.service}, running at {first.url}{more}", first)
    if text == fallback == "auto":
        raise LabError("no policy service is running, and this benchmark has no default; name one with --policy")
    if text == "auto":
        reason = f"policy {fallback}, since no policy service is running (select with --policy)"
        return PolicyChoice(None, fallback, reason)
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
    running = [
        instance
        for instance in interface.instances()
        if instance.role == "policy" and not instance.attached
        if f"{request.job}_{instance.service}" not in services and instance.is_healthy()
    ]
    return sorted(running, key=lambda instance: instance.service == request.fallback)


def _choice(
    request: EvaluationRequest, runtime: Runtime, healthy: Sequence[Instance], policies: Sequence[str]
) -> PolicyChoice:
    """Select a policy that programs of this runtime can reach; report running ones that they cannot reach."""
    in_container = runtime is containers
    reachable = [i for i in healthy if i.runtime == containers.NAME] if in_container else healthy
    instances = {url: next((i for i in reachable if _is_at(i, url)), None) for url in request.urls}
    for url in request.addresses:
        if in_container and _is_local(url) and not instances.get(url):
            raise LabError(
                f"a container cannot reach {url}: inside it, that is the container itself. Use --runtime local, or "
                "serve the policy on an address of this machine's network (with VLALAB_TOKEN) and give that address"
            )
    if server := request.policy_variables.get(SERVER):
        return PolicyChoice(None, request.policy, f"policy at {server}, through a bridge")
    if in_container and any(instances.values()):
        if len(instances) == 1:
            (only,) = instances.values()
            return PolicyChoice(only.url, None, f"policy {only.service}, running at {only.url}", only)
        inside = [containers.address(instance) if instance else url for url, instance in instances.items()]
        return PolicyChoice(",".join(inside), None, f"policy at {' and '.join(request.urls)}")
    choice = choose_policy(request.policy, reachable, policies, request.fallback)
    for instance in healthy:
        if instance not in reachable and request.policy in ("auto", instance.service):
            process = f"{instance.name} at {instance.url} is a local process, which containers cannot reach"
            log_info(f"{process}; to use it add --runtime local")
    return choice


def _is_local(url: str) -> bool:
    try:
        return ports.is_loopback(urlsplit(url).hostname or "")
    except ValueError as error:
        raise LabError(f"invalid --policy {url!r}; expected for example http://127.0.0.1:8001") from error


def _is_at(instance: Instance, url: str) -> bool:
    """Return whether a loopback URL is the address of an instance; localhost and 127.0.0.1 are equal."""
    return _is_local(url) and _is_local(instance.url) and urlsplit(url).port == urlsplit(instance.url).port


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
    name = choice.instance.service if choice.instance else choice.service
    if request.module and name and manifests.services()[name].simulated:
        usable = ", ".join(policy for policy in policies() if not manifests.services()[policy].simulated)
        raise LabError(f"policy '{name}' needs the simulator's state, which data sets lack; use {usable}, or a URL")
    log_info(f"{line}; {choice.reason}")

    def address(instance: Instance) -> str:
        """Return the address at which the evaluator, and machines that join, reach an instance."""
        inside = runtime is containers and request.listens
        return containers.address_for_all(instance) if inside else runtime.address(instance)

    evaluator = [*services[request.job].command, *request.program, str(request.suite)]
    command = [*(["python", "-m", request.module] if request.module else evaluator), "--policy-url"]
    flags = list(request.flags)
    if runtime is containers and request.listens:  # in a container, listen on all interfaces
        flags[flags.index("--listen") + 1] = f"0.0.0.0:{request.listens.rpartition(':')[2]}"
    if request.dry_run:
        for settings in _settings_of_all(choice.service, request) if choice.service else ():
            print(runtime.start_command(str(choice.service), settings, attached=True))
        url = address(choice.instance) if choice.instance else choice.url or "http://POLICY:PORT"
        arguments = [*command, url, *flags]
        return runtime.run(request.job, arguments, request.variables(), listens=request.listens, dry_run=True)
    if choice.service and not (request.placement and request.replicas):
        lifecycle.require_startable([choice.service], {choice.service: _settings(choice.service, request)})
    volumes.require_writable()
    runtime.prepare([services[name].environment_name for name in (request.job, choice.service) if name])
    code, private = 1, list[Instance]()  # policies that end with this evaluation

    def close() -> None:
        for instance in private:
            runtime.close(instance, keep_log=code not in (0, INTERRUPTED))

    with ExitStack() as stack:
        stack.callback(close)
        url = address(choice.instance) if choice.instance else choice.url
        if choice.service and request.placement and request.replicas:
            url = stack.enter_context(request.placement.policies(choice.service, request.suite))
        elif choice.service:
            _start_private(choice.service, runtime, request, private)
            url = ",".join(map(address, private))
        alongside = request.placement.run_alongside() if request.placement else nullcontext()
        variables = {"VLALAB_COMMAND": typed, **request.variables()}
        with interrupted_when_ended(private) as ended, alongside:
            code = runtime.run(request.job, [*command, str(url), *flags], variables, listens=request.listens)
        code = 1 if ended.is_set() else code
        names = " and ".join(policy.name for policy in private)
        problem = f"the policy {names} exited and is not restarted; this run was stopped" if ended.is_set() else ""
        if cause := describe_signal(code):
            problem = f"the evaluator was killed by {cause}; finished episodes are saved"
        if problem:
            is_complete = request.program or request.module or request.repeats
            log_info(f"{problem}. To resume:\n  {typed if is_complete else resume_line(typed)}")
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


def _start_private(service: str, runtime: Runtime, request: EvaluationRequest, started: list[Instance]) -> None:
    """Start the evaluation's own policies, adding each to `started`, and wait until all are ready."""
    settings = _settings_of_all(service, request)
    several = len(settings) > 1
    with status(f"starting {service}{f' × {len(settings)}' if several else ''}") as line:
        for number, variables in enumerate(settings, 1):
            name = f"{service}-{os.getpid()}{f'-{number}' if several else ''}"
            started.append(runtime.start(service, variables, instance_name=name, attached=True))
        for instance in started:
            interface.wait_ready(runtime, instance.name, READY_TIMEOUT_S, line.update)


@contextmanager
def interrupted_when_ended(policies: Sequence[Instance]) -> Iterator[threading.Event]:
    """Interrupt the block, as Ctrl-C does, when all these private policies have exited; yield whether they have.

    The evaluator would wait ten minutes for them. The interrupt saves finished episodes, and is not passed on.
    """
    over, ended = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_S[policies[0].runtime]):
            if all(policy.has_ended() for policy in policies):
                ended.set()
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=watch, daemon=True)
    if policies:
        thread.start()
    try:
        yield ended
    except KeyboardInterrupt:
        if not ended.is_set():
            raise
    finally:
        over.set()
        if policies:
            thread.join()


def record_for_audit(suite: str, run_options: Mapping[str, Any]) -> None:
    """Record the demonstrations that an audit asks about, once; the volume keeps them. Raise LabError if that fails."""
    name = f"audit-{suite}"
    if name in runs.recordings() or run_options["dry_run"]:
        return
    fallback = manifests.benchmarks()[manifests.job_of(suite)].fallback
    log_info(f"recording one demonstration of each task of {suite}, once")
    flags = ("--episodes", str(AUDIT_EPISODES), "--name", name, "--seed", "7")
    code = run(EvaluationRequest(suite, fallback, flags=flags, program=("record",), **run_options))
    if code:
        raise LabError(f"the demonstrations were not recorded (exit code {code}); repeat the command to continue")


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
