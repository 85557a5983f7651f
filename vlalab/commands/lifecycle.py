"""`up`, `down`, `restart`, `logs`, `shell`: the services of this machine, in either runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from vlalab.commands.start_plan import StartPlan, start_services
from vlalab.description import checkpoints, compose, service_settings
from vlalab.engine import docker, volumes
from vlalab.host import paths
from vlalab.host.console import LabError, require_known, say, unknown
from vlalab.runtimes import both, contained, held, steward
from vlalab.runtimes import logs as kept_logs
from vlalab.runtimes.both import Runtime
from vlalab.runtimes.running import Instance

Had = Mapping[str, Mapping[str, str]]  # service → the variables it was started with
Given = Mapping[str, service_settings.Settings]  # service → what `up` was told about it


def long_lived() -> list[str]:
    """Returns the names of the services that stay up (jobs do not)."""
    return [name for name, service in compose.read().items() if service.role != "job"]


def jobs() -> list[str]:
    """Returns the names of those that a task runs and that end by themselves."""
    return [name for name, service in compose.read().items() if service.role == "job"]


def check_names(names: Sequence[str], also: Sequence[str] = ()) -> None:
    """Raises LabError for no name and for one that is no service (nor among `also`), with the nearest that is."""
    known = [*long_lived(), *also]
    if not names:
        raise LabError(f"which service? Known: {', '.join(known)}")
    require_known("service", names, known)


# --- up -----------------------------------------------------------------------------------------------------


def up(
    names: Sequence[str],
    runtime: str = "auto",
    given: Given | None = None,
    dry_run: bool = False,
    anew: bool = False,
    had: Had | None = None,
) -> list[Instance]:
    """Returns the services of those names, and what they depend on, started where they did not run, each one ready.

    given: settings per service, kept until it is stopped. anew: what is up with other settings than are asked for now
    is started anew with those; else that is told. had: settings of services that were stopped, which they get again.
    A job among the names is made ready and not started.
    """
    known_jobs = jobs()
    check_names(names, also=known_jobs)
    named_jobs = [name for name in names if name in known_jobs]
    names = [name for name in names if name not in known_jobs]
    running = {found.service: found for found in both.instances() if not found.attached}
    order = in_order(names, {**compose.environment_variables(), **_flat(_wanted(names, given or {}, running))})
    wanted = checkpoints.complete(order, names, _wanted(order, given or {}, running), running)
    order = list(wanted)
    chosen, line = _choose(runtime, [*order, *named_jobs], running)
    say(line)
    if dry_run:
        for name in order:
            print(chosen.start_command(name, wanted[name]))
        return []
    volumes.require_writable()
    chosen.prepare([compose.read()[name].environment_name for name in [*order, *named_jobs]])
    for name in named_jobs:
        say(f"{name} is a job: its environment is ready, and `./lab eval SUITE` runs it")
    others = service_settings.of_all([name for name in running if name not in wanted])
    variables = {**others, **_flat(wanted)}
    keeping = {name: _held(running[name], wanted[name], anew) for name in order if name in running}
    ready = start_services(StartPlan(order, names, wanted, variables, {**keeping, **(had or {})}), chosen)
    for page in (one for one in ready if one.service == steward.PAGE):
        steward.attend(page)
    return ready


def _held(found: Instance, wanted: Mapping[str, str], anew: bool) -> dict[str, str]:
    """Returns the settings that a running service keeps; says which others are asked for, or stops it for them."""
    had, asked = found.started_with(), held.asked()
    if wanted == service_settings.kept(found.service):
        other = held.differing(found, had, asked)
        if not other or not anew:
            _tell_other(found.service, other)
            return had
        say(f"{found.name} is started anew with other settings: {', '.join(other)}")
        found.stop()
    new = {**had, **{name: asked[name] for name in had if name in asked}}
    return {name: value for name, value in new.items() if not held.is_own(found.service, name)}


def _tell_other(name: str, other: Sequence[str]) -> None:
    if other:
        say(f"{name} keeps the settings it was started with; others are asked for now: {', '.join(other)}.")
        say(f"  ./lab up {name} --restart starts it anew with these")


def in_order(names: Sequence[str], variables: Mapping[str, str] | None = None) -> list[str]:
    """Returns those services and what they need, each one after what it needs."""
    return list(dict.fromkeys(one for name in names for one in compose.needs(name, variables=variables)))


def _wanted(names: Sequence[str], given: Given, running: Mapping[str, Instance]) -> dict[str, dict[str, str]]:
    """Returns the settings each of those services is to have: what is kept while it is up, and what is given now."""
    kept = {name: service_settings.kept(name) if name in running else {} for name in names}
    return {n: service_settings.merged({**kept[n], **service_settings.from_shell(n)}, given.get(n, {})) for n in names}


def _flat(wanted: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {name: value for one in wanted.values() for name, value in one.items()}


def _choose(runtime: str, order: Sequence[str], running: Mapping[str, Instance]) -> tuple[Runtime, str]:
    """Returns the runtime for services that belong together: where one of them runs, the others have to."""
    there = [running[name] for name in order if name in running]
    services = compose.read()
    environments = [services[name].environment_name for name in order]
    chosen, line = both.choose(runtime, environments, prefer=there[0].runtime if there else None)
    for found in there:
        if found.runtime != chosen.NAME:
            where = f"in runtime {found.runtime}, at {found.url}"
            raise LabError(f"'{found.name}' is up {where}; stop it first: ./lab down {found.name}")
    return chosen, line


# --- down, restart ------------------------------------------------------------------------------------------


def down(names: Sequence[str], dry_run: bool = False) -> list[str]:
    """Returns the names of what was stopped; no names mean all that `up` started."""
    chosen = _chosen(names)
    if dry_run:
        for found in chosen:
            print(f"stop {found.name} (runtime {found.runtime})")
        return []
    if not names or steward.PAGE in names:
        steward.dismiss()  # before its page, which would say that it is lost
    with ThreadPoolExecutor() as pool:
        list(pool.map(_stop, chosen))
    if not names:
        _take_network_away()
    return [found.name for found in chosen]


def _chosen(names: Sequence[str]) -> list[Instance]:
    """Returns what runs, or stopped without being taken away, of those names; no names mean all that `up` started."""
    there = {found.name: found for found in [*contained.everything(), *both.instances()]}
    for name in names:
        if name not in there:
            raise LabError(f"'{name}' is not up; up: {', '.join(sorted(there)) or 'nothing'}")
    return [found for found in there.values() if (found.name in names if names else not found.attached)]


def _stop(found: Instance) -> None:
    found.stop()
    service_settings.forget(found.name)
    say(f"stopped {found.name}")


def _take_network_away() -> None:
    """Removes Compose's network when no container is left on it; the engine refuses otherwise."""
    if not docker.available():
        docker.run(["network", "rm", f"{compose.project()}_default"], check=False)


