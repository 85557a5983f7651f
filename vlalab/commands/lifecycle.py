"""`up`, `down`, `restart`, `logs`, `shell`: this machine's services in both runtimes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from vlalab.description import checkpoints, compose, manifests, runs, service_settings
from vlalab.engine import docker, volumes
from vlalab.environments.venvs import file_lock
from vlalab.host import paths, state
from vlalab.host.console import LabError, check_choices, log_info, status, unknown
from vlalab.runtimes import containers, control, interface, local
from vlalab.runtimes import logs as service_logs
from vlalab.runtimes.interface import READY_TIMEOUT_S, Instance, Runtime, start_failure

LOOK_S = 0.5  # between checks of a policy in the foreground
Overrides = Mapping[str, service_settings.Settings]  # service → its settings from the flags of `up`


def long_lived() -> list[str]:
    """Return the names of the services that keep running (jobs do not)."""
    return [name for name, service in compose.read().items() if service.role != "job"]


def jobs() -> list[str]:
    """Return the names of the jobs, which exit by themselves."""
    return [name for name, service in compose.read().items() if service.role == "job"]


def check_names(names: Sequence[str], also: Sequence[str] = ()) -> None:
    """Raise LabError if there are no names, or for one that is neither a service nor among `also`."""
    services = [*long_lived(), *also]
    if not names:
        raise LabError(f"a service is required. Known: {', '.join(services)}")
    check_choices("service", names, services)


def require_startable(names: Sequence[str], overrides: Mapping[str, service_settings.Settings]) -> None:
    """Raise LabError for an invalid $VLALAB_PUBLIC_URL, or for the first service that misses something."""
    compose.page_url("")
    for name in names:
        if missing := missing_inputs(name, overrides.get(name, {})):
            raise LabError(f"{name} cannot start: missing {missing}")


def missing_inputs(name: str, overrides: service_settings.Settings) -> str:
    """Return what a service lacks to start, with the command that helps, else ""."""
    settings = {**compose.environment_variables(), **service_settings.stored(name), **overrides}
    missing = [text for text in (_checkpoint(name, settings), _run(name, settings)) if text]
    trained = manifests.services()[name].trained
    if trained and not any((paths.volume() / "checkpoints" / trained).glob("*")):
        missing.append(f"weights: train some, ./lab train {name} --data NAME")
    for variable, example in manifests.services()[name].needs.items():
        if not settings.get(variable):
            missing.append(f"an address: set {variable}, for example {variable}={example} ./lab up {name}")
    return "; and ".join(missing)


def _checkpoint(service: str, settings: Mapping[str, str | None]) -> str:
    """Return a message if a model's service has no checkpoint, else ""."""
    if service not in manifests.models():
        return ""
    variable = service_settings.variable(service, "CHECKPOINT")
    if name := settings.get(variable):
        existing = service_settings.checkpoints_on_volume()
        if name in existing or Path(name).expanduser().is_dir():
            return ""
        return f"checkpoint '{name}', set in {variable}; on the volume: {', '.join(existing) or 'none'}"
    available = checkpoints.available(service)
    if len(available) == 1:
        return ""  # used by default
    if available:
        return f"a checkpoint (select one with --checkpoint: {', '.join(available)})"
    flag = manifests.models()[service].download_flag
    return f"a checkpoint (get one: ./lab checkpoint {service} {flag}, or --tiny for tests)"


def _run(service: str, settings: Mapping[str, str | None]) -> str:
    """Return a message if a service replays a run and has none, else ""."""
    variable = manifests.services()[service].recording
    name = settings.get(variable) or ""
    if not variable or name.startswith("/"):  # a path of this machine, or of a container
        return ""
    if not name:
        return f"a run: set {variable} to latest or a name from ./lab runs"
    try:
        runs.run(variable, name)
    except LabError as error:
        return f"its run: {error}"
    return ""


