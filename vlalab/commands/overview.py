"""`status`: a table of all services in both runtimes, queried in parallel."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from vlalab.description import compose, gpus, service_settings
from vlalab.doctor.machine import Machine
from vlalab.engine import building, docker, images
from vlalab.engine.images import Image
from vlalab.environments import venvs
from vlalab.host import memory, paths
from vlalab.host.shared_code import entrypoint
from vlalab.runtimes import containers, control, local
from vlalab.runtimes.containers import Container
from vlalab.runtimes.local import Instance

COLUMNS = ("service", "runtime", "state", "health", "image or environment", "GPU", "memory", "URL")
NARROW = ("service", "runtime", "state", "health", "URL")  # for narrow terminals
PLAIN_WIDTH = 160
SCHEMA = 1  # version of the --json format


@dataclass(frozen=True)
class Snapshot:
    """The state of this machine: instances with their health, images by environment, GPU memory by process."""

    running: list[Container | Instance]
    healthy: Mapping[str, bool]
    images: Mapping[str, Image]
    gpu_memory: Mapping[int, Mapping[str, int]]


def gather() -> Snapshot:
    """Return the current state."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        instances = pool.submit(containers.everything), pool.submit(local.instances)
        built = pool.submit(lambda: {} if docker.available() else images.existing())
        running = [instance for some in instances for instance in some.result()]
        used = pool.submit(gpus.memory_by_process if running else dict)
        healthy = dict(zip((r.name for r in running), pool.map(lambda r: r.is_healthy(), running), strict=True))
        return Snapshot(running, healthy, built.result(), used.result())


def show(in_json: bool = False) -> None:
    """Print the table, the volume's path and the state of Docker; or all of it as JSON."""
    if in_json:
        print(json.dumps(as_json(), indent=1))
        return
    from rich.table import Table  # slow import

    now = gather()
    console = entrypoint.console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    columns = COLUMNS if console.width > 110 else NARROW
    table = Table(*columns, box=None, pad_edge=False)
    for instance, service in _rows(now):
        name = instance.name if instance else service.name
        cells = dict(zip(COLUMNS, [name, *_row(instance, service, now)], strict=True))
        table.add_row(*(cells[column] for column in columns))
    console.print(table)
    reason = docker.available()
    console.print(f"\nvolume {paths.volume()}\ndocker: {reason or 'an engine answers'}", highlight=False, markup=False)


def as_json() -> dict[str, Any]:
    """Return the table as one object; docs/doctor.md describes every field."""
    now, devices = gather(), Machine().gpus().get("devices", [])
    return {
        "schema": SCHEMA,
        "host": platform.node(),
        "volume": str(paths.volume()),
        "docker": docker.available(),
        "commit": building.commit(),
        "steward": control.running_daemon() is not None,
        "gpus": [{name: device.get(name) for name in ("index", "name", "used", "memory")} for device in devices],
        "services": [_entry(instance, service, now) for instance, service in _rows(now)],
    }


def _rows(now: Snapshot) -> list[tuple[Any, compose.ComposeService]]:
    """Return (instance, service) for running and exited ones, and (None, service) for services that are down.

    Each service has the environment that its stored settings select.
    """
    stored = service_settings.of_all(compose.names())
    rows: list[tuple[Any, compose.ComposeService]] = []
    for name, service in compose.read(variables={**compose.environment_variables(), **stored}).items():
        instances = [(instance, service) for instance in now.running if instance.service == name]
        rows += instances or ([] if service.role == "job" else [(None, service)])
    return rows


def _entry(instance: Container | Instance | None, service: compose.ComposeService, now: Snapshot) -> dict[str, Any]:
    """Return the --json entry of a service; unknown fields are None."""
    environment = service.environment_name
    env, image = venvs.get(environment), now.images.get(environment)
    entry: dict[str, Any] = {"name": instance.name if instance else service.name, "service": service.name}
    entry |= {"role": service.role, "state": "down"}
    entry |= dict.fromkeys(("runtime", "health", "since", "restarts", "private", "memory", "gpus", "gpu_memory", "url"))
    entry |= {
        "environment": environment,
        "lock": env.lock_hash[:12],
        "image_built": image.created.timestamp() if image else None,
        "image_fits": image.fits() if image else None,
        "environment_fits": env.is_ready() if env.python.exists() else None,
    }
    if not instance:
        return entry
    ended = isinstance(instance, Container) and not instance.is_up
    used: dict[str, int] = defaultdict(int)
    for pid, by_device in now.gpu_memory.items():
        for device, mib in by_device.items() if instance.owns(pid) else ():
            used[device] += mib
    return entry | {
        "state": "up" if instance.is_up else f"ended with code {instance.exit_code}" if ended else "starting",
        "runtime": instance.runtime,
        "health": ("healthy" if now.healthy[instance.name] else "not ready") if instance.is_up else None,
        "since": instance.started_at,
        "restarts": instance.restarts,
        "private": instance.attached,
        "memory": instance.memory(),
        "gpus": instance.gpu,
        "gpu_memory": dict(used),
        "url": instance.url,
    }


def _row(instance: Container | Instance | None, service: compose.ComposeService, now: Snapshot) -> list[str]:
    """Return a service's cells after its name."""
    entry, image = _entry(instance, service, now), now.images.get(service.environment_name)
    state = entry["state"]
    if state == "up":
        seconds = time.time() - entry["since"]
        state = f"up {max(0, int(seconds))} s" if seconds < 60 else f"up {images.format_age(seconds)}"
        state += f", {entry['restarts']} restart{'s' * (entry['restarts'] > 1)}" if entry["restarts"] else ""
        state += ", for one call" if entry["private"] else ""
    if isinstance(instance, Container) and image is None:
        source = "image removed"
    elif isinstance(instance, Container) and image and image.id != instance.image_id:
        source = f"older than its image: ./lab restart {instance.service}"
    elif image and not isinstance(instance, Instance):
        source = f"image {image.age()} old, {'lock fits' if image.fits() else 'of another lock'}"
    else:
        fits = {None: "not built", True: "environment, lock fits", False: "environment of another lock"}
        source = fits[entry["environment_fits"]]
    used = ", ".join(f"{device}: {mib / 1024:.1f} GiB" for device, mib in sorted((entry["gpu_memory"] or {}).items()))
    gpu, size = used or entry["gpus"] or "", memory.format_size(entry["memory"])
    return [entry["runtime"] or "", state, entry["health"] or "", source, gpu, size, entry["url"] or ""]
