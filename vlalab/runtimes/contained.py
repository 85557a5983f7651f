"""What runs as a container of this project, read from the engine: a service that Compose started by hand is one too."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from vlalab.description import compose, ports
from vlalab.engine import docker, guard, images
from vlalab.host import memory
from vlalab.host.console import say
from vlalab.host.processes import Identity
from vlalab.runtimes import service_state

NAME = "docker"
LABEL = "com.docker.compose."
OWNER = "vla-lab.owner"  # label of a private container: machine, pid, start and boot of the call it belongs to
RUNNING = ("running", "restarting", "paused")


@dataclass(frozen=True)
class Container:
    """A container of this project, as the engine describes it."""

    runtime: ClassVar[str] = NAME
    id: str
    container: str  # its own name
    service: str
    role: str
    attached: bool
    owner: str
    state: str  # running, restarting, paused, exited, created, dead
    exit_code: int
    docker_health: str  # starting, healthy, unhealthy; empty: it has no check
    url: str
    port: int  # inside
    started_at: float
    restarts: int
    pid: int
    image_id: str
    gpu: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # with the token
    command: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The service's name; a private one has its own."""
        return self.container if self.attached else self.service

    @property
    def is_up(self) -> bool:
        """Whether it runs, or is about to again."""
        return self.state in RUNNING

    def owns(self, pid: int) -> bool:
        """Returns whether a process of this machine runs in it."""
        return memory.belongs_to_container(pid, self.id)

    def memory(self) -> int | None:
        """Return the bytes that it uses, None where they cannot be told."""
        return memory.of_container(self.pid)

    def is_healthy(self) -> bool:
        """Returns whether its health check succeeded when the engine ran it last: compose.yaml says how often."""
        return self.state == "running" and self.docker_health in ("healthy", "")

    def has_ended(self) -> bool:
        """Returns whether it ended and the engine will not start it again."""
        done = docker.run(["inspect", "--format", "{{.State.Status}}", self.container], check=False)
        if done.returncode != 0:
            return "no such" in done.stderr.lower()  # else the engine does not answer just now
        return done.stdout.strip() in ("exited", "dead")

    def started_with(self) -> dict[str, str]:
        """Returns the settings that its configuration shows."""
        return service_state.of_container(self.service, self.environment, list(self.command))

    def stop(self) -> None:
        """Ends it, with its grace period, and removes it."""
        docker.run(["stop", self.container], check=False)
        guard.remove(self.container)
        if self.attached and (watch := GUARDS.pop(self.container, None)):
            guard.dismiss(watch)

    def last_words(self, lines: int = 15) -> str:
        """Returns the end of its log."""
        done = docker.run(["logs", "--tail", str(lines), self.container], check=False)
        return (done.stdout + done.stderr).strip()

    def is_abandoned(self) -> bool:
        """Returns whether the call it belonged to is gone, and was one of this machine. A job ends by itself."""
        machine, *rest = self.owner.split(" ")
        if machine != platform.node() or len(rest) != 3 or self.role == "job":
            return False
        return not Identity(int(rest[0]), int(rest[1]), rest[2]).is_alive()


GUARDS: dict[str, object] = {}  # of the private containers that this process started


# --- what runs ----------------------------------------------------------------------------------------------


def everything() -> list[Container]:
    """Return the containers of this project, also those that ended; none where no engine answers. 40 ms.

    Private ones that nobody needs any more are removed.
    """
    if docker.available():
        return []
    ids = docker.run(["ps", "--all", "--quiet", "--filter", f"label={LABEL}project={compose.project()}"]).stdout.split()
    if not ids:
        return []
    done = docker.run(["inspect", *ids], check=False)  # one may have gone since
    found = [_container(record) for record in docker.parse_json(done.stdout)]
    abandoned = [one for one in found if one.attached and one.is_abandoned()]
    for one in abandoned:
        say(f"removing {one.container}: the call it belonged to is gone")
        guard.remove(one.container)
    return sorted((one for one in found if one not in abandoned), key=lambda one: one.name)


def instances() -> list[Container]:
    """Return what runs in this project."""
    return [one for one in everything() if one.is_up]


def instance(name: str) -> Container | None:
    """Returns the running instance of that name."""
    return next((one for one in instances() if one.name == name), None)


def _container(record: dict) -> Container:
    labels, state = record["Config"]["Labels"], record["State"]
    test = (record["Config"].get("Healthcheck") or {}).get("Test") or []
    inside = re.search(r"://[^/]*:(\d+)/", " ".join(test))
    return Container(
        id=record["Id"],
        container=record["Name"].lstrip("/"),
        service=labels.get(f"{LABEL}service", ""),
        role=labels.get(compose.ROLE, "service"),
        attached=labels.get(f"{LABEL}oneoff") == "True",
        owner=labels.get(OWNER, ""),
        state=state["Status"],
        exit_code=int(state.get("ExitCode", 0)),
        docker_health=(state.get("Health") or {}).get("Status", ""),
        url=_published(record),
        port=int(inside[1]) if inside else 0,
        started_at=images.parse_time(state["StartedAt"]).timestamp(),
        restarts=int(record.get("RestartCount", 0)),
        pid=int(state.get("Pid", 0)),
        image_id=record["Image"],
        gpu=_devices(record),
        environment=dict(line.partition("=")[::2] for line in record["Config"].get("Env") or ()),
        command=tuple(record["Config"].get("Cmd") or ()),
    )


def _published(record: dict) -> str:
    """Returns the URL at which this machine reaches the container's published port."""
    for bindings in (record["HostConfig"].get("PortBindings") or {}).values():
        for binding in bindings or ():
            return f"http://{ports.reachable(binding.get('HostIp') or '0.0.0.0')}:{binding['HostPort']}"
    return ""


def _devices(record: dict) -> str:
    requests = record["HostConfig"].get("DeviceRequests") or ()
    return ",".join(device for request in requests for device in request.get("DeviceIDs") or ["all"]) or "none"