def up(
    names: Sequence[str],
    runtime: str = "auto",
    overrides: Overrides | None = None,
    dry_run: bool = False,
    restart: bool = False,
    previous_settings: Mapping[str, Mapping[str, str]] | None = None,
) -> list[Instance]:
    """Start services and their dependencies unless they are running; return them when all are ready.

    For a job among the names, only its environment is prepared.

    Args:
        overrides: settings per service, stored until it is stopped.
        restart: whether to restart a running service whose settings differ from the requested ones; else report them.
        previous_settings: settings of services that were just stopped, to restore.
    """
    all_jobs = jobs()
    check_names(names, also=all_jobs)
    named_jobs = [name for name in names if name in all_jobs]
    names = [name for name in names if name not in all_jobs]
    running = {instance.service: instance for instance in interface.instances() if not instance.attached}
    requested = _settings(names, overrides or {}, running)
    order = in_order(names, {**compose.environment_variables(), **_flat(requested)})
    settings = checkpoints.complete(order, names, _settings(order, overrides or {}, running), running)
    order = list(settings)
    services = compose.read(variables={**compose.environment_variables(), **_flat(settings)})
    environments = [services[name].environment_name for name in [*order, *named_jobs]]
    # Dependent services must run in the same runtime.
    prefer = next((running[name].runtime for name in order if name in running), None)
    selected, line = interface.choose(runtime, environments, prefer)
    for instance in (running[name] for name in order if name in running):
        if instance.runtime != selected.NAME:
            location = f"in runtime {instance.runtime} at {instance.url}"
            raise LabError(
                f"'{instance.name}' is already running {location}; stop it first: ./lab down {instance.name}"
            )
    log_info(line)
    if dry_run:
        for name in order:
            print(selected.start_command(name, settings[name]))
        return []
    volumes.require_writable()
    selected.prepare(environments)
    for name in named_jobs:
        log_info(f"{name} is a job: its environment is ready; run it with ./lab eval SUITE")
    other_settings = service_settings.of_all([name for name in running if name not in settings])
    current = {name: _current_settings(running[name], settings[name], restart) for name in order if name in running}
    previous = {**current, **(previous_settings or {})}
    variables = {name: {**other_settings, **_flat(settings), **previous.get(name, {})} for name in order}
    ready: list[Instance] = []
    for batch in batches(order):
        ready += _start_batch(batch, selected, names, settings, variables)
    for page in (instance for instance in ready if instance.service == compose.PAGE):
        control.start(page)
    return ready


def batches(order: Sequence[str]) -> list[list[str]]:
    """Return the services in batches; each depends only on services of earlier batches."""
    depth: dict[str, int] = {}
    for name in order:
        needed = [depth[other] for other in compose.read()[name].depends_on if other in depth]
        depth[name] = max(needed, default=-1) + 1
    return [[name for name in order if depth[name] == number] for number in sorted(set(depth.values()))]


def _start_batch(
    names: Sequence[str],
    runtime: Runtime,
    requested: Sequence[str],
    settings: Mapping[str, Mapping[str, str]],
    variables: Mapping[str, Mapping[str, str]],
) -> list[Instance]:
    """Start services in parallel, since each may read gigabytes of weights; return them when all are ready.

    requested: services that the user named; others are dependencies. settings: of each service, to store. variables: to
    start each with, besides its settings. Raise LabError for the first that did not get ready; it is stopped, and the
    others keep running.
    """
    running: dict[str, Instance] = {}
    pending: dict[str, Instance] = {}  # started by this call, and not ready yet
    errors: list[LabError] = []

    def stop(instance: Instance) -> None:
        (runtime.instance(instance.name) or instance).stop()
        service_settings.forget(instance.name)

    with ExitStack() as locks:
        for name in sorted(names):  # the same order in every process, against deadlocks
            locks.enter_context(file_lock(state.directory() / f".{name}.lock", f"another command is starting '{name}'"))
        try:
            for name in names:
                before = runtime.instance(name)
                if before and name not in requested and before.is_healthy():
                    running[name] = before
                    continue
                # Keeps a running one whose settings match.
                started = runtime.start(name, {**variables[name], **settings[name], **control.variables(name)})
                service_settings.save(name, settings[name])
                is_same = before and before.started_at == started.started_at and started.is_healthy()
                (running if is_same else pending)[name] = started
            for name in names:
                if name in running:
                    log_info(f"{name} is running at {running[name].url}")
                    continue
                try:
                    if runtime.instance(name) is None:  # exited in the meantime
                        raise LabError(start_failure(name, "exited at once", pending[name]))
                    with status(f"starting {name}") as line:
                        running[name] = interface.wait_ready(runtime, name, READY_TIMEOUT_S, line.update)
                    del pending[name]
                except LabError as failure:
                    errors.append(failure)
                    stop(pending.pop(name))
        except BaseException:
            for instance in pending.values():
                stop(instance)
            raise
    for error in errors[1:]:
        log_info(error.text)
    if errors:
        raise errors[0]
    return [running[name] for name in names]


