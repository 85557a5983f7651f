"""Start services in dependency order; independent ones in parallel, since each may read gigabytes of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from vlalab.description import compose, service_settings
from vlalab.environments.venvs import file_lock
from vlalab.host import state
from vlalab.host.console import LabError, log_info, status
from vlalab.runtimes import control, interface
from vlalab.runtimes.interface import READY_TIMEOUT_S, Instance, Runtime, start_failure


@dataclass(frozen=True)
class StartPlan:
    """The services to start, dependencies first, and the settings of each."""

    order: Sequence[str]
    requested: Sequence[str]  # named by the user; the rest are dependencies
    settings: Mapping[str, Mapping[str, str]]
    variables: Mapping[str, str]  # the settings of all running and planned services
    current_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of services already running


def start_services(plan: StartPlan, runtime: Runtime) -> list[Instance]:
    """Start the services of the plan; return them when all are ready.

    Raise LabError for the first that did not get ready; it is stopped, and the others of its batch keep running.
    """
    return [instance for names in batches(plan.order) for instance in _start_batch(names, plan, runtime)]


def batches(order: Sequence[str]) -> list[list[str]]:
    """Return the services in batches; each depends only on services of earlier batches."""
    depth: dict[str, int] = {}
    for name in order:
        needed = [depth[other] for other in compose.read()[name].depends_on if other in depth]
        depth[name] = max(needed, default=-1) + 1
    return [[name for name in order if depth[name] == number] for number in sorted(set(depth.values()))]


def _start_batch(names: Sequence[str], plan: StartPlan, runtime: Runtime) -> list[Instance]:
    running: dict[str, Instance] = {}
    pending: dict[str, Instance] = {}  # started by this call, and not ready yet
    errors: list[LabError] = []
    with ExitStack() as locks:
        for name in sorted(names):  # the same order in every process, against deadlocks
            locks.enter_context(file_lock(state.directory() / f".{name}.lock", f"another command is starting '{name}'"))
        try:
            for name in names:
                before = runtime.instance(name)
                if before and name not in plan.requested and before.is_healthy():
                    running[name] = before
                    continue
                settings = {**plan.variables, **plan.current_settings.get(name, {}), **plan.settings[name]}
                # Keeps a running one whose settings match.
                started = runtime.start(name, {**settings, **control.variables(name)})
                service_settings.save(name, plan.settings[name])
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
                except LabError as error:
                    errors.append(error)
                    _stop(pending.pop(name), runtime)
        except BaseException:
            for service in pending.values():
                _stop(service, runtime)
            raise
    for error in errors[1:]:
        log_info(error.text)
    if errors:
        raise errors[0]
    return [running[name] for name in names]


def _stop(service: Instance, runtime: Runtime) -> None:
    (runtime.instance(service.name) or service).stop()
    service_settings.forget(service.name)
