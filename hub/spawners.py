"""Students' notebook servers: what both runtimes share, and the local runtime's sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from jupyterhub.spawner import LocalProcessSpawner, Spawner

from hub import homes, limits, store
from vla_contract.server import token_file

START_LIMIT = (os.cpu_count() or 1) + 2  # servers that start at once; the others wait on their page
SANDBOX = Path(__file__).with_name("sandbox.py")
STARTING: asyncio.Semaphore | None = None

FORM = """
<label for="environment">Environment · 환경</label>
<select class="form-control" id="environment" name="environment">{}</select>
"""


class StudentServer:
    """The part that both runtimes share: the choice of an environment, the home, and the server's variables.

    `settings` is the class's settings.json. To be mixed into a spawner.
    """

    settings: ClassVar[dict[str, Any]] = {}
    user: Any
    user_options: dict[str, Any]
    http_timeout: int
    poll: Any

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

    def variables(self, home: str) -> dict[str, str]:
        """Return the variables of a student's programs. home: where they see the student's volume."""
        variables = {
            "HOME": home,
            "USER": self.user.name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "VLALAB_VOLUME": home,
            "HF_HOME": f"{home}/hf",
            "OMP_WAIT_POLICY": "passive",
            "PYTHONUNBUFFERED": "1",
        }
        if policy := self.settings["policy"]:
            token = token_file.add(
                token_file.path_on(Path(self.settings["volume"])), self.user.name, replace_token=True
            )
            variables |= {"VLALAB_NOTEBOOK_POLICY": policy, "VLALAB_TOKEN": token}
        if (Path(self.settings["volume"]) / "assets" / "libero").is_dir():
            variables["VLALAB_LIBERO_ASSETS"] = f"{home}/assets/libero"
        if idle := self.settings["idle_min"]:
            variables["VLALAB_NOTEBOOK_IDLE_MIN"] = str(idle)
        return variables

    def shared(self) -> dict[str, str]:
        """Return the directories of the lab's volume that students read: name in the home → path."""
        paths = {name: os.path.join(self.settings["volume"], name) for name in ("assets",)}
        return {name: path for name, path in paths.items() if os.path.isdir(path)}

    async def start(self) -> Any:
        """Start the server as soon as few others are starting."""
        global STARTING
        STARTING = STARTING or asyncio.Semaphore(START_LIMIT)
        async with STARTING:
            await asyncio.to_thread(homes.prepare, self.account, self.settings["disk_gb"])
            address = await self.launch()
            host, port = address if isinstance(address, tuple) else (None, None)
            deadline = time.monotonic() + self.http_timeout
            while host and time.monotonic() < deadline and await self.poll() is None:
                try:
                    _, writer = await asyncio.open_connection(host, port)
                    writer.close()
                    break
                except OSError:
                    await asyncio.sleep(0.2)
        return address

    async def launch(self) -> Any:
        """Start the server and return its address."""
        raise NotImplementedError


def identity(pid: int) -> str:
    """Return the boot and the start time of a process, "" if it has ended: a pid alone is used again."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {fields[19]}"
    except OSError:
        return ""


class SandboxSpawner(StudentServer, LocalProcessSpawner):  # type: ignore[misc]  # jupyterhub is not installed here
    """A process of this machine that runs as the student's Unix user, or as a uid of its own, in `hub/sandbox.py`."""

    started = ""  # the process's identity
    pid: int

    def spec(self) -> dict[str, Any]:
        """Return what `hub/sandbox.py` needs."""
        account, settings = self.account, self.settings
        return {
            "id": account.id,
            "uid": account.uid,
            "home": str(account.home),
            "target": f"/home/{account.name}",
            "hidden": [path for path in ("/home", "/root", "/media", "/mnt") if os.path.isdir(path)],
            "volume": settings["volume"],
            "code": settings["code"],
            "shared": self.shared(),
            "memory_gb": settings["memory_gb"],
            "cpus": settings["cpus"],
            "processes": settings["processes"],
            "tmp_mb": settings["tmp_mb"],
            "gpu": False,
        }

    def get_env(self) -> dict[str, str]:
        """Return the server's variables; nothing of the hub's own is inherited."""
        python = Path(self.settings["pythons"][self.environment_name])
        own = {
            "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": self.settings["python_path"],
            "PYTHONNOUSERSITE": "1",
            "VIRTUAL_ENV": str(python.parents[1]),
        }
        return {**Spawner.get_env(self), **self.variables(f"/home/{self.user.name}"), **own}

    def make_preexec_fn(self, name: str) -> None:
        """Return nothing: the sandbox changes the user."""

    async def launch(self) -> Any:
        """Start the sandbox with the server in it."""
        python = self.settings["pythons"][self.environment_name]
        scope = limits.prefix(self.account.id, self.settings["memory_gb"], self.settings["cpus"])
        self.cmd = [*scope, sys.executable, "-I", str(SANDBOX), json.dumps(self.spec()), python]
        self.cmd += ["-m", "vla_notebooks.student", "--of", self.environment_name]
        await asyncio.to_thread(limits.kill, self.account.id)  # what an earlier server left
        address = await LocalProcessSpawner.start(self)
        self.started = identity(self.pid)
        return address

    def get_args(self) -> list[str]:
        """Return no further arguments: the server reads its variables."""
        return []

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