def _current_settings(instance: Instance, settings: Mapping[str, str], restart: bool) -> dict[str, str]:
    """Return the settings that a running service keeps; report requested changes, or stop it to apply them."""
    current, requested = instance.started_with(), compose.environment_variables()
    if settings == service_settings.stored(instance.service):
        other = service_settings.differing(instance.service, current, requested)
        if not other or not restart:
            _report_other(instance.service, other)
            return current
        log_info(f"{instance.name} restarts with new settings: {', '.join(other)}")
        instance.stop()
    new = {**current, **{name: requested[name] for name in current if name in requested}}
    return {name: value for name, value in new.items() if not service_settings.belongs_to(instance.service, name)}


def _report_other(name: str, other: Sequence[str]) -> None:
    if other:
        log_info(f"{name} keeps its settings; the requested ones differ in {', '.join(other)}.")
        log_info(f"  To apply them: ./lab up {name} --restart")


def in_order(names: Sequence[str], variables: Mapping[str, str] | None = None) -> list[str]:
    """Return services and their dependencies, dependencies first."""
    return list(dict.fromkeys(need for name in names for need in compose.needs(name, variables=variables)))


def _settings(names: Sequence[str], overrides: Overrides, running: Mapping[str, Instance]) -> dict[str, dict[str, str]]:
    """Return each service's settings: stored ones if it is running, the shell's, and the overrides."""
    stored = {name: service_settings.stored(name) if name in running else {} for name in names}
    current = {name: {**stored[name], **service_settings.from_shell(name)} for name in names}
    return {name: service_settings.merged(current[name], overrides.get(name, {})) for name in names}


