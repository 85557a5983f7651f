"""Students' notebook servers: processes of this machine, each in the sandbox of `hub/sandbox.py`."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, ClassVar

from jupyterhub.spawner import LocalProcessSpawner, Spawner

from hub import grants, homes, limits, sandbox, store
from vla_contract.server import token_file

START_LIMIT = (os.cpu_count() or 1) + 2  # servers that start at once; the others wait on their page
STARTING: asyncio.Semaphore | None = None
FORM = """
<label for="environment">Environment · 환경</label>
<select class="form-control" id="environment" name="environment">{}</select>
"""


def identity(pid: int) -> str:
    """Return the boot and the start time of a process, "" if it has ended: a pid alone is used again."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {fields[19]}"
    except OSError:
        return ""


def listener(port: int) -> int | None:
    """Return the uid that listens on a port of this machine, None if nobody does: another student could be faster."""
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    for line in lines:
        _, local, _, state, _, _, _, uid, *_ = line.split()
        if state == "0A" and int(local.rpartition(":")[2], 16) == port:
            return int(uid)
    return None


class SandboxSpawner(LocalProcessSpawner):  # type: ignore[misc]  # jupyterhub is not installed here
    """A server that runs as the student's Unix user, or as a uid of its own. settings: the class's."""

    settings: ClassVar[dict[str, Any]] = {}
    started = ""  # the process's identity
    pid: int

    @property
    def account(self) -> store.Account:
        """The student's account. A login that is not the lab's own (OAuth, LDAP) gets one at the first start."""
        return store.accounts().get(self.user.name) or store.create(self.user.name)

    @property
    def environment_name(self) -> str:
        """The chosen environment, by default the class's first."""
        return str(self.user_options.get("environment") or self.settings["environments"][0])

    def _options_form_default(self) -> str:
        names = self.settings["environments"]
        return FORM.format("".join(f"<option>{name}</option>" for name in names)) if len(names) > 1 else ""

    def options_from_form(self, form: dict[str, list[str]]) -> dict[str, str]:
        """Return the choice. Raises ValueError for an environment that this class does not offer."""
        name = form.get("environment", [self.settings["environments"][0]])[0]
        if name not in self.settings["environments"]:
            raise ValueError(f"environment {name!r} is not one of {', '.join(self.settings['environments'])}")
        return {"environment": name}

    def get_env(self) -> dict[str, str]:
        """Return the server's variables; nothing of the hub's own is inherited."""
        settings, home = self.settings, f"/home/{self.user.name}"
        python = Path(settings["pythons"][self.environment_name])
        variables = {
            "HOME": home, "USER": self.user.name, "SHELL": "/bin/bash", "LANG": "C.UTF-8",
            "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(python.parents[1]),
            "PYTHONPATH": settings["python_path"], "PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1",
            "VLALAB_VOLUME": home, "HF_HOME": f"{home}/hf", "OMP_WAIT_POLICY": "passive",
            **grants.variables(self.user.name),
        }  # fmt: skip
        volume = Path(settings["volume"])
        if settings["policy"]:
            token = token_file.add(token_file.path_on(volume), self.user.name, replace=True)
            variables |= {"VLALAB_NOTEBOOK_POLICY": settings["policy"], "VLALAB_TOKEN": token}
        if (volume / "assets" / "libero").is_dir():
            variables["VLALAB_LIBERO_ASSETS"] = f"{home}/assets/libero"
        if settings["idle_min"]:
            variables["VLALAB_NOTEBOOK_IDLE_MIN"] = str(settings["idle_min"])
        return {**Spawner.get_env(self), **variables}

    def make_preexec_fn(self, name: str) -> None:
        """Return nothing: the sandbox changes the user."""

    def get_args(self) -> list[str]:
        """Return no further arguments: the server reads its variables."""
        return []

    async def start(self) -> tuple[str, int]:
        """Start the server as soon as few others are starting; return its address."""
        global STARTING
        STARTING = STARTING or asyncio.Semaphore(START_LIMIT)
        account, name = self.account, self.environment_name
        async with STARTING:
            await asyncio.to_thread(homes.prepare, account, self.settings["disk_gb"])
            await asyncio.to_thread(limits.kill, account.id)  # what an earlier server left
            spec = sandbox.specification(account, self.settings, gpu=bool(grants.variables(account.name)))
            words = [self.settings["pythons"][name], "-m", "vla_notebooks.student", "--of", name]
            self.cmd = sandbox.command(spec, words)
            address: tuple[str, int] = await super().start()
            self.started, deadline = identity(self.pid), time.monotonic() + self.http_timeout
            while (owner := listener(address[1])) is None and time.monotonic() < deadline:
                if await self.poll() is not None:
                    break
                await asyncio.sleep(0.2)
            if owner not in (None, account.uid):
                await self.stop(now=True)
                raise RuntimeError(f"user id {owner} listens on the port of {account.name}'s server")
        return address

    def get_state(self) -> dict[str, Any]:
        """Return what a restarted hub needs to find the process."""
        return {**super().get_state(), "started": self.started}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take the process of an earlier hub, unless it has ended and its pid is another's."""
        super().load_state(state)
        self.started = state.get("started", "")
        if self.pid and identity(self.pid) != self.started:
            self.pid = 0

    async def _signal(self, sig: int) -> bool:
        return identity(self.pid) == self.started and await super()._signal(sig)

    async def stop(self, now: bool = False) -> None:
        """Stop the server and everything that the student started."""
        await super().stop(now)
        await asyncio.to_thread(limits.kill, self.account.id)
