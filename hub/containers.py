"""The Docker runtime: a student's notebook server in a container of the lab's image.

It has what compose.yaml gives every service (read-only root, capabilities, shared memory, limits of logs), the class's
limits, the student's uid, and a network without connections between containers.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import docker
from docker.types import DeviceRequest, LogConfig
from dockerspawner import DockerSpawner

from hub import grants, homes, store
from hub.spawners import STARTING, StudentSpawner


def volumes(account: store.Account, settings: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the mounts of a student's containers, by host path: the home, and the volume's shared parts."""
    target, assets = f"/home/{account.name}", os.path.join(settings["volume"], "assets")
    shared = {assets: {"bind": f"{target}/assets", "mode": "ro"}} if os.path.isdir(assets) else {}
    return {str(account.home): {"bind": target, "mode": "rw"}, **shared}


def options(account: store.Account, settings: dict[str, Any], service: dict[str, Any]) -> dict[str, Any]:
    """Return the container's configuration by docker-py's names. service: as `docker compose config` prints it."""
    logging, limits = service["logging"], {"pids_limit": settings["processes"]}
    if settings["memory_gb"]:
        limits["mem_limit"] = limits["memswap_limit"] = round(settings["memory_gb"] * 1e9)
    if settings["cpus"]:
        limits["nano_cpus"] = round(settings["cpus"] * 1e9)
    if grant := grants.active().get(account.name):
        limits["device_requests"] = [DeviceRequest(device_ids=[str(grant.gpu)], capabilities=[["gpu"]])]
    return {
        **{name: service[name] for name in ("init", "read_only", "cap_drop", "security_opt", "shm_size")},
        "tmpfs": dict(entry.split(":", 1) for entry in service["tmpfs"]),
        "log_config": LogConfig(type=logging["driver"], config=logging["options"]), **limits,
    }  # fmt: skip


def run(account: store.Account, settings: dict[str, Any], words: list[str]) -> str:
    """Return what a command of the class's first environment prints in a container of a student's own.

    Raises ValueError if it fails.
    """
    service = settings["containers"][settings["environments"][0]]
    try:
        output = docker.from_env().containers.run(
            service["image"], words, user=f"{account.uid}:{account.uid}", network_mode="none", remove=True,
            volumes=volumes(account, settings), environment={"OMP_NUM_THREADS": "1"},
            **options(account, settings, service),
        )  # fmt: skip
    except docker.errors.DockerException as error:
        raise ValueError(f"the container failed: {error}") from None
    return str(output.decode(errors="replace"))


class ContainerSpawner(StudentSpawner, DockerSpawner):  # type: ignore[misc]  # dockerspawner is not installed here
    """A server in a container that runs as the student's uid."""

    def _name_template_default(self) -> str:
        return f"vla-class-{self.account.id}"

    def get_env(self) -> dict[str, str]:
        """Return the server's variables; the granted GPU is the only one in the container."""
        grant = {"CUDA_VISIBLE_DEVICES": "0"} if grants.active().get(self.user.name) else {}
        return {**super().get_env(), **grant}

    async def start(self) -> tuple[str, int]:
        """Start the container as soon as few others are starting; return its address."""
        account, settings, name = self.account, self.settings, self.environment_name
        service = settings["containers"][name]
        await asyncio.to_thread(homes.prepare, account, settings["disk_gb"])
        self.image, self.volumes = service["image"], volumes(account, settings)
        self.cmd = ["python", "-m", "vla_notebooks.student", "--of", name]
        self.extra_create_kwargs = {"user": f"{account.uid}:{account.uid}"}
        self.extra_host_config, self.cpu_limit = options(account, settings, service), None  # nano_cpus has it
        async with STARTING:
            address: tuple[str, int] = await super().start()
        return address
