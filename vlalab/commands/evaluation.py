"""The main job, `eval SUITE`: finds or starts a policy, waits for it, runs the evaluator, stops what it started.

The evaluator itself (shared/evaluation/vla_evaluation/evaluate.py) runs in the environment of the suite's job, as a
process or in a container; its exit code is passed on. `record SUITE` is the same with another program.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from vlalab.commands import lacking
from vlalab.commands.watching import Watch, resume_line, why_killed
from vlalab.description import checkpoints, compose, gpus, manifests, ports, service_settings
from vlalab.engine import volumes
from vlalab.host import borrowed, paths
from vlalab.host.console import LabError, say, status, unknown
from vlalab.runtimes import both, containers
from vlalab.runtimes.both import Runtime
from vlalab.runtimes.running import READY_TIMEOUT_S, Instance

ANSWER_S = 2.0  # for a connection; who takes longer is called silent, and is waited for all the same
RUNS = "vla_evaluation.runs"  # the program for runs that are there; every benchmark's environment has it
BRIDGE = "bridge"  # the service for policy servers of other projects
WEBSOCKETS = ("ws://", "wss://")  # their addresses: openpi's and vla-eval's protocols
OPENVLA = ("act://", "acts://")  # OpenVLA's and OpenVLA-OFT's /act
SERVER = service_settings.variable(BRIDGE, "SERVER")
BRIDGED = "bridge"  # what runs of several suites are called by; the bridge itself knows which protocol it speaks
OUT_OF_REACH = (
    "a container cannot reach {url}: inside, that is the container itself. Use --runtime local, or serve the policy on "
    "an address of this machine's network (with a token) and give that"
)
INTERRUPTED = 130  # the evaluator's exit code after Ctrl-C


@dataclass(frozen=True)
class Request:
    """What was asked for. `flags` go to the evaluator as they are.

    suite: None for a program that plays none. module: what runs then, in the environment of the default job.
    """

    suite: str | None
    policy: str = "auto"
    runtime: str = "auto"
    flags: tuple[str, ...] = ()
    dry_run: bool = False
    gpu: str | None = None  # for drawing, and for a policy that is started
    program: tuple[str, ...] = ()  # the first words to the job, where it is not to evaluate
    module: str = ""
    checkpoint: str | None = None  # for a policy that is started
    own: Mapping[str, str] = field(default_factory=dict)  # its variables; given, it is started whatever else is up
    beside: Callable[[], AbstractContextManager] = nullcontext  # what goes on while the evaluator runs
    replicas: int = 0  # how many of the policy to start, whatever else is up; 0: one, where none is up
    elsewhere: Callable[[str, str | None], AbstractContextManager[str]] | None = None  # starts these, on a cluster

    def __post_init__(self) -> None:
        if self.suite is not None:
            manifests.job_of(self.suite)

    @property
    def job(self) -> str:
        """The job of compose.yaml that evaluates on its suite."""
        return manifests.default_job() if self.suite is None else manifests.job_of(self.suite)

    @property
    def fallback(self) -> str:
        """The policy that is started where none is up and none is named."""
        return manifests.benchmarks()[self.job].fallback

    @property
    def variables(self) -> dict[str, str]:
        """What the evaluator is told about GPUs. Drawing on the CPU needs none."""
        on_cpu = "cpu" in [after for word, after in zip(self.flags, self.flags[1:], strict=False) if word == "--render"]
        wanted = service_settings.from_flags(self.job, gpu="none" if on_cpu else self.gpu)
        return {**paths.of_caller(), **service_settings.merged({}, wanted)}

    def bridged(self) -> Request:
        """Return the request with a bridge for its policy, if the policy is a server of another project."""
        server = self.policy
        if self.names_url and "," not in server and speaks_openvla(server):
            server = server.replace("http", "act", 1)
        if not server.startswith((*WEBSOCKETS, *OPENVLA)):
            return self
        check_policy("--policy", server)
        flags = dict(zip(self.flags, self.flags[1:], strict=False))
        given = {"WAIT_S": flags.get("--policy-timeout-s"), "ANSWER_S": flags.get("--act-timeout-s")}
        given["UNNORM_KEY"] = flags.get("--unnorm-key") if server.startswith(OPENVLA) else None
        told = {"SERVER": server, **{name: value for name, value in given.items() if value}}
        own = {service_settings.variable(BRIDGE, name): value for name, value in told.items()}
        return replace(self, policy=BRIDGE, own={**own, **self.own})

    @property
    def listens(self) -> str:
        """Where others join it, "host:port"; "" where it cannot be joined."""
        return dict(zip(self.flags, self.flags[1:], strict=False)).get("--listen", "")

    def inside(self) -> tuple[str, ...]:
        """Returns the flags of an evaluator in a container: it listens on all of that one's addresses."""
        anywhere = f"0.0.0.0:{self.listens.rpartition(':')[2]}"
        pairs = zip(("", *self.flags), self.flags, strict=False)
        return tuple(anywhere if before == "--listen" else word for before, word in pairs)

    @property
    def address(self) -> str:
        """The address that the policy is given by: its own, or that of the server behind the bridge; else ""."""
        return self.own.get(SERVER) or (self.policy if self.names_url else "")

    @property
    def names_url(self) -> bool:
        """Whether the policy is given by its address, or by several."""
        return self.policy.startswith(("http://", "https://"))

    @property
    def urls(self) -> list[str]:
        """The addresses that were given for the policy."""
        return self.policy.split(",") if self.names_url else []


