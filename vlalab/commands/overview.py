"""`status`: one table of all services in both runtimes. Everything is asked at once, since a person waits for it."""

from __future__ import annotations

import platform
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from vlalab.description import compose, gpus
from vlalab.doctor.machine import Machine
from vlalab.engine import building, docker, images
from vlalab.engine.images import Image
from vlalab.environments import venvs
from vlalab.host import endings, memory, paths
from vlalab.runtimes import contained, local, steward
from vlalab.runtimes.contained import Container
from vlalab.runtimes.local import Instance

COLUMNS = ("service", "runtime", "state", "health", "image or environment", "GPU", "memory", "URL")
NARROW = ("service", "runtime", "state", "health", "URL")  # where a terminal has no room for all of them
PLAIN_WIDTH = 160
SCHEMA = 1  # of what --json prints


@dataclass(frozen=True)
class Snapshot:
    """What was found out: instances with their health, images by environment, GPU memory by process."""

    running: list[Container | Instance]
    healthy: Mapping[str, bool]
    images: Mapping[str, Image]
    gpu_memory: Mapping[int, Mapping[str, int]]


def gather() -> Snapshot:
    """Returns what is so now. Nothing that is down is asked anything."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        there = pool.submit(contained.everything), pool.submit(local.instances)
        built = pool.submit(lambda: {} if docker.available() else images.found())
        running = [found for some in there for found in some.result()]
        used = pool.submit(gpus.memory_by_process if running else dict)
        healthy = dict(zip((r.name for r in running), pool.map(lambda r: r.is_healthy(), running), strict=True))
        return Snapshot(running, healthy, built.result(), used.result())


def show() -> None:
    """Prints the table, and below it where things are."""
    from rich.table import Table  # here, for it takes a fifth of the tool's start

    now, services = gather(), compose.read()
    console = endings.console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    shown = COLUMNS if console.width > 110 else NARROW
    table = Table(*shown, box=None, pad_edge=False)

    def add(*cells: str) -> None:
        table.add_row(*(cell for name, cell in zip(COLUMNS, cells, strict=True) if name in shown))

    for name, service in services.items():
        mine = [found for found in now.running if found.service == name]
        for found in mine:
            add(found.name, *_row(found, service, now))
        if not mine and service.role != "job":
            add(name, "", "down", "", _built(service, now), "", "", "")
    console.print(table)
    reason = docker.available()
    console.print(f"\nvolume {paths.volume()}\ndocker: {reason or 'an engine answers'}", highlight=False, markup=False)


def as_json() -> dict[str, Any]:
    """Returns the same as one object; docs/doctor.md explains every field."""
    now, services = gather(), compose.read()
    return {
        "schema": SCHEMA,
        "host": platform.node(),
        "volume": str(paths.volume()),
        "docker": docker.available(),
        "commit": building.commit(),
        "steward": steward.there() is not None,
        "gpus": _gpus(),
        "services": [
            one
            for name, service in services.items()
            for one in [_told(found, service, now) for found in now.running if found.service == name]
            or ([] if service.role == "job" else [_down(name, service, now)])
        ],
    }


def _gpus() -> list[dict[str, Any]]:
    """Returns every GPU that answers: its number, name, and bytes of memory in use and in all."""
    devices = Machine().gpus().get("devices", [])
    return [{name: one.get(name) for name in ("index", "name", "used", "memory")} for one in devices]


def _down(name: str, service: compose.Service, now: Snapshot) -> dict[str, Any]:
    told = dict.fromkeys(("runtime", "health", "since", "restarts", "private", "memory", "gpus", "gpu_memory", "url"))
    return {"name": name, "service": name, "role": service.role, "state": "down", **told, **_from(service, now)}


def _told(found: Container | Instance, service: compose.Service, now: Snapshot) -> dict[str, Any]:
    """Returns what is known of one that runs, or ended without being taken away; None for what is not known."""
    ended = isinstance(found, Container) and not found.is_up
    size = memory.of_container(found.pid) if isinstance(found, Container) else None
    if isinstance(found, Instance) and found.child:
        size = memory.of_session(found.child.pid)
    return {
        "name": found.name,
        "service": found.service,
        "role": service.role,
        "state": "up" if found.is_up else f"ended with code {found.exit_code}" if ended else "starting",
        "runtime": found.runtime,
        "health": ("healthy" if now.healthy[found.name] else "not ready") if found.is_up else None,
        "since": found.started_at,
        "restarts": found.restarts,
        "private": found.attached,
        "memory": size,
        "gpus": found.gpu,
        "gpu_memory": _used(found, now),
        "url": found.url,
        **_from(service, now),
    }


def _from(service: compose.Service, now: Snapshot) -> dict[str, Any]:
    """Returns what it is started from: its environment, and whether an image or a local one is of the lock."""
    name = service.environment_name
    env, image = venvs.named(name), now.images.get(name)
    return {
        "environment": name,
        "lock": env.lock_hash[:12],
        "image_built": image.created.timestamp() if image else None,
        "image_fits": image.fits() if image else None,
        "environment_fits": env.is_ready() if env.python.exists() else None,
    }


def _row(found: Container | Instance, service: compose.Service, now: Snapshot) -> list[str]:
    health = "" if not found.is_up else "healthy" if now.healthy[found.name] else "not ready"
    kind = _image(found, service, now) if found.runtime == "docker" else _environment(service)
    return [found.runtime, _state(found), health, kind, _gpu(found, now), _memory(found), found.url]


def _state(found: Container | Instance) -> str:
    if not found.is_up:
        return f"ended with code {found.exit_code}" if isinstance(found, Container) else "starting"
    parts = [f"up {spell_duration(time.time() - found.started_at)}"]
    parts += [f"{found.restarts} restart{'s' * (found.restarts > 1)}"] if found.restarts else []
    parts += ["for one call"] if found.attached else []
    return ", ".join(parts)


def spell_duration(seconds: float) -> str:
    """Returns how long something has run: "40 s", "12 min", "3 hours"."""
    return f"{max(0, int(seconds))} s" if seconds < 60 else images.spell_age(seconds)


def _built(service: compose.Service, now: Snapshot) -> str:
    """Returns what there is to start a service from."""
    image = now.images.get(service.environment_name)
    return _age(image) if image else _environment(service)


def _age(image: Image) -> str:
    return f"image {image.age()} old, {'lock fits' if image.fits() else 'of another lock'}"


def _image(found: Container, service: compose.Service, now: Snapshot) -> str:
    """Returns how old a container's image is, whether it fits the lock, and whether a newer one was built since."""
    image = now.images.get(service.environment_name)
    if image is None:
        return "image is gone"
    return _age(image) if image.id == found.image_id else f"older than the image: ./lab restart {found.service}"


def _environment(service: compose.Service) -> str:
    env = venvs.named(service.environment_name)
    if not env.python.exists():
        return "not built"
    return "environment, lock fits" if env.is_ready() else "environment of another lock"


def _gpu(found: Container | Instance, now: Snapshot) -> str:
    """Returns the GPUs a service uses with the memory it takes there, else those it may use."""
    if used := _used(found, now):
        return ", ".join(f"{device}: {mib / 1024:.1f} GiB" for device, mib in sorted(used.items()))
    return found.gpu


def _used(found: Container | Instance, now: Snapshot) -> dict[str, int]:
    """Returns the MiB that a service takes, by the GPU's number."""
    used: dict[str, int] = defaultdict(int)
    for pid, by_device in now.gpu_memory.items():
        if found.owns(pid):
            for device, mib in by_device.items():
                used[device] += mib
    return dict(used)


def _memory(found: Container | Instance) -> str:
    if isinstance(found, Container):
        return memory.spell(memory.of_container(found.pid))
    return memory.spell(memory.of_session(found.child.pid)) if found.child else ""