def _flat(settings: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {name: value for setting in settings.values() for name, value in setting.items()}


def run_in_foreground(names: Sequence[str], runtime: str, overrides: Overrides, dry_run: bool = False) -> None:
    """Run one more instance of a policy in the foreground: print its address when it is ready, stop it at the end.

    Raise LabError for several names, for a service that is not a policy, and for containers, since private ones publish
    no port.
    """
    policies = [name for name, service in compose.read().items() if service.role == "policy"]
    if len(names) != 1 or names[0] not in policies:
        raise LabError(
            f"--foreground requires exactly one policy, got {', '.join(names)}. Known: {', '.join(policies)}"
        )
    if runtime == "docker":
        raise LabError("--foreground requires --runtime local, since private containers publish no port")
    (name,) = names
    requested = {name: service_settings.merged(service_settings.from_shell(name), overrides[name])}
    settings = checkpoints.complete([name], [name], requested)[name]
    if dry_run:
        print(local.start_command(name, settings, attached=True))
        return
    volumes.require_writable()
    services = compose.read(variables={**compose.environment_variables(), **settings})
    local.prepare([services[name].environment_name])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    policy, is_ready = None, False
    try:
        with status(f"starting {name}") as line:
            policy = local.start(name, settings, instance_name=f"{name}-{os.getpid()}", attached=True)
            interface.wait_ready(local, policy.name, READY_TIMEOUT_S, line.update)
        is_ready = True
        print(f"{name} {local.address(policy)}", flush=True)
        while not policy.has_ended():
            time.sleep(LOOK_S)
        raise LabError(f"{policy.name} exited")
    finally:
        if policy:
            local.close(policy, keep_log=not is_ready)


def down(names: Sequence[str], dry_run: bool = False) -> list[str]:
    """Stop services, by default all that `up` started; return their names."""
    instances = _running_instances(names)
    if dry_run:
        for instance in instances:
            print(f"stop {instance.name} (runtime {instance.runtime})")
        return []
    if not names or compose.PAGE in names:
        control.stop()  # before its page, which would report a lost connection
    with ThreadPoolExecutor() as pool:
        list(pool.map(_stop, instances))
    if not names and not docker.available():  # fails while a container is on the network
        docker.run(["network", "rm", f"{compose.project()}_default"], check=False)
    return [instance.name for instance in instances]


def _running_instances(names: Sequence[str]) -> list[Instance]:
    """Return instances that run, or exited without being removed: the named ones, or all that `up` started."""
    instances = {instance.name: instance for instance in [*containers.everything(), *interface.instances()]}
    for name in names:
        if name not in instances:
            raise LabError(f"'{name}' is not running. Running: {', '.join(sorted(instances)) or 'none'}")
    return [instance for instance in instances.values() if (instance.name in names if names else not instance.attached)]


def _stop(instance: Instance) -> None:
    instance.stop()
    service_settings.forget(instance.name)
    log_info(f"stopped {instance.name}")


def restart(names: Sequence[str], dry_run: bool = False) -> list[Instance]:
    """Restart services with their settings, by default all that run; return them."""
    selected = _running_instances(names)
    stored = {instance.service: service_settings.stored(instance.service) for instance in selected}
    if dry_run:
        for instance in selected:
            print(f"stop {instance.name} (runtime {instance.runtime})")
            print(interface.runtime_of(instance).start_command(instance.service, stored[instance.service]))
        return []
    previous = {instance.service: instance.started_with() for instance in selected}
    requested = compose.environment_variables()
    other = {name: service_settings.differing(name, settings, requested) for name, settings in previous.items()}
    if compose.PAGE in stored:
        control.stop()
    for instance in selected:
        _stop(instance)
    started: list[Instance] = []
    for runtime in dict.fromkeys(instance.runtime for instance in selected):
        services = [instance.service for instance in selected if instance.runtime == runtime]
        order = [name for name in in_order(services) if name in services]
        started += up(order, runtime, {name: stored[name] for name in order}, previous_settings=previous)
    for name, variables in other.items():
        _report_other(name, variables)
    return [instance for instance in started if instance.service in other]


def logs(name: str, lines: int, follow: bool) -> None:
    """Print the end of a service's log; with `follow`, keep printing new lines."""
    instance = next(
        (candidate for candidate in [*interface.instances(), *containers.everything()] if candidate.name == name), None
    )
    services = {*long_lived(), *service_logs.names()}
    if instance is None and name not in services:
        raise LabError(unknown("service", name, sorted(services)))
    runtime = interface.runtime_of(instance) if instance else interface.choose("local", [])[0]
    try:
        runtime.follow_log(name, lines, follow)
    except KeyboardInterrupt:
        return


def shell(name: str, runtime: str = "auto", command: str | None = None, dry_run: bool = False) -> int:
    """Open a shell in the environment of a name, or run one command line; return the exit code."""
    services = compose.read()
    if name not in services:
        raise LabError(unknown("environment", name, sorted({*services, *paths.image_names()})))
    selected, line = interface.choose(runtime, [services[name].environment_name])
    log_info(line)
    if not dry_run:
        selected.prepare([services[name].environment_name])
    return selected.shell(name, command, dry_run)