@dataclass(frozen=True)
class PolicyChoice:
    """Where actions come from: a URL somebody else answers at, an instance that is up, or a service to start first."""

    url: str | None
    service: str | None
    why: str
    instance: Instance | None = None


def policies() -> list[str]:
    """Returns the policies of compose.yaml."""
    return [name for name, service in compose.read().items() if service.role == "policy"]


def check_policy(label: str, asked: str) -> str:
    """Returns what --policy said. Raises LabError for what is no policy of compose.yaml and no address."""
    if "://" not in asked:
        if asked not in ("auto", *policies()):
            raise LabError(unknown("policy", asked, ["auto", *policies()]) + ", or a URL")
        return asked
    try:
        parts = urlsplit(asked)
        schemes = ("http", "https", *(prefix.removesuffix("://") for prefix in (*WEBSOCKETS, *OPENVLA)))
        fine = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or beyond 65535
        fine = False
    if not fine:
        raise LabError(
            f"{label} {asked} is no address; expected something like http://host:8000, or ws://host:8000 or "
            "act://host:8000 for servers of other projects"
        )
    return asked


def speaks_openvla(url: str) -> bool:
    """Return whether an OpenVLA server answers at this URL: no `/readyz`, and `/act` for POST only."""
    import httpx  # 0.1 s that other commands need not pay

    url = url.rstrip("/")
    with httpx.Client(timeout=ANSWER_S, trust_env=False) as client:
        try:
            return client.get(f"{url}/readyz").status_code == 404 and client.get(f"{url}/act").status_code in (405, 422)
        except (httpx.HTTPError, httpx.InvalidURL):
            return False  # not reachable yet, or no HTTP: the evaluator waits for it and reports


def check_policies(label: str, asked: str) -> str:
    """Returns what eval's --policy said: as `check_policy` has it, or several addresses of the same policy."""
    words = [one.strip() for one in asked.split(",")]
    for word in words if len(words) > 1 else ():
        if "://" not in word:
            raise LabError(
                f"{label} {asked} names several; expected an address of each, like http://a:8000,http://b:8000"
            )
        if [one.rstrip("/") for one in words].count(word.rstrip("/")) > 1:
            raise LabError(f"{label} names {word} twice; expected another address for each of the same policy")
    return ",".join(check_policy(label, word) for word in words)


