"""Students' notebook servers: what any has, and the two kinds, sandboxed processes and Docker containers."""

import asyncio
import contextlib
import itertools
import os
from pathlib import Path
from typing import Any, ClassVar

import docker
from docker.types import DeviceRequest, LogConfig, Mount
from dockerspawner import DockerSpawner
from jupyterhub.spawner import LocalProcessSpawner

from hub import grants, limits, sandbox, store
from vla_contract.server import token_file

PORTS = itertools.cycle(range(20_000, 30_000))  # none that the kernel gives to any program which asks for a free one
SERVER = ("-m", "vla_notebooks.student", "--of")  # of Python; the environment's name follows
STARTING = asyncio.Semaphore((os.cpu_count() or 1) + 2)  # servers that start at once; the others wait on their page
FORM = '<label>Environment · 환경 <select class="form-control" name="environment">{}</select></label>'


def listener(port: int) -> int | None:
    """Return the uid that listens on a port of this machine, None if nobody does: another student could be faster."""
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    sockets = [(local, state, uid) for _, local, _, state, _, _, _, uid, *_ in map(str.split, lines)]
    return next((int(uid) for local, state, uid in sockets if state == "0A" and local.endswith(f":{port:04X}")), None)


class StudentSpawner:
    """A student's server, whatever it runs in: a base beside one of JupyterHub's spawners. settings: the class's."""

    settings: ClassVar[dict[str, Any]] = {}
    user: Any
    user_options: dict[str, Any]

    @property
    def account(self) -> store.Account:
        """The student's account. A login that is not the lab's own (OAuth, LDAP) gets one at the first start."""
        return store.accounts().get(self.user.name) or store.create(self.user.name)

    @property
    def environment_name(self) -> str:
        """The chosen environment, by default the class's first. Raises ValueError for one that it does not offer."""
        names = self.settings["environments"]
        if (name := str(self.user_options.get("environment") or names[0])) not in names:
            raise ValueError(f"environment {name!r} is not one of {', '.join(names)}")
        return name

    def _options_form_default(self) -> str:
        names = self.settings["environments"]
        return FORM.format("".join(f"<option>{name}</option>" for name in names)) if len(names) > 1 else ""

    def get_env(self) -> dict[str, str]:
        """Return the server's variables; nothing of the hub's own is inherited."""
        settings, home, volume = self.settings, f"/home/{self.user.name}", Path(self.settings["volume"])
        variables = {
            "HOME": home, "USER": self.user.name, "LANG": "C.UTF-8", "VLALAB_VOLUME": home, "HF_HOME": f"{home}/hf",
            "OMP_WAIT_POLICY": "passive", "VLALAB_NOTEBOOK_IDLE_MIN": str(settings["idle_min"] or ""),
            "VLALAB_LIBERO_ASSETS": f"{home}/assets/libero" if (volume / "assets" / "libero").is_dir() else "",
            **grants.variables(self.user.name),
        }  # fmt: skip
        if settings["policy"]:
            token = token_file.add(token_file.path_on(volume), self.user.name, replace=True)
            variables |= {"VLALAB_NOTEBOOK_POLICY": settings["policy"], "VLALAB_TOKEN": token}
        return {**super().get_env(), **variables}  # type: ignore[misc]  # JupyterHub's


