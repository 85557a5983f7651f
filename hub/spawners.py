"""Students' notebook servers: what any has, and processes in the sandbox of `hub/sandbox.py`."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, ClassVar

from jupyterhub.spawner import LocalProcessSpawner

from hub import grants, homes, limits, sandbox, store
from vla_contract.server import token_file

STARTING = asyncio.Semaphore((os.cpu_count() or 1) + 2)  # servers that start at once; the others wait on their page
FORM = """
<label for="environment">Environment · 환경</label>
<select class="form-control" id="environment" name="environment">{}</select>
"""


def listener(port: int) -> int | None:
    """Return the uid that listens on a port of this machine, None if nobody does: another student could be faster."""
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    for line in lines:
        _, local, _, state, _, _, _, uid, *_ = line.split()
        if state == "0A" and int(local.rpartition(":")[2], 16) == port:
            return int(uid)
    return None


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
            "OMP_WAIT_POLICY": "passive", **grants.variables(self.user.name),
        }  # fmt: skip
        if settings["policy"]:
            token = token_file.add(token_file.path_on(volume), self.user.name, replace=True)
            variables |= {"VLALAB_NOTEBOOK_POLICY": settings["policy"], "VLALAB_TOKEN": token}
        if (volume / "assets" / "libero").is_dir():
            variables["VLALAB_LIBERO_ASSETS"] = f"{home}/assets/libero"
        if settings["idle_min"]:
            variables["VLALAB_NOTEBOOK_IDLE_MIN"] = str(settings["idle_min"])
        return {**super().get_env(), **variables}  # type: ignore[misc]  # JupyterHub's

    def get_args(self) -> list[str]:
        """Return no further arguments: the server reads its variables."""
        return []


class SandboxSpawner(StudentSpawner, LocalProcessSpawner):  # type: ignore[misc]  # jupyterhub is not installed here
    """A process that runs as the student's Unix user, or as a uid of its own."""

    pid: int

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variables with those of the environment's Python."""
        python = Path(self.settings["pythons"][self.environment_name])
        return env | {
            "SHELL": "/bin/bash", "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
            "VIRTUAL_ENV": str(python.parents[1]), "PYTHONPATH": self.settings["python_path"],
            "PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip

    def make_preexec_fn(self, name: str) -> None:
        """Return nothing: the sandbox changes the user."""

    async def start(self) -> tuple[str, int]:
        """Start the server as soon as few others are starting; return its address."""
        account, name = self.account, self.environment_name
        async with STARTING:
            await asyncio.to_thread(homes.prepare, account, self.settings["disk_gb"])
            await asyncio.to_thread(limits.kill, account.id)  # what an earlier server left
            spec = sandbox.specification(account, self.settings, gpu=bool(grants.variables(account.name)))
            words = [self.settings["pythons"][name], "-m", "vla_notebooks.student", "--of", name]
            self.cmd = sandbox.command(spec, words)
            address: tuple[str, int] = await super().start()
            deadline = time.monotonic() + self.http_timeout
            while (owner := listener(address[1])) is None and time.monotonic() < deadline:
                if await self.poll() is not None:
                    break
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