def choose_policy(asked: str, running: Sequence[Instance], policies: Sequence[str], fallback: str) -> PolicyChoice:
    """Returns the policy for --policy: a URL, a service's name, or "auto".

    running: policy services that are up, healthy and within reach. policies: those of compose.yaml. fallback: the one
    that is started where "auto" finds none; "auto" where there is none.
    """
    if asked.startswith(("http://", "https://")):
        return PolicyChoice(asked.rstrip("/"), None, f"policy at {asked.replace(',', ' and ')}")
    if asked != "auto" and asked not in policies:
        raise LabError(unknown("policy", asked, ["auto", *policies]) + ", or a URL")
    up = [found for found in running if asked in ("auto", found.service)]
    if up:
        others = f" ({', '.join(o.name for o in up[1:])} up too; choose with --policy)" if up[1:] else ""
        why = f"policy {up[0].service}, which is up at {up[0].url}{others}"
        return PolicyChoice(up[0].url, None, why, up[0])
    if asked == fallback == "auto":
        raise LabError("no policy service is up, and this benchmark has none of its own; name one: --policy WHICH")
    if asked == "auto":
        return PolicyChoice(None, fallback, f"policy {fallback}, since no policy service is up (--policy chooses)")
    return PolicyChoice(None, asked, f"policy {asked}")


def name_of_policy(request: Request) -> str:
    """Returns the service that a request's policy is, or "policy" where an address is all that is known of it; of one
    behind a bridge, what the bridge calls it.
    """
    if SERVER in request.bridged().own:
        return compose.environment_variables().get(service_settings.variable(BRIDGE, "NAME")) or BRIDGED
    choice = choose_policy(request.policy, _healthy(request), policies(), request.fallback)
    return choice.instance.service if choice.instance else choice.service or "policy"


def run(request: Request, typed: str) -> int:
    """Runs an evaluation; returns the evaluator's exit code. `typed` is the command line to show for resuming."""
    request, services = request.bridged(), compose.read()
    if not request.names_url:
        check_policy("--policy", request.policy)
    if request.suite and (own := f"{request.job}_{request.policy}") in services:
        raise LabError(f"policy '{request.policy}' cannot play {request.suite}; did you mean '{own}'?")
    healthy = [] if request.own or request.replicas else _healthy(request)
    runtime, line = _runtime(request, healthy, services)
    choice = _choice(request, runtime, healthy, policies())
    if request.module:
        _refuse_simulated(choice)
    say(f"{line}; {choice.why}")
    plays = [*services[request.job].command, *request.program, request.suite]
    command = [*(["python", "-m", request.module] if request.module else plays), "--policy-url"]
    if request.dry_run:
        if choice.service:
            for settings in _settings_of_all(choice.service, request):
                print(runtime.start_command(choice.service, settings, attached=True))
        url = _address(choice.instance, runtime, request) if choice.instance else choice.url or "http://POLICY:PORT"
        words = [*command, url, *_flags(runtime, request)]
        print(runtime.run_command(request.job, words, request.variables, listens=request.listens))
        return 0
    _tell_of_waiting(request)
    if choice.service and not request.elsewhere:
        lacking.refuse([choice.service], {choice.service: _settings(choice.service, request)})
    volumes.require_writable()
    runtime.prepare([services[name].environment_name for name in (request.job, choice.service) if name])
    with _ready_policy(choice, runtime, request) as (url, outcome, private):
        code, variables = INTERRUPTED, {"VLALAB_COMMAND": typed, **request.variables}
        with Watch(private) as watch, request.beside():
            words = [*command, url, *_flags(runtime, request)]
            code = runtime.run(request.job, words, variables, listens=request.listens)
        code = 1 if watch.is_gone else code
        outcome.append(code)
        _explain(code, watch, typed if request.program or request.module else resume_line(typed))
    return code


def _healthy(request: Request) -> list[Instance]:
    """Returns the policies that are up and can play the suite; the benchmark's own comes last: the pages bring it."""
    services = compose.read()
    running = [found for found in both.instances() if found.role == "policy" and not found.attached]
    fitting = [found for found in running if f"{request.job}_{found.service}" not in services and found.is_healthy()]
    return sorted(fitting, key=lambda found: found.service == request.fallback)


def _flags(runtime: Runtime, request: Request) -> tuple[str, ...]:
    return request.inside() if runtime is containers and request.listens else request.flags