class SandboxSpawner(StudentSpawner, LocalProcessSpawner):  # type: ignore[misc]  # jupyterhub is not installed here
    """A process that runs as the student's Unix user, or as a uid of its own."""

    pid: int

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variables with those of the environment's Python."""
        python, path = Path(self.settings["pythons"][self.environment_name]), self.settings["python_path"]
        return env | {
            "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(python.parents[1]),
            "SHELL": "/bin/bash", "PYTHONPATH": path, "PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip

    def make_preexec_fn(self, name: str) -> None:
        """Return nothing: the sandbox changes the user."""

    async def start(self) -> tuple[str, int]:
        """Start the server as soon as few others are starting; return its address."""
        account, name = self.account, self.environment_name
        async with STARTING:
            await asyncio.to_thread(limits.prepare_home, account, self.settings["disk_gb"])
            await asyncio.to_thread(limits.kill, account.id)  # what an earlier server left
            self.port = next(port for port in PORTS if listener(port) is None)
            spec = sandbox.specification(account, self.settings, gpu=bool(grants.variables(account.name)))
            self.cmd = sandbox.command(spec, [self.settings["pythons"][name], *SERVER, name])
            address: tuple[str, int] = await super().start()
            while (owner := listener(address[1])) is None and await self.poll() is None:
                await asyncio.sleep(0.2)
            if owner not in (None, account.uid):
                await self.stop(now=True)
                raise RuntimeError(f"user id {owner} listens on the port of {account.name}'s server")
        return address

    async def _signal(self, sig: int) -> bool:
        """Signal the server, or test whether it runs (0). After a reboot the pid may be another user's process."""
        return limits.uid_of(self.pid) == self.account.uid and await super()._signal(sig)

    async def stop(self, now: bool = False) -> None:
        """Stop the server and everything that the student started."""
        await super().stop(now)
        await asyncio.to_thread(limits.kill, self.account.id)


def container_options(account: store.Account, settings: dict[str, Any], service: dict[str, Any]) -> dict[str, Any]:
    """Return a container's options by docker-py's names. service: as `docker compose config` prints it."""
    memory, log, grant = round(settings["memory_gb"] * 1e9), service["logging"], grants.active().get(account.name)
    home, assets = f"/home/{account.name}", os.path.join(settings["volume"], "assets")
    mounts = [Mount(home, str(account.home), type="bind")]
    if os.path.isdir(assets):
        mounts.append(Mount(f"{home}/assets", assets, type="bind", read_only=True))
    return {
        **{name: service[name] for name in ("init", "read_only", "cap_drop", "security_opt", "shm_size")},
        "tmpfs": dict(entry.split(":", 1) for entry in service["tmpfs"]), "mounts": mounts,
        "log_config": LogConfig(type=log["driver"], config=log["options"]),
        "mem_limit": memory, "memswap_limit": memory, "pids_limit": settings["processes"],  # 0: no limit
        "cpu_period": 100_000, "cpu_quota": round(settings["cpus"] * 100_000),
        "device_requests": [DeviceRequest(device_ids=[str(grant.gpu)], capabilities=[["gpu"]])] if grant else None,
    }  # fmt: skip


def run_in_container(account: store.Account, settings: dict[str, Any], words: list[str]) -> str:
    """Return what a command prints in a container of its own, without network. Raises ValueError if it fails."""
    service, user = settings["containers"][settings["environments"][0]], f"{account.uid}:{account.uid}"
    more = container_options(account, settings, service) | {"user": user, "network_mode": "none", "remove": True}
    try:
        return str(docker.from_env().containers.run(service["image"], words, **more).decode())
    except docker.errors.DockerException as error:
        raise ValueError(f"the container failed: {error}") from None


class ContainerSpawner(StudentSpawner, DockerSpawner):  # type: ignore[misc]  # dockerspawner is not installed here
    """A container that its student's uid runs in."""

    def get_env(self) -> dict[str, str]:
        """Return the server's variables; a granted GPU is the only one in the container."""
        return super().get_env() | ({"CUDA_VISIBLE_DEVICES": "0"} if self.account.name in grants.active() else {})

    async def start(self) -> tuple[str, int]:
        """Start the container as soon as few others are starting; return its address."""
        account, name = self.account, self.environment_name
        service = self.settings["containers"][name]
        self.image, self.cmd = service["image"], ["python", *SERVER, name]
        self.extra_create_kwargs = {"user": f"{account.uid}:{account.uid}"}
        async with STARTING:
            await asyncio.to_thread(limits.prepare_home, account, self.settings["disk_gb"])
            self.extra_host_config = container_options(account, self.settings, service)
            address: tuple[str, int] = await super().start()
            while await self.poll() is None:
                with contextlib.suppress(OSError):
                    (await asyncio.open_connection(*address))[1].close()
                    return address
                await asyncio.sleep(0.5)
        raise RuntimeError(f"{account.name}'s container ended when it started")
