"""`up`, `down`, `status`, `logs`: the services of this machine."""

from __future__ import annotations

import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

from vlalab import compose, local, paths, runtimes
from vlalab.console import LabError, say, status, unknown
from vlalab.environments import ensure, exclusive
from vlalab.evaluation import READY_TIMEOUT_S
from vlalab.local import Instance


def long_lived() -> list[str]:
    """Returns the names of the services that stay up (jobs do not)."""
    return [name for name, service in compose.read().items() if service.role != "job"]


def up(names: list[str], runtime: str = "auto") -> list[Instance]:
    """Returns the services of those names, started where they did not run, each one ready."""
    runtimes.choose(runtime)
    known = long_lived()
    if not names:
        raise LabError(f"which service? Known: {', '.join(known)}")
    for name in names:
        if name not in known:
            raise LabError(unknown("service", name, known))
    return [_up(name) for name in names]


def _up(name: str) -> Instance:
    ensure(compose.read()[name].environment_name)
    folder = paths.volume() / "services"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"cannot make {folder} ({error.strerror}); set VLALAB_VOLUME elsewhere") from error
    with exclusive(folder / f".{name}.lock", f"another call is starting '{name}'"):
        if (found := local.instance(name)) and found.is_healthy():
            say(f"{name} is up at {found.url}")
            return found
        with status(f"starting {name}") as line:
            started = found or local.start(name)
            try:
                return local.wait_ready(name, READY_TIMEOUT_S, line.update)
            except BaseException:
                started.stop()
                raise


def down(names: list[str]) -> list[str]:
    """Returns the names of what was stopped; no names mean all that `up` started."""
    running = local.instances()
    for name in names:
        if name not in [r.name for r in running]:
            raise LabError(f"'{name}' is not up; up: {', '.join(r.name for r in running) or 'nothing'}")
    chosen = [r for r in running if (r.name in names if names else not r.attached)]
    for found in chosen:
        found.stop()
        say(f"stopped {found.name}")
    return [found.name for found in chosen]


def show_status() -> None:
    """Prints a table of the services: what is up, whether it is healthy, where."""
    running = {found.name: found for found in local.instances()}
    table = Table("service", "state", "health", "url", "up for", "restarts", "process", box=None, pad_edge=False)
    known = long_lived()
    for name in [*known, *sorted(set(running) - set(known))]:
        table.add_row(name, *_row(running.get(name)))
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    print(f"\nvolume {paths.volume()}   runtime local")


def _row(found: Instance | None) -> list[str]:
    if found is None:
        return ["down", "", "", "", "", ""]
    state = "up, for one evaluation" if found.attached else "up"
    minutes, seconds = divmod(int(time.time() - found.started_at), 60)
    child = str(found.child.pid) if found.child else "-"
    health = "healthy" if found.is_healthy() else "not ready"
    return [state, health, found.url, f"{minutes} min {seconds} s", str(found.starts - 1), child]


def logs(name: str, lines: int, follow: bool) -> None:
    """Prints the end of a service's log, and what is added to it if `follow`."""
    running = local.instance(name)
    path = running.log_path if running else paths.volume() / "logs" / f"{name}.log"
    if not path.exists():
        there = sorted(p.stem for p in path.parent.glob("*.log")) if path.parent.exists() else []
        raise LabError(f"no log of '{name}' at {path}; there are: {', '.join(there) or 'none'}")
    try:
        subprocess.run(["tail", "-n", str(lines), *(["-F"] if follow else []), str(path)], check=False)
    except KeyboardInterrupt:
        return