def _address(found: Instance, runtime: Runtime, request: Request) -> str:
    """Returns where the evaluator asks an instance, and with it those who join."""
    return containers.address_for_all(found) if runtime is containers and request.listens else runtime.address(found)


def _refuse_simulated(choice: PolicyChoice) -> None:
    """Raises LabError for a policy that cannot be asked about recorded data."""
    name = choice.instance.service if choice.instance else choice.service
    known = manifests.services()
    if name and known[name].simulated:
        others = ", ".join(one for one in policies() if not known[one].simulated)
        raise LabError(
            f"policy '{name}' works from the simulator, which no data set has; name another: {others}, or a URL"
        )


def _tell_of_waiting(request: Request) -> None:
    """Says at once how long an address that nobody answers at is going to be waited for."""
    flags = dict(zip(request.flags, request.flags[1:], strict=False))
    default = borrowed.options("vla_evaluation.config:RunConfig")["policy_timeout_s"].default
    timeout_s = float(flags.get("--policy-timeout-s", default))
    for url in filter(None, request.address.split(",")):
        if not _answers(url):
            say(f"nobody answers at {url}; waiting up to {timeout_s:g} s for it (--policy-timeout-s)")


def _answers(url: str) -> bool:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=ANSWER_S).close()
    except OSError:
        return False
    return True


def _explain(code: int, watch: Watch, again: str) -> None:
    """Says what the evaluator could not, since it was not its own end or not its own doing, and how to go on."""
    if watch.is_gone:
        names = " and ".join(one.name for one in watch.policies)
        say(f"the policy {names} was ended from outside, and nobody starts it again; this run was stopped")
    elif why := why_killed(code):
        say(f"the evaluator was ended by {why}; finished episodes are safe, and if the run had begun, go on with")
    else:
        return
    say(f"  {again}")


def _runtime(request: Request, healthy: Sequence[Instance], services: dict) -> tuple[Runtime, str]:
    """Returns the runtime that evaluates: auto is where the policy runs, since a container cannot reach a process."""
    named = request.urls
    up = [
        found
        for found in healthy
        if request.policy in ("auto", found.service) or any(_is_at(found, url) for url in named)
    ]
    to_start = [] if up or request.names_url else [request.fallback if request.policy == "auto" else request.policy]
    names = [services[name].environment_name for name in (request.job, *to_start) if name in services]
    near = any(map(_is_local, filter(None, request.address.split(","))))
    prefer = up[0].runtime if up else "local" if near else None
    return both.choose(request.runtime, names, prefer)


def _is_local(url: str) -> bool:
    try:
        return ports.is_loopback(urlsplit(url).hostname or "")
    except ValueError as error:
        raise LabError(
            f"--policy {url!r} is no URL of a service; expected for example http://127.0.0.1:8001"
        ) from error


def _is_at(found: Instance, url: str) -> bool:
    """Returns whether a URL on loopback is where an instance is published: localhost and 127.0.0.1 are the same."""
    return _is_local(url) and _is_local(found.url) and urlsplit(url).port == urlsplit(found.url).port


def _choice(request: Request, runtime: Runtime, healthy: Sequence[Instance], policies: Sequence[str]) -> PolicyChoice:
    """Returns the policy among those that this runtime's programs reach; says what is up and out of their reach."""
    if server := request.own.get(SERVER):
        if runtime is containers and _is_local(server):
            raise LabError(OUT_OF_REACH.format(url=server))
        return PolicyChoice(None, request.policy, f"policy at {server}, through a bridge")
    if runtime is not containers:
        return choose_policy(request.policy, healthy, policies, request.fallback)
    mine = [found for found in healthy if found.runtime == containers.NAME]
    if any(map(_is_local, request.urls)):
        return _containers_at(request.urls, mine)
    choice = choose_policy(request.policy, mine, policies, request.fallback)
    for found in healthy:
        if found not in mine and request.policy in ("auto", found.service):
            say(f"{found.name} at {found.url} is a local process, out of a container's reach (--runtime local uses it)")
    return choice


