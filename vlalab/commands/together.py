"""Starts services side by side where none needs another: two models read their weights at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from vlalab.description import compose, service_settings
from vlalab.environments.venvs import exclusive
from vlalab.host import state
from vlalab.host.console import LabError, say, status
from vlalab.runtimes import steward
from vlalab.runtimes.both import Runtime
from vlalab.runtimes.running import READY_TIMEOUT_S, Instance, failed


@dataclass(frozen=True)
class Wanted:
    """What is to run: services in an order in which each follows what it needs, with their own settings."""

    order: Sequence[str]
    named: Sequence[str]  # those that were asked for; the others are merely needed
    settings: Mapping[str, Mapping[str, str]]
    variables: Mapping[str, str]  # the settings of all that are up or will be
    held: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # what each was started with and keeps


@dataclass(frozen=True)
class Begun:
    """A service that was started, or was found running as it is wanted."""

    name: str
    instance: Instance
    is_new: bool


def bring_up(wanted: Wanted, runtime: Runtime) -> list[Instance]:
    """Returns the services of `wanted.order`, each one ready. Raises LabError for the first that did not get so."""
    return [found for names in waves(wanted.order) for found in _wave(names, wanted, runtime)]


def waves(order: Sequence[str]) -> list[list[str]]:
    """Returns the services of an order in groups: each needs only what is in groups before its own."""
    depth: dict[str, int] = {}
    for name in order:
        needed = [depth[other] for other in compose.read()[name].depends_on if other in depth]
        depth[name] = max(needed, default=-1) + 1
    return [[name for name in order if depth[name] == number] for number in sorted(set(depth.values()))]


def _wave(names: Sequence[str], wanted: Wanted, runtime: Runtime) -> list[Instance]:
    with ExitStack() as held:
        for name in sorted(names):  # two calls take their locks in the same order
            lock = state.folder() / f".{name}.lock"
            held.enter_context(exclusive(lock, f"another call is starting '{name}'"))
        begun: list[Begun] = []
        try:
            for name in names:
                begun.append(_begin(name, wanted, runtime))
        except BaseException:
            _give_up(begun, runtime)
            raise
        return _all_ready(begun, runtime)


def _begin(name: str, wanted: Wanted, runtime: Runtime) -> Begun:
    found = runtime.instance(name)
    if found and name not in wanted.named and found.is_healthy():
        return Begun(name, found, is_new=False)
    told = {**wanted.variables, **wanted.held.get(name, {}), **wanted.settings[name]}
    own = {**told, **steward.variables(name)}
    started = runtime.start(name, own)  # which leaves one alone that runs as it is wanted
    service_settings.keep(name, wanted.settings[name])
    is_same = bool(found) and started.started_at == found.started_at and started.is_healthy()
    return Begun(name, started, is_new=not is_same)


def _all_ready(begun: Sequence[Begun], runtime: Runtime) -> list[Instance]:
    """Returns them ready. One that does not get so is stopped again and the others are waited for all the same."""
    ready, problems = [], []
    for position, one in enumerate(begun):
        try:
            ready.append(_ready(one, runtime))
        except LabError as error:
            problems.append(error)
        except BaseException:
            _give_up(begun[position + 1 :], runtime)
            raise
    for other in problems[1:]:
        say(other.text)
    if problems:
        raise problems[0]
    return ready


def _ready(one: Begun, runtime: Runtime) -> Instance:
    if not one.is_new:
        say(f"{one.name} is up at {one.instance.url}")
        return one.instance
    try:
        if runtime.instance(one.name) is None:  # it ended while others were waited for
            raise LabError(failed(one.name, "ended at once", one.instance))
        with status(f"starting {one.name}") as line:
            return runtime.wait_ready(one.name, READY_TIMEOUT_S, line.update)
    except BaseException:
        _give_up([one], runtime)
        raise


def _give_up(begun: Sequence[Begun], runtime: Runtime) -> None:
    """Stops those that were started and are not ready."""
    for one in begun:
        if one.is_new:
            (runtime.instance(one.name) or one.instance).stop()
            service_settings.forget(one.name)