def restart(names: Sequence[str], dry_run: bool = False) -> list[Instance]:
    """Returns the services of those names (all that are up without names), stopped and started with their settings."""
    chosen = _chosen(names)
    kept = {found.service: service_settings.kept(found.service) for found in chosen}
    had = {found.service: found.started_with() for found in chosen}
    other = {found.service: held.differing(found, had[found.service], held.asked()) for found in chosen}
    if not dry_run and steward.PAGE in kept:
        steward.dismiss()
    for found in chosen:
        if dry_run:
            print(f"stop {found.name} (runtime {found.runtime})")
            print(both.of(found).start_command(found.service, kept[found.service]))
        else:
            _stop(found)
    by_service = {found.service: found.runtime for found in chosen if not dry_run}
    order = [name for name in in_order(list(by_service)) if name in by_service]
    groups = {runtime: [name for name in order if by_service[name] == runtime] for runtime in by_service.values()}
    started = [
        one
        for runtime, mine in groups.items()
        for one in up(mine, runtime, {name: kept[name] for name in mine}, had={name: had[name] for name in mine})
    ]
    for name in by_service:
        _tell_other(name, other[name])
    return [found for found in started if found.service in by_service]


# --- logs, shell --------------------------------------------------------------------------------------------


def logs(name: str, lines: int, follow: bool) -> None:
    """Prints the end of a service's log, and what is added to it if `follow`."""
    found = next((one for one in [*both.instances(), *contained.everything()] if one.name == name), None)
    known = {*long_lived(), *kept_logs.names()}
    if found is None and name not in known:
        raise LabError(unknown("service", name, sorted(known)))
    runtime = both.of(found) if found else both.choose("local", [])[0]
    try:
        runtime.follow_log(name, lines, follow)
    except KeyboardInterrupt:
        return


def shell(name: str, runtime: str = "auto", command: str | None = None, dry_run: bool = False) -> int:
    """Opens a shell in an environment (or where a service runs), or runs one command line; returns the exit code."""
    services = compose.read()
    if name not in services:
        raise LabError(unknown("environment", name, sorted({*services, *paths.image_names()})))
    chosen, line = both.choose(runtime, [services[name].environment_name])
    say(line)
    if dry_run:
        print(chosen.shell_command(name, command))
        return 0
    chosen.prepare([services[name].environment_name])
    return chosen.shell(name, command)