def _containers_at(urls: Sequence[str], mine: Sequence[Instance]) -> PolicyChoice:
    """Returns the addresses as a container reaches them. Raises LabError for one that none does."""
    if len(urls) == 1:
        found = _container_at(urls[0], mine)
        return PolicyChoice(found.url, None, f"policy {found.service}, which is up at {found.url}", found)
    inside = [containers.address(_container_at(url, mine)) if _is_local(url) else url for url in urls]
    return PolicyChoice(",".join(inside), None, f"policy at {' and '.join(urls)}")


def _container_at(url: str, mine: Sequence[Instance]) -> Instance:
    """Returns the container whose port is published there. Raises LabError for any other loopback address."""
    for found in mine:
        if _is_at(found, url):
            return found
    raise LabError(OUT_OF_REACH.format(url=url))


def _settings(service: str, request: Request) -> dict[str, str]:
    """Returns the settings of a private policy: --gpu, and the suite's checkpoint, unless a variable names one; without
    a suite the one that was named, else the only one on the volume.
    """
    named = compose.environment_variables().get(service_settings.variable(service, "CHECKPOINT"))
    suite = None if named or request.suite is None else manifests.base_of(request.suite)
    found = service_settings.merged({}, service_settings.from_flags(service, suite, request.checkpoint, request.gpu))
    found = found if request.suite else checkpoints.complete([service], [service], {service: found})[service]
    return {**found, **request.own}


def _settings_of_all(service: str, request: Request) -> list[dict[str, str]]:
    """Returns the settings of each private policy: of several, each has a GPU of its own as far as there are enough."""
    same = _settings(service, request)
    if request.replicas < 2 or service not in compose.gpu_services() or request.gpu in ("none", "all"):
        return [same] * max(request.replicas, 1)
    asked = gpus.chosen(service, {**compose.environment_variables(), **same})
    devices = asked.split(",") if asked else [str(number) for number in range(gpus.count())]
    if not devices:
        return [same] * request.replicas
    return [{**same, gpus.variable(service): devices[k % len(devices)]} for k in range(request.replicas)]


@contextmanager
def _ready_policy(
    choice: PolicyChoice, runtime: Runtime, request: Request
) -> Iterator[tuple[str, list[int], list[Instance]]]:
    """Yields the URL of a policy that is ready, or several with commas between them, a list for the evaluator's exit
    code, and the policies that are private.

    One that was started for it is stopped afterwards; its log is kept if the evaluation failed.
    """
    outcome: list[int] = []
    if choice.service is None:
        yield _address(choice.instance, runtime, request) if choice.instance else choice.url or "", outcome, []
    elif request.elsewhere:
        with request.elsewhere(choice.service, request.suite) as urls:
            yield urls, outcome, []
    else:
        started: list[Instance] = []
        try:
            _start_all(choice.service, runtime, request, started)
            yield ",".join(_address(one, runtime, request) for one in started), outcome, started
        finally:
            for one in started:
                runtime.close(one, keep_log=outcome not in ([0], [INTERRUPTED]))


def _start_all(service: str, runtime: Runtime, request: Request, started: list[Instance]) -> None:
    """Starts the private policies, each of which is in `started` from then on, and waits until all are ready."""
    wanted = _settings_of_all(service, request)
    times = f" × {len(wanted)}" if len(wanted) > 1 else ""
    with status(f"starting {service}{times}") as line:
        for number, settings in enumerate(wanted, 1):
            name = f"{service}-{os.getpid()}" + (f"-{number}" if len(wanted) > 1 else "")
            started.append(runtime.start(service, settings, instance_name=name, attached=True))
        for one in started:
            runtime.wait_ready(one.name, READY_TIMEOUT_S, line.update)


def check_replicas(replicas: int | None, policy: str) -> None:
    """Raises LabError where several of a policy are to be started and --policy names no service."""
    if replicas and "://" in policy:
        raise LabError(f"--replicas starts policies of its own, and {policy} is up already; leave one of the two out")
    if replicas and policy == "auto":
        raise LabError(f"--replicas {replicas} of which policy? Name it: --policy {' or '.join(policies())}")
